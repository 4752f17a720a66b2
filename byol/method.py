"""BYOL itself: the online network, its predictor, the target network, and the moving average between them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from byol import networks
from byol.config import Network


class Outputs(NamedTuple):
    """What one step sees of both views; target2 is the target's projection of view 2, which prediction1 predicts."""

    prediction1: Tensor
    prediction2: Tensor
    target1: Tensor
    target2: Tensor
    representation1: Tensor


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
    """Online branch, predictor and target branch; the classifier only watches, behind a stop-gradient."""

    def __init__(self, online: Branch, predictor: nn.Module, target: Branch, classifier: nn.Module | None) -> None:
        super().__init__()
        self.online = online
        self.predictor = predictor
        self.target = target.requires_grad_(False)
        self.classifier = classifier

    def forward(self, view1: Tensor, view2: Tensor) -> Outputs:
        """Each view passes alone, so that each has its own batch statistics; the target is in training mode too."""
        representation1, projection1 = self.online(view1)
        _, projection2 = self.online(view2)
        with torch.no_grad():
            _, target1 = self.target(view1)
            _, target2 = self.target(view2)
        return Outputs(self.predictor(projection1), self.predictor(projection2), target1, target2, representation1)

    def probe(self, representation: Tensor) -> Tensor:
        """Class logits of the linear classifier; no gradient reaches the representation."""
        assert self.classifier is not None
        logits: Tensor = self.classifier(representation.detach())
        return logits

    @torch.no_grad()
    def update_target(self, tau: float) -> None:
        """ξ ← ξ + (1 − tau)(θ − ξ) over parameters only: batch statistics are each network's own."""
        torch._foreach_lerp_(list(self.target.parameters()), list(self.online.parameters()), 1.0 - tau)


def build(config: Network, classes: int = 0) -> Method:
    """The method of a config, from torch's current random state; `classes` > 0 adds the watching classifier."""
    online = _branch(config)
    target = _branch(config)
    if config.target_init == "same":
        target.load_state_dict(online.state_dict())
    predictor: nn.Module = nn.Identity()
    if config.predictor:
        size = config.projection
        predictor = networks.mlp(size, config.predictor_hidden, size, config.predictor_depth, config.head_bias)
    classifier = None
    if classes:
        classifier = nn.Linear(online.encoder.num_features, classes)  # type: ignore[arg-type]
        networks.initialize(classifier)
    return Method(online, predictor, target, classifier)


def _branch(config: Network) -> Branch:
    encoder = networks.encoder(config)
    features: int = encoder.num_features  # type: ignore[assignment]
    projector = networks.mlp(
        features, config.projector_hidden, config.projection, config.projector_depth, config.head_bias
    )
    return Branch(encoder, projector)
