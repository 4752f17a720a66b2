"""BYOL itself and its family: the online network, its predictor, what it predicts, and the loss between them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from byol import networks, objectives
from byol.config import Network, Objective


class Outputs(NamedTuple):
    """What one step sees of both views; target2 is the target's projection of view 2, which prediction1 predicts."""

    prediction1: Tensor
    prediction2: Tensor
    target1: Tensor
    target2: Tensor
    representation1: Tensor


class Part(NamedTuple):
    """Outputs, or one view's of them: None where the other part has the value."""

    prediction1: Tensor | None
    prediction2: Tensor | None
    target1: Tensor
    target2: Tensor
    representation1: Tensor | None


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
        objective: objectives.Loss = objectives.regression,
    ) -> None:
        super().__init__()
        assert (target is None) == (target_mode in ITS_OWN_TARGET)
        self.online = online
        self.predictor = predictor
        self.target = None if target is None else target.requires_grad_(False)
        self.classifier = classifier
        self.target_mode = target_mode
        self.objective = objective

    def forward(self, view1: Tensor, view2: Tensor) -> Outputs:
        """Each view passes alone, so that each has its own batch statistics; the target is in training mode too."""
        representation1, projection1 = self.online(view1)
        _, projection2 = self.online(view2)
        if self.target is not None:
            target1, target2 = self.targets(view1, view2)
        elif self.target_mode == "stop-gradient":
            target1, target2 = projection1.detach(), projection2.detach()
        else:
            target1, target2 = projection1, projection2
        prediction1, prediction2 = self.predict(projection1, target2), self.predict(projection2, target1)
        return Outputs(prediction1, prediction2, target1, target2, representation1)

    def parts(
        self, view1: Tensor, view2: Tensor, autocast: Callable[[], AbstractContextManager[Any]] = nullcontext
    ) -> Iterator[Part]:
        """The outputs in parts whose losses add up to the whole, each to be done with before the next is computed.

        With a target network a part is one view's prediction, so that autograd holds one view's activations at a time.
        """
        if self.target is None:
            with autocast():
                both = self(view1, view2)
            yield Part(*both)
            return
        with autocast():
            target1, target2 = self.targets(view1, view2)
            representation1, projection1 = self.online(view1)
            prediction1 = self.predict(projection1, target2)
        yield Part(prediction1, None, target1, target2, representation1)
        with autocast():
            prediction2 = self.predict(self.online(view2)[1], target1)
        yield Part(None, prediction2, target1, target2, None)

    @torch.no_grad()
    def targets(self, view1: Tensor, view2: Tensor) -> tuple[Tensor, Tensor]:
        """The target network's projections."""
        assert self.target is not None
        return self.target(view1)[1], self.target(view2)[1]

    def predict(self, projection: Tensor, target: Tensor) -> Tensor:
        """The predictor's output; only one that is solved for looks at the target."""
        solved = isinstance(self.predictor, networks.OptimalLinear)
        prediction: Tensor = self.predictor(projection, target) if solved else self.predictor(projection)
        return prediction

    def probe(self, representation: Tensor) -> Tensor:
        """Class logits of the linear classifier; no gradient reaches the representation."""
        assert self.classifier is not None
        logits: Tensor = self.classifier(representation.detach())
        return logits

    @torch.no_grad()
    def update_target(self, tau: float) -> None:
        """ξ ← ξ + (1 − tau)(θ − ξ) over parameters only: batch statistics are each network's own."""
        if self.target is not None and self.target_mode == "moving-average":
            torch._foreach_lerp_(list(self.target.parameters()), list(self.online.parameters()), 1.0 - tau)


def build(config: Network, classes: int = 0, objective: Objective = Objective()) -> Method:
    """The method of a config, from torch's current random state; `classes` > 0 adds the watching classifier."""
    online = _branch(config)
    target = None if config.target in ITS_OWN_TARGET else _branch(config)
    if target is not None and config.target_init == "same":
        target.load_state_dict(online.state_dict())
    predictor = PREDICTORS[config.predictor](config)
    classifier = None
    if classes:
        classifier = nn.Linear(online.encoder.num_features, classes)  # type: ignore[arg-type]
        networks.initialize(classifier)
    return Method(online, predictor, target, classifier, config.target, objectives.build(objective))


def _branch(config: Network) -> Branch:
    encoder = networks.encoder(config)
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


ITS_OWN_TARGET = ("stop-gradient", "online")
PREDICTORS: dict[str, Callable[[Network], nn.Module]] = {
    "mlp": _mlp,
    "none": lambda c: nn.Identity(),
    "optimal-linear": lambda c: networks.OptimalLinear(c.ridge),
}
