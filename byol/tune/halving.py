"""Successive halving under a budget: how many steps each rung trains, and which policies go on. Needs no torch.

A rung keeps a third and trains it for twice as many steps: most of the time goes into the first rung, whose runs have
to be long enough to tell policies apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from byol.errors import UsageError

SPARE = 0.92  # of the budget is planned for; the rest is for what takes longer than it was timed
LAST = 3, 4  # policies at least and at most that the last rung compares, where there are so many
FEWEST_STEPS = 200  # of the first rung: with fewer nothing is learned that could be compared
FEWEST_POLICIES = 4
KEPT, GROWTH = 3, 2  # one of so many policies goes on, for so many times as many steps


class Cost(NamedTuple):
    """Seconds of a step and of all else that a trial takes, and how many trials run together."""

    step: float
    trial: float
    together: int = 1

    def of(self, policies: int, steps: int) -> float:
        """Of a rung, on the clock."""
        return policies * (steps * self.step + self.trial) / self.together


def sizes(policies: int) -> list[int]:
    """How many policies each rung trains: a third of them each time, down to LAST."""
    found = [policies]
    while found[-1] > LAST[1]:
        found.append(max(LAST[0], -(-found[-1] // KEPT)))
    return found


class Schedule(NamedTuple):
    """How many of the policies are tried, the steps of each rung, and the trials around the best at the end."""

    policies: int
    steps: list[int]
    moves: int


def schedule(policies: int, moves: int, cost: Cost, seconds: float) -> Schedule:
    """The most policies, then the most steps, that fit into the seconds; a `UsageError` where too little fits."""
    room = SPARE * seconds
    fewest = min(policies, FEWEST_POLICIES)
    for count in range(policies, fewest - 1, -1):
        for around in (moves, 0):
            steps = first_steps(count, around, cost, room)
            if steps >= FEWEST_STEPS:
                rungs = sizes(count)
                return Schedule(count, [steps * GROWTH**place for place in range(len(rungs))], around)
    needed = spent(fewest, 0, cost, FEWEST_STEPS) / SPARE / 60
    raise UsageError(
        f"{max(seconds, 0) / 60:.3g} minutes are too few: {fewest} policies of {FEWEST_STEPS} steps of {cost.step:.2g} "
        f"s take {needed:.2g} minutes here. Raise --minutes, or lower --data.resolution or --network.width."
    )


def first_steps(policies: int, moves: int, cost: Cost, seconds: float) -> int:
    """Steps of the first rung with which all rungs fill the seconds."""
    fixed = spent(policies, moves, cost, 0)
    each = spent(policies, moves, cost, 1) - fixed
    return int((seconds - fixed) / each)


def spent(policies: int, moves: int, cost: Cost, steps: int) -> float:
    """Seconds on the clock of all rungs, of which the first has these steps."""
    rungs = sizes(policies)
    whole = sum(cost.of(count, steps * GROWTH**place) for place, count in enumerate(rungs))
    return whole + cost.of(moves, steps * GROWTH ** (len(rungs) - 1))


def survivors(scores: Mapping[str, float], count: int) -> list[str]:
    """The best, best first; of equals the one that was tried first."""
    order = list(scores)
    return sorted(order, key=lambda name: (-scores[name], order.index(name)))[:count]


def corrected(steps: int, planned: float, left: float, before: int) -> int:
    """Steps of a rung on a machine that turned out slow: fewer where the seconds left are less than nine tenths of
    what is planned for, but no fewer than the rung `before` had: rather are the last policies left out. A machine that
    is fast finishes early, so that the choice is the same as on any other.
    """
    ratio = left / planned if planned > 0 else 1.0
    return steps if ratio >= 0.9 else max(before, int(steps * ratio))
