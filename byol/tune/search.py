"""`byol tune`: trials of policies, rung by rung, until the budget is spent; then the choice, a YAML file and a page.

What a rung trains is written down before it begins, and a trial's measures when it ends, so that the same command goes
on after any end and makes the same choice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from byol.errors import ByolError, UsageError
from byol.run import record
from byol.run.files import read_json, write_json
from byol.run.progress import bar, duration, say, silent
from byol.tables import jobs
from byol.tables.cells import Cell, missing, stored
from byol.tables.compute import compute
from byol.tables.record import CellRecord
from byol.tune import halving, judge
from byol.tune.looks import Looks
from byol.tune.policies import Policy, made, neighbours
from byol.tune.trials import Labelled, Measured, Setting, cell, measured

NAME = "tune.json"
JOB_START = 8.0  # seconds until a process of its own begins to train
OVER = 1.05  # times the budget, beyond which no trial begins


@dataclass(frozen=True)
class Rung:
    """What is trained next: policies and steps, and the seconds planned for them."""

    steps: int
    policies: list[str]
    seconds: float


@dataclass(frozen=True)
class Record:
    """A search on disk: what was asked for, what was chosen for it before it began, and how far it is."""

    data: str
    checksum: str
    asked: dict[str, Any]
    config: dict[str, Any]
    judge: str
    seconds: float
    setup: float  # seconds that the plan took
    cost: list[float]
    policies: list[str]
    steps: list[int]
    moves: int
    rungs: list[Rung] = field(default_factory=list)
    choice: str = ""


@dataclass
class Search:
    """A search in memory."""

    record: Record
    setting: Setting
    policies: dict[str, Policy]
    seen: Looks
    labelled: Labelled | None
    where: str = ""
    rungs: list[dict[str, Measured]] = field(default_factory=list)

    @property
    def cost(self) -> halving.Cost:
        step, trial, together = self.record.cost
        return halving.Cost(step, trial, int(together))

    @property
    def spent(self) -> float:
        """Seconds on the clock of the plan and of all trials that are measured."""
        start = JOB_START if self.where else 0.0
        trials = [one.seconds + start for rung in self.rungs for one in rung.values()]
        return self.record.setup + sum(trials) / self.cost.together

    def note(self, **changes: Any) -> None:
        self.record = replace(self.record, **changes)
        write_json(self.setting.out / NAME, record.encode(self.record))


def read(out: Path) -> Record | None:
    path = out / NAME
    return record.decode(Record, read_json(path), path) if path.exists() else None


def run(search: Search, channels: int) -> str:
    """All rungs, then trials around the best; the chosen policy."""
    names = search.record.policies
    sizes = halving.sizes(len(names))
    for place, size in enumerate(sizes):
        names = names[:size] if place == 0 else halving.survivors(_scores(search), size)
        _rung(search, place, names, search.record.steps[place])
    best = halving.survivors(_scores(search), 1)[0]
    if search.record.moves:
        rates = bool(search.record.asked.get("rates"))
        around = neighbours(best, search.policies[best], channels, search.setting.config.views, rates)
        search.policies |= around
        _rung(search, len(sizes), [best, *list(around)[: search.record.moves]], search.record.steps[-1])
        best = halving.survivors(_scores(search), 1)[0]
    search.note(choice=best)
    return best


def _scores(search: Search) -> dict[str, float]:
    """Of the last rung by the judge."""
    values = {name: one.values for name, one in search.rungs[-1].items()}
    found = judge.scores(values, search.record.judge)
    if all(score == float("-inf") for score in found.values()):
        errors = [one.error for one in search.rungs[-1].values() if one.error]
        raise ByolError(f"Every trial failed: {errors[0] if errors else 'none was measured'}.")
    return found


def _rung(search: Search, place: int, names: Sequence[str], steps: int) -> None:
    """Trains and measures what the rung holds, as far as the budget allows, but one policy at least."""
    if place < len(search.record.rungs):
        planned = search.record.rungs[place]
    else:
        planned = _planned(search, place, list(names), steps)
        search.note(rungs=[*search.record.rungs, planned])
    configs = {name: made(search.policies[name], search.setting.config) for name in planned.policies}
    trials = {name: cell(search.setting, name, own, planned.steps) for name, own in configs.items()}
    search.rungs.append({})
    title = f"Rung {place + 1}"
    say(f"{title}: {len(trials)} policies, {planned.steps} steps each, about {duration(planned.seconds)}")
    with bar(title, len(trials), "runs") as shown:

        def ended(trial: Cell, found: CellRecord) -> None:
            search.rungs[-1][trial.label] = _measured(search, trial, found, planned.steps)
            leader = halving.survivors(judge.scores(_values(search), search.record.judge), 1)[0]
            shown.advance(text=f"{leader} leads")

        _train(search, list(trials.values()), planned, ended)
    kept = {name: search.rungs[-1][name] for name in planned.policies if name in search.rungs[-1]}
    search.rungs[-1] = kept  # in the order of the plan, whatever the order in which they ended


def _values(search: Search) -> dict[str, dict[str, float]]:
    return {name: one.values for name, one in search.rungs[-1].items()}


def _planned(search: Search, place: int, names: list[str], steps: int) -> Rung:
    """A rung with as many steps as were planned, unless the machine turned out to be slower."""
    cost = search.cost
    counts = halving.sizes(len(search.record.policies))[place:]
    later = sum(cost.of(count, search.record.steps[place + i]) for i, count in enumerate(counts))
    later += cost.of(search.record.moves, search.record.steps[-1])
    if place:
        before = sum(rung.seconds for rung in search.record.rungs)
        later *= (search.spent - search.record.setup) / before if before else 1.0  # as fast as so far
        left = halving.SPARE * search.record.seconds - search.spent
        steps = halving.corrected(steps, later, max(left, 0.0), search.record.rungs[place - 1].steps)
    return Rung(steps, names, round(cost.of(len(names), steps), 1))


def _train(search: Search, trials: list[Cell], planned: Rung, ended: Callable[[Cell, CellRecord], None]) -> None:
    """Those that are done first, then the missing ones, here or as jobs."""
    todo = {trial.key for trial in missing(trials)}
    for trial in trials:
        if trial.key not in todo and (known := stored(trial)):
            ended(trial, known)
    waiting = [trial for trial in trials if trial.key in todo]
    if search.where:
        if waiting:
            jobs.run(waiting, search.where, search.setting.out, ended)
        return
    each = planned.seconds / max(len(trials), 1)
    for trial in waiting:
        if search.rungs[-1] and search.spent + each > OVER * search.record.seconds:
            say(f"The budget is spent: {trial.label} and what follows it are left out of this rung.")
            return
        with silent(True):
            found = compute(trial, wait=True)
        assert found is not None
        ended(trial, found)


def _measured(search: Search, trial: Cell, found: CellRecord, steps: int) -> Measured:
    if not found.finished:
        return Measured(trial.label, steps, found.seconds, error=found.error)
    began = time.monotonic()
    one = measured(trial, search.seen, search.labelled, steps, found.seconds)
    took = time.monotonic() - began
    return one if one.seconds != found.seconds else replace(one, seconds=round(found.seconds + took, 2))


def check(asked: Record, known: Record | None, out: Path) -> None:
    """The same search goes on; another one in the same place is refused."""
    if known and (known.data, known.checksum, known.asked) != (asked.data, asked.checksum, asked.asked):
        raise UsageError(f"{out} holds the search of other images or settings: name another --out, or remove it.")
