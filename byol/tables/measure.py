"""One cell: pretraining, begun or continued, then every evaluation; gives figures and the monitor's verdict."""

from __future__ import annotations

import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import torch
from filelock import FileLock

from byol import checkpoint, networks
from byol.config import Config, flatten
from byol.errors import ByolError, Diverged, Lost, OutputBusy
from byol.evals.encoder import Encoder, open_encoder
from byol.evals.evaluation import open_data, run_protocol
from byol.evals.protocol import Session
from byol.parallel import processes
from byol.presets import compose
from byol.pretraining import pretrain
from byol.run import machine
from byol.run.files import read_metrics
from byol.run.progress import complain
from byol.run.record import NAME, commit, encode, read_run
from byol.run.verdict import MEASURES
from byol.tables.cells import FREE, Cell, Evaluation
from byol.tables.compute import header
from byol.tables.record import CellRecord, Look, Score, Verdict

LOOK = (*MEASURES, "norm_representation", "norm_projection")


def measure(cell: Cell) -> CellRecord:
    """Trains and evaluates; a run that diverged is scored by the encoder it wrote last."""
    verdict = Verdict("untrained", "Not trained.") if cell.untrained else trained(cell)
    cache = cell.out / "features" / cell.key
    before = header(cell)
    scores: list[Score] = []
    weights = ""
    if cell.untrained or (cell.run / checkpoint.ENCODER).exists():
        encoder = _random(cell) if cell.untrained else _trained(cell)
        weights = encoder.checksum()
        tests = [_score(cell, encoder, evaluation, cache) for evaluation in cell.evaluations]
        scores = [replace(score, test=test) for score, test in zip(before.scores, tests, strict=True)]
    shutil.rmtree(cache, ignore_errors=True)
    return replace(
        before,
        status="finished",
        scores=scores,
        weights=weights,
        verdict=verdict,
        looks=[] if cell.untrained or cell.supervised else _looks(cell.run),
        commit=commit(),
        versions=machine.versions(),
    )


def trained(cell: Cell) -> Verdict:
    """The verdict on the run of a cell, trained to its end; cells that share a run wait for each other."""
    cell.run.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(cell.run.with_suffix(".lock")):
        return with_labels(cell, cell.supervised) if cell.supervised else pretrained(cell)


def with_labels(cell: Cell, evaluation: Evaluation) -> Verdict:
    """The protocol of supervised training keeps the encoder that it trains: the row's own."""
    if not (cell.run / checkpoint.ENCODER).exists():
        task = open_data(evaluation.protocol, evaluation.on, _random(cell).config.data, evaluation.settings())
        cell.run.mkdir(exist_ok=True)
        session = Session(seed=cell.seed, out=cell.run)
        run_protocol(evaluation.protocol, _random(cell), task, evaluation.settings(), session)
    return Verdict("supervised", "Trained with labels.")


def pretrained(cell: Cell) -> Verdict:
    """The monitor's verdict on the run, begun or continued."""
    if not ((cell.run / NAME).exists() and read_run(cell.run).status in ("finished", "diverged")):
        # To diverge is a finding, not a failure: run.json says so, and what was learned until then is scored.
        with suppress(Diverged):
            processes.summoned(True)  # those of this job that wait in `follow`
            pretrain(cell.data, cell.run, cell.preset, cell.overrides)
    run = read_run(cell.run)
    usual = encode({name: value for name, value in flatten(Config()).items() if name not in FREE})
    own, found = usual | encode(cell.config), usual | run.config
    if other := [name for name, value in own.items() if found[name] != value]:
        raise OutputBusy(f"{cell.run} holds another run than this row's: {', '.join(other[:8])} differ. Remove it.")
    checkpoint.clear(cell.run / checkpoint.FOLDER)
    if run.status == "diverged" or run.verdict is None:
        return Verdict("diverged", "Training diverged; diverged.json names the steps.")
    return Verdict(run.verdict.word, run.verdict.sentence)


def follow(cell: Cell) -> None:
    """What the other processes of a cell's job do: they train with the first one when it begins, and wait meanwhile.

    An error that all of them have is recorded by the first one.
    """
    while processes.summoned():
        try:
            pretrain(cell.data, cell.run, cell.preset, cell.overrides)
        except ByolError as error:
            if isinstance(error, Lost) and error.exit_code == Lost.exit_code:
                raise
            complain(str(error))


def is_current(cell: Cell, record: CellRecord) -> bool:
    """Whether the figures are of the encoder that the cell's run holds now; a run may be removed after its scoring."""
    if cell.untrained or not (cell.run / checkpoint.ENCODER).exists():
        return True
    return record.weights == _trained(cell).checksum()


def _trained(cell: Cell) -> Encoder:
    """The encoder of the run, on the device that trained it."""
    where = {name: value for name, value in cell.overrides.items() if name.startswith(("run.", "data.root"))}
    return open_encoder(cell.run / checkpoint.ENCODER if cell.supervised else cell.run, where)


def _random(cell: Cell) -> Encoder:
    config = compose(cell.preset, cell.overrides, {})[0]
    torch.manual_seed(cell.seed)
    return Encoder(
        "random", networks.encoder(config.network, config.data.resolution).eval(), config, machine.choose(config), True
    )


def _score(cell: Cell, encoder: Encoder, evaluation: Evaluation, cache: Path) -> dict[str, float]:
    task = open_data(evaluation.protocol, evaluation.on, encoder.config.data, evaluation.settings())
    out = cell.out / "evaluations" / cell.key / evaluation.name
    out.mkdir(parents=True, exist_ok=True)
    session = Session(seed=cell.seed, cache=cache, out=out)
    return run_protocol(evaluation.protocol, encoder, task, evaluation.settings(), session).test


def _looks(run: Path) -> list[Look]:
    """The monitor's measures over the run: all that the verdict goes by, and the norms for their curves."""
    looks = [line for line in read_metrics(run / "metrics.jsonl") if "spread" in line]
    return [{name: look[name] for name in LOOK if name in look} for look in looks]
