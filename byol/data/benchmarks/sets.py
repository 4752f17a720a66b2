"""The paper's data sets opened by name: as they lie on disk, validation images held out by the paper's rules."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np

from byol.config import Data
from byol.data.address import Address
from byol.data.benchmarks.layouts import READERS, Parts
from byol.data.benchmarks.table import BENCHMARKS, Benchmark, Rule
from byol.data.decode import printable
from byol.data.parts import Part, Sealed, Task, as_source, held_out, held_out_fraction, held_out_per_class, joined
from byol.data.places import first_line
from byol.data.source import Source
from byol.errors import ByolError, UsageError, nearest
from byol.run.progress import say

# The paper itself holds out up to 20.3 % (cars); a rule that asks for more than this meets a miniature copy.
MOST = 0.25
SHARE = 0.1

T = TypeVar("T")


def open_source(address: Address, config: Data, split: str) -> Source:
    """Pretraining sees all training images, those held out for validation among them."""
    task = open_benchmark(address.place, Path(config.root), config.max_megapixels)
    if split == "test":
        return as_source(task.test.open(), task.classes)
    return as_source(joined(task.train, task.validation) if split == "train" else task.validation, task.classes)


def parts(address: Address) -> set[str]:
    return {"train", "val", "test"}


def open_benchmark(name: str, root: Path, max_megapixels: float = 64.0) -> Task:
    """The data set below `root`, split as in the paper; its test images are not looked at before `test` is opened."""
    if name not in BENCHMARKS:
        raise UsageError(f"There is no evaluation data set '{name}'. {nearest(name, BENCHMARKS)}")
    row = BENCHMARKS[name]
    # Absolute, because the paths are used long after by workers that may run elsewhere.
    root = Path(root).expanduser().absolute()
    missing = [need for need in row.needs if not os.path.exists(root / need)]
    if missing:
        raise UsageError(
            f"{name} needs {missing[0]} in {printable(root)} (nothing is downloaded); expected there: {row.expected}."
        )
    parts = _understood(name, root, partial(READERS[name], root, max_megapixels))
    assert (row.rule.kind == "official") == (parts.validation is not None)
    if parts.validation is not None:
        train, validation, remark = parts.train, parts.validation, ""
    else:
        train, validation, remark = held_out_by(row.rule, parts.train)
    remarks = [text for text in (*_differences(parts, row), parts.remark, remark) if text]
    if remarks:
        say(f"{name}: {'; '.join(remarks)}.")
    return Task(name, parts.classes, row.metric, train, validation, Sealed(partial(_test, name, root, parts)))


def held_out_by(rule: Rule, part: Part) -> tuple[Part, Part, str]:
    """(rest, validation, a remark if there were too few images to keep the rule), the same on every call."""
    remark = ""
    if _too_much(rule, part):
        each = " of each class" if rule.kind == "per-class" else ""
        remark = f"{SHARE:.0%} of each class are for validation, since {rule.amount:,.0f}{each} would be too many"
        rule = Rule("share", SHARE)
    if rule.kind == "share":
        return *held_out_fraction(part, rule.amount), remark
    hold = held_out if rule.kind == "random" else held_out_per_class
    return *hold(part, int(rule.amount)), remark


def _too_much(rule: Rule, part: Part) -> bool:
    if rule.kind == "per-class":
        return bool(rule.amount > MOST * np.unique(part.targets, return_counts=True)[1].min())
    return rule.kind == "random" and rule.amount > MOST * len(part)


def _differences(parts: Parts, row: Benchmark) -> list[str]:
    """What of the training and validation images as published is not as many as in the paper."""
    train, validation, _ = row.sizes
    if parts.validation is None:
        counts = [("training", len(parts.train), train + validation)]
    else:
        counts = [("training", len(parts.train), train), ("validation", len(parts.validation), validation)]
    return [f"{there:,} {what} images, the paper has {paper:,}" for what, there, paper in counts if there != paper]


def _test(name: str, root: Path, parts: Parts) -> Part:
    part = _understood(name, root, parts.test)
    paper = BENCHMARKS[name].sizes[2]
    if len(part) != paper:
        say(f"{name}: {len(part):,} test images, the paper has {paper:,}.")
    return part


def _understood(name: str, root: Path, read: Callable[[], T]) -> T:
    """What `read` gives; whatever it stumbles over is in the files, which are not ours."""
    try:
        return read()
    except (ByolError, AssertionError, MemoryError):
        raise
    except Exception as error:
        raise UsageError(
            f"{name} in {printable(root)} is damaged or incomplete ({_reason(error)}); "
            f"expected: {BENCHMARKS[name].expected}."
        ) from None


def _reason(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"unknown {first_line(error)}"
    return first_line(error).split(". ")[0]  # torchvision goes on to recommend a download, which is not offered here
