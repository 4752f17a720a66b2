"""Whether two encoders give the same representations, as one figure."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from byol.config import Config


@torch.inference_mode()
def difference(one: nn.Module, other: Callable[[Tensor], Tensor], config: Config, images: int = 2) -> float:
    """The largest difference of their features on fixed random images, relative to the largest feature."""
    size = config.data.resolution
    pixels = torch.rand(images, config.network.channels, size, size, generator=torch.Generator().manual_seed(0))
    mean, std = (torch.tensor(values)[:, None, None] for values in (config.views.mean, config.views.std))
    expected, found = one((pixels - mean) / std), other((pixels - mean) / std)
    if found.shape != expected.shape:
        return float("inf")
    return float((found - expected).abs().max() / expected.abs().max().clamp_min(1e-30))
