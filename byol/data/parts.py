"""A labelled data set for an evaluation: what to train on, what to choose on, and a test part that stays sealed.

One type serves every kind of target: class numbers, several labels an image, masks, boxes and depth maps.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import numpy as np
from torch import Tensor

from byol.data.source import Source
from byol.errors import BadData, UsageError
from byol.run.files import regular_text

Metric = Literal["top1", "mean-per-class", "map11", "mIoU", "AP50", "pct<1.25"]
T = TypeVar("T")

VOID = 255  # class number of mask pixels that count neither for training nor for the figures


class Boxes(NamedTuple):
    """The K objects of an image; K may be 0."""

    boxes: Tensor  # float32 (K, 4) x0 y0 x1 y1 in pixels, x1 and y1 exclusive
    labels: Tensor  # int64 (K,) class numbers from 0
    difficult: Tensor  # bool (K,): neither wanted nor counted as a mistake


class Sample(NamedTuple, Generic[T]):
    """An image with its target: uint8 (3, H, W) RGB, or what an encoder of other images takes (data/dense/images.py).

    The target is a class number, a mask uint8 (H, W), depth float32 (H, W) in metres (0: no reading), or `Boxes`.
    """

    image: Tensor
    target: T


@dataclass(frozen=True)
class Part:
    """Some images of a source, with the target of each."""

    source: Source
    indices: np.ndarray  # int64 (n,), into the source
    # int64 (n,) class numbers; of several labels an image int8 (n, classes): 1 present, -1 absent, 0 not counted.
    # (n, 0) where `samples` reads the targets, which are too large to be held for all images.
    targets: np.ndarray
    samples: Callable[[int], Sample[Any]] | None = None  # index into the source → image and target

    def __len__(self) -> int:
        return len(self.indices)

    @property
    def name(self) -> str:
        return self.source.name

    @property
    def multi_label(self) -> bool:
        return self.targets.ndim == 2

    def read(self, position: int) -> Sample[Any]:
        """Image and target at a position of the part; a pure function, or raises `BadImage`."""
        index = int(self.indices[position])
        return self.samples(index) if self.samples else Sample(self.source.read(index), self.targets[position])

    def describe(self, position: int) -> str:
        return self.source.describe(int(self.indices[position]))

    def take(self, positions: Sequence[int] | np.ndarray) -> Part:
        """The images at these positions of the part."""
        chosen = np.asarray(positions, np.int64)
        return replace(self, indices=self.indices[chosen], targets=self.targets[chosen])

    def fingerprint(self) -> str:
        """A hash of names, targets and, for files, sizes and times: the same when the images are the same."""
        digest = hashlib.sha256(self.targets.tobytes())
        for index in self.indices.tolist():
            digest.update(self.source.describe(index).encode("utf-8", "surrogateescape") + b"\0")
            if self.source.stamp:
                digest.update(self.source.stamp(index) + b"\0")
        return digest.hexdigest()[:16]


class Sealed(Generic[T]):
    """The test part. It is opened once, after every choice was made: opening it again is a mistake of ours."""

    def __init__(self, part: Callable[[], T]) -> None:
        self._part = part
        self.opened = False

    def open(self) -> T:
        assert not self.opened, "the test part was looked at twice"
        self.opened = True
        return self._part()

    def again(self) -> Sealed[T]:
        """The same part sealed anew, for another evaluation."""
        return Sealed(self._part)


@dataclass(frozen=True)
class Task:
    """The parts never overlap; `metric` names how the data set is scored in the paper. Depth has no classes."""

    name: str
    classes: tuple[str, ...]
    metric: Metric
    train: Part
    validation: Part
    test: Sealed[Part]

    def again(self) -> Task:
        return replace(self, test=self.test.again())


def whole(source: Source) -> Part:
    """All images of a source that has a class for each."""
    assert source.labels is not None
    return Part(source, np.arange(len(source)), source.labels)


def of_samples(
    name: str,
    count: int,
    read: Callable[[int], Sample[Any]],
    describe: Callable[[int], str],
    stamp: Callable[[int], bytes] | None = None,
) -> Part:
    """All images of a data set whose targets are read with them; `stamp` changes when image or target do."""
    source = Source(name, count, partial(_image, read), describe, stamp=stamp)
    return Part(source, np.arange(count), np.empty((count, 0), np.int8), read)


def as_source(part: Part, classes: tuple[str, ...] = ()) -> Source:
    """The part alone, numbered from 0; its labels are the targets."""
    return Source(
        name=part.name,
        count=len(part),
        read=partial(_image, part.read),
        describe=part.describe,
        labels=part.targets,
        classes=classes,
    )


def joined(first: Part, second: Part) -> Part:
    """Both parts as one: train and validation together for the final fit."""
    targets = np.concatenate([first.targets, second.targets])
    if first.source is second.source:
        indices = np.concatenate([first.indices, second.indices])
        return Part(first.source, indices, targets, first.samples).take(np.argsort(indices))
    read = partial(_either, first.read, second.read, len(first))
    source = Source(
        name=f"{first.name} + {second.name}",
        count=len(targets),
        read=partial(_image, read),
        describe=partial(_either, first.describe, second.describe, len(first)),
    )
    return Part(source, np.arange(len(targets)), targets, read if first.samples else None)


def _image(read: Callable[[int], Sample[Any]], position: int) -> Tensor:
    return read(position).image


def _either(first: Callable[[int], T], second: Callable[[int], T], count: int, position: int) -> T:
    return first(position) if position < count else second(position - count)


def held_out(part: Part, count: int, seed: int = 0) -> tuple[Part, Part]:
    """(rest, `count` images chosen at random); both keep the order of the part."""
    rest, chosen = split(len(part), count, seed)
    return part.take(rest), part.take(chosen)


def split(size: int, count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Positions from 0 to `size`: (rest, `count` chosen at random), both ascending."""
    order = np.random.default_rng([seed, 10]).permutation(size)
    return np.sort(order[count:]), np.sort(order[:count])


