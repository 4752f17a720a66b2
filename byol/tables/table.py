"""What a table of the paper is, as data: a base, rows of overrides, what is measured, and the figures as printed.

A row is declared once for all scales: what depends on the scale is given relative to the base. Needs no torch.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from byol.tables.scales import Overrides, Scale, ScaleName, filled

PLAIN = ("rms", "rel")  # figures that are printed as they are; all others are percentages


class Published(NamedTuple):
    """A figure of the paper, mostly in percent; the spread is half the range over its seeds, where it is printed."""

    value: float
    spread: float | None


def published(printed: str) -> Published | None:
    """`18.8±0.7`, `72.5`, or `-` where the paper prints nothing."""
    if printed == "-":
        return None
    value, _, spread = printed.partition("±")
    return Published(float(value), float(spread) if spread else None)


@dataclass(frozen=True)
class Column:
    """One figure of a row: which protocol gives it, and on which data (those of pretraining unless named).

    A column without a protocol is somebody else's: its figures are published ones, and nothing is run for it.
    """

    title: str
    protocol: str = "linear"
    figure: str = "top1"  # empty: the data set's own
    on: str = ""
    small: str = "transfer-linear"  # the protocol at the small scales
    x: float = 0.0  # share of the labels, for the curves over it

    @property
    def plain(self) -> bool:
        return self.figure in PLAIN


@dataclass(frozen=True)
class Row:
    """`printed` is the paper's line, a figure a column; `overrides` is what makes the row, beside the base.

    `least` is the smallest scale that the row is run at; at the small ones it has the overrides `small`, too. The
    encoder that is scored is pretrained without labels, or random, or trained with the labels of the same images.
    """

    label: str
    printed: str
    overrides: Overrides = field(default_factory=dict)
    small: Overrides = field(default_factory=dict)
    least: ScaleName = "cpu"
    spec: Overrides = field(default_factory=dict)  # of the evaluation
    data: str = "imagenet"
    group: str = ""  # rows that are compared with each other, such as those of one method
    x: float = 0.0  # where the row stands in a figure: millions of parameters, images a batch
    encoder: Literal["pretrained", "random", "supervised"] = "pretrained"
    protocol: str = ""  # instead of the columns'
    ours: bool = True  # False: somebody else's method, a published figure without a run

    @property
    def published(self) -> list[Published | None]:
        return [published(figure) for figure in self.printed.split()]


def reported(label: str, printed: str, **more: Any) -> Row:
    """A method of somebody else's, as the paper reports it: there is nothing to run."""
    return Row(label, printed, ours=False, **more)


def cited(source: str) -> str:
    """A source without the names of its tables in the paper's LaTeX, which no reader of the paper sees."""
    return re.sub(r" \((?:tab|table|fig|app):[^)]*\)", "", source)


@dataclass(frozen=True)
class Table:
    """A table of the paper; `figure` names how it is drawn, `notes` say where the paper disagrees with itself."""

    name: str
    title: str
    source: str
    base: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    spec: Overrides = field(default_factory=dict)
    figure: str = "rows"
    seeds: int = 3
    notes: tuple[str, ...] = ()

    def at(self, scale: Scale) -> tuple[Row, ...]:
        """The rows there are at this scale; none where nothing could be run."""
        rows = tuple(row for row in self.rows if row.least in scale.rows)
        return rows if any(row.ours for row in rows) else ()


def resolved(
    table: Table, row: Row, scale: Scale, given: Overrides, seed: int = 0, images: int = 0
) -> tuple[str, dict[str, Any]]:
    """(preset, overrides) of a run: the scale's, then what the user `given`s for all rows, then the row's own.

    `images` are those that the run trains on; where they are not known, those of the scale's data set.
    """
    preset = scale.preset or table.base
    own = {**row.overrides, **(row.small if scale.small else {})}
    return preset, {**filled(preset, {**scale.overrides, **given}, own, images or scale.images), "run.seed": seed}


def evaluation_spec(table: Table, row: Row, scale: Scale) -> dict[str, Any]:
    """What the evaluation's own settings are for this row."""
    return {**table.spec, **scale.spec, **row.spec}


# Stands beside every table of a small scale: there a random encoder is far above chance.
UNTRAINED = Row("random encoder", "-", encoder="random")
