"""How an evaluation is scored: functions of scores (N, classes) and targets, and the paper's choice a data set.

Targets are class numbers int64 (N,), or for several labels an image int8 (N, classes): 1 present, -1 absent, 0 not
counted.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from byol.data.parts import Metric


def top_k(scores: np.ndarray, targets: np.ndarray, k: int) -> float:
    """Share of images whose class is among the k highest scores; of equal scores the lower class number comes first."""
    own = scores[np.arange(len(scores)), targets]
    higher = (scores > own[:, None]).sum(1)
    before = ((scores == own[:, None]) & (np.arange(scores.shape[1]) < targets[:, None])).sum(1)
    return float((higher + before < k).mean())


def top1(scores: np.ndarray, targets: np.ndarray) -> float:
    return top_k(scores, targets, 1)


def top5(scores: np.ndarray, targets: np.ndarray) -> float:
    return top_k(scores, targets, 5)


def mean_per_class(scores: np.ndarray, targets: np.ndarray) -> float:
    """The mean over classes of each class's own accuracy; classes without an image do not count."""
    right = scores.argmax(1) == targets
    return float(np.mean([right[targets == label].mean() for label in np.unique(targets)]))


def map11(scores: np.ndarray, targets: np.ndarray) -> float:
    """The mean over classes of `average_precision11`; classes without a positive image do not count."""
    found = [average_precision11(scores[:, c], targets[:, c]) for c in range(targets.shape[1])]
    return float(np.nanmean(found))


def average_precision11(scores: np.ndarray, present: np.ndarray) -> float:
    """VOC2007's: the mean over recalls 0, 0.1, …, 1 of the best precision at that recall or a higher one."""
    counted = present != 0
    order = np.argsort(-scores[counted], kind="stable")
    positive = (present[counted] > 0)[order]
    if not positive.any():
        return float("nan")
    hits = np.cumsum(positive)
    recall, precision = hits / hits[-1], hits / np.arange(1, len(hits) + 1)
    # 0.3 is a little less than three times 0.1: compared as whole numbers of tenths
    best = [precision[np.round(recall * 10, 9) >= tenth] for tenth in range(11)]
    return float(np.mean([b.max() for b in best]))


def score(metric: Metric, scores: np.ndarray, targets: np.ndarray) -> dict[str, float]:
    """The data set's own figure under its name, with top-1 and top-5 beside it where an image has one class."""
    found: dict[str, float] = {metric: METRICS[metric](scores, targets)}
    if targets.ndim == 1:
        found |= {"top1": top1(scores, targets)}
        if scores.shape[1] > 5:
            found |= {"top5": top5(scores, targets)}
    return found


PLAIN = ("rms", "rel", "log10")  # figures of depth that are metres or ratios; all others are shares


def shown(figure: str, value: float) -> str:
    """A figure for people: a percentage, or the number itself where it is not a share of anything."""
    return f"{value:.3f}" if figure in PLAIN else f"{value:.2%}"


def chance(figure: str, classes: int) -> float | None:
    """What guessing gives, for figures of one class an image, such as `top1` and `top1@1%`; None: it depends."""
    guesses = {"top1": 1, "mean-per-class": 1, "top5": 5}.get(figure.split("@")[0].split()[-1])
    return min(guesses / classes, 1.0) if guesses and classes else None


METRICS: dict[Metric, Callable[[np.ndarray, np.ndarray], float]] = {
    "top1": top1,
    "mean-per-class": mean_per_class,
    "map11": map11,
}
