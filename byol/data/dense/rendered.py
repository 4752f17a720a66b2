"""The embedded scenes as dense data sets: the same renderings with their masks, their boxes or their depth."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import torch

from byol.config import Data
from byol.data.parts import Boxes, Metric, Part, Sample, Sealed, Task, held_out_fraction, of_samples
from byol.data.scenes import KINDS, Scene, Split, render, scenes
from byol.errors import UsageError

Kind = Literal["masks", "boxes", "depth"]
COUNT = 5000
VALIDATION_SHARE = 0.1


def rendered(kind: Kind, spec: str, config: Data) -> Task:
    """`scenes[:COUNT]`; a fifth as many for the test, a tenth of COUNT to choose on."""
    count = spec.removeprefix("scenes").removeprefix(":") or str(COUNT)
    if not count.isdecimal() or int(count) < 2:
        raise UsageError(f"'{spec}' should be 'scenes' or 'scenes:COUNT', such as scenes:{COUNT}.")
    size = min(max(config.resolution, 32), 96)
    train, validation = held_out_fraction(_part(kind, int(count), size, "train"), VALIDATION_SHARE)
    test = Sealed(partial(_part, kind, max(int(count) // 5, 1), size, "test"))
    return Task(spec, CLASSES[kind], METRICS[kind], train, validation, test)


def _part(kind: Kind, count: int, size: int, split: Split) -> Part:
    source = scenes(count, size=size, split=split)
    return of_samples(source.name, count, partial(_read, kind, size, split), source.describe, source.stamp)


def _read(kind: Kind, size: int, split: Split, index: int) -> Sample[Any]:
    scene = render(index, size=size, split=split)
    return Sample(scene.image, TARGETS[kind](scene))


def _boxes(scene: Scene) -> Boxes:
    return Boxes(scene.boxes, scene.kinds, torch.zeros(len(scene.kinds), dtype=torch.bool))


TARGETS: dict[Kind, Callable[[Scene], Any]] = {
    "masks": lambda scene: scene.semantic,
    "boxes": _boxes,
    "depth": lambda scene: scene.depth,
}
CLASSES: dict[Kind, tuple[str, ...]] = {"masks": ("background", *KINDS), "boxes": KINDS, "depth": ()}
METRICS: dict[Kind, Metric] = {"masks": "mIoU", "boxes": "AP50", "depth": "pct<1.25"}
