"""The measures of `byol tune` against transcriptions of their formulas in numpy, and cases computed by hand."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg
import torch

from byol.tune import measures

RANDOM = np.random.default_rng(0)


def vectors(*shape: int) -> torch.Tensor:
    return torch.from_numpy(RANDOM.normal(size=shape))


def entropy_rank(values: np.ndarray) -> float:
    share = values / values.sum() + 1e-7
    return float(np.exp(-(share * np.log(share)).sum()))


def test_rankme() -> None:
    """Breaks when squares of the singular values are taken, or vectors are centred first, which RankMe does not."""
    features = vectors(60, 9) * torch.linspace(0.1, 3, 9) + 1
    gram = np.linalg.eigvalsh(features.numpy().T @ features.numpy())
    assert measures.rankme(features) == pytest.approx(entropy_rank(np.sqrt(gram)), rel=1e-9)
    assert measures.rankme(torch.eye(7)) == pytest.approx(7, rel=1e-4)
    assert measures.rankme(torch.ones(30, 5)) == pytest.approx(1, rel=1e-4)


def test_lidar() -> None:
    """Breaks when classes are not images, variance within them is not divided by, or views and images swap places."""
    views = vectors(40, 6)[:, None] * torch.tensor([3.0, 2, 1, 1, 0.5, 0.1]) + 0.3 * vectors(40, 5, 6)
    data = views.numpy()
    means = data.mean(1)
    centred = means - means.mean(0)
    between = centred.T @ centred / len(means)
    within = sum(np.outer(row, row) for row in (data - means[:, None]).reshape(-1, 6)) / (40 * 5)
    within = within + measures.SMALL * np.trace(within) / 6 * np.eye(6)
    # The eigenvalues of W^-1/2 B W^-1/2 are those of the pencil (B, W).
    expected = entropy_rank(np.clip(scipy.linalg.eigh(between, within, eigvals_only=True), 0, None))
    assert measures.lidar(views) == pytest.approx(expected, rel=1e-6)


def test_slope() -> None:
    """Breaks when singular values are taken for eigenvalues, or the fit is not one of logarithms."""
    size = 12
    basis = np.linalg.qr(RANDOM.normal(size=(200, size)) - 0)[0]
    basis = np.linalg.qr(basis - basis.mean(0))[0]
    for alpha in (0.5, 1.0, 2.0):
        values = np.arange(1, size + 1) ** -alpha
        features = torch.from_numpy(basis * np.sqrt(values))
        assert measures.slope(features) == pytest.approx(alpha, abs=1e-6)
        assert measures.near_one(features) == pytest.approx(-abs(alpha - 1), abs=1e-6)
    assert measures.near_one(torch.ones(20, 4)) == -10


def test_twins() -> None:
    """Breaks when vectors are not centred or normalized, or a view is compared with its own side."""
    first, second = vectors(30, 8) + 5, vectors(30, 8) + 5
    second[:12] = (first[:12] - 5) * 7 + 5
    mean = np.concatenate([first.numpy(), second.numpy()]).mean(0)
    one, two = (side.numpy() - mean for side in (first, second))
    cosines = [[a @ b / np.linalg.norm(a) / np.linalg.norm(b) for b in two] for a in one]
    expected = np.mean(np.argmax(cosines, 1) == np.arange(30))
    assert measures.twins(torch.stack([first, second], 1)) == pytest.approx(expected)
    assert expected >= 0.4


def by_least_squares(train: np.ndarray, targets: np.ndarray, test: np.ndarray, ridge: float) -> np.ndarray:
    """Ridge regression as least squares of stacked equations, with a free offset."""
    mean, deviation = train.mean(0), train.std(0, ddof=1)
    inputs = np.c_[(train - mean) / deviation, np.ones(len(train))]
    width = inputs.shape[1] - 1
    weight = np.sqrt(ridge * (inputs**2).sum() / inputs.shape[1])
    rows = np.r_[inputs, np.c_[weight * np.eye(width), np.zeros(width)]]
    solution = np.linalg.lstsq(rows, np.r_[targets, np.zeros((width, targets.shape[1]))], rcond=None)[0]
    return np.c_[(test - mean) / deviation, np.ones(len(test))] @ solution


def test_rotation() -> None:
    """Breaks when the probe is tried on images that it was fitted on, or a turn's label is another's."""
    direction = vectors(4, 10)
    turned = 0.8 * direction + vectors(80, 4, 10)
    data = turned.numpy()
    targets = np.tile(np.eye(4), (40, 1))
    scores = by_least_squares(data[:40].reshape(-1, 10), targets, data[40:].reshape(-1, 10), measures.RIDGE)
    expected = np.mean(scores.argmax(1) == np.tile(np.arange(4), 40))
    assert measures.rotation(turned) == pytest.approx(expected)
    assert 0.4 < expected < 1
    assert measures.rotation(vectors(400, 4, 10)) == pytest.approx(0.25, abs=0.06)


def test_belongs() -> None:
    """Breaks when the other crop is of the same image, or views without anything in common belong together."""
    shared = vectors(200, 6)
    alike = torch.stack([shared + 0.2 * vectors(200, 6), shared + 0.2 * vectors(200, 6)], 1)
    assert measures.belongs(alike) > 0.9
    assert measures.belongs(vectors(400, 2, 6)) == pytest.approx(0.5, abs=0.12)


def test_few_labels() -> None:
    """Breaks when an image votes for itself, or a class is missing from a fold."""
    targets = torch.arange(60) % 3
    features = vectors(60, 20)
    for share in (measures.few_labels, measures.in_folds, measures.by_neighbours):
        assert share(features, targets) < 0.6  # chance is a third; with themselves they would be known
    features[:, :3] += 12 * torch.nn.functional.one_hot(targets, 3)
    for share in (measures.few_labels, measures.in_folds, measures.by_neighbours):
        assert share(features, targets) == 1


def test_neighbours_by_hand() -> None:
    """Breaks when votes are counted instead of weighed by nearness, or the features are not centred."""
    angles = torch.tensor([0.0, 0.1, 0.5, 0.6, 3.1, 3.2]).double()
    features = torch.stack([angles.cos(), angles.sin()], 1) + 5.0  # far from the origin, where all cosines are 1
    targets = torch.tensor([0, 0, 1, 1, 2, 2])
    assert measures.by_neighbours(features, targets, k=4) == 1.0
    assert measures.by_neighbours(features, torch.tensor([0, 1, 0, 1, 0, 1]), k=1) == 0.0


def test_every_measure_is_larger_for_better_features() -> None:
    """Breaks when a measure has its sign turned: features that tell images apart against nearly equal ones."""
    signal = vectors(64, 12)
    turns = vectors(4, 12)
    crops = signal[:, None] + 0.3 * vectors(64, 4, 12)
    good = measures.Features(signal, crops, signal[:, None] + turns)
    line = vectors(64, 1) * torch.ones(12) * 0.1
    bad = measures.Features(
        line + 1, (line + 1)[:, None] + 1e-3 * vectors(64, 4, 12), (line + 1)[:, None].expand(64, 4, 12)
    )
    for name, measure in measures.MEASURES.items():
        assert measure.of(good) > measure.of(bad), name
        assert len(measure.about) > 10
