"""From the name of a data set to its images: for pretraining a source, for an evaluation a task in three parts."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from byol.data.address import Address, kind_of, parse

if TYPE_CHECKING:  # a command is checked before torch is loaded
    from byol.config import Data
    from byol.data.parts import Task
    from byol.data.source import Source


def open_source(spec: str, config: Data, split: str = "train") -> Source:
    """The images that a name stands for, without those that data.exclude lists, as a settled config wants them."""
    return _open(parse(spec, config.root), config, split)


def open_stored(spec: str, config: Data, split: str = "train") -> Source:
    """The same images as they are stored, with any number of channels and any depth."""
    return _stored(parse(spec, config.root), config, split)


def _open(address: Address, config: Data, split: str) -> Source:
    from byol.data.stored import fitted, require_channels

    source = _stored(address, config, split)
    require_channels(source, config)
    return fitted(source, config)


def _stored(address: Address, config: Data, split: str) -> Source:
    source = kind_of(address).open_source(address, config, split)
    if not config.exclude:
        return source
    from byol.data.source import without

    return without(source, Path(config.exclude))


def open_task(spec: str, config: Data) -> Task:
    """A labelled data set in three parts: a benchmark as in the paper, or whatever `open_source` opens.

    Without a test part, val is the test; without either, a fifth of the images is, always the same. Validation is the
    val part, or else a tenth of the images that are left for training.
    """
    address = parse(spec, config.root).check()
    if address.kind == "benchmark":
        from byol.data.benchmarks.sets import open_benchmark

        return _fitted(open_benchmark(address.place, Path(config.root), config.max_megapixels), config)
    from byol.data import tasks

    parts = kind_of(address).parts(address)
    train = _open(address, config, "train")
    if not parts & {"val", "test"}:
        return tasks.split(train)
    validation = _open(address, config, "val") if {"val", "test"} <= parts else None
    return tasks.of_parts(spec, train, validation, partial(_open, address, config, "test"))


def _fitted(task: Task, config: Data) -> Task:
    """A benchmark with the channels and the depth that a settled config wants."""
    from byol.data.parts import Part, Sealed
    from byol.data.stored import fitted

    def fit(part: Part) -> Part:
        return replace(part, source=fitted(part.source, config))

    test = Sealed(lambda: fit(task.test.again().open()))
    return replace(task, train=fit(task.train), validation=fit(task.validation), test=test)
