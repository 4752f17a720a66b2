"""What a table leaves on disk: the record of a cell and the record of the whole table, each with reader and writer."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Look = dict[str, float]  # the monitor's measures at a step


@dataclass(frozen=True)
class Verdict:
    """The monitor's judgement of a run, or how else an encoder came about: one word, and a sentence for people.

    Such words are `untrained`, `supervised`, `diverged`, `missing`.
    """

    word: str
    sentence: str


NONE = Verdict("missing", "")


@dataclass(frozen=True)
class Score:
    """One evaluation of a cell: protocol, name of the data set, settings, and the test figures as shares."""

    protocol: str
    data: str
    spec: dict[str, Any]
    test: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class CellRecord:
    """The result of one row with one seed, or the reason why there is none.

    `scores` of a run that never wrote an encoder are empty; `weights` is the checksum of the encoder that was scored;
    `verdict` is the monitor's judgement of the run.
    """

    key: str
    run: str
    label: str
    seed: int
    preset: str
    overrides: dict[str, Any]
    data: dict[str, str]  # the checksum of each data set, by name
    status: Literal["finished", "failed"]
    seconds: float = 0.0
    scores: list[Score] = field(default_factory=list)
    weights: str = ""
    verdict: Verdict = NONE
    looks: list[Look] = field(default_factory=list)
    commit: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    error: str = ""
    traceback: str = ""

    @property
    def finished(self) -> bool:
        """A failed cell is computed again when the table is started again."""
        return self.status == "finished"


def read(path: Path) -> CellRecord:
    from byol.run import record  # here, because the declarations of tables are read without torch

    return record.read(CellRecord, path)


def write(path: Path, cell: CellRecord) -> None:
    from byol.run import record

    record.write(path, cell)


@dataclass(frozen=True)
class ColumnFacts:
    """A column of a table: its title, its place in a figure, the protocol that its figures are from, if any.

    `plain` figures are no percentages.
    """

    title: str
    x: float
    protocol: str
    plain: bool = False


@dataclass(frozen=True)
class CellFacts:
    """A cell as its table shows it; `figures` are in percent, by the title of the column."""

    seed: int
    status: Literal["finished", "failed", "missing"]
    key: str = ""
    figures: dict[str, float] = field(default_factory=dict)
    verdict: Verdict = NONE
    seconds: float = 0.0
    looks: list[Look] = field(default_factory=list)
    commit: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    data: dict[str, str] = field(default_factory=dict)
    preset: str = ""
    overrides: dict[str, Any] = field(default_factory=dict)
    scores: list[Score] = field(default_factory=list)
    weights: str = ""
    error: str = ""


@dataclass(frozen=True)
class Pace:
    """How long a run is, and tau and warm-up as shares of it; no tau where no moving average is the target."""

    steps: int
    warmup: float
    tau: float | None = None
    memory: float | None = None  # the share of the run that the moving average remembers: 1 / ((1 - tau) · steps)


@dataclass(frozen=True)
class RowFacts:
    """A row of a table; `repeats` names an earlier row with the same cells, `published` is as the paper prints it.

    A row without cells is a method of somebody else's.
    """

    label: str
    group: str
    x: float
    published: dict[str, str]
    repeats: str
    cells: list[CellFacts]
    pace: Pace | None = None
    paper: Pace | None = None  # of the same row in the paper


@dataclass(frozen=True)
class TableRecord:
    """Everything that the Markdown, the CSV file and the picture of a table show."""

    table: str
    title: str
    source: str
    scale: str
    figure: str
    columns: list[ColumnFacts]
    notes: list[str]
    seeds: int
    rows: list[RowFacts]


def read_table(path: Path) -> TableRecord:
    from byol.run import record

    return record.read(TableRecord, path)


def write_table(path: Path, table: TableRecord) -> None:
    from byol.run import record

    record.write(path, table)
