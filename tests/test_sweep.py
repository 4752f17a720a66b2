"""What a protocol tries: budgets, what is said before, the order of choices, and trials that are not repeated."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from byol.evals import sweep
from byol.evals.sweep import Session, Trial


def test_what_a_budget_leaves_out() -> None:
    """Breaks if more is planned than fits, or a cut goes unsaid. One setting costs 10 s, the final run 10 s more."""
    settings = [{"lr": float(i)} for i in range(10)]
    whole_plan = sweep.cut(settings, lambda _: 100, 0.1, 110.0)
    assert (len(whole_plan.settings), whole_plan.share, whole_plan.notes) == (10, 1.0, [])
    fewer = sweep.cut(settings, lambda _: 100, 0.1, 70.0)
    assert (len(fewer.settings), fewer.share) == (6, 1.0)
    assert "6 of 10" in fewer.notes[0]
    shorter = sweep.cut(settings, lambda _: 100, 0.1, 25.0)
    assert (len(shorter.settings), shorter.share) == (sweep.FEW, 0.5)
    assert "50.0%" in shorter.notes[1]


def test_a_long_protocol_says_so_before_it_begins(capsys: pytest.CaptureFixture[str]) -> None:
    """Breaks if hours begin without a word, or a short one is not just done. Eleven runs of 100 s are 18m20s."""
    settings = [{"lr": float(i)} for i in range(10)]
    whole_plan = sweep.cut(settings, lambda _: 100, 1.0, math.inf)
    assert (len(whole_plan.settings), whole_plan.share, whole_plan.notes) == (10, 1.0, [])
    said = capsys.readouterr().err
    assert "18m20s" in said
    assert "--budget" in said
    sweep.cut(settings, lambda _: 100, 0.1, math.inf)
    assert not capsys.readouterr().err
    assert sweep.timed_first(Session(), sweep.LONG_STEPS)
    assert not sweep.timed_first(Session(), sweep.LONG_STEPS - 1)
    assert sweep.timed_first(Session(seconds=60), 1)


def test_any_beginning_covers_the_range() -> None:
    """Breaks if a budget would try neighbours before the ends."""
    assert sweep.coarse_first([1, 2, 3, 4, 5, 6, 7]) == [4, 2, 6, 1, 3, 5, 7]


def test_trials_are_not_repeated(tmp_path: Path) -> None:
    """Breaks if an evaluation that was stopped begins again at its first setting, or believes another one's trials."""
    asked = []
    settings = [{"lr": 0.1}, {"lr": 0.2}]

    def attempt(setting: dict[str, float]) -> float:
        asked.append(setting["lr"])
        return setting["lr"]

    first = sweep.tried(settings, attempt, sweep.Ledger(tmp_path, ["a"]))
    again = sweep.tried([*settings, {"lr": 0.3}], attempt, sweep.Ledger(tmp_path, ["a"]))
    assert asked == [0.1, 0.2, 0.3]
    assert again[:2] == first
    sweep.tried(settings, attempt, sweep.Ledger(tmp_path, ["b"]))
    assert asked == [0.1, 0.2, 0.3, 0.1, 0.2]
    assert sweep.best([Trial({"a": 1}, 0.5), Trial({"a": 2}, 0.7), Trial({"a": 3}, 0.7)]).setting == {"a": 2}
