"""Every table of the paper by name."""

from __future__ import annotations

from byol.errors import UsageError, nearest
from byol.tables.ablations import ABLATIONS
from byol.tables.results import RESULTS
from byol.tables.table import Row, ScaleName, Table

TABLES: dict[str, Table] = {table.name: table for table in (*RESULTS, *ABLATIONS)}


def find(name: str) -> Table:
    """The table of this name; a wrong one is answered with the nearest."""
    if name not in TABLES:
        raise UsageError(f"There is no table '{name}'. {nearest(name, TABLES)}")
    return TABLES[name]


def chosen(table: Table, scale: ScaleName, labels: list[str]) -> tuple[Row, ...]:
    """The rows whose label holds one of these texts, or all of them."""
    rows = table.at(scale)
    if not rows:
        raise UsageError(f"The table {table.name} has no cpu scale: its encoders or data sets cannot be shrunk.")
    for label in labels:
        if not any(label.lower() in row.label.lower() for row in rows):
            raise UsageError(f"{table.name} has no row '{label}'. {nearest(label, [row.label for row in rows])}")
    return tuple(row for row in rows if not labels or any(label.lower() in row.label.lower() for label in labels))


def listing() -> str:
    """A line a table: name, rows at the paper's and at the cpu scale, title and source."""
    lines = [f"{'table':<24}{'rows':>5}{'cpu':>5}  what"]
    for name, table in TABLES.items():
        counts = f"{len(table.rows):>5}{len(table.at('cpu')) or '–':>5}"
        lines.append(f"{name:<24}{counts}  {table.title} [{table.source}]")
    return "\n".join(lines)
