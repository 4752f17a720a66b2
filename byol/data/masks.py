"""Semantic segmentation data sets: images with a mask of class numbers each."""

from __future__ import annotations

from torch import Tensor

from byol.config import Data
from byol.data.dense import VOID, DenseTask
from byol.data.rendered import rendered
from byol.errors import UsageError


def open_masks(on: str, config: Data, void: int = VOID, colours: str = "") -> DenseTask[Tensor]:
    """`scenes[:COUNT]`."""
    if on == "scenes" or on.startswith("scenes:"):
        return rendered("masks", on, config)
    raise UsageError(f"There is no folder '{on}'.")
