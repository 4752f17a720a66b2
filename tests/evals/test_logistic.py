"""Logistic regression against scikit-learn and against a float64 transcription of its objective."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from byol.evals import logistic
from byol.evals.logistic import fit, scores
from byol.evals.spec import Transfer

PENALTIES = Transfer().penalties
SOME = PENALTIES[::11]  # five, from the weakest to the strongest


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small products are slower on many threads, and the sum's order then depends on the machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def relu_features(count: int, width: int, classes: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Non-negative, correlated, of unequal scale and not centred, as a network's features are; and labels."""
    random = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % classes
    spread = torch.arange(1, width + 1) ** -0.5
    hidden = (
        torch.randn(count, width, generator=random) + torch.randn(classes, width, generator=random)[labels]
    ) * spread
    return F.relu(hidden @ torch.randn(width, width, generator=random) + 0.3), labels


def signs_of(labels: Tensor, classes: int) -> Tensor:
    return (2 * F.one_hot(labels, classes) - 1).to(torch.int8)


def objective(weights: Tensor, features: Tensor, targets: Tensor, penalty: float) -> Tensor:
    """The formula in float64 for weights (D + 1, C)."""
    weights, features = weights.double(), features.double()
    logits = features @ weights[:-1] + weights[-1]
    if targets.ndim == 1:
        entropy = (torch.logsumexp(logits, 1) - logits[torch.arange(len(logits)), targets]).sum()
    else:
        counted = targets != 0
        entropy = -F.logsigmoid(logits * targets)[counted].sum()
    return entropy + penalty / 2 * weights[:-1].square().sum()


def sklearn_objective(features: Tensor, targets: Tensor, penalty: float) -> float:
    """At scikit-learn's optimum; a binary problem a class for signs."""
    model = LogisticRegression(C=1 / penalty, tol=1e-9, max_iter=20_000)
    x = features.double().numpy()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if targets.ndim == 1:
            model.fit(x, targets.numpy())
            return float(objective(as_weights(model), features, targets, penalty))
        total = 0.0
        for column in targets.T:
            rows = column != 0
            model.fit(x[rows], column[rows].numpy())
            total += float(objective(as_weights(model), features[rows], column[rows, None], penalty))
    return total


def as_weights(model: LogisticRegression) -> Tensor:
    return torch.from_numpy(np.concatenate([model.coef_.T, model.intercept_[None]]))


def objectives(weights: Tensor, features: Tensor, targets: Tensor, penalties: tuple[float, ...]) -> list[float]:
    pairs = zip(weights, penalties, strict=True)
    return [float(objective(w, features, targets, p)) for w, p in pairs]


@pytest.mark.parametrize("separable", [False, True])
def test_softmax_reaches_the_optimum_of_scikit_learn(separable: bool) -> None:
    """Breaks if the penalty is on the mean loss, on the bias or on rotated-and-scaled weights, or if it stops early."""
    features, labels = relu_features(90 if separable else 300, 24 if separable else 8, 4)
    found = fit(features, labels, 4, SOME)
    ours = objectives(found.weights, features, labels, SOME)
    assert found.losses.tolist() == pytest.approx(ours, rel=1e-5)
    for penalty, loss in zip(SOME, ours, strict=True):
        assert loss <= sklearn_objective(features, labels, penalty) * (1 + 2e-5), penalty


def test_binary_problems_reach_the_optimum_of_scikit_learn() -> None:
    """Breaks if the classes share a step, a softmax or a stop, or if signs are read as 0 and 1."""
    features, labels = relu_features(200, 8, 4)
    signs = signs_of(labels, 4)
    signs[::3, 1] = 1  # two classes at once
    found = fit(features, signs, 4, SOME)
    ours = objectives(found.weights, features, signs, SOME)
    assert found.losses.tolist() == pytest.approx(ours, rel=1e-5)
    for penalty, loss in zip(SOME, ours, strict=True):
        assert loss <= sklearn_objective(features, signs, penalty) * (1 + 2e-5), penalty


