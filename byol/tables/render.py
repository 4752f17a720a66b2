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
from byol.tables.table import cited, published

CLEAR = 1.0  # points: rows that are closer than this in the paper may change places by chance
CLEAR_PLAIN = 0.01  # the same for metres and ratios


class Ours(NamedTuple):
    """Mean and half the range over the seeds, mostly in percent."""

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
            kinds = ("all", "clear") if abs(paper - other_paper) > _clear(table, title) else ("all",)
            counts.update([*kinds, *(f"{kind} agree" for kind in kinds if same)])
    return Agreement(counts["all agree"], counts["all"], counts["clear agree"], counts["clear"])


def _clear(table: TableRecord, title: str) -> float:
    return CLEAR_PLAIN if title in _plain_titles(table) else CLEAR


def _plain_titles(table: TableRecord) -> set[str]:
    return {column.title for column in table.columns if column.plain}


def verdicts(row: RowFacts) -> str:
    """`learning`, or how many of the seeds say what; failures with their reason; of others' methods, that they are."""
    if not row.cells:
        return "published by others, not run"
    words = Counter(_word(cell) for cell in row.cells)
    return ", ".join(word if len(words) == 1 else f"{count} {word}" for word, count in words.items())


def _word(cell: CellFacts) -> str:
    if cell.status == "finished":
        return cell.verdict.word
    return f"failed: {cell.error}" if cell.status == "failed" else "missing"


def percent(own: Ours | None, plain: bool = False) -> str:
    if own is None:
        return "–"
    places = 3 if plain else 1
    return f"{own.mean:.{places}f}" + (f" ± {own.half_range:.{places}f}" if own.seeds > 1 else "")


def part(share: float | None) -> str:
    """A share of a run, as one would say it: 1/940, or 65 % where it is large; of what is never forgotten, all."""
    if share is None:
        return "–"
    if share > 0.2:
        return "all" if share >= 1 else f"{share:.0%}"
    return "none" if not share else f"1/{round(1 / share, 2 - len(str(int(1 / share)))):,.0f}"


def on_the_way(row: RowFacts) -> list[float]:
    """The monitor's kNN in percent at the start, at each quarter and at the end of the run, the mean over seeds; empty
    where nobody had labels."""
    curves = [[look["knn"] for look in cell.looks if "knn" in look] for cell in row.cells]
    known = [curve for curve in curves if curve]
    places = [round((len(curve) - 1) * quarter / 4) for curve in known[:1] for quarter in range(5)]
    return [100 * mean(curve[min(place, len(curve) - 1)] for curve in known) for place in places]


def markdown(table: TableRecord) -> str:
    """The table for people, with what it rests on and the paper's inconsistencies below."""
    titles = [column.title for column in table.columns]
    varied = len({row.pace.tau for row in table.rows if row.pace and row.pace.tau is not None}) > 1
    heads = ["row", *(f"{title}{who}" for title in titles for who in (", ours", ", paper")), "seeds", "verdict"]
    heads += ["τ, ours", "remembers", "τ, paper", "remembers"] * varied
    watched = any(on_the_way(row) for row in table.rows)
    heads += ["kNN on the way"] * watched
    lines = [f"**{table.title}** ({cited(table.source)}), `{table.scale}` scale", ""]
    lines += [_line(heads), "|---" * len(heads) + "|"]
    lines += [_line(_texts(table, row) + _tau(row) * varied + _path(row) * watched) for row in table.rows]
    notes = [_order(table, title) for title in titles]
    if table.scale != "paper":
        notes.append(f"Ours: {_how(table)}; the paper's figures are ImageNet's: the order is compared, not the level.")
    if watched:
        notes.append("kNN on the way: the monitor's, in percent, before training, after each quarter, and at the end")
    notes += [_pace(table, varied), *(f"Note: {note}" for note in table.notes)]
    return "\n".join([*lines, "", *(f"- {note}" for note in notes if note)]) + "\n"


def _texts(table: TableRecord, row: RowFacts) -> list[str]:
    """Label, our figure and the paper's for every column, seeds and verdict."""
    plain = _plain_titles(table)
    figures = [
        (percent(ours(row, title), title in plain), row.published.get(title, "–").replace("±", " ± "))
        for title in (column.title for column in table.columns)
    ]
    seeds = str(sum(cell.status == "finished" for cell in row.cells)) if row.cells else "–"
    same = f"; same run as “{row.repeats}”" if row.repeats else ""
    return [row.label, *(text for pair in figures for text in pair), seeds, verdicts(row) + same]


def _path(row: RowFacts) -> list[str]:
    return [" ".join(f"{value:.0f}" for value in on_the_way(row)) or "–"]


def _tau(row: RowFacts) -> list[str]:
    if row.pace is None or row.paper is None:
        return ["–"] * 4
    each = (row.pace, row.paper)
    return [text for pace in each for text in ("–" if pace.tau is None else f"{pace.tau:.4g}", part(pace.memory))]


def _pace(table: TableRecord, varied: bool) -> str:
    """tau, unless rows have their own, and warm-up, as shares of our runs and of the paper's."""
    known = [(row.pace, row.paper) for row in table.rows if row.pace and row.paper]
    if not known:
        return ""
    own, paper = next((pair for pair in known if pair[0].tau is not None), known[0])
    words = (
        f"{own.steps:,} steps ({paper.steps:,} in the paper), {part(own.warmup)} of them warm-up ({part(paper.warmup)})"
    )
    if own.tau is None or paper.tau is None or varied:
        return words
    memory = f"τ {own.tau:.4g} remembers {part(own.memory)} of the run (paper: τ {paper.tau:.4g}, {part(paper.memory)})"
    return f"{words}; {memory}"


def _line(texts: list[str]) -> str:
    return "| " + " | ".join(text.replace("|", "\\|").replace("\n", " ") for text in texts) + " |"


def _order(table: TableRecord, title: str) -> str:
    order = agreement(table, title)
    if not order.pairs:
        return ""
    apart = f"{CLEAR_PLAIN:g}" if title in _plain_titles(table) else f"{CLEAR:g} point"
    clear = f", {order.clear_agree} of {order.clear_pairs} of those more than {apart} apart there"
    return f"{title}: {order.agree} of {order.pairs} pairs of rows are in the paper's order" + clear * (
        order.clear_pairs > 0
    )


def _how(table: TableRecord) -> str:
    """Epochs, data, resolution and protocols of the runs, from the first cell that is finished."""
    cell = next((cell for row in table.rows for cell in row.cells if cell.status == "finished"), None)
    if cell is None:
        return "no run is finished"
    protocols = ", ".join(dict.fromkeys(column.protocol for column in table.columns if column.protocol))
    epochs = f"{cell.overrides['optim.epochs']:g} epochs of " if "optim.epochs" in cell.overrides else ""
    side = f" at {cell.overrides['data.resolution']} px" if "data.resolution" in cell.overrides else ""
    return f"{epochs}{next(iter(cell.data))}{side}, {protocols}, test images"


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
