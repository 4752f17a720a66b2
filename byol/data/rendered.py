"""The embedded scenes as dense data sets: the same renderings with their masks, their boxes or their depth."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from byol.config import Data
from byol.data.dense import Boxes, DenseMetric, DenseTask, Kind, Sample, Samples, held_out_fraction
from byol.data.scenes import KINDS, Scene, Split, render, scenes
from byol.data.task import Sealed
from byol.errors import UsageError

COUNT = 5000
VALIDATION_SHARE = 0.1


def rendered(kind: Kind, spec: str, config: Data) -> DenseTask[Any]:
    """`scenes[:COUNT]`; a fifth as many for the test, a tenth of COUNT to choose on."""
    count = spec.removeprefix("scenes").removeprefix(":") or str(COUNT)
    if not count.isdecimal() or int(count) < 2:
        raise UsageError(f"'{spec}' should be 'scenes' or 'scenes:COUNT', such as scenes:{COUNT}.")
    size = min(max(config.resolution, 32), 96)
    train, validation = held_out_fraction(_samples(kind, int(count), size, "train"), VALIDATION_SHARE)
    test = Sealed(partial(_samples, kind, max(int(count) // 5, 1), size, "test"))
    return DenseTask(spec, CLASSES[kind], METRICS[kind], train, validation, test)


def _samples(kind: Kind, count: int, size: int, split: Split) -> Samples[Any]:
    source = scenes(count, size=size, split=split)
    return Samples(source.name, count, partial(_read, kind, size, split), source.describe, source.stamp)


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
METRICS: dict[Kind, DenseMetric] = {"masks": "mIoU", "boxes": "AP50", "depth": "pct<1.25"}
