"""A table's picture, as the paper draws it where it does: ours and the paper's figures in one PNG."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from byol.run.pictures import pyplot, save
from byol.tables.record import Look, RowFacts, TableRecord
from byol.tables.render import ours, theirs
from byol.tables.table import cited

OURS, PAPER = "tab:blue", "tab:orange"
MOST_INSIDE = 6  # lines of a legend


def picture(path: Path, record: TableRecord) -> None:
    """Draws the record in the way that its table asks for."""
    save(path, DRAW[record.figure](record))


def _axes(record: TableRecord, count: int = 1, height: float = 4.5) -> tuple[Any, list[Any]]:
    figure, axes = pyplot().subplots(1, count, figsize=(6.5 * count, height), constrained_layout=True, squeeze=False)
    figure.suptitle(f"{record.title}\n{cited(record.source)}, {record.scale} scale", fontsize=9)
    for axis in axes[0]:
        axis.grid(alpha=0.3)
    return figure, list(axes[0])


def _rows(record: TableRecord) -> Any:
    """A dot a row for the first figure, ours with its range, the paper's beside it; and where somebody had labels, the
    monitor's kNN over our runs."""
    title, rows = record.columns[0].title, list(record.rows)
    curves = [(row, looks) for row in rows if (looks := [look for look in _looks(row) if "knn" in look])]
    figure, (axis, *more) = _axes(record, 1 + bool(curves), height=max(1.6 + 0.3 * len(rows), 4.5 * bool(curves)))
    for row, looks in curves:
        more[0].plot([look["step"] for look in looks], [100 * look["knn"] for look in looks], label=row.label)
    for other in more:
        other.set(xlabel="step", ylabel="the monitor's kNN, %, first seed")
        _legend(other)
    for place, row in enumerate(rows):
        own, paper = ours(row, title), theirs(row, title)
        if own:
            axis.errorbar(own.mean, place, xerr=own.half_range, fmt="o", color=OURS, label="ours")
        if paper is not None:
            axis.plot(paper, place, "D", color=PAPER, markersize=5, label="paper")
    axis.set_yticks(range(len(rows)), [row.label for row in rows], fontsize=8)
    axis.invert_yaxis()
    axis.set(xlabel=title if record.columns[0].plain else f"{title}, %")
    _legend(axis)
    return figure


def _decrease(record: TableRecord) -> Any:
    """Points lost against each group's first row, ours on the left and the paper's on the right (Figure 3)."""
    title = record.columns[0].title
    figure, axes = _axes(record, 2, height=5)
    names = list(dict.fromkeys(row.group for row in record.rows if row.published))
    groups = {name: [row for row in record.rows if row.group == name and row.published] for name in names}
    for axis, name in zip(axes, ("ours", "paper"), strict=True):
        for group, rows in groups.items():
            base = _value(rows[0], title, name)
            points = [(place, _value(row, title, name)) for place, row in enumerate(rows)]
            drawn = [(place, value - base) for place, value in points if value is not None and base is not None]
            axis.plot([p for p, _ in drawn], [v for _, v in drawn], marker="o", label=group)
        labels = [row.label.removeprefix(f"{names[0]}, ") for row in groups[names[0]]]
        axis.set_xticks(range(len(labels)), labels, rotation=60, ha="right", fontsize=7)
        axis.set(title=name, ylabel=f"decrease of {title}, points")
        _legend(axis)
    return figure


def _parameters(record: TableRecord) -> Any:
    """Accuracy against millions of parameters (Figures 1 and 6)."""
    figure, (axis,) = _axes(record)
    for colour, title in enumerate(c.title for c in record.columns if "Top-1" in c.title):
        rows = sorted((row for row in record.rows if row.x), key=lambda row: row.x)
        for style, name in (("o-", "ours"), ("D:", "paper")):
            points = [(row.x, _value(row, title, name)) for row in rows]
            drawn = [(x, y) for x, y in points if y is not None]
            axis.plot([x for x, _ in drawn], [y for _, y in drawn], style, color=f"C{colour}", label=f"{title}, {name}")
    axis.set_xscale("log")
    axis.set(xlabel="millions of parameters", ylabel="accuracy, %")
    _legend(axis)
    return figure


def _labels(record: TableRecord) -> Any:
    """Top-1, and on the right top-5, against the share of labels, a line a row (Figures 4 and 5)."""
    titles = [column.title for column in record.columns]
    kinds = [kind for kind in ("Top-1", "Top-5") if any(title.startswith(kind) for title in titles)]
    figure, axes = _axes(record, len(kinds))
    for axis, kind in zip(axes, kinds, strict=True):
        for colour, row in enumerate(record.rows):
            for what, dash in ((kind, "-"), (f"{kind} from scratch", "--")):
                columns = [column for column in record.columns if column.title.partition(",")[0] == what]
                for marker, name in (("o", "ours"), ("D", "paper")):
                    points = [(column.x, _value(row, column.title, name)) for column in columns]
                    drawn = sorted((x, y) for x, y in points if y is not None)
                    if drawn:
                        style = {"marker": marker, "linestyle": dash if name == "ours" else ":", "color": f"C{colour}"}
                        label = f"{row.label}{', from scratch' * (dash == '--')}, {name}"
                        axis.plot([x for x, _ in drawn], [y for _, y in drawn], label=label, **style)
        axis.set_xscale("log")
        axis.set(xlabel="labels used, %", ylabel=f"{kind}, %")
        _legend(axis)
    return figure


def _norms(record: TableRecord) -> Any:
    """The rows, and the ℓ2 norms of representation and projection over our runs (Figure 7)."""
    figure, axes = _axes(record, 2)
    for axis, name in zip(axes, ("norm_representation", "norm_projection"), strict=True):
        for row in record.rows:
            if looks := _looks(row):
                axis.plot([look["step"] for look in looks], [look[name] for look in looks], label=row.label)
        axis.set_yscale("log")
        axis.set(xlabel="step", ylabel=f"ℓ2 {name.replace('_', ' of the ')}, first seed")
        _legend(axis)
    return figure


def _looks(row: RowFacts) -> list[Look]:
    """Of the first seed."""
    return row.cells[0].looks if row.cells else []


def _value(row: RowFacts, title: str, name: str) -> float | None:
    if name == "paper":
        return theirs(row, title)
    own = ours(row, title)
    return own.mean if own else None


def _legend(axis: Any) -> None:
    """Each name once."""
    named = dict(zip(*reversed(axis.get_legend_handles_labels()), strict=True))
    if named:
        # A long one beside the axes, where it hides no curve.
        place = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0)} if len(named) > MOST_INSIDE else {}
        axis.legend(named.values(), named.keys(), fontsize=7, **place)


DRAW: dict[str, Callable[[TableRecord], Any]] = {
    "rows": _rows,
    "decrease": _decrease,
    "parameters": _parameters,
    "labels": _labels,
    "norms": _norms,
}