def held_out_per_class(part: Part, count: int, seed: int = 0) -> tuple[Part, Part]:
    """(rest, `count` images of each class chosen at random)."""
    return _stratified(part, lambda size: min(count, size), seed)


def held_out_fraction(part: Part, fraction: float, seed: int = 0) -> tuple[Part, Part]:
    """(rest, a fraction of each class, at least one image of a class that has two).

    Where an image has no single class, a fraction of all images, at least one of two.
    """
    if part.multi_label:
        return held_out(part, min(max(round(len(part) * fraction), 1), len(part) - 1), seed)
    return _stratified(part, lambda size: min(max(round(size * fraction), 1), size - 1), seed)


def _stratified(part: Part, how_many: Callable[[int], int], seed: int) -> tuple[Part, Part]:
    random = np.random.default_rng([seed, 11])
    chosen = np.zeros(len(part), bool)
    for label in np.unique(part.targets):
        positions = np.flatnonzero(part.targets == label)
        chosen[random.permutation(positions)[: how_many(len(positions))]] = True
    return part.take(np.flatnonzero(~chosen)), part.take(np.flatnonzero(chosen))


def balanced(train: Part, fraction: float, seed: int) -> Part:
    """As many images of each class, or all of one that has fewer; smaller fractions lie inside larger ones."""
    if fraction >= 1:
        return train
    random = np.random.default_rng([seed, 20])
    labels = np.unique(train.targets)
    each = max(1, round(len(train) * fraction / len(labels)))
    chosen = [random.permutation(np.flatnonzero(train.targets == label))[:each] for label in labels]
    return train.take(np.sort(np.concatenate(chosen)))


def listed(train: Part, path: Path) -> Part:
    """The images whose file names stand in the file, one a line, as in SimCLR's 1percent.txt."""
    try:
        names = {line.strip() for line in regular_text(path).split("\n") if line.strip()}
    except OSError as error:
        raise UsageError(f"Cannot read the list of labelled images {path}: {error.strerror}.") from None
    ours = [Path(train.describe(position)).name for position in range(len(train))]
    positions = np.flatnonzero([name in names for name in ours])
    if not len(positions):
        raise BadData(f"None of the {len(names)} names in {path} is a training image; ours are like {ours[0]}.")
    return train.take(positions)
