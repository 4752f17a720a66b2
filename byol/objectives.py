"""The losses of one order of the views, as pure functions; the method adds the loss of the other order.

φ(v) is the prediction from one view, and ψ(v') the target of the other view, which the prediction should match. ψ(v),
called `own`, is the target of the first view itself, which only losses with negative examples need. The method decides
whether a gradient reaches the targets (`network.target`); only `regression_loss` stops it by itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from byol.config import Objective
from byol.errors import UsageError, nearest
from byol.parallel import collectives, processes

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]
Between = Callable[[Tensor, Tensor], Tensor]


def regression_loss(prediction: Tensor, target: Tensor) -> Tensor:
    """2 − 2·cos(prediction, target) for each image: (B, D), (B, D) → (B,); no gradient reaches `target`.

    Computed as the squared distance of the normalized vectors, as in the reference code: this equals 2 − 2·cos for all
    but tiny vectors, is finite for a zero vector, and is more exact where the two nearly agree.
    """
    return _distance(l2(prediction), l2(target.detach()))


def regression(phi: Tensor, psi: Tensor, _: Tensor, *, normalization: str = "l2") -> Tensor:
    """The paper's loss of one order, averaged over images: (B, D) each → scalar."""
    n = NORMALIZATIONS[normalization]
    return _distance(n(phi), n(psi)).mean()


def info_nce(phi: Tensor, psi: Tensor, own: Tensor, *, temperature: float, beta: float) -> Tensor:
    """−InfoNCE^{α,β} of one order (paper, section 5 and appendix F.4), with the negative examples of all processes:
    (B, D) each → scalar.

    With beta = 0 this is `regression` without its constant of 2. With beta = 1, no predictor and no target network, the
    sum over both orders is 2α times the SimCLR loss summed over both orders.
    """
    phi, psi, own = l2(phi), l2(psi), l2(own)
    agreement = 2 * (phi * psi).sum(-1).mean()
    if beta == 0:
        return -agreement
    same, other = collectives.gathered(own), collectives.gathered(psi)
    first = processes.rank() * len(phi)  # the place of this process's first image among those of all processes
    itself = torch.eye(len(same), dtype=torch.bool, device=phi.device)[first : first + len(phi)]
    within = (phi @ same.T).masked_fill(itself, -math.inf)  # S(v_i, v_j), j ≠ i
    across = phi @ other.T  # S(v_i, v'_j), all j
    dispersion = torch.logsumexp(torch.cat([within, across], 1) / temperature, 1).mean()
    return 2 * temperature * beta * dispersion - agreement


def simclr(first: Tensor, second: Tensor, *, temperature: float) -> Tensor:
    """The paper's SimCLR (section 5): InfoNCE between the online projections of two views, no predictor, no target, in
    both orders: (B, D) each → scalar, 2α times the SimCLR loss."""
    how = {"temperature": temperature, "beta": 1.0}
    return info_nce(first, second, first, **how) + info_nce(second, first, second, **how)


def _distance(first: Tensor, second: Tensor) -> Tensor:
    return (first - second).square().sum(-1)


def _wide(vectors: Tensor) -> Tensor:
    return vectors.float() if vectors.dtype in (torch.bfloat16, torch.float16) else vectors


def _unit(vectors: Tensor, squared_length: Tensor) -> Tensor:
    """Unit length, with the norm floored at 1e-6 (the reference code's floor; torch's own is 1e-12)."""
    return vectors * torch.rsqrt(squared_length.clamp(min=1e-12))


def l2(vectors: Tensor) -> Tensor:
    """Each vector (B, D), scaled to unit length."""
    vectors = _wide(vectors)
    return _unit(vectors, vectors.square().sum(-1, keepdim=True))


def layer(vectors: Tensor) -> Tensor:
    """(x_i − mean)/(deviation·√D) over each vector's features, which is the centred vector at unit length."""
    centred = _wide(vectors) - _wide(vectors).mean(-1, keepdim=True)
    return _unit(centred, centred.square().sum(-1, keepdim=True))


def batch(vectors: Tensor) -> Tensor:
    """(x^j − mean)/(deviation·√D) for each feature, over the batch of all processes; without trained parameters."""
    vectors = _wide(vectors)
    images, features = vectors.shape[0] * processes.world(), vectors.shape[1]
    centred = vectors - collectives.total(vectors.mean(0)) / processes.world()
    return _unit(centred, collectives.total(centred.square().sum(0, keepdim=True))) * math.sqrt(images / features)


NORMALIZATIONS: dict[str, Callable[[Tensor], Tensor]] = {"l2": l2, "layer": layer, "batch": batch, "none": _wide}


def check(name: str) -> None:
    """Refuse an unknown name before anything is loaded or built."""
    if name not in OBJECTIVES:
        plugin = "What a plug-in defines needs --plugin FILE."
        raise UsageError(f"There is no objective '{name}'. {nearest(name, OBJECTIVES)} {plugin}")


def build(config: Objective) -> Loss:
    """The loss that a config describes."""
    check(config.name)
    objective = OBJECTIVES[config.name]
    return lambda phi, psi, own: config.scale * objective(phi, psi, own, config)


def between(config: Objective) -> Between | None:
    """What a config adds for the online projections of both views, unseen by a loss of one order, if anything."""
    if config.name not in BETWEEN or not config.beta:
        return None
    return lambda first, second: config.scale * BETWEEN[config.name](first, second, config)


OBJECTIVES: dict[str, Callable[[Tensor, Tensor, Tensor, Objective], Tensor]] = {
    "byol": lambda phi, psi, own, c: regression(phi, psi, own, normalization=c.normalization),
    "info-nce": lambda phi, psi, own, c: info_nce(phi, psi, own, temperature=c.temperature, beta=c.beta),
    "simclr-to-byol": lambda phi, psi, own, c: (1 - c.beta) * regression(phi, psi, own),
}
BETWEEN: dict[str, Callable[[Tensor, Tensor, Objective], Tensor]] = {
    "simclr-to-byol": lambda z1, z2, c: c.beta * simclr(z1, z2, temperature=c.temperature),
}
