"""Successive halving: budgets, survivors, and what is too little."""

from __future__ import annotations

import pytest

from byol.config import Config, Optim, Views
from byol.errors import UsageError
from byol.presets import small_views
from byol.tune import halving, judge, policies


@pytest.mark.parametrize(
    ("policies", "sizes"), [(16, [16, 6, 3]), (12, [12, 4]), (7, [7, 3]), (5, [5, 3]), (4, [4]), (3, [3]), (2, [2])]
)
def test_rungs_keep_a_third(policies: int, sizes: list[int]) -> None:
    """Breaks when a rung keeps more than a third (three apart), or the last one is a single policy."""
    assert halving.sizes(policies) == sizes


@pytest.mark.parametrize("seconds", [300, 1800, 7200])
@pytest.mark.parametrize("together", [1, 2])
def test_the_schedule_fills_the_budget(seconds: float, together: int) -> None:
    """Breaks when the rungs' steps, trials and moves, added up by hand, leave the budget or a tenth of it."""
    cost = halving.Cost(0.05, 4.0, together)
    found = halving.schedule(16, 4, cost, seconds)
    whole = sum(
        (steps * 0.05 + 4.0) * count / together
        for steps, count in zip(found.steps, halving.sizes(found.policies), strict=True)
    )
    whole += (found.steps[-1] * 0.05 + 4.0) * found.moves / together
    assert whole <= seconds
    if found.policies == 16 and found.moves:
        assert whole > 0.9 * halving.SPARE * seconds
    assert found.steps == [found.steps[0] * 2**place for place in range(len(found.steps))]


def test_short_budgets_try_fewer_policies_and_then_say_so() -> None:
    """Breaks when too few steps are trained instead, or the sentence does not say how many minutes would do."""
    cost = halving.Cost(0.1, 2.0)
    assert 4 <= halving.schedule(16, 4, cost, 200).policies < 16
    assert halving.schedule(2, 0, cost, 600).policies == 2
    with pytest.raises(UsageError, match=r"0\.5 minutes are too few: 4 policies .* take 1\.6 minutes.*--minutes"):
        halving.schedule(16, 4, cost, 30)


def test_survivors_are_the_best_and_the_first_of_equals() -> None:
    """Breaks when the order is turned, or a tie falls to chance."""
    scores = {"a": 0.1, "b": 0.5, "c": 0.5, "d": float("-inf"), "e": 0.7}
    assert halving.survivors(scores, 3) == ["e", "b", "c"]
    assert halving.survivors(scores, 9)[-1] == "d"


def test_a_slow_machine_shortens_what_is_left() -> None:
    """Breaks when a rung ignores what the ones before it took, or changes for small differences."""
    assert halving.corrected(200, planned=100, left=95, before=90) == 200
    assert halving.corrected(200, planned=100, left=400, before=90) == 200
    assert halving.corrected(200, planned=100, left=50, before=90) == 100
    assert halving.corrected(200, planned=100, left=0, before=90) == 90


@pytest.mark.parametrize("channels", [1, 3, 6])
@pytest.mark.parametrize("base", [Views(), small_views()])
def test_policies_are_views_of_their_own(channels: int, base: Views) -> None:
    """Breaks when two policies are the same views, one has a field that views do not know, or colours go to bands."""
    found = policies.fitting(channels, base)
    made = [policies.apply(policy, base) for policy in found.values()]
    assert len(set(map(repr, made))) == len(made) >= 8
    assert made[0] == base
    assert ("no colour" in found) == (channels == 3)
    assert ("lost bands" in found) == (channels == 6)
    for name, policy in found.items():
        for moved in policies.neighbours(name, policy, channels, base).values():
            assert policies.apply(moved, base) != policies.apply(policy, base)
            assert 0.02 <= policies.apply(moved, base).t.area_min <= 0.9


def test_rates_are_moved_by_factors() -> None:
    """Breaks when a move of the rate changes views, moves add up instead of multiplying, or tau leaves [0, 1]."""
    base = Config(optim=Optim(lr=0.4, tau=0.97))
    usual = policies.POLICIES["no flip"]
    around = policies.neighbours("no flip", usual, 3, base.views, rates=True)
    found = {name.partition(" + ")[2]: policies.made(policy, base) for name, policy in around.items()}
    assert list(found)[: len(policies.RATES)] == list(policies.RATES)
    assert found["twice the rate"].optim.lr == pytest.approx(0.8)
    assert found["half the rate"].optim.lr == pytest.approx(0.2)
    assert (found["quick target"].optim.tau, found["slow target"].optim.tau) == pytest.approx((0.91, 0.99))
    assert all(found[name].views == policies.apply(usual, base.views) for name in policies.RATES)
    assert not any("rate" in name for name in policies.neighbours("no flip", usual, 3, base.views))
    low = Config(optim=Optim(tau=0.5))
    assert policies.made(policies.RATES["quick target"], low).optim.tau == 0


VALUES = {
    "usual": {"rotation": 0.5, "twins": 0.9, "labels": 0.4},
    "no flip": {"rotation": 0.6, "twins": 0.7, "labels": 0.6},
    "failed": {},
}


def test_disagreement_is_said() -> None:
    """Breaks when the measures that speak against a choice, or would choose another, are left out."""
    assert judge.preferred(VALUES) == {"rotation": "no flip", "twins": "usual", "labels": "no flip"}
    assert judge.scores(VALUES, "labels")["failed"] == float("-inf")
    lines = judge.words(VALUES, "no flip", {"no flip": "flips change what these images show"}, "labels")
    assert lines[0] == "No flip: flips change what these images show."
    assert lines[1] == "Better than the usual views by rotation, labels; not by twins."
    assert lines[2] == "Others would choose: usual (twins)"
    assert judge.words(VALUES, "usual", {}, "twins")[0].startswith("The usual views stay")
