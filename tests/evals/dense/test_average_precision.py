"""Average precision against a worked example that was published, and against a slow transcription of VOC's rules."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from byol.data.parts import Boxes
from byol.evals.dense.average_precision import Found, average_precisions, mean_precision, overlaps

# Padilla, Netto, da Silva, "A Survey on Performance Metrics for Object-Detection Algorithms" (2020), the example with
# 15 objects in 7 images: image, score in per cent and whether it is right, of 24 detections.
PUBLISHED = """
1 88 0   1 70 1   1 80 0   2 71 0   2 54 1   2 74 0   3 18 1   3 67 0   3 38 0   3 91 1   3 44 0   4 35 0
4 78 0   4 45 0   4 14 0   5 62 1   5 44 0   5 95 1   5 23 0   6 45 0   6 84 0   6 43 0   7 48 1   7 95 0
"""


def truth(boxes: list[list[float]], labels: list[int] | None = None, difficult: list[bool] | None = None) -> Boxes:
    count = len(boxes)
    return Boxes(
        torch.tensor(boxes, dtype=torch.float32).reshape(-1, 4),
        torch.tensor(labels or [0] * count, dtype=torch.int64),
        torch.tensor(difficult or [False] * count, dtype=torch.bool),
    )


def found(boxes: list[list[float]], scores: list[float], labels: list[int] | None = None) -> Found:
    return Found(
        torch.tensor(boxes, dtype=torch.float32).reshape(-1, 4),
        torch.tensor(labels or [0] * len(boxes), dtype=torch.int64),
        torch.tensor(scores, dtype=torch.float32),
    )


def slow(detections: list[Found], objects: list[Boxes], label: int, overlap: float) -> tuple[float, float]:
    """The devkit's walk over the detections, one at a time, with exact recalls; pixels are counted inclusively."""
    entries = []
    for image, one in enumerate(detections):
        for box, kind, score in zip(one.boxes.tolist(), one.labels.tolist(), one.scores.tolist(), strict=True):
            if kind == label:
                entries.append((score, image, box))
    entries.sort(key=lambda entry: -entry[0])
    taken, positives = set(), 0
    for each in objects:
        kinds = zip(each.labels.tolist(), each.difficult.tolist(), strict=True)
        positives += sum(kind == label and not hard for kind, hard in kinds)
    if not positives:
        return math.nan, math.nan
    points, right, wrong = [], 0, 0
    for _, image, box in entries:
        best, place = -math.inf, -1
        for number, other in enumerate(objects[image].boxes.tolist()):
            if int(objects[image].labels[number]) != label:
                continue
            a, b = ([x0 + 1, y0 + 1, x1, y1] for x0, y0, x1, y1 in (box, other))
            wide = min(a[2], b[2]) - max(a[0], b[0]) + 1
            high = min(a[3], b[3]) - max(a[1], b[1]) + 1
            if wide > 0 and high > 0:
                areas = sum((c[2] - c[0] + 1) * (c[3] - c[1] + 1) for c in (a, b))
                if wide * high / (areas - wide * high) > best:
                    best, place = wide * high / (areas - wide * high), number
        if best >= overlap and bool(objects[image].difficult[place]):
            continue
        if best >= overlap and (image, place) not in taken:
            taken.add((image, place))
            right += 1
        else:
            wrong += 1
        points.append((Fraction(right, positives), Fraction(right, right + wrong)))
    reached = lambda level: max((precision for recall, precision in points if recall >= level), default=Fraction(0))
    eleven = sum(reached(Fraction(t, 10)) for t in range(11)) / 11
    area = sum(reached(Fraction(k, positives)) for k in range(1, positives + 1)) / positives
    return float(area), float(eleven)


def test_the_published_example() -> None:
    """Breaks if precision, recall or either interpolation differ from the text's 24.56 % and 26.84 %."""
    rows = [int(word) for word in PUBLISHED.split()]
    detections: dict[int, list[tuple[float, bool]]] = {image: [] for image in range(1, 8)}
    for image, score, right in zip(rows[::3], rows[1::3], rows[2::3], strict=True):
        detections[image].append((score / 100, bool(right)))
    objects, seen = [], []
    for image, each in detections.items():
        spots = [[40.0 * place, 0.0, 40.0 * place + 20, 20.0] for place in range(len(each) + 1)]
        missed = 2 if image == 1 else 1  # 7 found and 8 missed are 15
        wanted = [spot for spot, (_, right) in zip(spots, each, strict=False) if right]
        objects.append(truth(wanted + [[0, 50.0 + 30 * m, 20, 70 + 30 * m] for m in range(missed)]))
        seen.append(found(spots[: len(each)], [score for score, _ in each]))
    assert sum(len(each.boxes) for each in objects) == 15
    (result,) = average_precisions(seen, objects, 1)
    # The text adds areas that were rounded before.
    assert result.area == pytest.approx(0.2456, abs=2e-4)
    assert result.eleven == pytest.approx(0.2684, abs=5e-5)
    assert result.objects == 15


