"""The cells of a table, one for each row and seed: what each depends on, its key, and where its record is.

The key is made of everything that a cell depends on (resolved config, evaluations, seed, data), so that equal cells of
several tables are computed once. Needs no torch.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from byol.config import Config, apply, declared, flatten
from byol.evals.spec import DENSE, PROTOCOLS, Specs
from byol.presets import compose
from byol.tables import record
from byol.tables.record import CellRecord
from byol.tables.scales import DENSE_DATA, Overrides, Scale, filled
from byol.tables.table import Column, Row, Table, evaluation_spec, resolved

# Fields that change neither images nor weights: where things are, and how a run is logged and kept.
FREE = {name for name, _, metadata in declared() if metadata["on_resume"]} - {"optim.epochs"} | {"data.root"}


@dataclass(frozen=True)
class Evaluation:
    """A protocol on a data set, with its settings; several columns may be figures of one evaluation."""

    protocol: str
    on: str
    spec: Overrides

    @property
    def name(self) -> str:
        return f"{self.protocol}-{Path(self.on).name}"

    def settings(self) -> Any:
        return getattr(apply(Specs(), self.spec, "table"), PROTOCOLS[self.protocol])


@dataclass(frozen=True)
class Cell:
    """A row with a seed: everything that is needed to compute it, anywhere that sees the directory `out`."""

    label: str
    seed: int
    preset: str
    overrides: Overrides
    data: str
    evaluations: tuple[Evaluation, ...]
    checksums: dict[str, str]  # of each data set that is used
    out: Path
    untrained: bool = False
    supervised: Evaluation | None = None  # what trains the encoder, where that is done with labels

    @cached_property
    def config(self) -> Overrides:
        """The fields that the run's images and weights depend on, where they are not at their default.

        So a field that the package gains, at a default that changes nothing, leaves every cell what it is.
        """
        config, usual = flatten(compose(self.preset, self.overrides, {})[0]), flatten(Config())
        return {name: value for name, value in config.items() if name not in FREE and value != usual[name]}

    @cached_property
    def _pretraining(self) -> Overrides:
        depends = {"config": self.config, "data": self.checksums[self.data], "untrained": self.untrained}
        return depends | ({"supervised": flatten(self.supervised.settings())} if self.supervised else {})

    @cached_property
    def run_key(self) -> str:
        return _hash(self._pretraining)

    @cached_property
    def key(self) -> str:
        scored = [[e.protocol, self.checksums[e.on], flatten(e.settings())] for e in self.evaluations]
        return _hash([self._pretraining, scored, self.seed])

    @property
    def path(self) -> Path:
        return self.out / "cells" / f"{self.key}.json"

    @property
    def run(self) -> Path:
        """Rows that differ in their evaluation alone share a run."""
        return self.out / "runs" / self.run_key


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def checksum(data: str, root: str) -> str:
    """A hash of the names and sizes of all files in a folder, or in the folder `data` below `root`; else `data`."""
    folder = next((path for path in (Path(data), Path(root) / data) if data and path.is_dir()), None)
    if folder is None:
        return data
    digest = hashlib.sha256()
    for place, folders, files in os.walk(folder):
        folders.sort()
        for name in sorted(files):
            path = os.path.join(place, name)
            size = os.stat(path).st_size if os.path.exists(path) else -1
            digest.update(os.fsencode(f"{os.path.relpath(path, folder)}\0{size}\0"))
    return digest.hexdigest()[:16]


@dataclass(frozen=True)
class Plan:
    """What is to be computed for a table: the scale, the data, the seeds, and changes that hold for all rows."""

    table: Table
    rows: tuple[Row, ...]
    scale: Scale
    seeds: int
    data: str = ""  # instead of the table's own
    out: Path = Path("tables")
    given: Overrides = field(default_factory=dict)

    @cached_property
    def cells(self) -> dict[str, list[Cell]]:
        """The cells of each row, a seed each; none of a method that is not ours."""
        sums: dict[str, str] = {}
        seeds = {row.label: range(self.seeds if row.ours else 0) for row in self.rows}
        return {row.label: [self._cell(row, seed, sums) for seed in seeds[row.label]] for row in self.rows}

    @cached_property
    def images(self) -> int:
        """How many there are to train on: counted at the small scales, where that takes no time."""
        if not self.scale.small:
            return self.scale.images
        from byol.data import open_source  # here, because declarations are read without torch
        from byol.data.loader import MOST_HELD_OUT

        common = filled(self.scale.preset, {**self.scale.overrides, **self.given}, {}, self.scale.images)
        config = compose(self.scale.preset, common, {})[0].data
        count = len(open_source(self.data, config))
        return count - min(int(count * config.holdout), MOST_HELD_OUT)

    def _cell(self, row: Row, seed: int, sums: dict[str, str]) -> Cell:
        preset, overrides = resolved(self.table, row, self.scale, self.given, seed, self.images)
        root = compose(preset, overrides, {})[0].data.root
        data = self.data or row.data
        places = [self.place(row, column) for column in self.table.columns]
        evaluations = tuple(self.evaluation(row, place) for place in dict.fromkeys(places) if place[0])
        names = (data, *(evaluation.on for evaluation in evaluations))
        for name in names:
            sums.setdefault(name, checksum(name, root))
        own = {name: sums[name] for name in names}
        labels = self.evaluation(row, ("supervised", data)) if row.encoder == "supervised" else None
        untrained = row.encoder == "random"
        return Cell(row.label, seed, preset, overrides, data, evaluations, own, self.out, untrained, labels)

    def place(self, row: Row, column: Column) -> tuple[str, str]:
        """(protocol, data set) of a column at this scale; no protocol where nothing is run."""
        protocol = column.protocol and (row.protocol or (column.small if self.scale.small else column.protocol))
        if not self.scale.small:
            return protocol, column.on or self.data or row.data
        rendered = protocol in DENSE and not self.data.startswith("scenes")
        return protocol, DENSE_DATA if rendered else self.data

    def evaluation(self, row: Row, place: tuple[str, str]) -> Evaluation:
        spec = evaluation_spec(self.table, row, self.scale)
        own = {name: value for name, value in spec.items() if name.startswith(f"{PROTOCOLS[place[0]]}.")}
        return Evaluation(*place, own)

    def distinct(self) -> list[Cell]:
        """Every cell once: seed by seed, so that the whole table is seen early."""
        ordered = [cells[seed] for seed in range(self.seeds) for cells in self.cells.values() if cells]
        return list({cell.key: cell for cell in ordered}.values())


def stored(cell: Cell) -> CellRecord | None:
    """The record of a cell that was computed, or failed, before."""
    return record.read(cell.path) if cell.path.exists() else None


def missing(cells: Iterable[Cell]) -> list[Cell]:
    return [cell for cell in cells if not ((known := stored(cell)) and known.finished)]
