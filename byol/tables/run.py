"""`byol table`: the plan, the missing cells, and the table as JSON, Markdown, CSV and PNG."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from byol.errors import ByolError, DiskError, UsageError
from byol.evals.metrics import shown
from byol.run.files import write_atomically
from byol.run.progress import duration, say, tell
from byol.tables import jobs, record, render
from byol.tables.cells import Cell, Plan, missing, stored
from byol.tables.compute import compute, header
from byol.tables.forecast import HERE, Devices, announcement, at_a_time, forecast, paces, reckoned, rows
from byol.tables.record import CellFacts, CellRecord, ColumnFacts, RowFacts, TableRecord, read_table, write_table
from byol.tables.table import UNTRAINED, Column, Row

POLL_SECONDS = 1.0
# What a table shows of a cell as the cell's own record has it.
SHARED = ("scores", "weights", "verdict", "seconds", "looks", "commit", "versions")


class Progress:
    """Counts cells and says after each how it went and how long the rest takes.

    The expected seconds of the cells that are left are corrected by how long those that ended took.
    """

    def __init__(self, total: int, expected: dict[str, float], together: int) -> None:
        self.total, self.left_over, self.together = total, dict(expected), together
        self.done, self.taken, self.foreseen = 0, 0.0, 0.0

    def left(self) -> str:
        if not self.foreseen:
            return "the time is known when the first trained cell is finished"
        whole = sum(self.left_over.values()) * self.taken / self.foreseen / self.together
        return f"about {duration(whole)} left"

    def ended(self, cell: Cell, record: CellRecord) -> None:
        self.done += 1
        foreseen = self.left_over.pop(cell.key, 0.0)
        if record.finished:
            if foreseen:
                self.taken, self.foreseen = self.taken + record.seconds, self.foreseen + foreseen
            figures = [shown(name, value) for score in record.scores for name, value in list(score.test.items())[:1]]
            how = f"{', '.join(figures[:3])} ({record.verdict.word}), {duration(record.seconds)}"
        else:
            how = f"failed: {record.error}"
        say(f"[{self.done}/{self.total}] {cell.label}, seed {cell.seed}: {how}; {self.left()}")


def preview(plan: Plan, where: str = "", on: tuple[str, int] = ("here", 1)) -> dict[str, float]:
    """Says what `run` would do: cells, minutes a cell and in all, and every row with what it means.

    `on` are a device's name and how many of them share a cell; jobs of Slurm say that themselves. Returns the sums.
    """
    devices = Devices(*on)
    take_up(plan, plan.distinct())
    together, todo = at_a_time(where), missing(plan.distinct())
    tasks = jobs.placed(where).tasks if where else None
    if devices.name == "here":
        jobs.check(where)
        devices, expected = HERE, forecast(todo, plan.images, together)
    else:
        devices = devices._replace(number=tasks.nodes * tasks.processes) if tasks else devices
        expected = reckoned(todo, plan.images, devices)
    for line in (*announcement(plan, expected, together, devices), *rows(plan, expected)):
        tell(line)
    return {
        "cells": len(plan.distinct()),
        "missing": len(todo),
        "seconds": sum(expected.values()),
        "together": together,
        "devices": devices.number,
    }


def run(plan: Plan, where: str = "") -> TableRecord:
    """Computes what is missing, writes the table's files and prints it; the same call again continues."""
    jobs.check(where)
    cells = plan.distinct()
    take_up(plan, cells)
    forget_other_weights(cells)
    todo = missing(cells)
    here = not where.startswith("slurm")  # other machines have other times
    expected = forecast(todo, plan.images, at_a_time(where)) if here else {}
    for line in announcement(plan, expected, at_a_time(where)):
        say(line)
    progress = Progress(len(todo), expected or {cell.key: 1.0 for cell in todo if not cell.untrained}, at_a_time(where))
    if todo and where:
        jobs.run(todo, where, plan.out, progress.ended)
    elif todo:
        one_after_another(todo, progress)
    table = collect(plan)
    write(plan, table)
    if failed := missing(cells):
        raise ByolError(f"{len(failed)} of {len(cells)} cells failed; the same command tries them again.")
    return table