def random_case(seed: int) -> tuple[list[Found], list[Boxes]]:
    """Whole-pixel boxes near objects, with equal scores, duplicates, empty images and difficult objects."""
    random = np.random.default_rng(seed)
    seen, objects = [], []
    for _ in range(12):
        count = int(random.integers(0, 5))
        corner = random.integers(0, 40, (count, 2))
        boxes = np.concatenate([corner, corner + random.integers(4, 25, (count, 2))], 1)
        labels = random.integers(0, 3, count)
        objects.append(truth(boxes.tolist(), labels.tolist(), (random.random(count) < 0.3).tolist()))
        near = boxes[random.integers(0, count, 6)] + random.integers(-2, 3, (6, 4)) if count else np.zeros((0, 4))
        corner = random.integers(0, 40, (2, 2))
        near = np.concatenate([near, near[:2], np.concatenate([corner, corner + 9], 1)])
        near[:, 2:] = np.maximum(near[:, 2:], near[:, :2] + 1)
        scores = random.integers(1, 8, len(near)) / 8  # few values: many are equal
        seen.append(found(near.tolist(), scores.tolist(), random.integers(0, 3, len(near)).tolist()))
    return seen, objects


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("overlap", [0.5, 0.3])
def test_random_boxes_as_the_slow_transcription(seed: int, overlap: float) -> None:
    """Breaks if matching, ties, duplicates, difficult objects or the interpolations differ from VOC's rules."""
    seen, objects = random_case(seed)
    for label, result in enumerate(average_precisions(seen, objects, 3, overlap)):
        area, eleven = slow(seen, objects, label, overlap)
        assert result.area == pytest.approx(area, abs=1e-12, nan_ok=True)
        assert result.eleven == pytest.approx(eleven, abs=1e-12, nan_ok=True)


def test_an_object_is_found_once_and_a_difficult_one_never_counts() -> None:
    """Breaks if a second hit is not a mistake, or a difficult object is wanted, or finding it is a mistake."""
    square, other = [0.0, 0.0, 10.0, 10.0], [50.0, 50.0, 60.0, 60.0]
    twice = found([square, square], [0.9, 0.8])
    assert average_precisions([twice], [truth([square, other])], 1)[0].area == pytest.approx(0.5)
    hard = truth([square, other], difficult=[False, True])
    three = found([other, other, square], [0.9, 0.8, 0.7])  # two hits of the difficult one are passed over
    assert average_precisions([three], [hard], 1)[0] == (1.0, 1.0, 1)


def test_overlap_of_exactly_one_half_is_a_hit() -> None:
    """Breaks if the limit itself is left out, as some ports of the devkit do."""
    (result,) = average_precisions([found([[0, 0, 10, 5]], [1.0])], [truth([[0, 0, 10, 10]])], 1)
    assert result.area == 1.0


def test_without_detections_or_without_objects() -> None:
    """Breaks if nothing found is not 0, or a class without objects is counted into the mean."""
    nothing = found([], [])
    there = truth([[0, 0, 9, 9]])
    assert average_precisions([nothing], [there], 1)[0] == (0.0, 0.0, 1)
    each = average_precisions([found([[0, 0, 9, 9]], [0.5]), found([[0, 0, 9, 9]], [0.4], [1])], [there, truth([])], 2)
    assert math.isnan(each[1].area)
    assert each[1].objects == 0
    assert mean_precision(each) == (1.0, 1.0, 1)
    assert math.isnan(mean_precision(average_precisions([nothing], [truth([])], 1)).area)
    hard = truth([[0, 0, 9, 9]], difficult=[True])
    assert math.isnan(average_precisions([nothing], [hard], 1)[0].area)


def test_recall_of_three_tenths_reaches_its_level() -> None:
    """Breaks if 3 of 10 objects do not reach the recall 0.3 because of rounding."""
    objects = [truth([[20.0 * k, 0, 20 * k + 10, 10] for k in range(10)])]
    seen = [found([[20.0 * k, 0, 20 * k + 10, 10] for k in range(3)], [0.9, 0.8, 0.7])]
    (result,) = average_precisions(seen, objects, 1)
    assert result.eleven == pytest.approx(4 / 11)
    assert result.area == pytest.approx(0.3)


def test_overlaps_as_torchvision() -> None:
    """Breaks if intersection over union is wrong."""
    from torchvision.ops import box_iou

    random = np.random.default_rng(0)
    boxes = random.random((30, 4), np.float32) * 20
    boxes[:, 2:] += boxes[:, :2]
    expected = box_iou(torch.from_numpy(boxes[:10]).double(), torch.from_numpy(boxes[10:]).double())
    assert np.allclose(overlaps(boxes[:10], boxes[10:]), expected.numpy(), atol=1e-12)
