"""A table's record as Markdown and CSV: our mean ± half the range beside the paper's figure, and the order of rows.

Everything here is a function of the record that `run.collect` makes; needs no torch.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Mapping
from statistics import mean
from typing import Any, NamedTuple

from byol.tables.table import published

CLEAR = 1.0  # points: rows that are closer than this in the paper may change places by chance

Record = Mapping[str, Any]


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


def ours(row: Record, title: str) -> Ours | None:
    """What our runs gave for a column, if any did."""
    values = [cell["figures"][title] for cell in row["cells"] if title in cell.get("figures", {})]
    return Ours(mean(values), (max(values) - min(values)) / 2, len(values)) if values else None


def theirs(row: Record, title: str) -> float | None:
    """The paper's figure, if it prints one."""
    found = published(row["published"].get(title, "-"))
    return found.value if found else None


def agreement(record: Record, title: str) -> Agreement:
    """Over all pairs of rows with both figures; of rows that share one run only the first counts."""
    rows = [row for row in record["rows"] if not row["repeats"]]
    known = [(theirs(row, title), ours(row, title)) for row in rows]
    points = [(paper, found.mean) for paper, found in known if paper is not None and found is not None]
    counts = Counter[str]()
    for place, (paper, found) in enumerate(points):
        for other_paper, other_found in points[place + 1 :]:
            if paper == other_paper:
                continue
            same = (paper - other_paper) * (found - other_found) > 0
            kinds = ("all", "clear") if abs(paper - other_paper) > CLEAR else ("all",)
            counts.update([*kinds, *(f"{kind} agree" for kind in kinds if same)])
    return Agreement(counts["all agree"], counts["all"], counts["clear agree"], counts["clear"])


def verdicts(row: Record) -> str:
    """`learning`, or how many of the seeds say what; failures with their reason."""
    words = Counter(_word(cell) for cell in row["cells"])
    return ", ".join(word if len(words) == 1 else f"{count} {word}" for word, count in words.items())


def _word(cell: Record) -> str:
    if cell["status"] == "finished":
        return str(cell["verdict"]["word"])
    return f"failed: {cell['error']}" if cell["status"] == "failed" else "missing"


def percent(found: Ours | None) -> str:
    if found is None:
        return "–"
    return f"{found.mean:.1f} ± {found.half_range:.1f}" if found.seeds > 1 else f"{found.mean:.1f}"


def markdown(record: Record) -> str:
    """The table for people, with what it rests on and the paper's inconsistencies below."""
    titles = [column["title"] for column in record["columns"]]
    heads = ["row", *(f"{title}{who}" for title in titles for who in (", ours", ", paper")), "seeds", "verdict"]
    lines = [f"**{record['title']}** ({record['source']}), `{record['scale']}` scale", ""]
    lines += [_line(heads), "|---" * len(heads) + "|"]
    for row in record["rows"]:
        figures = [
            (percent(ours(row, title)), row["published"].get(title, "–").replace("±", " ± ")) for title in titles
        ]
        seeds = sum(cell["status"] == "finished" for cell in row["cells"])
        same = f"; same run as “{row['repeats']}”" if row["repeats"] else ""
        lines.append(
            _line([row["label"], *(text for pair in figures for text in pair), str(seeds), verdicts(row) + same])
        )
    notes = [_order(record, title) for title in titles]
    if record["scale"] == "cpu":
        notes.append(f"Ours: {_how(record)}; the paper's figures are ImageNet's: the order is compared, not the level.")
    notes += [f"Note: {note}" for note in record["notes"]]
    return "\n".join([*lines, "", *(f"- {note}" for note in notes if note)]) + "\n"


def _line(texts: list[str]) -> str:
    return "| " + " | ".join(text.replace("|", "\\|").replace("\n", " ") for text in texts) + " |"


def _order(record: Record, title: str) -> str:
    found = agreement(record, title)
    if not found.pairs:
        return ""
    clear = f", {found.clear_agree} of {found.clear_pairs} of those more than {CLEAR:g} point apart there"
    return f"{title}: {found.agree} of {found.pairs} pairs of rows are in the paper's order" + clear * (
        found.clear_pairs > 0
    )


def _how(record: Record) -> str:
    """Data, preset and protocol of the runs, from the first that is finished."""
    cells = [cell for row in record["rows"] for cell in row["cells"] if cell["status"] == "finished"]
    if not cells:
        return "no run is finished"
    cell = cells[0]
    protocols = ", ".join(dict.fromkeys(column["protocol"] for column in record["columns"]))
    epochs = f"{cell['overrides'].get('optim.epochs', 0):g} epochs of " if "optim.epochs" in cell["overrides"] else ""
    return f"`{cell['preset']}`, {epochs}{next(iter(cell['data']))}, {protocols}, test images"


def comma_separated(record: Record) -> str:
    """A line a row and column: means and the figure of every seed."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["table", "row", "column", "paper", "mean", "half_range", "seeds", "values", "verdicts"])
    for row in record["rows"]:
        for title in (column["title"] for column in record["columns"]):
            found = ours(row, title)
            values = [cell["figures"][title] for cell in row["cells"] if title in cell.get("figures", {})]
            spread = [f"{found.mean:.3f}", f"{found.half_range:.3f}", found.seeds] if found else ["", "", 0]
            paper = row["published"].get(title, "")
            each = " ".join(f"{value:.3f}" for value in values)
            writer.writerow([record["table"], row["label"], title, paper, *spread, each, verdicts(row)])
    return text.getvalue()
