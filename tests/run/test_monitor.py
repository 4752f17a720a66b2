"""The measures against cases with known answers, and what a look depends on."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import byol
from byol.run import monitor
from byol.run.files import read_metrics
from tests.conftest import TINY


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


def test_directions_are_counted() -> None:
    """Breaks if what all vectors share counts, or their lengths do: against a loop, a line and a sphere."""
    torch.manual_seed(1)
    vectors = torch.randn(20, 5) + 1
    unit = F.normalize(vectors - vectors.mean(0), dim=1)
    squares = [float(unit[i] @ unit[j]) ** 2 for i in range(20) for j in range(20) if i != j]
    assert monitor.directions(vectors) == pytest.approx(len(squares) / sum(squares), rel=1e-5)
    line = torch.randn(200, 1) * torch.ones(6) + 3
    assert monitor.directions(line) == pytest.approx(1.0, abs=1e-4)
    assert monitor.directions(torch.randn(4000, 8) * torch.rand(4000, 1)) == pytest.approx(8, rel=0.05)


def test_twins_are_held_against_strangers() -> None:
    """Breaks if what all vectors share decides, or a twin is its own stranger: against a loop."""
    torch.manual_seed(2)
    own = torch.randn(30, 6)
    first, second = (own + torch.randn(30, 6) + 5 for _ in range(2))
    mean = torch.cat([first, second]).mean(0)
    one, two = (F.normalize(each - mean, dim=1) for each in (first, second))
    nearer = [float(one[i] @ two[i]) > float(one[i] @ two[j]) for i in range(30) for j in range(30) if i != j]
    assert monitor.twins(first, second) == pytest.approx(sum(nearer) / len(nearer), abs=1e-9)
    assert monitor.twins(own, own) == 1.0


def looks(run: byol.pretraining.Run) -> list[dict[str, Any]]:
    return [line for line in run.metrics if "spread" in line]


def test_there_is_a_look_before_the_first_step(tmp_path: Path) -> None:
    """Breaks if training has touched the network before its first look, or a look depends on the batch.

    After a single step batches of 8 and of 24 images have left other statistics in the batch norms.
    """
    runs = [
        byol.pretrain(
            "scenes:60", tmp_path / str(batch), "cifar10-cpu", TINY | {"optim.batch": batch, "optim.epochs": 2}
        )
        for batch in (8, 24)
    ]
    first = [looks(run)[0] for run in runs]
    assert first[0] == first[1]
    assert first[0]["step"] == -1
    assert looks(runs[0])[1] != looks(runs[1])[1]
    assert read_metrics(runs[0].out / "metrics.jsonl")[0] == first[0]
