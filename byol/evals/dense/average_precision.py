"""Average precision of detections as Pascal VOC defines it: an object is found once, difficult ones do not count.

A detection belongs to the object of its class and image that it overlaps most. Overlap is intersection over union with
both edges of a box outside its pixels, which are the devkit's numbers for boxes that count their pixels inclusively.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from torch import Tensor

from byol.data.parts import Boxes

OVERLAP = 0.5


class Found(NamedTuple):
    """What a detector says of one image."""

    boxes: Tensor  # float32 (K, 4) x0 y0 x1 y1
    labels: Tensor  # int64 (K,) class numbers from 0
    scores: Tensor  # float32 (K,)


class Precision(NamedTuple):
    """Of one class; both are NaN when no object of the class counts."""

    area: float  # under the curve of best precision at a recall or a higher one (VOC from 2010)
    eleven: float  # the mean of that curve over recalls 0, 0.1, …, 1 (VOC2007)
    objects: int  # that count


def average_precisions(
    found: Sequence[Found], truth: Sequence[Boxes], classes: int, overlap: float = OVERLAP
) -> list[Precision]:
    """Of each class; the images of both sequences correspond."""
    assert len(found) == len(truth)
    return [_of_class(found, truth, label, overlap) for label in range(classes)]


def mean_precision(each: Sequence[Precision]) -> Precision:
    """Over the classes that have an object that counts; NaN when none has."""
    counted = [p for p in each if p.objects]
    if not counted:
        return Precision(float("nan"), float("nan"), 0)
    area, eleven = (float(np.mean([getattr(p, kind) for p in counted])) for kind in ("area", "eleven"))
    return Precision(area, eleven, sum(p.objects for p in counted))


def _of_class(found: Sequence[Found], truth: Sequence[Boxes], label: int, overlap: float) -> Precision:
    scores, matches, ignored, counted, first = [], [], [], 0, 0
    for image, objects in zip(found, truth, strict=True):
        chosen, there = image.labels == label, objects.labels == label
        difficult = objects.difficult[there].numpy()
        nearest, shared = _nearest(image.boxes[chosen].numpy(), objects.boxes[there].numpy())
        hit = shared >= overlap
        scores.append(image.scores[chosen].numpy())
        matches.append(np.where(hit, first + nearest, -1))  # objects numbered through all images
        ignored.append(hit & difficult[nearest] if len(difficult) else hit)
        counted, first = counted + int((~difficult).sum()), first + len(difficult)
    if not counted:
        return Precision(float("nan"), float("nan"), 0)
    # Of equal scores the earlier image comes first, as in the devkit.
    order = np.argsort(-np.concatenate(scores), kind="stable")
    order = order[~np.concatenate(ignored)[order]]
    return _curve(_first_of_each(np.concatenate(matches)[order]), counted)


def _nearest(boxes: np.ndarray, objects: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(number of the object each box overlaps most, the first of equal ones; that overlap, -1 without objects)."""
    if not len(objects):
        return np.zeros(len(boxes), np.int64), np.full(len(boxes), -1.0)
    shared = overlaps(boxes, objects)
    nearest = shared.argmax(1)
    return nearest, shared[np.arange(len(boxes)), nearest]


def overlaps(boxes: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Intersection over union (N, M) of boxes (N, 4) and (M, 4); 0 for boxes without area."""
    a, b = boxes.astype(np.float64)[:, None], others.astype(np.float64)[None]
    sides = np.minimum(a[..., 2:], b[..., 2:]) - np.maximum(a[..., :2], b[..., :2])
    shared = np.prod(sides.clip(min=0), -1)
    union = _area(a) + _area(b) - shared
    share: np.ndarray = np.divide(shared, union, out=np.zeros_like(shared), where=union > 0)
    return share


def _area(boxes: np.ndarray) -> np.ndarray:
    area: np.ndarray = np.prod((boxes[..., 2:] - boxes[..., :2]).clip(min=0), -1)
    return area


def _first_of_each(matches: np.ndarray) -> np.ndarray:
    """Whether a detection, in order of the scores, is the first one of an object; -1 is no object."""
    right = np.zeros(len(matches), bool)
    objects, places = np.unique(matches, return_index=True)
    right[places[objects >= 0]] = True
    return right


def _curve(right: np.ndarray, counted: int) -> Precision:
    """`right` (K,) says of detections, best first, which of them find one of the `counted` objects."""
    hits = np.cumsum(right)
    precision = hits / np.arange(1, len(right) + 1)
    best = np.maximum.accumulate(precision[::-1])[::-1]  # at this recall or a higher one
    # Recall rises by 1/counted at each right one. Tenths are compared as whole numbers: 0.3 is less than 3 · 0.1.
    area = float(best[right].sum() / counted)
    tenths = [best[10 * hits >= tenth * counted] for tenth in range(11)]
    eleven = float(sum(level[0] for level in tenths if len(level)) / 11)
    return Precision(area, eleven, counted)
