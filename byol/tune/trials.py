"""A trial: a short run with a policy's views, from the same initial network as all others, and what is measured of it.

Trials are cells of `byol.tables`, so they are cached by all that they depend on, claimed, resumed and run as jobs. The
measures of a finished trial are a file beside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from byol import checkpoint
from byol.config import Config, flatten
from byol.evals.encoder import Encoder, open_encoder
from byol.presets import PRESETS
from byol.run import record
from byol.run.files import read_json, write_json
from byol.tables.cells import Cell
from byol.tune.looks import Looks, features, represented
from byol.tune.measures import MEASURES, few_labels

PRESET = "paper-1000"  # of which a cell's overrides depart; any would do
LABELS = "labels"  # the name of the judge that sees labels, beside the measures without


@dataclass(frozen=True)
class Setting:
    """What all trials of a search have in common."""

    data: str
    checksum: str
    images: int  # to train on
    config: Config
    out: Path
    seed: int = 0


@dataclass(frozen=True)
class Measured:
    """What is known of a trial: its measures by name, without labels and with, and the seconds that it took."""

    policy: str
    steps: int
    seconds: float
    values: dict[str, float] = field(default_factory=dict)
    error: str = ""


@dataclass(frozen=True)
class Labelled:
    """Images with labels, at the size of the views: what the judge with few labels goes by."""

    images: Tensor
    targets: Tensor


def cell(setting: Setting, name: str, config: Config, steps: int) -> Cell:
    """The trial of a policy, whose config it is, for so many steps."""
    batch = config.optim.batch
    config = replace(
        config,
        optim=replace(
            config.optim,
            epochs=(steps + 0.5) * batch / setting.images,
            warmup_epochs=max(1, steps // 20) * batch / setting.images,
            probe=False,
        ),
        data=replace(config.data, holdout=0.0),
        run=replace(config.run, seed=setting.seed, monitor_images=16, monitor_epochs=1e6, log_every=1000, budget=""),
    )
    usual = flatten(PRESETS[PRESET]())
    overrides = {name: value for name, value in flatten(config).items() if value != usual[name]}
    return Cell(name, setting.seed, PRESET, overrides, setting.data, (), {setting.data: setting.checksum}, setting.out)


def measured(trial: Cell, seen: Looks, labelled: Labelled | None, steps: int, seconds: float) -> Measured:
    """The measures of a finished trial; computed once, and kept beside it under what they were computed of."""
    path = trial.out / "measures" / f"{trial.key}{'-labels' if labelled else ''}.json"
    if path.exists():
        return record.decode(Measured, read_json(path), path)
    where = {name: value for name, value in trial.overrides.items() if name.startswith("run.")}
    if not (trial.run / checkpoint.ENCODER).exists():
        found = Measured(trial.label, steps, seconds, error="the run diverged and wrote no encoder")
    else:
        found = Measured(trial.label, steps, seconds, values(open_encoder(trial.run, where), seen, labelled))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, record.encode(found))
    return found


def values(encoder: Encoder, seen: Looks, labelled: Labelled | None) -> dict[str, float]:
    """Every measure of an encoder, and the judge with labels where there are some."""
    given = features(encoder, seen)
    found = {name: round(measure.of(given), 6) for name, measure in MEASURES.items()}
    if labelled is not None:
        found[LABELS] = round(few_labels(represented(encoder, labelled.images), labelled.targets), 6)
    return found


def ranks(rows: Sequence[Mapping[str, float]], name: str) -> list[float]:
    """The place of each row by a measure, 0 for the best, ties shared."""
    column = torch.tensor([row[name] for row in rows], dtype=torch.float64)
    return [float(((column > value).sum() + (column >= value).sum() - 1) / 2) for value in column]
