"""`byol table`: the plan, the missing cells, and the table as JSON, Markdown, CSV and PNG."""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import mean

from byol.errors import ByolError, UsageError
from byol.evals.metrics import shown
from byol.run.files import write_atomically
from byol.run.progress import duration, say, tell
from byol.tables import jobs, render
from byol.tables.cells import Cell, Plan, missing, stored
from byol.tables.compute import compute
from byol.tables.record import CellFacts, CellRecord, ColumnFacts, RowFacts, TableRecord, write_table
from byol.tables.table import Column, Row

POLL_SECONDS = 1.0


class Progress:
    """Counts cells and says after each how it went and how long the rest takes."""

    def __init__(self, total: int, seconds: Sequence[float], at_a_time: int) -> None:
        self.total, self.done, self.seconds, self.at_a_time = total, 0, list(seconds), at_a_time

    def left(self) -> str:
        if not self.seconds:
            return "time unknown before the first cell is finished"
        each = mean(self.seconds)
        whole = each * (self.total - self.done) / self.at_a_time
        return f"about {duration(whole)} left, at {duration(each)} a cell"

    def ended(self, cell: Cell, record: CellRecord) -> None:
        self.done += 1
        if record.finished:
            self.seconds.append(record.seconds)
            figures = [shown(name, value) for score in record.scores for name, value in list(score.test.items())[:1]]
            how = f"{', '.join(figures[:3])} ({record.verdict.word})"
        else:
            how = f"failed: {record.error}"
        say(f"[{self.done}/{self.total}] {cell.label}, seed {cell.seed}: {how}; {self.left()}")


def run(plan: Plan, where: str = "") -> TableRecord:
    """Computes what is missing, writes the table's files and prints it; the same call again continues."""
    cells = plan.distinct()
    forget_other_weights(cells)
    todo = missing(cells)
    known = [record.seconds for cell in cells if (record := stored(cell)) and record.finished]
    at_a_time = int(where.partition(":")[2]) if where.startswith("local:") and where[6:].isdecimal() else 1
    progress = Progress(len(todo), known, max(1, at_a_time))
    say(
        f"{plan.table.title} [{plan.table.source}] at the {plan.scale.name} scale: {len(plan.cells)} rows, "
        f"{plan.seeds} seeds, {len(cells)} cells; {len(cells) - len(todo)} done, {len(todo)} missing"
        + (f", {progress.left()}" if todo else "")
    )
    if todo and where:
        jobs.run(todo, where, plan.out, progress.ended)
    elif todo:
        one_after_another(todo, progress)
    table = collect(plan)
    write(plan, table)
    if failed := missing(cells):
        raise ByolError(f"{len(failed)} of {len(cells)} cells failed; the same command tries them again.")
    return table


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
    rows = []
    for row in plan.rows:
        cells = plan.cells[row.label]
        first = first_with.setdefault(cells[0].key, row.label)
        printed = dict(zip((c.title for c in table.columns), row.printed.split(), strict=False))
        published = {title: figure for title, figure in printed.items() if figure != "-"}
        repeats = "" if first == row.label else first
        rows.append(
            RowFacts(row.label, row.group, row.x, published, repeats, [_result(plan, row, cell) for cell in cells])
        )
    columns = [ColumnFacts(c.title, c.x, plan.place(plan.rows[0], c)[0]) for c in table.columns]
    about = (table.name, table.title, table.source, plan.scale.name, table.figure)
    return TableRecord(*about, columns, list(table.notes), plan.seeds, rows)


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
    """In percent; none where the data have no such figure, as top-5 of five classes, or nothing could be scored."""
    if not record.scores:
        return None
    places = [(evaluation.protocol, evaluation.on) for evaluation in cell.evaluations]
    test = record.scores[places.index(plan.place(row, column))].test
    share = test.get(column.figure) if column.figure else next(iter(test.values()), None)
    return None if share is None else round(100 * share, 4)


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
