"""The plan of a table before it starts: its cells, what each row means as shares of its run, and how long all takes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import torch

from byol.config import Config, Optim, resolve
from byol.errors import UsageError
from byol.method import build
from byol.presets import compose
from byol.run import cost, machine
from byol.run.devices import seconds_in_words
from byol.tables.cells import Cell, Plan, missing
from byol.tables.record import Pace
from byol.tables.render import part
from byol.tables.scales import SCALES, memory_of
from byol.tables.table import Row, cited, resolved


class Devices(NamedTuple):
    """Those that a cell trains on: this machine, which is timed, or some of the table in `byol.run.cost`."""

    name: str = "here"
    number: int = 1  # that share a cell

    @property
    def words(self) -> str:
        if self.name == "here":
            return "training as timed on this machine, without evaluations"
        each = cost.DEVICES[self.name]
        return (
            f"training as reckoned for {self.number} x {self.name} at {each.utilization:.0%} utilization "
            f"({each.origin}), without evaluations"
        )


HERE = Devices()


def reckoned(cells: Sequence[Cell], images: int, devices: Devices) -> dict[str, float]:
    """Seconds of training for each cell, by key, on devices that need not be here; without evaluations."""
    device, found = cost.named(devices.name, Config()), {}
    for cell in cells:
        config = compose(cell.preset, cell.overrides, {})[0]
        found[cell.key] = 0.0
        if cell.supervised:
            rate = device.peak * device.utilization * devices.number
            found[cell.key] = _operations(cell, config, images) / rate
        elif not cell.untrained:
            try:
                step = _step(_shape(config, config.optim), device, devices.number)
            except UsageError as error:
                raise UsageError(f"{cell.label}: {error}") from None
            found[cell.key] = step.seconds * resolve(config, images).steps
    return found


@lru_cache(maxsize=64)
def _step(config: Config, device: cost.Device, count: int) -> cost.Cost:
    return cost.cost(config, device, count)


def forecast(cells: Sequence[Cell], images: int, together: int = 1) -> dict[str, float]:
    """Seconds of training for each cell, by key, without its evaluations.

    One cell for each number of images a pass is timed on this machine, where each of several cells together has its
    share of the threads; the others go by their operations.
    """
    rates: dict[int, float] = {}
    found = {}
    for cell in cells:
        config = compose(cell.preset, cell.overrides, {})[0]
        work = _operations(cell, config, images)
        size = min(config.optim.batch // config.optim.accumulate, cost.TIMED_PIXELS // config.data.resolution**2)
        if work and size not in rates:
            rates[size] = _an_image(_shape(config))[1] / _seconds_an_image(config, together)
        found[cell.key] = work / rates[size] if work else 0.0
    return found


def _seconds_an_image(config: Config, together: int) -> float:
    place = machine.choose(config)
    method = build(config.network, 0, config.objective).to(**place.placement(config))
    threads = torch.get_num_threads()
    torch.set_num_threads(max(1, threads // together))
    try:
        return cost.pace(method, config, place, config.optim.batch // config.optim.accumulate).seconds
    finally:
        torch.set_num_threads(threads)


def _operations(cell: Cell, config: Config, images: int) -> float:
    """FLOPs of the training of a cell."""
    if cell.untrained:
        return 0.0
    one, step = _an_image(_shape(config))
    if cell.supervised:
        return 3 * one * float(cell.supervised.settings().epochs) * images  # the gradient costs twice its forward pass
    plan = resolve(config, images)
    return step * plan.batch * plan.steps


def _shape(config: Config, optim: Optim = Config().optim) -> Config:
    """What operations depend on: the same for every seed and rate; a step also on the batch of `optim`."""
    usual = Config()
    kept = replace(usual.optim, batch=optim.batch, accumulate=optim.accumulate, optimizer=optim.optimizer)
    run = replace(usual.run, recompute=config.run.recompute, shard=config.run.shard, precision=config.run.precision)
    return replace(config, optim=kept, views=usual.views, run=run)


@lru_cache(maxsize=64)
def _an_image(config: Config) -> tuple[float, float]:
    return cost.pass_flops(cost.on_paper(config), config)


def at_a_time(where: str) -> int:
    """How many cells --jobs computes together on this machine."""
    count = where.removeprefix("local:")
    return max(1, int(count)) if where.startswith("local:") and count.isdecimal() else 1


def announcement(plan: Plan, expected: dict[str, float], together: int, devices: Devices = HERE) -> list[str]:
    """Cells, minutes a cell and in all, a line each; `expected` are the seconds of the missing cells."""
    cells = plan.distinct()
    todo = missing(cells)
    lines = [
        f"{plan.table.title} [{cited(plan.table.source)}] at the {plan.scale.name} scale: {plan.scale.what}",
        f"  {sum(map(bool, plan.cells.values()))} rows to run, {plan.seeds} seeds, {len(cells)} cells; "
        f"{len(cells) - len(todo)} done, {len(todo)} missing",
    ]
    trained = [seconds for seconds in expected.values() if seconds]
    if trained:
        whole, each = sum(trained) / together, sum(trained) / len(trained)
        beside = f", {together} at a time" if together > 1 else ""
        if devices.number > 1:
            beside += f", one after another; {devices.number * sum(trained) / 3600:,.0f} hours of a device"
        lines.append(
            f"  about {seconds_in_words(each)} a cell, {seconds_in_words(whole)} in all{beside}: {devices.words}"
        )
    return lines


def paces(plan: Plan, row: Row) -> tuple[Pace | None, Pace | None]:
    """tau and warm-up of a row as shares of its run, and of the same row in the paper; none without pretraining."""
    if not row.ours or row.encoder != "pretrained":
        return None, None
    paper = SCALES["paper"]
    theirs = compose(*resolved(plan.table, row, paper, {}), {})[0]
    ours = compose(*resolved(plan.table, row, plan.scale, plan.given, 0, plan.images), {})[0]
    return pace(ours, plan.images), pace(theirs, paper.images)


def pace(config: Config, images: int) -> Pace:
    made = resolve(config, images)
    warmup = config.optim.warmup_epochs / config.optim.epochs
    if config.network.target != "moving-average":
        return Pace(made.steps, warmup)
    return Pace(made.steps, warmup, made.tau, memory_of(made.tau, made.steps))


def rows(plan: Plan, expected: dict[str, float]) -> Iterator[str]:
    """A line a row: tau, what it remembers here and in the paper, warm-up, steps, cells left and time of a cell."""
    wide = max(len(row.label) for row in plan.rows) + 2
    heads = f"{'tau':>8}{'remembers':>11}{'(paper)':>10}{'warm-up':>9}{'(paper)':>9}{'steps':>8}{'missing':>9}"
    yield f"  {'row':<{wide}}{heads}  a cell"
    for row in plan.rows:
        cells = plan.cells[row.label]
        if not cells:
            yield f"  {row.label:<{wide}}published by others, not run"
            continue
        own, paper = paces(plan, row)
        left = [cell.key for cell in missing(cells)]
        time = next((seconds_in_words(expected[key]) for key in left if expected.get(key)), "")
        yield f"  {row.label:<{wide}}{_numbers(own, paper)}{len(left):>9}  {time}".rstrip()


def _numbers(own: Pace | None, paper: Pace | None) -> str:
    if own is None or paper is None:
        return f"{'–':>8}{'–':>11}{'–':>10}{'–':>9}{'–':>9}{'–':>8}"
    tau = "–" if own.tau is None else f"{own.tau:.4g}"
    return (
        f"{tau:>8}{part(own.memory):>11}{part(paper.memory):>10}{part(own.warmup):>9}{part(paper.warmup):>9}"
        f"{own.steps:>8,}"
    )
