"""What a table of the paper is, as data: a base, rows of overrides, what is measured, and the figures as printed.

A row is declared once for both scales: what depends on the scale is given relative to the base. Needs no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from byol.config import flatten
from byol.presets import compose

ScaleName = Literal["paper", "cpu"]
Overrides = Mapping[str, Any]

CPU_PRESET = "cifar10-cpu"
CPU: Overrides = {
    "optim.epochs": 2.0,  # about 2 minutes on two cores, with the evaluation
    "data.resolution": 16,  # a quarter of the work, and what a view of a 32 px image shows is mostly there
    # Blocks that begin as the identity: so short a run learns at once instead of losing what random features know.
    "network.zero_init_last": True,
    "optim.batch": 64,
    "optim.lr": 0.8,
    "optim.warmup_epochs": 0.25,
    "optim.tau": 0.99,  # the base of the paper's ablations
    # The preset's 10 is a variant of its own: with it no slow target is needed (appendix I), so nothing would collapse.
    "optim.predictor_lr": 1.0,
    "run.checkpoint_seconds": 60.0,
}
CPU_SPEC: Overrides = {"transfer.penalties": [1e-6, 1e-4, 1e-2, 1.0, 1e2]}  # 45 would take as long as the training


class Times(NamedTuple):
    """A value given as a multiple of the base's, so that a row means the same at both scales."""

    factor: float

    def of(self, base: float) -> float:
        return max(1, round(base * self.factor)) if isinstance(base, int) else base * self.factor


class Published(NamedTuple):
    """A figure of the paper in percent; the spread is half the range over its seeds, printed when above 0.25."""

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
    """One figure of a row: which protocol gives it, and on which data (those of pretraining unless named)."""

    title: str
    protocol: str = "linear"
    figure: str = "top1"  # empty: the data set's own
    on: str = ""
    cpu: str = "transfer-linear"  # the protocol at the cpu scale
    x: float = 0.0  # share of the labels, for the curves over it


@dataclass(frozen=True)
class Row:
    """`printed` is the paper's line, a figure a column; `overrides` is what makes the row, beside the base."""

    label: str
    printed: str
    overrides: Overrides = field(default_factory=dict)
    cpu: Overrides | None = field(default_factory=dict)  # more of them at the cpu scale; None: only at the paper's
    spec: Overrides = field(default_factory=dict)  # of the evaluation
    data: str = "imagenet"
    group: str = ""  # rows that are compared with each other, such as those of one method
    x: float = 0.0  # where the row stands in a figure: millions of parameters, images a batch
    untrained: bool = False

    @property
    def published(self) -> list[Published | None]:
        return [published(figure) for figure in self.printed.split()]


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
    cpu_spec: Overrides = field(default_factory=dict)
    figure: str = "rows"
    seeds: int = 3
    notes: tuple[str, ...] = ()

    def at(self, scale: ScaleName) -> tuple[Row, ...]:
        """The rows there are at this scale."""
        return self.rows if scale == "paper" else tuple(row for row in self.rows if row.cpu is not None)


def resolved(table: Table, row: Row, scale: ScaleName, given: Overrides, seed: int = 0) -> tuple[str, dict[str, Any]]:
    """(preset, overrides) of a run: the scale's, then what the user `given`s for all rows, then the row's own."""
    preset = table.base if scale == "paper" else CPU_PRESET
    common = {**({} if scale == "paper" else CPU), **given}
    base = flatten(compose(preset, common, {})[0])
    own = {**row.overrides, **((row.cpu or {}) if scale == "cpu" else {})}
    values = {name: v.of(base[name]) if isinstance(v, Times) else v for name, v in own.items()}
    return preset, {**common, **values, "run.seed": seed}


def evaluation_spec(table: Table, row: Row, scale: ScaleName) -> dict[str, Any]:
    """What the evaluation's own settings are for this row."""
    return {**table.spec, **({**CPU_SPEC, **table.cpu_spec} if scale == "cpu" else {}), **row.spec}


# Stands beside every table of the cpu scale: there a random encoder is far above chance.
UNTRAINED = Row("random encoder", "-", untrained=True)
