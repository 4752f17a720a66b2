"""Depth data sets: images with a map of metres each."""

from __future__ import annotations

from torch import Tensor

from byol.config import Data
from byol.data.dense import DenseTask
from byol.data.rendered import rendered
from byol.errors import UsageError


def open_depth(on: str, config: Data, unit: float = 1e-3) -> DenseTask[Tensor]:
    """`scenes[:COUNT]`."""
    if on == "scenes" or on.startswith("scenes:"):
        return rendered("depth", on, config)
    raise UsageError(f"There is no folder '{on}'.")