def take_up(plan: Plan, cells: Sequence[Cell]) -> None:
    """Stores the cells that a table's JSON in `out` holds and `out/cells` lacks: that file alone, from another machine,
    is enough to go on from."""
    lacking = {cell.key: cell for cell in cells if not cell.path.exists()}
    for path in sorted(plan.out.glob(f"*-{plan.scale.name}.json")) if lacking else ():
        try:
            rows = read_table(path).rows
        except DiskError as error:
            say(f"{error} Nothing is taken from it.")
            continue
        for facts in (cell for row in rows for cell in row.cells if cell.status == "finished"):
            if cell := lacking.pop(facts.key, None):
                cell.path.parent.mkdir(parents=True, exist_ok=True)
                same = {name: getattr(facts, name) for name in SHARED}
                record.write(cell.path, replace(header(cell), status="finished", **same))


def forget_other_weights(cells: Sequence[Cell]) -> None:
    """Drops the figures of encoders that were trained again since they were scored, so that they are scored anew."""
    for cell in cells:
        if not ((record := stored(cell)) and record.finished and (cell.run / "encoder.safetensors").exists()):
            continue
        from byol.tables.measure import is_current  # torch is loaded only where there are weights to compare

        if not is_current(cell, record):
            say(f"{cell.label}, seed {cell.seed}: the figures are of other weights than {cell.run} holds now.")
            cell.path.unlink(missing_ok=True)


def one_after_another(cells: Sequence[Cell], progress: Progress) -> None:
    """Computes the cells in this process; cells that another process has claimed are looked at again later."""
    waiting = list(cells)
    while waiting:
        left = []
        for cell in waiting:
            record = compute(cell)
            if record is None:
                left.append(cell)
            else:
                progress.ended(cell, record)
        if len(left) == len(waiting):
            time.sleep(POLL_SECONDS)
        waiting = left


def collect(plan: Plan) -> TableRecord:
    """The table as it stands: everything that its renderings show, and the evidence."""
    table = plan.table
    first_with: dict[str, str] = {}
    lines = []
    for row in plan.rows:
        cells = plan.cells[row.label]
        first = first_with.setdefault(cells[0].key, row.label) if cells else row.label
        printed = dict(zip((c.title for c in table.columns), row.printed.split(), strict=False))
        published = {title: figure for title, figure in printed.items() if figure != "-"}
        repeats = "" if first == row.label else first
        results = [_result(plan, row, cell) for cell in cells]
        lines.append(RowFacts(row.label, row.group, row.x, published, repeats, results, *paces(plan, row)))
    columns = [ColumnFacts(c.title, c.x, plan.place(UNTRAINED, c)[0], c.plain) for c in table.columns]
    about = (table.name, table.title, table.source, plan.scale.name, table.figure)
    return TableRecord(*about, columns, list(table.notes), plan.seeds, lines)


def _result(plan: Plan, row: Row, cell: Cell) -> CellFacts:
    record = stored(cell)
    if record is None:
        return CellFacts(cell.seed, "missing", cell.key)
    if not record.finished:
        return CellFacts(cell.seed, "failed", cell.key, error=record.error)
    figures = {column.title: _figure(plan, row, column, cell, record) for column in plan.table.columns}
    return CellFacts(
        cell.seed,
        "finished",
        cell.key,
        {title: value for title, value in figures.items() if value is not None},
        record.verdict,
        record.seconds,
        record.looks,
        record.commit,
        record.versions,
        record.data,
        record.preset,
        record.overrides,
        record.scores,
        record.weights,
    )


def _figure(plan: Plan, row: Row, column: Column, cell: Cell, record: CellRecord) -> float | None:
    """Mostly in percent; none where the data have no such figure, as top-5 of five classes, or nothing was scored."""
    places = [(evaluation.protocol, evaluation.on) for evaluation in cell.evaluations]
    if not record.scores or (place := plan.place(row, column)) not in places:
        return None
    test = record.scores[places.index(place)].test
    name = column.figure.partition("@")[0] if row.protocol else column.figure  # another protocol knows no fractions
    share = test.get(name) if name else next(iter(test.values()), None)
    return None if share is None else round(share if column.plain else 100 * share, 4)


def write(plan: Plan, table: TableRecord) -> None:
    """NAME-SCALE.json, .md, .csv and, where matplotlib is installed, .png; the Markdown also to the screen."""
    plan.out.mkdir(parents=True, exist_ok=True)
    base = plan.out / f"{plan.table.name}-{plan.scale.name}"
    write_table(base.with_suffix(".json"), table)
    text = render.markdown(table)
    write_atomically(base.with_suffix(".md"), text.encode())
    write_atomically(base.with_suffix(".csv"), render.comma_separated(table).encode())
    try:
        from byol.tables.figures import picture

        picture(base.with_suffix(".png"), table)
    except UsageError as error:
        say(f"No picture: {error}")
    tell(text.rstrip("\n"))
    say(f"Written: {base}.json, .md, .csv, .png")
