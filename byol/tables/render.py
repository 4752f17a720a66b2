"""A table's record as Markdown and CSV: our mean ± half the range beside the paper's figure, and the order of rows.

Every function takes the record that `run.collect` makes, or a part of it. Needs no torch.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from statistics import mean
from typing import NamedTuple

from byol.tables.record import CellFacts, RowFacts, TableRecord
from byol.tables.table import published

CLEAR = 1.0  # points: rows that are closer than this in the paper may change places by chance


class Ours(NamedTuple):
    """Mean and half the range over the seeds, in percent."""

    mean: float
    half_range: float
    seeds: int


class Agreement(NamedTuple):
    """Pairs of rows in the paper's order, of those that differ there; `clear` ones by more than a point."""

    agree: int
    pairs: int
    clear_agree: int
    clear_pairs: int


def values_of(row: RowFacts, title: str) -> list[float]:
    """The figure of each seed that has one."""
    return [cell.figures[title] for cell in row.cells if title in cell.figures]


def ours(row: RowFacts, title: str) -> Ours | None:
    """What our runs gave for a column, if any did."""
    values = values_of(row, title)
    return Ours(mean(values), (max(values) - min(values)) / 2, len(values)) if values else None


def theirs(row: RowFacts, title: str) -> float | None:
    """The paper's figure, if it prints one."""
    figure = published(row.published.get(title, "-"))
    return figure.value if figure else None


def agreement(table: TableRecord, title: str) -> Agreement:
    """Over all pairs of rows with both figures; of rows that share one run only the first counts."""
    known = [(theirs(row, title), ours(row, title)) for row in table.rows if not row.repeats]
    points = [(paper, own.mean) for paper, own in known if paper is not None and own is not None]
    counts = Counter[str]()
    for place, (paper, own) in enumerate(points):
        for other_paper, other_own in points[place + 1 :]:
            if paper == other_paper:
                continue
            same = (paper - other_paper) * (own - other_own) > 0
            kinds = ("all", "clear") if abs(paper - other_paper) > CLEAR else ("all",)
            counts.update([*kinds, *(f"{kind} agree" for kind in kinds if same)])
    return Agreement(counts["all agree"], counts["all"], counts["clear agree"], counts["clear"])


def verdicts(row: RowFacts) -> str:
    """`learning`, or how many of the seeds say what; failures with their reason."""
    words = Counter(_word(cell) for cell in row.cells)
    return ", ".join(word if len(words) == 1 else f"{count} {word}" for word, count in words.items())


def _word(cell: CellFacts) -> str:
    if cell.status == "finished":
        return cell.verdict.word
    return f"failed: {cell.error}" if cell.status == "failed" else "missing"


def percent(own: Ours | None) -> str:
    if own is None:
        return "–"
    return f"{own.mean:.1f} ± {own.half_range:.1f}" if own.seeds > 1 else f"{own.mean:.1f}"


def markdown(table: TableRecord) -> str:
    """The table for people, with what it rests on and the paper's inconsistencies below."""
    titles = [column.title for column in table.columns]
    heads = ["row", *(f"{title}{who}" for title in titles for who in (", ours", ", paper")), "seeds", "verdict"]
    lines = [f"**{table.title}** ({table.source}), `{table.scale}` scale", ""]
    lines += [_line(heads), "|---" * len(heads) + "|"]
    for row in table.rows:
        figures = [(percent(ours(row, title)), row.published.get(title, "–").replace("±", " ± ")) for title in titles]
        seeds = sum(cell.status == "finished" for cell in row.cells)
        same = f"; same run as “{row.repeats}”" if row.repeats else ""
        lines.append(_line([row.label, *(text for pair in figures for text in pair), str(seeds), verdicts(row) + same]))
    notes = [_order(table, title) for title in titles]
    if table.scale != "paper":
        notes.append(f"Ours: {_how(table)}; the paper's figures are ImageNet's: the order is compared, not the level.")
    notes += [f"Note: {note}" for note in table.notes]
    return "\n".join([*lines, "", *(f"- {note}" for note in notes if note)]) + "\n"


def _line(texts: list[str]) -> str:
    return "| " + " | ".join(text.replace("|", "\\|").replace("\n", " ") for text in texts) + " |"


def _order(table: TableRecord, title: str) -> str:
    order = agreement(table, title)
    if not order.pairs:
        return ""
    clear = f", {order.clear_agree} of {order.clear_pairs} of those more than {CLEAR:g} point apart there"
    return f"{title}: {order.agree} of {order.pairs} pairs of rows are in the paper's order" + clear * (
        order.clear_pairs > 0
    )


def _how(table: TableRecord) -> str:
    """Data, preset and protocol of the runs, from the first cell that is finished."""
    cell = next((cell for row in table.rows for cell in row.cells if cell.status == "finished"), None)
    if cell is None:
        return "no run is finished"
    protocols = ", ".join(dict.fromkeys(column.protocol for column in table.columns))
    epochs = f"{cell.overrides['optim.epochs']:g} epochs of " if "optim.epochs" in cell.overrides else ""
    return f"`{cell.preset}`, {epochs}{next(iter(cell.data))}, {protocols}, test images"


def comma_separated(table: TableRecord) -> str:
    """A line for each row and column: means and the figure of every seed."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["table", "row", "column", "paper", "mean", "half_range", "seeds", "values", "verdicts"])
    for row in table.rows:
        for title in (column.title for column in table.columns):
            own = ours(row, title)
            spread = [f"{own.mean:.3f}", f"{own.half_range:.3f}", own.seeds] if own else ["", "", 0]
            each = " ".join(f"{value:.3f}" for value in values_of(row, title))
            paper = row.published.get(title, "")
            writer.writerow([table.table, row.label, title, paper, *spread, each, verdicts(row)])
    return text.getvalue()
