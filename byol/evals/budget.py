"""The time an evaluation may take: which settings are tried in it, for how many steps, and in which order."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from byol.run.progress import duration, say

Setting = dict[str, Any]

NAMED = 3  # settings left out that a note names
FEW = 4  # settings that are still worth choosing from; with less time than that, each is trained for fewer steps
LONG_STEPS, LONG_SECONDS = 1000, 600.0  # an evaluation this long is timed, or announced, before it begins


class Cut(NamedTuple):
    """The settings to try, the share of the steps that each of them gets, and what was left out, in words."""

    settings: list[Setting]
    share: float
    notes: list[str]


def timed_first(seconds: float, steps: int) -> bool:
    """Whether a step is timed before so many steps begin: to fit a budget, or to say how long they will take."""
    return seconds != math.inf or steps >= LONG_STEPS


def cut(
    settings: Sequence[Setting], steps: Callable[[Setting], int], step_seconds: float, left: float, finals: int = 1
) -> Cut:
    """As many of the settings, in their order, as fit with `finals` more runs; then fewer steps, down to a few."""
    costs = [steps(setting) * step_seconds for setting in settings]
    count = len(settings)
    while count > min(FEW, len(settings)) and sum(costs[:count]) + finals * max(costs[:count]) > left:
        count -= 1
    needed = sum(costs[:count]) + finals * max(costs[:count])
    share = min(1.0, left / needed) if needed else 1.0
    notes = []
    if left == math.inf and needed > LONG_SECONDS:
        say(f"This will take about {duration(needed)}; --budget 20m would cut settings and steps to fit and say which.")
    if count < len(settings):
        left_out = settings[count:]
        more = f" and {len(left_out) - NAMED} more" if len(left_out) > NAMED else ""
        named = "; ".join(map(in_words, left_out[:NAMED]))
        notes.append(f"budget: {count} of {len(settings)} settings tried, left out {named}{more} of the spec")
    if share < 1:
        notes.append(f"budget: {share:.1%} of the protocol's steps")
    for note in notes:
        say(note)
    return Cut(list(settings[:count]), share, notes)


def in_words(setting: Setting) -> str:
    return ", ".join(f"{name} {value:.3g}" for name, value in setting.items())


def coarse_first(values: Sequence[float]) -> list[float]:
    """The middle value, then the middles of what is left on either side: any beginning of the list covers the range."""
    order, level = list[float](), [list(values)] if values else []
    while level:
        halves = []
        for part in level:
            middle = len(part) // 2
            order.append(part[middle])
            halves += [half for half in (part[:middle], part[middle + 1 :]) if half]
        level = halves
    return order
