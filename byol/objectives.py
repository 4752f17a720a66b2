"""The losses, as pure functions of predictions φ and targets ψ of both views.

Whether a gradient reaches ψ is the method's to say (`network.target`); only `regression_loss` stops it by itself.
Every loss is a sum of two, of φ1 and of φ2: a φ that is None leaves its own out.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import torch
from torch import Tensor

from byol import distributed
from byol.config import Objective
from byol.errors import UsageError, nearest

Phi = Tensor | None
Loss = Callable[[Phi, Tensor, Phi, Tensor], Tensor]


def regression_loss(prediction: Tensor, target: Tensor) -> Tensor:
    """2 − 2·cos(prediction, target) for each image: (B, D), (B, D) → (B,); no gradient reaches `target`.

    Written as the squared distance of the normalized vectors, as in the reference code: the same for any vector that
    is not tiny, finite for a zero one, and more exact where the two nearly agree.
    """
    return _distance(l2(prediction), l2(target.detach()))


def regression(phi1: Phi, psi1: Tensor, phi2: Phi, psi2: Tensor, *, normalization: str = "l2") -> Tensor:
    """The paper's loss: each view's prediction and the other's target, mean over images: 4 × (B, D) → scalar."""
    n = NORMALIZATIONS[normalization]
    orders = [_distance(n(phi), n(psi)) for phi, psi in ((phi1, psi2), (phi2, psi1)) if phi is not None]
    return functools.reduce(torch.add, orders).mean()


def info_nce(phi1: Phi, psi1: Tensor, phi2: Phi, psi2: Tensor, *, temperature: float, beta: float) -> Tensor:
    """−InfoNCE^{α,β} (paper, section 5 and appendix F.4) summed over both orders of the views: 4 × (B, D) → scalar.

    With beta = 0 it is `regression` less its constant of 4; with beta = 1, no predictor and no target network it is 2α
    times the SimCLR loss, that too summed over both orders.
    """
    psi1, psi2 = l2(psi1), l2(psi2)
    all1, all2 = (psi1, psi2) if beta == 0 else (distributed.gathered(psi1), distributed.gathered(psi2))
    orders = [
        _info_nce_of_one_order(l2(phi), positive, same, other, temperature, beta)
        for phi, positive, same, other in ((phi1, psi2, all1, all2), (phi2, psi1, all2, all1))
        if phi is not None
    ]
    return -functools.reduce(torch.add, orders)


def _info_nce_of_one_order(
    phi: Tensor, positive: Tensor, same: Tensor, other: Tensor, temperature: float, beta: float
) -> Tensor:
    """φ(v) against ψ(v') of the same image, `positive`, and the ψ(v), `same`, and ψ(v'), `other`, of all processes."""
    agreement = 2 * (phi * positive).sum(-1).mean()
    if beta == 0:
        return agreement
    first = distributed.rank() * len(phi)  # of this process's images among all
    itself = torch.eye(len(same), dtype=torch.bool, device=phi.device)[first : first + len(phi)]
    within = (phi @ same.T).masked_fill(itself, -math.inf)  # S(v_i, v_j), j ≠ i
    across = phi @ other.T  # S(v_i, v'_j), all j
    dispersion = torch.logsumexp(torch.cat([within, across], 1) / temperature, 1).mean()
    return agreement - 2 * temperature * beta * dispersion


def _distance(first: Tensor, second: Tensor) -> Tensor:
    return (first - second).square().sum(-1)


def _wide(vectors: Tensor) -> Tensor:
    return vectors.float() if vectors.dtype in (torch.bfloat16, torch.float16) else vectors


def _unit(vectors: Tensor, squared_length: Tensor) -> Tensor:
    """Unit length, with the norm floored at 1e-6 (the reference code's floor; torch's own is 1e-12)."""
    return vectors * torch.rsqrt(squared_length.clamp(min=1e-12))


def l2(vectors: Tensor) -> Tensor:
    """Each vector (B, D) to unit length."""
    vectors = _wide(vectors)
    return _unit(vectors, vectors.square().sum(-1, keepdim=True))


def layer(vectors: Tensor) -> Tensor:
    """(x_i − mean)/(deviation·√D) over each vector's features: centred, it has just unit length."""
    centred = _wide(vectors) - _wide(vectors).mean(-1, keepdim=True)
    return _unit(centred, centred.square().sum(-1, keepdim=True))


def batch(vectors: Tensor) -> Tensor:
    """(x^j − mean)/(deviation·√D) over the batch of all processes for each feature; nothing is trained."""
    vectors = _wide(vectors)
    images, features = vectors.shape[0] * distributed.world(), vectors.shape[1]
    centred = vectors - distributed.total(vectors.mean(0)) / distributed.world()
    return _unit(centred, distributed.total(centred.square().sum(0, keepdim=True))) * math.sqrt(images / features)


NORMALIZATIONS: dict[str, Callable[[Tensor], Tensor]] = {"l2": l2, "layer": layer, "batch": batch, "none": _wide}


def check(name: str) -> None:
    """A wrong name is said before anything is loaded or built."""
    if name not in OBJECTIVES:
        raise UsageError(f"There is no objective '{name}'. {nearest(name, OBJECTIVES)}")


def build(config: Objective) -> Loss:
    """The loss of a config."""
    check(config.name)
    objective = OBJECTIVES[config.name]
    return lambda phi1, psi1, phi2, psi2: config.scale * objective(phi1, psi1, phi2, psi2, config)


OBJECTIVES: dict[str, Callable[[Phi, Tensor, Phi, Tensor, Objective], Tensor]] = {
    "byol": lambda phi1, psi1, phi2, psi2, c: regression(phi1, psi1, phi2, psi2, normalization=c.normalization),
    "info-nce": lambda phi1, psi1, phi2, psi2, c: info_nce(
        phi1, psi1, phi2, psi2, temperature=c.temperature, beta=c.beta
    ),
}
