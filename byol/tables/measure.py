"""One cell computed: pretrain or go on pretraining, then every evaluation; gives figures and the monitor's verdict."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock

from byol import checkpoint, machine, networks
from byol.errors import Diverged
from byol.evals.encoder import Encoder, open_encoder
from byol.evals.sweep import Session
from byol.evaluation import EVALUATE, open_data
from byol.presets import compose
from byol.pretraining import pretrain
from byol.records import read_metrics, read_object, write_json
from byol.rundir import commit
from byol.tables.cells import Cell, Evaluation

LOOK = ("step", "spread", "rank_projection", "norm_representation", "norm_projection", "knn")


def measure(cell: Cell) -> dict[str, Any]:
    """`tests` holds the figures of each evaluation as shares; a run that diverged is scored by its last encoder."""
    record = {"verdict": {"word": "untrained", "sentence": "Not trained."}} if cell.untrained else pretrained(cell)
    cache = cell.out / "features" / cell.key
    tests: list[dict[str, float]] = []
    if cell.untrained or (cell.run / checkpoint.ENCODER).exists():
        encoder = _random(cell) if cell.untrained else _trained(cell)
        tests = [_score(cell, encoder, evaluation, cache) for evaluation in cell.evaluations]
    shutil.rmtree(cache, ignore_errors=True)
    return {
        "tests": tests,
        "verdict": record["verdict"],
        "looks": [] if cell.untrained else _looks(cell.run),
        "commit": commit(),
        "versions": machine.versions(),
    }


def pretrained(cell: Cell) -> dict[str, Any]:
    """What run.json says of the finished run; cells that share a run wait for each other."""
    cell.run.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(cell.run.with_suffix(".lock")):
        path = cell.run / "run.json"
        if not (path.exists() and read_object(path, "status")["status"] in ("finished", "diverged")):
            try:
                pretrain(cell.data, cell.run, cell.preset, cell.overrides)
            except Diverged as error:
                # A finding, not a failure: run.json says so, and what was learned until then is scored.
                _note_divergence(path, str(error))
        shutil.rmtree(cell.run / "checkpoints", ignore_errors=True)
        record = read_object(path, "status")
        record.setdefault("verdict", {"word": "diverged", "sentence": "Training diverged."})
        return record


def _note_divergence(path: Path, sentence: str) -> None:
    write_json(path, {**read_object(path), "verdict": {"word": "diverged", "sentence": sentence}})


def _settings(cell: Cell) -> dict[str, Any]:
    """Where to evaluate: the same place as training."""
    return {name: value for name, value in cell.overrides.items() if name.startswith(("run.", "data.root"))}


def _trained(cell: Cell) -> Encoder:
    return open_encoder(cell.run, _settings(cell))


def _random(cell: Cell) -> Encoder:
    config = compose(cell.preset, cell.overrides, {})[0]
    torch.manual_seed(cell.seed)
    return Encoder("random", networks.encoder(config.network).eval(), config, machine.choose(config))


def _score(cell: Cell, encoder: Encoder, evaluation: Evaluation, cache: Path) -> dict[str, float]:
    task = open_data(evaluation.protocol, evaluation.on, encoder.config.data, evaluation.settings())
    session = Session(seed=cell.seed, cache=cache, out=cell.out / "evaluations" / cell.key / evaluation.name)
    result = EVALUATE[evaluation.protocol](encoder, task, evaluation.settings(), session)
    return result.test


def _looks(run: Path) -> list[dict[str, Any]]:
    """The monitor's measures over the run, for the curves of norms."""
    found = [record for record in read_metrics(run / "metrics.jsonl") if "spread" in record]
    return [{name: record[name] for name in LOOK if name in record} for record in found]
