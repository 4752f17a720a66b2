"""A labelled source becomes a task: what to train on, what to choose on, and a test part that stays sealed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from byol.data.parts import Part, Sealed, Task, held_out_fraction, whole
from byol.data.source import Source
from byol.errors import BadData

TEST_SHARE, VALIDATION_SHARE = 0.2, 0.1


def split(source: Source) -> Task:
    """A source without parts gives up some of its images for the test and for validation."""
    rest, test = held_out_fraction(_labelled(source), TEST_SHARE)
    train, validation = held_out_fraction(rest, VALIDATION_SHARE)
    return Task(source.name, source.classes, "top1", train, validation, Sealed(lambda: test))


def of_parts(name: str, train: Source, validation: Source | None, test: Callable[[], Source]) -> Task:
    """The parts as they are; a tenth of the training images is held out where there is no validation part."""
    part = _labelled(train)
    if validation is None:
        part, held = held_out_fraction(part, VALIDATION_SHARE)
    else:
        held = _labelled(validation, train.classes)
    return Task(name, train.classes, "top1", part, held, Sealed(lambda: _labelled(test(), train.classes)))


def _labelled(source: Source, classes: tuple[str, ...] | None = None) -> Part:
    """All of a source; its classes are matched with those of the training images by name."""
    if source.labels is None:
        raise BadData(f"{source.name} has no labels: an evaluation needs a folder for each class.")
    part = whole(source)
    if classes is None or classes == source.classes:
        return part
    unknown = set(source.classes) - set(classes)
    if unknown:
        raise BadData(f"{source.name} has classes that the training images do not have, such as {min(unknown)}.")
    numbers = np.array([classes.index(name) for name in source.classes])
    return Part(source, part.indices, numbers[part.targets])
