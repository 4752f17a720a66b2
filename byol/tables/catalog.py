"""Every table by name, and from a request to the plan of its cells."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from byol.data.address import parse
from byol.errors import UsageError, nearest
from byol.tables.ablations import ABLATIONS
from byol.tables.beyond import BEYOND
from byol.tables.cells import Plan
from byol.tables.predictors import PREDICTORS
from byol.tables.results import RESULTS
from byol.tables.scales import SCALES, Overrides, Scale, ScaleName
from byol.tables.table import UNTRAINED, Row, Table, cited
from byol.tables.transfers import TRANSFERS

TABLES: dict[str, Table] = {table.name: table for table in (*RESULTS, *TRANSFERS, *ABLATIONS, *PREDICTORS, *BEYOND)}


def find(name: str) -> Table:
    """The table of this name; a wrong one is answered with the nearest."""
    if name not in TABLES:
        raise UsageError(f"There is no table '{name}'. {nearest(name, TABLES)}")
    return TABLES[name]


def chosen(table: Table, scale: Scale, texts: Sequence[str]) -> tuple[Row, ...]:
    """The rows whose label has one of these texts as whole words, or all of them."""
    rows = table.at(scale)
    if not rows:
        raise UsageError(
            f"The table {table.name} has no {scale.name} scale: its encoders or data sets cannot be shrunk."
        )
    for text in texts:
        if not any(_names(text, row) for row in rows):
            raise UsageError(f"{table.name} has no row '{text}'. {nearest(text, [row.label for row in rows])}")
    return tuple(row for row in rows if not texts or any(_names(text, row) for text in texts))


def _names(text: str, row: Row) -> bool:
    """So that 0.99 is not also 0.999."""
    return re.search(rf"(?<![\w.]){re.escape(text)}(?![\w.])", row.label, re.IGNORECASE) is not None


def _untrained(row: Row) -> bool:
    """Whether a row scores a random encoder as the columns ask, and not by a protocol that trains it."""
    return row.encoder == "random" and not row.protocol


@dataclass(frozen=True)
class Request:
    """What the user asked for."""

    name: str
    scale: ScaleName = "paper"
    seeds: int = 0  # 0: as many as the paper
    data: str = ""
    out: Path = Path("tables")
    rows: tuple[str, ...] = ()
    given: Overrides = field(default_factory=dict)
    planned: bool = False  # nothing is computed: the paper's data need not be there


def plan(asked: Request) -> Plan:
    """What can be wrong in the request is said here, before anything is computed."""
    table = find(asked.name)
    if asked.seeds < 0:
        raise UsageError(f"--seeds must be at least 1, not {asked.seeds}.")
    scale = SCALES[asked.scale]
    rows = chosen(table, scale, asked.rows)
    _check_data(asked, scale, rows)
    if scale.small and not any(_untrained(row) for row in rows):
        rows += (next(filter(_untrained, table.at(scale)), UNTRAINED),)
    return Plan(table, rows, scale, asked.seeds or table.seeds, asked.data, asked.out, asked.given)


def _check_data(asked: Request, scale: Scale, rows: tuple[Row, ...]) -> None:
    if asked.data:
        parse(asked.data, str(asked.given.get("data.root", "datasets"))).check()
        return
    if asked.planned and not scale.small:
        return
    if scale.small:
        raise UsageError(f"The {scale.name} scale needs --data: a folder of class folders with a test part, or scenes.")
    root = Path(str(asked.given.get("data.root", "datasets")))
    for name in dict.fromkeys(row.data for row in rows):
        if not (root / name).is_dir():
            raise UsageError(
                f"There is no {name} in {root}: --data.root says where it is; --scale cpu --data FOLDER is small."
            )


def listing() -> str:
    """A line a table: name, rows at every scale, title and source; then the scales."""
    lines = [f"{'table':<24}{''.join(f'{name:>6}' for name in SCALES)}  what"]
    for name, table in TABLES.items():
        counts = "".join(f"{len(table.at(scale)) or '–':>6}" for scale in SCALES.values())
        lines.append(f"{name:<24}{counts}  {table.title} [{cited(table.source)}]")
    lines += [f"--scale {name}: {scale.what}{_cost(scale)}" for name, scale in SCALES.items()]
    return "\n".join(lines)


def _cost(scale: Scale) -> str:
    return f"; about {scale.minutes:g} minutes of one core a cell" if scale.minutes else ""