@pytest.mark.parametrize("kind", ["labels", "signs"])
def test_gradient_vanishes_at_the_optimum(kind: str) -> None:
    """Breaks if the loss and its written-out gradient disagree, or if weights come back in the wrong basis."""
    features, labels = relu_features(300, 8, 3)
    targets = labels if kind == "labels" else signs_of(labels, 3)
    found = fit(features, targets, 3, (0.1, 10.0, 1e3), tolerance=1e-12)
    for weights, penalty in zip(found.weights, (0.1, 10.0, 1e3), strict=True):
        there, origin = (w.double().requires_grad_(True) for w in (weights, torch.zeros_like(weights)))
        for point in (there, origin):
            objective(point, features, targets, penalty).backward()
        assert there.grad is not None
        assert origin.grad is not None
        assert there.grad.norm() < 1e-5 * origin.grad.norm()


def test_hand_case() -> None:
    """Breaks if the objective's scale changes: two points at ±1, where w solves 2/(1 + eʷ) = λ·w/2 at λ = 1."""
    found = fit(torch.tensor([[1.0], [-1.0]]), torch.tensor([[1], [-1]], dtype=torch.int8), 1, (1.0,))
    slope, bias = found.weights[0, :, 0].tolist()
    assert 2 / (1 + np.exp(slope)) == pytest.approx(slope, rel=1e-3)
    assert bias == pytest.approx(0, abs=1e-6)


def test_a_penalty_does_not_depend_on_its_company() -> None:
    """Breaks if problems of a batch mix, if a solved one is moved on, or if the answers come back sorted."""
    features, labels = relu_features(200, 8, 3)
    shuffled = (1.0, 1e-4, 1e5, 1e-4, 0.01)
    together = fit(features, labels, 3, shuffled, tolerance=1e-12)
    for place, penalty in enumerate(shuffled):
        alone = fit(features, labels, 3, (penalty,), tolerance=1e-12)
        assert together.losses[place] == pytest.approx(float(alone.losses[0]), rel=1e-5)
        gap = together.weights[place] - alone.weights[0]
        assert gap.norm() < 0.02 * alone.weights[0].norm()


def test_small_blocks_and_small_groups_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks if a block of rows is lost, counted twice or meets the targets of another."""
    features, labels = relu_features(203, 8, 3)
    targets = (labels, signs_of(labels, 3))
    whole = [fit(features, t, 3, SOME) for t in targets]
    logits = scores(whole[0].weights, features)
    monkeypatch.setattr(logistic, "ELEMENTS", {"cpu": 500, "cuda": 500})
    monkeypatch.setattr(logistic, "COLUMNS", {"cpu": 7, "cuda": 7})
    monkeypatch.setattr(logistic, "BLOCK", 100)
    for before, target in zip(whole, targets, strict=True):
        after = fit(features, target, 3, SOME)
        assert after.losses.tolist() == pytest.approx(before.losses.tolist(), rel=1e-5)
    torch.testing.assert_close(scores(whole[0].weights, features), logits)


def test_scores_are_the_logits() -> None:
    """Breaks if penalties and classes are swapped, or the bias is left out."""
    features, _ = relu_features(20, 5, 3)
    weights = torch.randn(4, 6, 3, generator=torch.Generator().manual_seed(0))
    expected = torch.stack([features @ w[:-1] + w[-1] for w in weights])
    torch.testing.assert_close(scores(weights, features), expected)


def test_what_is_not_counted_does_not_count() -> None:
    """Breaks if a sign of 0 adds a gradient or a log 2: its image may as well not be there."""
    features, labels = relu_features(200, 8, 2)
    signs = signs_of(labels, 2)
    signs[50:100] = 0
    kept = torch.cat([torch.arange(50), torch.arange(100, 200)])
    masked = fit(features, signs, 2, (0.1, 10.0), tolerance=1e-12)
    removed = fit(features[kept], signs[kept], 2, (0.1, 10.0), tolerance=1e-12)
    assert masked.losses.tolist() == pytest.approx(removed.losses.tolist(), rel=1e-6)
    torch.testing.assert_close(masked.weights, removed.weights, rtol=1e-2, atol=1e-3)


def test_renaming_classes_renames_the_answer() -> None:
    """Breaks if one class is treated apart, such as a reference class with weights fixed at zero."""
    features, labels = relu_features(200, 8, 3)
    renamed = torch.tensor([2, 0, 1])
    first = fit(features, labels, 3, (0.1, 10.0), tolerance=1e-12)
    second = fit(features, renamed[labels], 3, (0.1, 10.0), tolerance=1e-12)
    torch.testing.assert_close(second.weights[..., renamed], first.weights, rtol=1e-2, atol=1e-3)


def test_start_at_the_optimum_is_kept() -> None:
    """Breaks if a start is ignored or misread: from elsewhere it takes many iterations."""
    features, labels = relu_features(300, 8, 3)
    first = fit(features, labels, 3, SOME, tolerance=1e-9)
    for start, penalties in ((first.weights, SOME), (first.weights[2], SOME[2:3])):
        assert fit(features, labels, 3, penalties, start=start).iterations.max() <= 3
    assert fit(features, labels, 3, SOME[2:3]).iterations.max() > 10


def test_a_far_start_does_not_matter() -> None:
    """Breaks without the search for a step's length, or if what the classes of a start share is kept."""
    features, labels = relu_features(300, 8, 3)
    start = 100 * torch.randn(9, 3, generator=torch.Generator().manual_seed(0))
    found, usual = fit(features, labels, 3, SOME, start=start), fit(features, labels, 3, SOME)
    assert found.losses.tolist() == pytest.approx(usual.losses.tolist(), rel=3e-5)


