"""What every kind of data source gives: numbered images, perhaps labels, and names for messages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch

from byol.errors import BadData, UsageError
from byol.run.files import regular_text
from byol.run.progress import say

if TYPE_CHECKING:
    from byol.data.formats import Described

T = TypeVar("T")


class BadImage(Exception):
    """One image that cannot be read; the message says why, `kind` is the reason without figures and details."""

    def __init__(self, reason: str, kind: str = "") -> None:
        super().__init__(reason, kind)  # both, so that the exception survives the way from a worker process
        self.reason, self.kind = reason, kind or reason

    def __str__(self) -> str:
        return self.reason


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
    header: Callable[[int], tuple[Described | None, int]] | None = None  # what a file says of an image, and its bytes
    blocks: np.ndarray | None = None  # int32 (count,): which shard an image is in, where it costs to change it
    excluded: int = 0  # images that data.exclude has left out of it

    def __len__(self) -> int:
        return self.count


def at(function: Callable[[int], T], kept: np.ndarray, place: int) -> T:
    """A function of the whole source, asked for the image at a place among those that are kept."""
    return function(int(kept[place]))


def read_list(file: Path) -> list[str]:
    """The names in a list of images, one a line, up to a tab; skipped.txt and the doctor's list are such lists.

    A name is written as `printable` shows it, with line breaks and backslashes escaped.
    """
    try:
        lines = regular_text(file).split("\n")
    except OSError as error:
        raise UsageError(f"Cannot read the list {file}: {error.strerror}.") from None
    return [line.partition("\t")[0].removesuffix("\r") for line in lines if line.strip()]


def without(source: Source, listed: Path) -> Source:
    """The source without the images of a list."""
    names = set(read_list(listed))
    kept = np.array([i for i in range(len(source)) if source.describe(i) not in names], dtype=np.int64)
    removed = len(source) - len(kept)
    if removed < len(names):
        say(f"{len(names) - removed} of the {len(names)} names in {listed} are not among the images of {source.name}.")
    if not len(kept):
        raise BadData(f"{listed} lists all {len(source)} images of {source.name}.")
    return replace(
        source,
        count=len(kept),
        read=partial(at, source.read, kept),
        describe=partial(at, source.describe, kept),
        labels=None if source.labels is None else source.labels[kept],
        stamp=partial(at, source.stamp, kept) if source.stamp else None,
        path=partial(at, source.path, kept) if source.path else None,
        header=partial(at, source.header, kept) if source.header else None,
        blocks=None if source.blocks is None else source.blocks[kept],
        excluded=source.excluded + removed,
    )
