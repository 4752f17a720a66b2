"""What a protocol tries: budgets, what is said before, the order of choices, and trials that are not repeated."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from byol.errors import Diverged
from byol.evals import budget, protocol
from byol.evals.protocol import Session, Study, Trial


def test_what_a_budget_leaves_out() -> None:
    """Breaks if more is planned than fits, or a cut goes unsaid. One setting costs 10 s, the final run 10 s more."""
    settings = [{"lr": float(i)} for i in range(10)]
    whole_plan = budget.cut(settings, lambda _: 100, 0.1, 110.0)
    assert (len(whole_plan.settings), whole_plan.share, whole_plan.notes) == (10, 1.0, [])
    fewer = budget.cut(settings, lambda _: 100, 0.1, 70.0)
    assert (len(fewer.settings), fewer.share) == (6, 1.0)
    assert "6 of 10" in fewer.notes[0]
    shorter = budget.cut(settings, lambda _: 100, 0.1, 25.0)
    assert (len(shorter.settings), shorter.share) == (budget.FEW, 0.5)
    assert "50.0%" in shorter.notes[1]


def test_a_long_protocol_says_so_before_it_begins(capsys: pytest.CaptureFixture[str]) -> None:
    """Breaks if hours begin without a word, or a short one is not just done. Eleven runs of 100 s are 18m20s."""
    settings = [{"lr": float(i)} for i in range(10)]
    whole_plan = budget.cut(settings, lambda _: 100, 1.0, math.inf)
    assert (len(whole_plan.settings), whole_plan.share, whole_plan.notes) == (10, 1.0, [])
    said = capsys.readouterr().err
    assert "18m20s" in said
    assert "--budget" in said
    budget.cut(settings, lambda _: 100, 0.1, math.inf)
    assert not capsys.readouterr().err
    assert budget.timed_first(math.inf, budget.LONG_STEPS)
    assert not budget.timed_first(math.inf, budget.LONG_STEPS - 1)
    assert budget.timed_first(60, 1)


def test_any_beginning_covers_the_range() -> None:
    """Breaks if a budget would try neighbours before the ends."""
    assert budget.coarse_first([1, 2, 3, 4, 5, 6, 7]) == [4, 2, 6, 1, 3, 5, 7]


def study(asked: list[float], *lrs: float, key: str = "a") -> Study[str, range]:
    """The score of a setting is its learning rate; those from 1 on diverge."""

    def train(images: str, setting: dict[str, Any], steps: int, title: str) -> nn.Module:
        asked.append(setting["lr"])
        if setting["lr"] >= 1:
            raise Diverged("diverged")
        model = nn.Linear(1, 1)
        nn.init.constant_(model.weight, setting["lr"])
        return model

    score = lambda model, held: round(model.weight.item(), 3)
    return Study([{"lr": lr} for lr in lrs], lambda setting: 10, train, score, "images", range(3), [key])


def test_trials_are_not_repeated(tmp_path: Path) -> None:
    """Breaks if an evaluation that was stopped begins again at its first setting, or believes another one's trials."""
    asked: list[float] = []
    session = Session(out=tmp_path)
    first = protocol.choose(study(asked, 0.1, 0.2), session)
    again = protocol.choose(study(asked, 0.1, 0.2, 0.3), session)
    assert asked == [0.1, 0.2, 0.3]
    assert again.trials[:2] == first.trials == [Trial({"lr": 0.1}, 0.1), Trial({"lr": 0.2}, 0.2)]
    assert (again.setting, again.steps) == ({"lr": 0.3}, 10)
    protocol.choose(study(asked, 0.1, 0.2, key="b"), session)
    assert asked == [0.1, 0.2, 0.3, 0.1, 0.2]
    assert protocol.best([Trial({"a": 1}, 0.5), Trial({"a": 2}, 0.7), Trial({"a": 3}, 0.7)]).setting == {"a": 2}


def test_divergence_loses_the_choice_and_ends_the_final_training() -> None:
    """Breaks if a diverged setting can win, stops the sweep, or is trained to the end and reported."""
    asked: list[float] = []
    some = study(asked, 5.0, 0.1)
    chosen = protocol.choose(some, Session())
    assert [trial.validation for trial in chosen.trials] == [protocol.DIVERGED, 0.1]
    assert chosen.setting == {"lr": 0.1}
    with pytest.raises(Diverged, match="each of the 2 settings"):
        protocol.choose(study(asked, 5.0, 6.0), Session())
    single = study(asked, 5.0)
    with pytest.raises(Diverged):
        protocol.final(single, protocol.choose(single, Session()), "both")
