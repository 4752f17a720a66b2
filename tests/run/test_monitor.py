"""The measures against cases with known answers, and the verdict against histories with known endings."""

from __future__ import annotations

import math

import pytest
import torch

from byol.config import Config, apply
from byol.run import monitor


def test_spread_is_one_on_the_sphere_and_zero_in_a_point() -> None:
    """Breaks if the deviation is not scaled to the healthy value."""
    torch.manual_seed(0)
    assert monitor.spread(torch.randn(4000, 32)) == pytest.approx(1.0, abs=0.01)
    assert monitor.spread(torch.ones(100, 32) + 1e-4 * torch.randn(100, 32)) < 1e-3


def test_effective_rank_counts_directions() -> None:
    """Breaks if anything but the entropy of the singular values is used."""
    basis = torch.linalg.qr(torch.randn(64, 64))[0]
    assert monitor.effective_rank(basis[:, :5] @ torch.linalg.qr(torch.randn(20, 5))[0].T) == pytest.approx(5, rel=1e-4)
    assert monitor.effective_rank(torch.ones(50, 8)) == pytest.approx(1, rel=1e-6)
    values = torch.diag(torch.tensor([3.0, 1.0]))
    assert monitor.effective_rank(values) == pytest.approx(math.exp(-(0.75 * math.log(0.75) + 0.25 * math.log(0.25))))


def test_length_is_the_mean_norm() -> None:
    """Breaks if norms are squared, summed, or taken over images."""
    assert monitor.length(torch.tensor([[3.0, 4.0], [0.0, 1.0], [0.0, 0.0]])) == pytest.approx(2.0, rel=1e-15)


def test_retrieval_counts_twins_found() -> None:
    """Breaks if rows are compared with themselves or unnormalized."""
    first = torch.eye(4)
    second = torch.eye(4)[[0, 1, 3, 2]] * torch.tensor([[1.0], [100.0], [1.0], [1.0]])
    assert monitor.retrieval(first, second) == 0.5


def history(
    spread: list[float], rank: list[float], retrieval: list[float], tau: float = 0.97
) -> list[dict[str, float]]:
    looks = [
        {"step": i * 10, "spread": s, "rank_projection": r, "retrieval": a, "images": 500.0}
        for i, (s, r, a) in enumerate(zip(spread, rank, retrieval, strict=True))
    ]
    return [{"step": 0, "tau": tau, "loss": 4.0}, *looks]


@pytest.mark.parametrize(
    ("word", "spread", "rank", "retrieval"),
    [
        ("too early", [0.5], [20], [0.01]),
        ("too early", [0.5, 0.6], [20, 20], [0.01, 0.0]),
        ("learning", [0.5, 0.6], [20, 20], [0.01, 0.1]),
        ("learning", [0.5, 0.7, 0.8, 0.9, 0.9, 0.9], [20, 25, 30, 30, 31, 32], [0.01, 0.05, 0.2, 0.3, 0.4, 0.45]),
        ("collapsing", [0.5, 0.3, 0.05], [20, 10, 5], [0.01, 0.02, 0.01]),
        ("collapsing", [0.5, 0.5, 0.5], [20, 5, 1.2], [0.01, 0.02, 0.01]),
        ("learning", [0.5, 0.7, 0.8, 0.8, 0.8, 0.8], [12, 6, 6, 7, 7, 7], [0.01, 0.05, 0.1, 0.2, 0.2, 0.3]),
        ("stalled", [0.5] * 6, [20] * 6, [0.01, 0.02, 0.01, 0.01, 0.01, 0.01]),
        ("stalled", [0.8] * 8, [20] * 8, [0.01, 0.2, 0.5, 0.5, 0.5, 0.3, 0.2, 0.2]),
        ("learning", [0.8] * 8, [20] * 8, [0.01, 0.03, 0.05, 0.04, 0.05, 0.04, 0.03, 0.04]),
    ],
)
def test_verdicts(word: str, spread: list[float], rank: list[float], retrieval: list[float]) -> None:
    """Breaks if a threshold moves across one of these plain cases."""
    verdict = monitor.verdict(history(spread, rank, retrieval))
    assert verdict.word == word
    assert verdict.sentence.lower().startswith(word)


def test_a_short_run_is_told_to_go_on() -> None:
    """Breaks if someone who tried a few steps is told that it stalled, and not that this was to be expected."""
    looks = history([0.5] * 6, [20.0] * 6, [0.01] * 6)
    assert "raise optim.epochs" in monitor.verdict(looks).sentence
    for record in looks:
        record["step"] *= 100
    assert "raise optim.epochs" not in monitor.verdict(looks).sentence


def test_labels_have_the_last_word_on_stalling() -> None:
    """Breaks if a run whose classes emerge is called stalled because colours once told its views apart."""
    looks = history([0.9] * 6, [20.0] * 6, [0.05, 0.09, 0.08, 0.06, 0.05, 0.05])
    for number, record in enumerate(looks[1:]):
        record["knn"] = 0.17 + 0.03 * number
    assert monitor.verdict(looks).word == "learning"
    for record in looks[1:]:
        record["knn"] = 0.17
    assert monitor.verdict(looks).word == "stalled"


def test_a_rank_that_rose_first_falls_from_its_height() -> None:
    """Breaks if the early sign of a collapse is measured from the first look, which a rank of 10 would pass."""
    looks = ([0.6, 0.5, 0.9], [12.5, 16.1, 10.0], [0.01, 0.01, 0.1])
    fallen = monitor.verdict(history(*looks, tau=0.0))
    assert fallen.word == "collapsing"
    assert "fallen from 16" in fallen.sentence
    assert monitor.verdict(history(*looks)).word != "collapsing"


def test_a_collapse_names_its_likely_cause() -> None:
    """Breaks if tau = 0 is not blamed when it is the cause."""
    collapsing = ([0.5, 0.05], [20.0, 3.0], [0.01, 0.01])
    assert monitor.verdict(history([0.5, 0.7], [12.0, 6.0], [0.01, 0.02], tau=0.0)).word == "collapsing"
    assert "optim.tau" in monitor.verdict(history(*collapsing, tau=0.0)).sentence
    assert "predictor" in monitor.verdict(history(*collapsing)).sentence
    without = apply(Config(), {"network.predictor": "none"})
    assert "network.predictor is none" in monitor.verdict(history(*collapsing), without).sentence


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"network.target": "stop-gradient"}, "collapsing"),
        ({"network.target": "online", "objective.name": "info-nce"}, "learning"),
        ({"network.target": "online", "objective.name": "info-nce", "objective.beta": 0}, "collapsing"),
        ({"network.target": "stop-gradient", "network.predictor": "optimal-linear"}, "learning"),
        ({"network.target": "stop-gradient", "optim.predictor_lr": 2}, "learning"),
        ({"network.target": "stop-gradient", "optim.predictor_lr": 2, "network.predictor": "none"}, "collapsing"),
    ],
)
def test_a_fast_target_is_no_bad_sign_where_images_are_held_apart(changes: dict[str, object], word: str) -> None:
    """Breaks if SimCLR or a fast predictor, which need no slow target, are called collapsing for a falling rank."""
    falling = history([0.5, 0.7], [12.0, 6.0], [0.01, 0.2], tau=0.0)
    assert monitor.verdict(falling, apply(Config(), changes)).word == word
    measured = history([0.5, 0.05], [20.0, 3.0], [0.01, 0.01], tau=0.0)
    assert monitor.verdict(measured, apply(Config(), changes)).word == "collapsing"
