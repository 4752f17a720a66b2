"""What the package says of its judges is what the committed cells say."""

from __future__ import annotations

from pathlib import Path

import pytest

from byol.run.files import read_json
from byol.tune import judge
from byol.tune.measures import MEASURES

ROOT = Path(__file__).resolve().parents[2]


def test_the_judges_are_calibrated_by_the_committed_cells() -> None:
    """Breaks when a cell is added or a summary changed, and the figures that users are told are not."""
    import tune  # type: ignore[import-not-found]

    record = read_json(ROOT / "results" / "tune-calibration.json")
    found = tune.summary(record["cells"])
    assert found == record["summary"]
    assert set(judge.CALIBRATED) == {judge.LABELS, judge.MANY, *MEASURES}
    for name, told in judge.CALIBRATED.items():
        lost = found["regret"][name]
        assert told == (found["correlation"][name]["mean"], lost["mean"], lost["largest"]), name


def test_a_regret_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks when points are lost against another policy than the best, or the untrained network counts as one."""
    import tune

    monkeypatch.setattr(tune, "FEWEST", 4)
    rows = [("usual", 0.50, 1.0), ("a", 0.60, 3.0), ("b", 0.40, 4.0), ("c", 0.30, 0.0), ("untrained", 0.99, 9.0)]
    cells = [
        {"domain": "d", "seed": 0, "policy": policy, "accuracy": {"linear": linear}, "measures": {"rankme": value}}
        for policy, linear, value in rows
    ]
    found = tune.summary(cells)
    assert found["regret"]["rankme"] == {"d": 20.0, "mean": 20.0, "largest": 20.0}
    assert found["regret"]["default"]["mean"] == 10.0
    assert found["regret"]["random"]["mean"] == 15.0
    assert found["correlation"]["rankme"]["mean"] == 0.4
    again = [cell | {"seed": 1, "accuracy": {"linear": 0.7}} for cell in cells[:4]]  # the mean of two seeds counts
    assert tune.summary(cells + again)["regret"]["rankme"]["mean"] == 10.0
