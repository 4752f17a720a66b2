"""Choosing settings on the validation part: which are tried in the time there is, and what each of them gave."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from byol.evals.features import default_cache
from byol.progress import duration, say
from byol.records import read_metrics, write_atomically

Setting = dict[str, Any]
NAMED = 3  # settings left out that a note names
LONG_STEPS, LONG_SECONDS = 1000, 600.0  # of an evaluation: timed before it begins; said before it begins
FEW = 4  # settings that are still worth choosing from; with less time than that, each is trained for fewer steps


@dataclass(frozen=True)
class Session:
    """What an evaluation runs in: its seed, where features are kept, the time it may take, where its files go."""

    seed: int = 0
    cache: Path = field(default_factory=default_cache)
    seconds: float = math.inf
    out: Path | None = None
    started: float = field(default_factory=time.monotonic)

    @property
    def left(self) -> float:
        return max(self.started + self.seconds - time.monotonic(), 0.0)


class Trial(NamedTuple):
    """A setting and its score on the validation part; a run that diverged has the score -1."""

    setting: Setting
    validation: float


@dataclass(frozen=True)
class Result:
    """What one evaluation found; `notes` say what a budget left out."""

    trials: list[Trial]
    chosen: Setting
    test: dict[str, float]
    notes: list[str] = field(default_factory=list)
    extra: dict[str, Any] = field(default_factory=dict)


class Cut(NamedTuple):
    """The settings to try, the share of the steps each of them gets, and what was left out, in words."""

    settings: list[Setting]
    share: float
    notes: list[str]


def timed_first(session: Session, steps: int) -> bool:
    """Whether a step is timed before so many of them begin: to fit a budget, or to say what they will take."""
    return session.seconds != math.inf or steps >= LONG_STEPS


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
        notes.append(
            f"budget: {count} of {len(settings)} settings tried, left out {_words(left_out[:NAMED])}{more} of the spec"
        )
    if share < 1:
        notes.append(f"budget: {share:.1%} of the protocol's steps")
    for note in notes:
        say(note)
    return Cut(list(settings[:count]), share, notes)


def _words(settings: Sequence[Setting]) -> str:
    return "; ".join(", ".join(f"{k} {v:.3g}" for k, v in s.items()) for s in settings)


def coarse_first(values: Sequence[float]) -> list[float]:
    """The middle one, then the middles of what is left on either side: any beginning of it covers the range."""
    order, level = list[float](), [list(values)] if values else []
    while level:
        halves = []
        for part in level:
            middle = len(part) // 2
            order.append(part[middle])
            halves += [half for half in (part[:middle], part[middle + 1 :]) if half]
        level = halves
    return order


class Ledger:
    """trials.jsonl: what was found is not computed again when the same evaluation is started again."""

    def __init__(self, out: Path | None, key: Any) -> None:
        self.path = out / "trials.jsonl" if out else None
        self.key = hashlib.sha256(json.dumps(key, sort_keys=True, default=str).encode()).hexdigest()[:16]
        self.known = read_metrics(self.path) if self.path else []

    def remember(self, setting: Setting, compute: Callable[[], float]) -> float:
        for record in self.known:
            if record["key"] == self.key and record["setting"] == setting:
                return float(record["validation"])
        found = compute()
        self.known.append({"key": self.key, "setting": setting, "validation": found})
        if self.path:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self.path, "".join(json.dumps(r) + "\n" for r in self.known).encode())
        return found


def tried(settings: Sequence[Setting], attempt: Callable[[Setting], float], ledger: Ledger) -> list[Trial]:
    """Every setting with its validation score."""
    trials = []
    for place, setting in enumerate(settings):
        found = ledger.remember(setting, lambda s=setting: attempt(s))  # type: ignore[misc]
        trials.append(Trial(setting, found))
        say(f"{place + 1}/{len(settings)} {_words([setting])}: {found:.2%} on validation")
    return trials


def best(trials: Sequence[Trial]) -> Trial:
    """The highest validation score; of equal ones the first."""
    return max(trials, key=lambda t: t.validation)