def test_progress_counts_to_the_end() -> None:
    """Breaks if a group is not reported."""
    features, labels = relu_features(60, 4, 3)
    heard: list[int] = []
    fit(features, labels, 3, PENALTIES, progress=heard.append)
    assert heard == sorted(heard)
    assert heard[-1] == len(PENALTIES)


def test_classes_without_images_are_left_out() -> None:
    """Breaks if an absent class is fitted: its free bias would run away for ever."""
    features, labels = relu_features(200, 8, 3)
    sparse = torch.tensor([0, 2, 5])[labels]
    found, dense = fit(features, sparse, 6, SOME), fit(features, labels, 3, SOME)
    torch.testing.assert_close(found.weights[..., [0, 2, 5]], dense.weights)
    assert set(scores(found.weights, features).argmax(2).unique().tolist()) <= {0, 2, 5}
    assert objectives(found.weights, features, sparse, SOME) == pytest.approx(dense.losses.tolist(), rel=1e-5)


def test_classes_that_all_or_no_images_have() -> None:
    """Breaks if a class with one sign only is fitted, or one that is never counted gets an opinion."""
    features, labels = relu_features(100, 4, 2)
    signs = torch.cat([signs_of(labels, 2), torch.ones(100, 1), -torch.ones(100, 1), torch.zeros(100, 1)], 1).char()
    found = fit(features, signs, 5, SOME)
    logits = scores(found.weights, features)
    assert (logits[..., 2] > 100).all()
    assert (logits[..., 3] < -100).all()
    assert (logits[..., 4] == 0).all()
    assert found.losses.tolist() == pytest.approx(fit(features, signs[:, :2], 2, SOME).losses.tolist(), rel=1e-6)


def test_one_class_only() -> None:
    """Breaks if a softmax over one class is not simply certain."""
    features, _ = relu_features(30, 4, 2)
    found = fit(features, torch.ones(30, dtype=torch.long), 3, SOME)
    assert found.losses.tolist() == [0] * len(SOME)
    assert (scores(found.weights, features).argmax(2) == 1).all()
    nothing = fit(features, torch.ones(30, 2, dtype=torch.int8), 2, SOME)
    assert nothing.losses.tolist() == [0] * len(SOME)


def test_constant_features_leave_the_class_frequencies() -> None:
    """Breaks if a direction without variance is divided by: only the bias can learn, and it learns the frequencies."""
    labels = torch.tensor([0] * 30 + [1] * 10)
    found = fit(torch.full((40, 3), 0.1), labels, 2, (1.0,), tolerance=1e-12)
    probabilities = scores(found.weights, torch.full((1, 3), 0.1)).softmax(2)[0, 0]
    assert probabilities.tolist() == pytest.approx([0.75, 0.25], rel=1e-5)


def test_more_features_than_images_and_copies_of_features() -> None:
    """Breaks if the rotation loses a direction that has variance, or keeps one that is rounding error."""
    features, labels = relu_features(40, 60, 3)
    features = torch.cat([features, features[:, :5], torch.ones(40, 2)], 1)
    ours = objectives(fit(features, labels, 3, SOME).weights, features, labels, SOME)
    for penalty, loss in zip(SOME, ours, strict=True):
        assert loss <= sklearn_objective(features, labels, penalty) * (1 + 2e-5), penalty


def test_is_deterministic() -> None:
    """Breaks if anything random enters."""
    features, labels = relu_features(100, 6, 3)
    first, second = (fit(features, labels, 3, PENALTIES) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
