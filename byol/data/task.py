"""A labelled data set for an evaluation: what to train on, what to choose on, and a test part that stays sealed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Generic, Literal, TypeVar

import numpy as np
from torch import Tensor

from byol.data.source import Source

Metric = Literal["top1", "mean-per-class", "map11"]
P = TypeVar("P")


@dataclass(frozen=True)
class Part:
    """Some images of a source, with what is to be said of them."""

    source: Source
    indices: np.ndarray  # int64 (n,), into the source
    # int64 (n,) class numbers; of several labels an image int8 (n, classes): 1 present, -1 absent, 0 not counted
    targets: np.ndarray

    def __len__(self) -> int:
        return len(self.indices)

    @property
    def multi_label(self) -> bool:
        return self.targets.ndim == 2

    def take(self, positions: np.ndarray) -> Part:
        """The images at these positions of the part."""
        return Part(self.source, self.indices[positions], self.targets[positions])


class Sealed(Generic[P]):
    """The test part. It is opened once, after every choice was made: opening it again is a mistake of ours."""

    def __init__(self, part: Callable[[], P]) -> None:
        self._part = part
        self.opened = False

    def open(self) -> P:
        assert not self.opened, "the test part was looked at twice"
        self.opened = True
        return self._part()

    def again(self) -> Sealed[P]:
        """The same part sealed anew, for another evaluation."""
        return Sealed(self._part)


@dataclass(frozen=True)
class Task:
    """The parts never overlap; `metric` names how the data set is scored in the paper."""

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


def as_source(part: Part, classes: tuple[str, ...] = ()) -> Source:
    """The part alone, numbered from 0; its labels are the targets."""
    return Source(
        name=part.source.name,
        count=len(part),
        read=partial(_read, part),
        describe=partial(_describe, part),
        labels=part.targets,
        classes=classes,
    )


def joined(first: Part, second: Part) -> Part:
    """Both parts as one: train and validation together for the final fit."""
    targets = np.concatenate([first.targets, second.targets])
    if first.source is second.source:
        indices = np.concatenate([first.indices, second.indices])
        return Part(first.source, indices, targets).take(np.argsort(indices))
    source = Source(
        name=f"{first.source.name} + {second.source.name}",
        count=len(targets),
        read=partial(_read_either, first, second),
        describe=partial(_describe_either, first, second),
    )
    return Part(source, np.arange(len(targets)), targets)


def _read(part: Part, place: int) -> Tensor:
    return part.source.read(int(part.indices[place]))


def _describe(part: Part, place: int) -> str:
    return part.source.describe(int(part.indices[place]))


def _read_either(first: Part, second: Part, place: int) -> Tensor:
    return _read(first, place) if place < len(first) else _read(second, place - len(first))


def _describe_either(first: Part, second: Part, place: int) -> str:
    return _describe(first, place) if place < len(first) else _describe(second, place - len(first))


def held_out(part: Part, count: int, seed: int = 0) -> tuple[Part, Part]:
    """(rest, `count` images chosen at random); both keep the order of the part."""
    order = np.random.default_rng([seed, 10]).permutation(len(part))
    return part.take(np.sort(order[count:])), part.take(np.sort(order[:count]))


def held_out_per_class(part: Part, count: int, seed: int = 0) -> tuple[Part, Part]:
    """(rest, `count` images of each class chosen at random)."""
    return _stratified(part, lambda size: min(count, size), seed)


def held_out_fraction(part: Part, fraction: float, seed: int = 0) -> tuple[Part, Part]:
    """(rest, a fraction of each class, at least one image of a class that has two)."""
    if part.multi_label:
        return held_out(part, max(1, round(len(part) * fraction)), seed)
    return _stratified(part, lambda size: min(max(round(size * fraction), 1), size - 1), seed)


def _stratified(part: Part, how_many: Callable[[int], int], seed: int) -> tuple[Part, Part]:
    random = np.random.default_rng([seed, 11])
    chosen = np.zeros(len(part), bool)
    for label in np.unique(part.targets):
        places = np.flatnonzero(part.targets == label)
        chosen[random.permutation(places)[: how_many(len(places))]] = True
    return part.take(np.flatnonzero(~chosen)), part.take(np.flatnonzero(chosen))
