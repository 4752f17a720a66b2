"""What every kind of data source gives: numbered images, perhaps labels, and names for messages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch

T = TypeVar("T")


class BadImage(Exception):
    """One image that cannot be read; the message says why."""


@dataclass(frozen=True)
class Source:
    """`read(i)` is a pure function to uint8 (3, H, W) RGB, or raises `BadImage`."""

    name: str
    count: int
    read: Callable[[int], torch.Tensor]
    describe: Callable[[int], str]
    labels: np.ndarray | None = None  # int64 (count,); of several an image int8 (count, classes)
    classes: tuple[str, ...] = ()
    stamp: Callable[[int], bytes] | None = None  # of a file: its size and time, which change when its content does
    path: Callable[[int], bytes] | None = None  # where the file of an image is, when each has its own
    blocks: np.ndarray | None = None  # int32 (count,): which shard an image is in, where it costs to change it

    def __len__(self) -> int:
        return self.count


def at(function: Callable[[int], T], kept: np.ndarray, place: int) -> T:
    """What a function of the whole says of the image at a place of the part that is kept."""
    return function(int(kept[place]))
