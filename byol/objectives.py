"""The losses, as pure functions of predictions and targets."""

from __future__ import annotations

import torch
from torch import Tensor


def regression_loss(prediction: Tensor, target: Tensor) -> Tensor:
    """2 − 2·cos(prediction, target) for each image: (B, D), (B, D) → (B,); no gradient reaches `target`.

    Written as the squared distance of the normalized vectors, as in the reference code: the same for any vector that
    is not tiny, finite for a zero one, and more exact where the two nearly agree.
    """
    return (_normalize(prediction) - _normalize(target.detach())).square().sum(-1)


def _normalize(vectors: Tensor) -> Tensor:
    """Unit length, with the norm floored at 1e-6 (the reference code's floor; torch's own is 1e-12)."""
    if vectors.dtype in (torch.bfloat16, torch.float16):
        vectors = vectors.float()
    return vectors * torch.rsqrt(vectors.square().sum(-1, keepdim=True).clamp(min=1e-12))
