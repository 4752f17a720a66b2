"""The verdict on real runs: what the paper found to collapse is called so within 200 steps, plain BYOL is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import byol
from byol import monitor
from tests.chaos import LONG

SETTINGS = {
    "data.resolution": 32,
    "data.holdout": 0.05,
    "network.width": 0.125,
    "network.small_images": False,
    "network.projector_hidden": 128,
    "network.predictor_hidden": 128,
    "network.projection": 32,
    "optim.batch": 64,
    "optim.epochs": 8,
    "optim.warmup_epochs": 0.5,
    "optim.predictor_lr": 1.0,  # at 10 the paper, too, could do without a slow target (appendix I)
    "optim.trust_coefficient": 0.008,
    "optim.probe": False,
    "run.precision": "float32",
    "run.monitor_images": 128,
}


@pytest.mark.skipif(not LONG, reason="takes minutes: BYOL_CHAOS=10 or more")
@pytest.mark.parametrize("seed", range(1, 20))
def test_no_false_alarms(tmp_path: Path, seed: int) -> None:
    """Breaks if a healthy run is called collapsing at any of its looks (G15)."""
    run = byol.pretrain("scenes:1600", tmp_path / "run", "cifar10-cpu", SETTINGS | {"run.seed": seed})
    for count in range(1, len(run.metrics) + 1):
        assert monitor.verdict(run.metrics[:count], run.config).word != "collapsing"


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("plain", {}),
        ("no predictor", {"network.predictor": "none"}),
        ("tau 0", {"optim.tau": 0.0, "optim.tau_schedule": "constant"}),
    ],
)
def test_collapse_is_told_from_learning(tmp_path: Path, name: str, changes: dict[str, Any]) -> None:
    """Breaks if a measure or a threshold no longer separates the two (G15)."""
    run = byol.pretrain("scenes:1600", tmp_path / "run", "cifar10-cpu", SETTINGS | changes)
    assert run.plan.steps == 190
    assert (run.verdict.word == "collapsing") == (name != "plain"), run.verdict.sentence
    if name == "no predictor":
        assert "predictor" in run.verdict.sentence
    if name == "tau 0":
        assert "optim.tau" in run.verdict.sentence
