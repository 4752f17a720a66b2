"""BYOL itself and its family: the online network, its predictor, the target network, and the loss between the two."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from byol import networks, objectives
from byol.config import Network, Objective

if TYPE_CHECKING:
    from byol.parallel.lanes import Lanes


class Order(NamedTuple):
    """One order of the views: the prediction from one view, and the target's projection of the other view to match."""

    prediction: Tensor
    target: Tensor
    own: Tensor  # the target's projection of the view that the prediction is made from
    representation: Tensor
    projection: Tensor  # that the prediction is made from


class Engine(NamedTuple):
    """Who passes views through the method and brings the processes' gradients together: torch, where there are several.

    `waiting` is around every pass of a step but the last: after those nothing is exchanged yet.
    """

    method: Callable[..., tuple[Order, ...]]  # the method itself, or what torch has put around it
    waiting: Callable[[], AbstractContextManager[Any]] = nullcontext
    passes: int = 1  # of a step
    left: tuple[nn.Parameter, ...] | None = None  # whose gradients it does not exchange; None: all


class Branch(nn.Module):
    """Encoder and projector: view → representation y, projection z."""

    def __init__(self, encoder: nn.Module, projector: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder
        self.projector = projector

    def forward(self, view: Tensor) -> tuple[Tensor, Tensor]:
        representation = self.encoder(view)
        return representation, self.projector(representation)


class Method(nn.Module):
    """Online branch, predictor, target branch, objective; the classifier only watches, behind a stop-gradient.

    There is no target branch when the online network is its own target.
    """

    def __init__(
        self,
        online: Branch,
        predictor: nn.Module,
        target: Branch | None,
        classifier: nn.Module | None,
        target_mode: str = "moving-average",
        objective: Objective = Objective(),
    ) -> None:
        super().__init__()
        assert (target is None) == (target_mode in ITS_OWN_TARGET)
        self.online = online
        self.predictor = predictor
        self.target = None if target is None else target.requires_grad_(False)
        self.classifier = classifier
        self.target_mode = target_mode
        self.objective = objective
        self.closed = getattr(predictor, "closed", False)  # in closed form: a view has its own predictor
        self.together = False  # both views pass the networks as one batch; set by `pass_together`
        self.lanes: Lanes | None = None  # a thread a view; set by `pass_side_by_side`

    def orders(
        self,
        view1: Tensor,
        view2: Tensor,
        autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
        engine: Engine | None = None,
        last: bool = True,
        beta: float | None = None,
    ) -> Iterator[tuple[Order, ...]]:
        """Both orders of the views, in groups that share a gradient graph: one order after the other when there is a
        target network, both at once when the online network is its own target or the loss compares its projections.

        A caller that runs the backward pass of one group before it asks for the next holds the activations of one view
        at a time. Each view passes the networks alone, so that each has its own batch statistics; the target is in
        training mode too. `together` both pass at once, and batch norms tell them apart; in `lanes` each has a thread.
        """
        engine = engine or Engine(self)
        if self.lanes is not None:
            yield from self._side_by_side(self.lanes, view1, view2, autocast)
            return
        views = (torch.cat([view1, view2]),) if self.together else (view1, view2)
        with autocast(), torch.no_grad():
            targets = () if self.target is None else tuple(self.target(view)[1] for view in views)
        if self.together or self.target is None or objectives.between(self._objective(beta)):
            targets = targets[0].chunk(2) if self.together and targets else targets
            with autocast(), nullcontext() if last else engine.waiting():
                both = engine.method(views, targets)
            yield both
            return
        with autocast(), engine.waiting():
            first = engine.method((view1,), targets)
        yield first
        del first
        with autocast(), nullcontext() if last else engine.waiting():
            second = engine.method((view2,), targets[::-1])
        yield second

    def _side_by_side(
        self, lanes: Lanes, view1: Tensor, view2: Tensor, autocast: Callable[[], AbstractContextManager[Any]]
    ) -> Iterator[tuple[Order, ...]]:
        """Both orders at once; when the caller has the gradients of the projections, the views pass back side by side.

        The predictions are made from projections without a graph, which is where the two threads part.
        """
        passed = lanes.forward((view1, view2), autocast)
        projections = [view.projection.detach().requires_grad_() for view in passed]
        stopped = self.target_mode == "stop-gradient"
        own = [z.detach() if stopped else z for z in projections]
        target1, target2 = (z if view.target is None else view.target for view, z in zip(passed, own, strict=True))
        with autocast():
            prediction1 = self.predict(projections[0], target2)
        with autocast():
            prediction2 = self.predict(projections[1], target1)
        yield (
            Order(prediction1, target2, target1, passed[0].representation, projections[0]),
            Order(prediction2, target1, target2, passed[1].representation, projections[1]),
        )
        gradients = [z.grad for z in projections if z.grad is not None]
        if gradients:  # a caller that only looks has none
            lanes.backward([view.projection for view in passed], gradients)
        lanes.remember()

    def forward(self, views: tuple[Tensor, ...], targets: tuple[Tensor, ...]) -> tuple[Order, ...]:
        """What is differentiated together: the order of one view, with the targets of that view and of the other, or
        both orders of two views, with both targets, or none where the online network is its own target. `together` the
        two views are one batch."""
        if len(views) == 1 and not self.together:
            own, other = targets
            representation, projection = self.online(views[0])
            return (Order(self.predict(projection, other), other, own, representation, projection),)
        if self.together:
            representations, projections = (both.chunk(2) for both in self.online(views[0]))
        else:
            representations, projections = zip(*map(self.online, views), strict=True)
        stopped = self.target_mode == "stop-gradient"
        target1, target2 = targets or tuple(z.detach() if stopped else z for z in projections)
        prediction1, prediction2 = self.predict_both(projections, target1, target2)
        return (
            Order(prediction1, target2, target1, representations[0], projections[0]),
            Order(prediction2, target1, target2, representations[1], projections[1]),
        )

    def _objective(self, beta: float | None) -> Objective:
        return self.objective if beta is None else replace(self.objective, beta=beta)

    def loss(self, orders: Iterable[Order], beta: float | None = None) -> Tensor:
        """The objective summed over the given orders; summed over both orders it is symmetric in the views.

        `beta` is the weight of negative examples in this step; the config's when left out.
        """
        config, orders = self._objective(beta), tuple(orders)
        objective, between = objectives.build(config), objectives.between(config)
        terms = [objective(o.prediction, o.target, o.own) for o in orders]
        if between:
            first, second = orders
            terms.append(between(first.projection, second.projection))
        return torch.stack(terms).sum()

    def predict(self, projection: Tensor, target: Tensor) -> Tensor:
        """The predictor's output; only predictors in closed form, which may be fitted to the target, are given it."""
        prediction: Tensor = self.predictor(projection, target) if self.closed else self.predictor(projection)
        return prediction

    def predict_both(self, projections: tuple[Tensor, ...], target1: Tensor, target2: Tensor) -> tuple[Tensor, ...]:
        """Each view's prediction of the other's target; `together` in one pass, unless a view has its own."""
        if self.together and not self.closed:
            both: Tensor = self.predictor(torch.cat(projections))
            return both.chunk(2)
        return self.predict(projections[0], target2), self.predict(projections[1], target1)

    def probe(self, representation: Tensor) -> Tensor:
        """Class logits of the linear classifier; no gradient reaches the representation."""
        assert self.classifier is not None
        logits: Tensor = self.classifier(representation.detach())
        return logits

    @torch.no_grad()
    def update_target(self, tau: float, finite: Tensor | None = None) -> None:
        """ξ ← ξ + (1 − tau)(θ − ξ) over parameters only: batch statistics are each network's own.

        `finite` () on a GPU says whether the step was taken: if it was not, the target stays too.
        """
        if self.target is None or self.target_mode != "moving-average":
            return
        target: list[Tensor] = list(self.target.parameters())
        online: list[Tensor] = list(self.online.parameters())
        if hasattr(target[0], "to_local"):  # each process has the same part of both
            target, online = ([part.to_local() for part in parts] for parts in (target, online))  # type: ignore[attr-defined]
        if finite is None or finite.device.type == "cpu":
            torch._foreach_lerp_(target, online, 1.0 - tau)
        else:
            weights: Any = [finite.to(target[0].dtype) * (1.0 - tau)] * len(target)
            torch._foreach_lerp_(target, online, weights)


def pass_together(method: Method) -> Method:
    """Both views pass as one batch from here on, each with its own batch statistics, as when they pass alone."""
    from byol.parallel import norms  # loaded where it is needed

    norms.by_view(method)
    method.together = True
    return method


def pass_side_by_side(method: Method, threads: int) -> Method:
    """Each view has a thread of its own from here on, whose operations `threads` share; equal up to rounding."""
    from byol.parallel.lanes import Lanes  # loaded where it is needed

    method.lanes = Lanes(method.online, method.target, threads)
    return method


def build(config: Network, classes: int = 0, objective: Objective = Objective(), resolution: int = 0) -> Method:
    """The method that a config describes, drawn from torch's current random state.

    `classes` > 0 adds the watching classifier; `resolution` is for encoders that are built for images of one size.
    """
    online = _branch(config, resolution)
    target = None if config.target in ITS_OWN_TARGET else _branch(of_target(config), resolution)
    if target is not None and config.target_init == "same":
        target.load_state_dict(online.state_dict())
    predictor = PREDICTORS[config.predictor](config)
    classifier = None
    if classes:
        classifier = nn.Linear(online.encoder.num_features, classes)  # type: ignore[arg-type]
        networks.initialize(classifier)
    return Method(online, predictor, target, classifier, config.target, objective)


def of_target(config: Network) -> Network:
    """The network as the target has it: a fixed target may be of another shape, but for the size of its projection."""
    hidden = config.target_projector_hidden or config.projector_hidden
    if not config.target_encoder:
        return replace(config, projector_hidden=hidden)
    return replace(
        config,
        encoder=config.target_encoder,
        width=config.target_width,
        small_images=config.target_small_images,
        padding=config.target_padding,
        projector_hidden=hidden,
    )


def for_channels(tensors: Mapping[str, Tensor], encoder: nn.Module) -> dict[str, Tensor]:
    """An encoder's tensors with a first convolution for the channels that `encoder` takes.

    Each of C channels gets the mean of the K that there were, times K/C: an image whose channels are all alike gives
    the response that it gave before, whatever K and C are.
    """
    fitted, expected = dict(tensors), encoder.state_dict()
    for name, weight in tensors.items():
        if weight.ndim == 4 and name in expected:
            wanted = expected[name].shape
            if weight.shape != wanted and (weight.shape[0], *weight.shape[2:]) == (wanted[0], *wanted[2:]):
                mean = weight.mean(1, keepdim=True) * (weight.shape[1] / wanted[1])
                fitted[name] = mean.expand(wanted).contiguous()
            break  # the first one alone sees the channels
    return fitted


def begin_from(method: Method, online: Mapping[str, Tensor] | None, target: Mapping[str, Tensor] | None) -> None:
    """Puts given encoders in place of random ones, made to fit the images' channels; a target without its own starts as
    the online network, heads too."""
    if online is not None:
        method.online.encoder.load_state_dict(for_channels(online, method.online.encoder))
        if method.target is not None and method.target_mode == "moving-average":
            method.target.load_state_dict(method.online.state_dict())
    if target is not None:
        assert method.target is not None
        method.target.encoder.load_state_dict(for_channels(target, method.target.encoder))


def _branch(config: Network, resolution: int) -> Branch:
    encoder = networks.encoder(config, resolution)
    features: int = encoder.num_features  # type: ignore[assignment]
    projector = networks.mlp(
        features, config.projector_hidden, config.projection, config.projector_depth, config.head_bias
    )
    if config.projection_norm:
        projector.append(networks.norm_without_offset(config.projection))
    branch = Branch(encoder, projector)
    networks.scale_weights(branch, config.init_scale)
    return branch


def _mlp(config: Network) -> nn.Module:
    size = config.projection
    predictor = networks.mlp(size, config.predictor_hidden, size, config.predictor_depth, config.head_bias)
    networks.scale_weights(predictor, config.init_scale)
    return predictor


def _closed(config: Network) -> nn.Module:
    from byol.predictors import CLOSED  # loaded where it is needed

    return CLOSED[config.predictor](config)


ITS_OWN_TARGET = ("stop-gradient", "online")
PREDICTORS: dict[str, Callable[[Network], nn.Module]] = {
    "mlp": _mlp,
    "none": lambda c: nn.Identity(),
    "optimal-linear": _closed,
    "isotropic": _closed,
}
