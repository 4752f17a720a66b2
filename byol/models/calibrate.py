"""How sure a model may be: a temperature for its logits, figures of calibration, and when it should not answer.

Everything here is measured on images that the weights have not seen. Targets are class numbers (N,), or signs (N, C):
1 present, -1 absent, 0 not known.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

LOWEST, HIGHEST = math.log(0.05), math.log(20.0)  # of a temperature's logarithm
SURE = 60.0  # logits beyond this differ in nothing that a probability shows
BINS = 10


class Bin(NamedTuple):
    """Answers of about the same confidence: how sure they were, and how many were right."""

    confidence: float
    accuracy: float
    answers: int


def probabilities(logits: np.ndarray, temperature: float, several: bool) -> np.ndarray:
    """float64 (N, C): a softmax over the classes, or for several labels an image each class by itself."""
    scaled = np.clip(logits.astype(np.float64), -1e4, 1e4) / temperature
    if several:
        return np.asarray(0.5 * (1 + np.tanh(0.5 * scaled)))
    shifted = np.exp(scaled - scaled.max(1, keepdims=True))
    return np.asarray(shifted / shifted.sum(1, keepdims=True))


def log_loss(logits: np.ndarray, targets: np.ndarray, temperature: float) -> float:
    """Mean negative log-likelihood; of several labels over every one that is known."""
    scaled = np.clip(logits.astype(np.float64), -SURE, SURE) / temperature
    if targets.ndim == 2:
        known = targets != 0
        return float((np.logaddexp(0, -targets * scaled) * known).sum() / max(known.sum(), 1))
    top = scaled.max(1)
    total = top + np.log(np.exp(scaled - top[:, None]).sum(1))
    return float((total - scaled[np.arange(len(targets)), targets]).mean())


def temperature(logits: np.ndarray, targets: np.ndarray) -> float:
    """The temperature with the least loss. A prior that counts as one image keeps a handful of images, all of them
    right, from claiming certainty."""
    count = len(targets)
    if not count:
        return 1.0

    def cost(log: float) -> float:
        return count * log_loss(logits, targets, math.exp(log)) + log * log

    low, high = LOWEST, HIGHEST
    golden = (math.sqrt(5) - 1) / 2
    while high - low > 1e-4:
        one, two = high - golden * (high - low), low + golden * (high - low)
        low, high = (low, two) if cost(one) <= cost(two) else (one, high)
    return round(math.exp((low + high) / 2), 4)


def answers(given: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Confidence of every answer, and whether it is right: the likeliest class of an image; of several labels every
    known class, as present or absent."""
    if targets.ndim == 1:
        best = given.argmax(1)
        return given[np.arange(len(given)), best], best == targets
    known = targets != 0
    sure = np.maximum(given, 1 - given)
    return sure[known], ((given >= 0.5) == (targets > 0))[known]


def reliability(confidence: np.ndarray, right: np.ndarray) -> list[Bin]:
    """Answers by their confidence, in bins of a tenth; those without an answer are left out."""
    place = np.minimum((confidence * BINS).astype(int), BINS - 1)
    inside = [place == number for number in range(BINS)]
    return [Bin(float(confidence[i].mean()), float(right[i].mean()), int(i.sum())) for i in inside if i.any()]


def calibration_error(confidence: np.ndarray, right: np.ndarray) -> float:
    """The mean distance between confidence and accuracy over the bins, weighted by their answers."""
    found = reliability(confidence, right)
    total = sum(item.answers for item in found)
    return sum(abs(item.confidence - item.accuracy) * item.answers for item in found) / max(total, 1)


def threshold(confidence: np.ndarray, right: np.ndarray, precision: float) -> float | None:
    """The lowest confidence from which on at least this share of the answers is right; None: there is none."""
    if precision <= 0:
        return 0.0
    order = np.argsort(-confidence, kind="stable")
    sorted_confidence = confidence[order]
    shares = np.cumsum(right[order]) / np.arange(1, len(order) + 1)
    last = np.append(sorted_confidence[1:] < sorted_confidence[:-1], True)  # equal confidences answer together
    good = np.flatnonzero((shares >= precision) & last)
    return float(sorted_confidence[good[-1]]) if len(good) else None


def thresholds(given: np.ndarray, targets: np.ndarray, precision: float) -> list[float | None]:
    """Of the likeliest class; of several labels one for each class, 0.5 where no precision is asked for."""
    if targets.ndim == 1:
        return [threshold(*answers(given, targets), precision)]
    if precision <= 0:
        return [0.5] * targets.shape[1]
    known = targets != 0
    return [threshold(given[known[:, c], c], targets[known[:, c], c] > 0, precision) for c in range(targets.shape[1])]
