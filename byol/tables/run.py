"""`byol table`: the plan, the missing cells, and the table as JSON, Markdown, CSV and PNG."""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import mean
from typing import Any

from byol.errors import ByolError, UsageError
from byol.progress import duration, say
from byol.records import meaning_of, write_atomically, write_json
from byol.tables import jobs, render
from byol.tables.cells import Cell, Plan, finished, missing, stored
from byol.tables.compute import compute
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

    def ended(self, cell: Cell, record: dict[str, Any]) -> None:
        self.done += 1
        if finished(record):
            self.seconds.append(record["seconds"])
            figures = [f"{100 * value:.2f} %" for test in record["tests"] for value in list(test.values())[:1]]
            how = f"{', '.join(figures[:3])} ({record['verdict']['word']})"
        else:
            how = f"failed: {record['error']}"
        say(f"[{self.done}/{self.total}] {cell.label}, seed {cell.seed}: {how}; {self.left()}")


def run(plan: Plan, where: str = "") -> dict[str, Any]:
    """Computes what is missing, writes the table's files and prints it; the same call again continues."""
    cells = plan.distinct()
    todo = missing(cells)
    known = [record["seconds"] for cell in cells if (record := stored(cell)) and finished(record)]
    at_a_time = int(where.partition(":")[2]) if where.startswith("local:") and where[6:].isdecimal() else 1
    progress = Progress(len(todo), known, max(1, at_a_time))
    say(
        f"{plan.table.title} [{plan.table.source}] at the {plan.scale} scale: {len(plan.cells)} rows, {plan.seeds} "
        f"seeds, {len(cells)} cells; {len(cells) - len(todo)} done, {len(todo)} missing"
        + (f", {progress.left()}" if todo else "")
    )
    if todo and where:
        jobs.run(todo, where, plan.out, progress.ended)
    elif todo:
        one_after_another(todo, progress)
    record = collect(plan)
    write(plan, record)
    failed = [cell for cell in cells if not finished(stored(cell))]
    if failed:
        raise ByolError(f"{len(failed)} of {len(cells)} cells failed; the same command tries them again.")
    return record


def one_after_another(cells: Sequence[Cell], progress: Progress) -> None:
    """In this process; what another process has claimed is looked at again later."""
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


def collect(plan: Plan) -> dict[str, Any]:
    """The table as it stands: everything that its renderings show, and the evidence."""
    table = plan.table
    first_with: dict[str, str] = {}
    rows = []
    for row in plan.rows:
        cells = plan.cells[row.label]
        repeats = first_with.setdefault(cells[0].key, row.label)
        printed = dict(zip((c.title for c in table.columns), row.printed.split(), strict=False))
        rows.append(
            {
                "label": row.label,
                "group": row.group,
                "x": row.x,
                "published": {title: figure for title, figure in printed.items() if figure != "-"},
                "repeats": "" if repeats == row.label else repeats,
                "cells": [_result(plan, row, cell) for cell in cells],
            }
        )
    return {
        "table": table.name,
        "title": table.title,
        "source": table.source,
        "scale": plan.scale,
        "figure": table.figure,
        "columns": [{"title": c.title, "x": c.x, "protocol": plan.place(plan.rows[0], c)[0]} for c in table.columns],
        "notes": list(table.notes),
        "seeds": plan.seeds,
        "rows": rows,
    }


def _result(plan: Plan, row: Row, cell: Cell) -> dict[str, Any]:
    record = stored(cell)
    if record is None:
        return {"seed": cell.seed, "key": cell.key, "status": "missing"}
    if not finished(record):
        return {"seed": cell.seed, "key": cell.key, "status": "failed", "error": record["error"]}
    with meaning_of(cell.path):
        figures = {column.title: _figure(plan, row, column, cell, record["tests"]) for column in plan.table.columns}
    return {
        "seed": cell.seed,
        "key": cell.key,
        "status": "finished",
        "figures": {title: value for title, value in figures.items() if value is not None},
        "verdict": record["verdict"],
        "seconds": record["seconds"],
        "looks": record["looks"],
        "commit": record["commit"],
        "versions": record["versions"],
        "data": record["data"],
        "preset": record["preset"],
        "overrides": record["overrides"],
        "evaluations": record["evaluations"],
    }


def _figure(plan: Plan, row: Row, column: Column, cell: Cell, tests: list[dict[str, float]]) -> float | None:
    """In percent; none where the data have no such figure, as top-5 of five classes, or nothing could be scored."""
    places = [(evaluation.protocol, evaluation.on) for evaluation in cell.evaluations]
    if not tests:
        return None
    test = tests[places.index(plan.place(row, column))]
    share = test.get(column.figure) if column.figure else next(iter(test.values()))
    return None if share is None else round(100 * share, 4)


def write(plan: Plan, record: dict[str, Any]) -> None:
    """NAME-SCALE.json, .md, .csv and, where matplotlib is installed, .png; the Markdown also to the screen."""
    plan.out.mkdir(parents=True, exist_ok=True)
    base = plan.out / f"{plan.table.name}-{plan.scale}"
    write_json(base.with_suffix(".json"), record)
    text = render.markdown(record)
    write_atomically(base.with_suffix(".md"), text.encode())
    write_atomically(base.with_suffix(".csv"), render.comma_separated(record).encode())
    try:
        from byol.tables.figures import picture

        picture(base.with_suffix(".png"), record)
    except UsageError as error:
        say(f"No picture: {error}")
    print(text, end="")
    say(f"Written: {base}.json, .md, .csv, .png")
