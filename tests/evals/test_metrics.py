"""The figures that evaluations report, against hand-computed cases and scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import balanced_accuracy_score, top_k_accuracy_score

from byol.evals import metrics


def test_average_precision_of_a_ranking_by_hand() -> None:
    """Breaks if precision is not the best at that recall or a higher one, or a recall level is left out.

    Ranking + - + - -: recall 1/2 at precision 1, recall 1 at precision 2/3. Levels 0 to 0.5 see 1, 0.6 to 1 see 2/3.
    """
    scores = np.array([0.9, 0.8, 0.7, 0.6, 0.5])
    present = np.array([1, -1, 1, -1, -1])
    assert metrics.average_precision11(scores, present) == pytest.approx((6 * 1 + 5 * 2 / 3) / 11, abs=1e-12)


def test_images_that_do_not_count() -> None:
    """Breaks if difficult images (0) are taken for negatives."""
    scores = np.array([0.95, 0.9, 0.8, 0.7])
    assert metrics.average_precision11(scores, np.array([0, 1, -1, 1])) == metrics.average_precision11(
        scores[1:], np.array([1, -1, 1])
    )


def test_recall_levels_are_reached_exactly() -> None:
    """Breaks if 3/10 falls short of the level 0.3 in floating point: ten positives, all first, give 1."""
    present = np.array([1] * 10 + [-1] * 5)
    assert metrics.average_precision11(-np.arange(15.0), present) == 1.0


def test_map_is_the_mean_over_classes_that_occur() -> None:
    """Breaks if a class without a positive image counts as 0."""
    scores = np.array([[0.9, 0.1, 0.3], [0.2, 0.8, 0.1]])
    targets = np.array([[1, -1, -1], [-1, 1, -1]], np.int8)
    assert metrics.map11(scores, targets) == 1.0


@pytest.mark.parametrize("seed", range(5))
def test_against_scikit_learn(seed: int) -> None:
    """Breaks if accuracies are averaged over images instead of classes, or k counts wrongly."""
    random = np.random.default_rng(seed)
    targets = np.concatenate([np.arange(7), random.choice(7, 90, p=[0.4, 0.2, 0.1, 0.1, 0.1, 0.05, 0.05])])
    scores = random.normal(size=(97, 7)) + 1.5 * np.eye(7)[targets]
    labels = range(7)
    assert metrics.top1(scores, targets) == pytest.approx((scores.argmax(1) == targets).mean(), abs=1e-12)
    expected = top_k_accuracy_score(targets, scores, k=5, labels=labels)
    assert metrics.top5(scores, targets) == pytest.approx(expected, abs=1e-12)
    expected = balanced_accuracy_score(targets, scores.argmax(1))
    assert metrics.mean_per_class(scores, targets) == pytest.approx(expected, abs=1e-12)


def test_equal_scores_are_not_luck() -> None:
    """Breaks if ties count as right for everybody: a constant score knows one class only, and five of ten."""
    targets = np.arange(10)
    assert metrics.top1(np.zeros((10, 10)), targets) == 0.1
    assert metrics.top5(np.zeros((10, 10)), targets) == 0.5


def test_the_data_sets_own_figure_has_its_name() -> None:
    """Breaks if a figure is reported under another's name, or top-5 of five classes is reported at all."""
    scores, targets = np.eye(4)[[0, 0, 0, 1]], np.array([0, 0, 1, 1])
    assert metrics.score("mean-per-class", scores, targets) == {"mean-per-class": 0.75, "top1": 0.75}
    assert "top5" in metrics.score("top1", np.eye(6), np.arange(6))
