"""Labelled images that a model is fitted on: class folders, a data set in parts, or a CSV of files and classes.

A CSV has a header. Its first column names files as the folder's listing does. One column more: the class of each image,
several joined by semicolons or on several lines. More columns: a class each, 1 where an image shows it, 0 where it does
not, empty where nobody looked.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from byol import data
from byol.config import Data
from byol.data import tasks
from byol.data.address import kind_of, parse
from byol.data.folder import choose_part, parts_of
from byol.data.parts import Metric, Part, Sealed, Task, held_out_fraction, whole
from byol.data.source import Source, at
from byol.errors import BadData, UsageError
from byol.run.files import regular_text
from byol.run.progress import say

FOLDS = 5
FEW = 2000  # labelled images below which all of them take turns as validation
SHARE = 0.1  # of the images that is validation where there are more
JOINT = ";"


@dataclass(frozen=True)
class Labelled:
    """What a model is fitted on; without a validation part, the training images take turns as validation."""

    name: str
    classes: tuple[str, ...]
    metric: Metric
    train: Part
    validation: Part | None
    test: Part | None

    @property
    def several(self) -> bool:
        return self.train.multi_label

    def split(self) -> Labelled:
        """With a validation part, split off where there is none: what is trained for long is not trained in turns."""
        if self.validation is not None:
            return self
        train, validation = held_out_fraction(self.train, SHARE)
        return replace(self, train=train, validation=validation)

    def task(self) -> Task:
        """As a protocol wants it."""
        assert self.validation is not None
        test = self.test if self.test is not None else self.train.take([])
        return Task(self.name, self.classes, self.metric, self.train, self.validation, Sealed(lambda: test))

    def fingerprints(self) -> list[str]:
        return [part.fingerprint() for part in (self.train, self.validation, self.test) if part is not None]


def open_labelled(on: str, labels: Path | None, config: Data, keep_test: bool) -> Labelled:
    """The labelled images that a name stands for. `keep_test` holds a fifth of a set without parts out, as an
    evaluation does; a part of its own for the test is always kept."""
    if labels is None and on.endswith(".csv"):
        on, labels = str(Path(on).parent), Path(on)
    found = _by_folders(on, config) if labels is None else _by_list(data.open_source(on, config), labels)
    if found.test is None and keep_test:
        rest, test = held_out_fraction(found.train, tasks.TEST_SHARE)
        train, validation = held_out_fraction(rest, tasks.VALIDATION_SHARE)
        found = replace(found, train=train, validation=validation, test=test)
    elif found.validation is None and len(found.train) >= FEW:
        return found.split()
    return found


def _by_folders(on: str, config: Data) -> Labelled:
    """A set with parts as `byol evaluate` opens it, or all images of one without."""
    address = parse(on, config.root).check()
    if address.folder:
        _refuse_empty_classes(Path(choose_part(parts_of(address.folder), address.place, "train")))
    has_parts = address.kind == "benchmark" or kind_of(address).parts(address) & {"val", "test"}
    if has_parts:
        task = data.open_task(on, config)
        return Labelled(task.name, task.classes, task.metric, task.train, task.validation, task.test.open())
    source = data.open_source(on, config)
    if source.labels is None:
        raise BadData(
            f"{on} has no labels, or one class only: a model needs a folder for each of at least two classes, or "
            "--labels and a CSV of files and classes."
        )
    return Labelled(source.name, source.classes, "top1", whole(source), None, None)


def _refuse_empty_classes(root: Path) -> None:
    """A class folder without any file would silently be no class."""
    folders = [path for path in sorted(root.iterdir()) if path.is_dir() and not path.name.startswith((".", "__MACOSX"))]
    empty = [path.name for path in folders if not any(item.is_file() for item in path.rglob("*"))]
    if empty and len(folders) > 1:
        more = f" and {len(empty) - 1} more" if len(empty) > 1 else ""
        raise BadData(f"The class {empty[0]}{more} of {root} has no image: add some, or remove the folder.")


def _by_list(source: Source, file: Path) -> Labelled:
    """The images that a CSV labels, with its classes."""
    classes, rows = read_csv(file)
    index = {source.describe(i): i for i in range(len(source))}
    unknown = [name for name in rows if name not in index]
    if unknown:
        raise BadData(
            f"{file} names {len(unknown)} of {len(rows)} files that are not among the images of {source.name}, such as "
            f"{unknown[0]}; names there are like {source.describe(0)}."
        )
    if len(rows) < len(source):
        say(f"{len(source) - len(rows)} of the {len(source)} images of {source.name} have no line in {file}.")
    signs = np.stack([rows[name] for name in rows])
    _check_classes(file, classes, signs)
    order = np.argsort([index[name] for name in rows], kind="stable")
    kept, signs = np.array([index[name] for name in rows])[order], signs[order]
    alone = bool(((signs > 0).sum(1) == 1).all() and (signs != 0).all())
    targets = signs.argmax(1).astype(np.int64) if alone else signs
    part = Part(_only(source, kept, targets, classes), np.arange(len(kept)), targets)
    return Labelled(source.name, classes, "top1" if alone else "map11", part, None, None)


def _only(source: Source, kept: np.ndarray, targets: np.ndarray, classes: tuple[str, ...]) -> Source:
    return replace(
        source,
        count=len(kept),
        read=partial(at, source.read, kept),
        describe=partial(at, source.describe, kept),
        labels=targets,
        classes=classes,
        stamp=partial(at, source.stamp, kept) if source.stamp else None,
        path=partial(at, source.path, kept) if source.path else None,
        header=partial(at, source.header, kept) if source.header else None,
        blocks=None,
    )


def _check_classes(file: Path, classes: Sequence[str], signs: np.ndarray) -> None:
    if not classes:
        raise BadData(f"{file} names files but no class: the second cell of a line is the class of its file.")
    if len(classes) < 2 and (signs > 0).all():
        raise BadData(f"{file} names one class only ({classes[0]}): a model needs two classes to tell apart.")
    for number, name in enumerate(classes):
        if not (signs[:, number] > 0).any():
            raise BadData(f"No image in {file} is labelled {name}: label some, or remove the class.")


def read_csv(file: Path) -> tuple[tuple[str, ...], dict[str, np.ndarray]]:
    """The classes in order, and for each file int8 (classes,): 1 present, -1 absent, 0 not known."""
    try:
        reader = csv.reader(io.StringIO(regular_text(file, 1_000_000_000)), strict=True)
        lines = [(reader.line_num, line) for line in reader if any(cell.strip() for cell in line)]
    except OSError as error:
        raise UsageError(f"Cannot read the labels {file}: {error.strerror}.") from None
    except csv.Error as error:
        raise BadData(f"{file} is no CSV of labels: {error}.") from None
    if len(lines) < 2 or len(lines[0][1]) < 2:
        raise BadData(f"{file} holds no labels: it needs a header, then a file and its class on every line.")
    header = [cell.strip() for cell in lines[0][1]]
    for number, line in lines[1:]:
        if len(line) != len(header):
            raise BadData(f"{file}, line {number}: {len(line)} cells where the header has {len(header)}.")
        if not line[0].strip():
            raise BadData(f"{file}, line {number}: the first cell, which names the file, is empty.")
    body = [(number, [cell.strip() for cell in line]) for number, line in lines[1:]]
    return _by_names(body) if len(header) == 2 else _by_columns(file, header[1:], body)


def _by_names(lines: Sequence[tuple[int, list[str]]]) -> tuple[tuple[str, ...], dict[str, np.ndarray]]:
    """A file and its classes on a line; a file may be on several."""
    named: dict[str, set[str]] = {}
    for _, (file, text) in lines:
        named.setdefault(file, set()).update(name for part in text.split(JOINT) if (name := part.strip()))
    classes = tuple(sorted({name for names in named.values() for name in names}))
    return classes, {
        file: np.array([1 if name in names else -1 for name in classes], np.int8) for file, names in named.items()
    }


def _by_columns(
    file: Path, classes: Sequence[str], lines: Sequence[tuple[int, list[str]]]
) -> tuple[tuple[str, ...], dict[str, np.ndarray]]:
    """A column for each class."""
    signs, rows = {"1": 1, "0": -1, "": 0}, dict[str, np.ndarray]()
    if len(set(classes)) < len(classes) or not all(classes):
        raise BadData(f"{file}: two columns have the same name, or one has none.")
    for number, (name, *cells) in lines:
        wrong = next((cell for cell in cells if cell not in signs), None)
        if wrong is not None:
            raise BadData(
                f"{file}, line {number}: '{wrong}' is neither 1 (shown), 0 (not shown) nor empty (not known)."
            )
        if name in rows:
            raise BadData(f"{file}, line {number}: {name} has a line already.")
        rows[name] = np.array([signs[cell] for cell in cells], np.int8)
    return tuple(classes), rows


def folds(targets: np.ndarray, seed: int = 0) -> np.ndarray:
    """The turn (N,) in which each image is validation, or -1: never, since it is the only one of its class."""
    random = np.random.default_rng([seed, 12])
    turns = np.full(len(targets), -1)
    groups = (
        [np.arange(len(targets))] if targets.ndim == 2 else [np.flatnonzero(targets == c) for c in np.unique(targets)]
    )
    for rows in groups:
        if len(rows) > 1:
            turns[random.permutation(rows)] = np.arange(len(rows)) % FOLDS
    return turns
