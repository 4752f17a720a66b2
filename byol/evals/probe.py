"""A linear classifier on frozen features: how much of the labels the representation lays open.

Multinomial logistic regression by L-BFGS; its ℓ2 penalty is chosen on a tenth of the training features, and the test
features are used once, at the end.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

PENALTIES = tuple(float(p) for p in np.logspace(-6, 0, 7))
VALIDATION = 0.1


class Probe(NamedTuple):
    """Test accuracy, and how the penalty was chosen: penalty → validation accuracy."""

    accuracy: float
    penalty: float
    validation: dict[float, float]


def fit(features: Tensor, labels: Tensor, classes: int, penalty: float, start: Tensor | None = None) -> Tensor:
    """Weights (D + 1, classes) at the optimum of mean cross-entropy + penalty/2 · ‖W‖²; the last row is the bias."""
    weights = torch.zeros(features.shape[1] + 1, classes) if start is None else start.clone()
    weights.requires_grad_(True)
    optimizer = torch.optim.LBFGS([weights], max_iter=100, history_size=10, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        logits = features @ weights[:-1] + weights[-1]
        loss = F.cross_entropy(logits, labels) + penalty / 2 * weights[:-1].square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    return weights.detach()


def accuracy(weights: Tensor, features: Tensor, labels: Tensor) -> float:
    return float(((features @ weights[:-1] + weights[-1]).argmax(1) == labels).double().mean())


def linear_probe(
    train: np.ndarray,
    train_labels: np.ndarray,
    test: np.ndarray,
    test_labels: np.ndarray,
    *,
    classes: int,
    seed: int = 0,
) -> Probe:
    """Standardizes with the training statistics, chooses the penalty on held-out training rows, reports on test."""
    features, queries = torch.from_numpy(train).float(), torch.from_numpy(test).float()
    labels, answers = torch.from_numpy(train_labels).long(), torch.from_numpy(test_labels).long()
    mean, deviation = features.mean(0), features.std(0).clamp(min=1e-6)
    features, queries = (features - mean) / deviation, (queries - mean) / deviation
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(features)))
    held = max(1, int(len(order) * VALIDATION))
    chosen, rest = order[:held], order[held:]
    validation: dict[float, float] = {}
    weights = None
    for penalty in sorted(PENALTIES, reverse=True):  # from strong to weak, each from where the last one ended
        weights = fit(features[rest], labels[rest], classes, penalty, weights)
        validation[penalty] = accuracy(weights, features[chosen], labels[chosen])
    best = max(validation, key=lambda p: (validation[p], p))
    final = fit(features, labels, classes, best, weights)
    return Probe(accuracy(final, queries, answers), best, validation)
