"""Images with something said of their pixels (a mask, a depth map, boxes) and their split into three parts."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import numpy as np
from torch import Tensor

from byol.data.source import at
from byol.data.task import Sealed

T = TypeVar("T")
Kind = Literal["masks", "boxes", "depth"]
DenseMetric = Literal["mIoU", "AP50", "pct<1.25"]

VOID = 255  # class number of pixels that count neither for training nor for the figures


class Boxes(NamedTuple):
    """The K objects of an image; K may be 0."""

    boxes: Tensor  # float32 (K, 4) x0 y0 x1 y1 in pixels, x1 and y1 exclusive
    labels: Tensor  # int64 (K,) class numbers from 0
    difficult: Tensor  # bool (K,): neither wanted nor counted as a mistake


class Sample(NamedTuple, Generic[T]):
    """An image uint8 (3, H, W) RGB with its target: a mask uint8 (H, W), depth float32 (H, W) in metres, `Boxes`."""

    image: Tensor
    target: T


@dataclass(frozen=True)
class Samples(Generic[T]):
    """`read(i)` is a pure function, or raises `BadImage`. A depth of 0 is no reading; class VOID does not count."""

    name: str
    count: int
    read: Callable[[int], Sample[T]]
    describe: Callable[[int], str]
    stamp: Callable[[int], bytes] | None = None  # changes when the content of image or target does

    def __len__(self) -> int:
        return self.count

    def take(self, positions: Sequence[int] | np.ndarray) -> Samples[T]:
        """The samples at these positions, numbered anew."""
        chosen = np.asarray(positions, np.int64)
        return Samples(
            self.name,
            len(chosen),
            partial(at, self.read, chosen),
            partial(at, self.describe, chosen),
            partial(at, self.stamp, chosen) if self.stamp else None,
        )

    def fingerprint(self) -> str:
        """Of names and, for files, sizes and times: the same when the samples are the same."""
        digest = hashlib.sha256()
        for index in range(self.count):
            digest.update(self.describe(index).encode("utf-8", "surrogateescape") + b"\0")
            if self.stamp:
                digest.update(self.stamp(index) + b"\0")
        return digest.hexdigest()[:16]


@dataclass(frozen=True)
class DenseTask(Generic[T]):
    """As `Task`, for samples; the parts never overlap. Depth has no classes."""

    name: str
    classes: tuple[str, ...]
    metric: DenseMetric
    train: Samples[T]
    validation: Samples[T]
    test: Sealed[Samples[T]]

    def again(self) -> DenseTask[T]:
        return replace(self, test=self.test.again())


def joined(first: Samples[T], second: Samples[T]) -> Samples[T]:
    """Both parts as one: train and validation together for the final fit."""
    return Samples(
        first.name,
        len(first) + len(second),
        partial(_either, first.read, second.read, len(first)),
        partial(_either, first.describe, second.describe, len(first)),
        partial(_either, first.stamp, second.stamp, len(first)) if first.stamp and second.stamp else None,
    )


def _either(first: Callable[[int], Any], second: Callable[[int], Any], count: int, place: int) -> Any:
    return first(place) if place < count else second(place - count)


def held_out(samples: Samples[T], count: int, seed: int = 0) -> tuple[Samples[T], Samples[T]]:
    """(rest, `count` samples chosen at random); both keep their order."""
    order = np.random.default_rng([seed, 30]).permutation(len(samples))
    return samples.take(np.sort(order[count:])), samples.take(np.sort(order[:count]))


def held_out_fraction(samples: Samples[T], fraction: float, seed: int = 0) -> tuple[Samples[T], Samples[T]]:
    """(rest, a fraction of the samples, at least one of two)."""
    return held_out(samples, min(max(1, round(len(samples) * fraction)), len(samples) - 1), seed)
