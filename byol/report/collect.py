"""A run directory as the plain data that the page shows; whatever is missing is said in words."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from byol import checkpoint
from byol.config import Config, apply, flatten
from byol.errors import ByolError, DiskError, UsageError
from byol.evals.encoder import Encoder, open_encoder
from byol.evals.metrics import PLAIN, shown
from byol.evals.record import Figure, read_all
from byol.run.files import read_json, read_metrics, read_regular, regular_text
from byol.run.progress import duration
from byol.run.record import NAME, RunRecord, Verdict, encode, read_run
from byol.run.verdict import judge
from byol.tables import record as cells
from byol.weights import card

MOST_POINTS = 1200  # of a curve: more than a screen has columns
FEW_SKIPPED = 50
Facts = dict[str, Any]  # a part of the page's JSON
ENCODERS = {"own": "this run's", "untrained": "random", "other": "other weights"}  # as the page calls them


@dataclass
class Record:
    """A run as it was read; `notes` say what could not be read."""

    path: Path
    run: RunRecord
    config: Config
    metrics: list[dict[str, Any]]
    verdict: Verdict
    encoder: Encoder | None
    header: dict[str, Any] = field(default_factory=dict)  # of the encoder's file
    notes: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.path.resolve().name

    @property
    def weights(self) -> card.Weights | None:
        """What tells which stored figures are of the run's encoder; none belongs to a run without an encoder."""
        return card.Weights.of(self.encoder.checksum(), self.encoder.config) if self.encoder else None


def read(path: Path) -> Record:
    """The run in a directory. A missing or damaged run.json is an error; other damage becomes a note on the page."""
    if not (path / NAME).is_file():
        raise UsageError(f"{path} is not a run of byol: there is no run.json in it.")
    run = read_run(path)
    known = flatten(Config())
    try:
        config = apply(Config(), {name: value for name, value in run.config.items() if name in known})
        metrics = [line for line in read_metrics(path / "metrics.jsonl") if isinstance(line["step"], int)]
        stored = run.verdict if run.status == "finished" else None
        verdict = stored or judge(metrics, config)
    except (AttributeError, TypeError, KeyError, ValueError, UsageError):
        raise DiskError(f"{path / NAME} or metrics.jsonl is damaged: its values are not those of a run.") from None
    record = Record(path, run, config, metrics, Verdict(verdict.word, verdict.sentence), None)
    try:
        record.header = checkpoint.encoder_header(path)
        record.notes += card.contradictions(record.header, run)
        record.encoder = open_encoder(path, {"run.device": "auto", "run.precision": "auto"})
    except ByolError as error:
        record.notes.append(str(error))
    return record


def described(record: Record) -> Facts:
    """Everything that the page says of a run except its pictures."""
    run, weights = record.run, record.weights
    step = card.trained(record.header)
    return {
        "name": record.name,
        "path": str(record.path),
        "status": run.status,
        "verdict": encode(record.verdict),
        "done": max((line["step"] + 1 for line in record.metrics), default=0),
        "plan": encode(run.plan) if run.plan else {},
        "plan_rows": planned(run, record.config) + [("weights", f"those of {step}")] * bool(step),
        "config": run.config,
        "data": encode(run.data),
        "seconds": sum(session.seconds for session in run.sessions),
        "series": series(record.metrics),
        "evaluations": evaluations(record.path, weights, record.notes),
        "table_rows": table_rows(record.path, weights),
        "demo": demo(record.path, weights),
        "environment": environment(run),
        "checksums": checksums(record),
        "skipped": skipped(record.path),
        "notes": record.notes,
    }


def planned(run: RunRecord, config: Config) -> list[tuple[str, str]]:
    """The plan as rows of a label and a value; empty when the run ended before its plan was made."""
    plan, estimate = run.plan, run.estimate
    if plan is None:
        return []
    passes = f" in {plan.accumulate} passes of {plan.micro_batch}" if plan.accumulate > 1 else ""
    where = "held in memory" if run.data.in_memory else "read while training"
    processes = f"{run.processes} processes, each: " if run.processes > 1 else ""
    rows = [("auto", f"{reason.field} {reason.value}: {reason.why}") for reason in run.reasons]
    rows += [
        ("images", f"{plan.images:,} of {run.data.name}, {where}; {plan.held_out:,} held out, {run.data.bad} left out"),
        ("encoder", f"{config.network.encoder}, width {config.network.width:g}, {config.data.resolution} px"),
        ("steps", f"{plan.steps:,} of {plan.batch} images{passes}: {config.optim.epochs:g} epochs"),
        ("warm-up", f"{plan.warmup_steps:,} steps"),
        ("optimizer", f"{config.optim.optimizer}, weight decay {config.optim.weight_decay:g}"),
        ("learning rate", f"{plan.peak_lr:g} at its peak: {config.optim.lr:g} × {plan.batch} / 256"),
        ("target", f"{config.network.target}, tau {plan.tau:g}"),
        ("objective", f"{config.objective.name}; predictor {config.network.predictor}"),
        ("machine", f"{processes}{run.machine.device_name}, {run.machine.precision}, threads: {run.machine.threads}"),
    ]
    if estimate:
        rows.append(("memory", f"about {estimate.memory_gb:.1f} GB"))
        speed = f"{estimate.images_per_second:,.0f} images a second without loading"
        rows.append(("time", f"about {duration(estimate.seconds)}, at {speed}"))
    return rows


def series(metrics: Sequence[Mapping[str, Any]]) -> dict[str, list[list[float]]]:
    """Name → [steps, values], thinned to what a screen can show."""
    curves: dict[str, tuple[list[float], list[float]]] = {}
    for line in metrics:
        for name, value in line.items():
            if name not in ("step", "epoch") and isinstance(value, int | float):
                steps, values = curves.setdefault(name, ([], []))
                steps.append(line["step"])
                values.append(float(f"{value:.6g}"))
    return {name: thinned(steps, values) for name, (steps, values) in curves.items()}


def thinned(steps: list[float], values: list[float], most: int = MOST_POINTS) -> list[list[float]]:
    """The least and the greatest value of each stretch, so that no spike is lost; the first and last points stay."""
    if len(steps) <= most:
        return [steps, values]
    kept = {0, len(steps) - 1}
    stretches = most // 2 - 1
    for number in range(stretches):
        stretch = range(number * len(steps) // stretches, (number + 1) * len(steps) // stretches)
        kept |= {min(stretch, key=values.__getitem__), max(stretch, key=values.__getitem__)}
    return [[steps[i] for i in sorted(kept)], [values[i] for i in sorted(kept)]]


def evaluations(path: Path, weights: card.Weights | None, notes: list[str]) -> list[Facts]:
    """Every result below RUN/evaluations, and whose weights it scores; one that cannot be read is named in `notes`."""
    return [
        {
            "protocol": result.protocol,
            "encoder": ENCODERS[weights.relation(result.encoder) if weights else "other"],
            "checksum": result.encoder.checksum,
            "data": result.data.name,
            "test": {name: _in_words(name, value) for name, value in result.test.items()},
            "notes": sorted({note for run in result.runs for note in run.notes}),
        }
        for _, result in read_all(path, notes)
    ]


def _in_words(figure: str, value: Figure) -> Facts:
    """A figure with its text; `share` says whether it is part of a whole, and not metres or a ratio."""
    return {"mean": value.mean, "text": card.in_words(figure, value), "share": figure not in PLAIN}


def table_rows(path: Path, weights: card.Weights | None) -> list[Facts]:
    """Rows of the paper's tables that were scored with these weights: `byol table` keeps its cells two folders up."""
    rows = []
    for file in sorted((path.resolve().parent.parent / "cells").glob("*.json")):
        try:
            cell = cells.read(file)
        except DiskError:
            continue
        if weights and cell.finished and cell.run == path.resolve().name and cell.weights == weights.checksum:
            words = [", ".join(f"{name} {shown(name, value)}" for name, value in s.test.items()) for s in cell.scores]
            scored = zip(cell.scores, words, strict=True)
            tests = [{"protocol": score.protocol, "data": score.data, "test": text} for score, text in scored]
            rows.append({"label": cell.label, "seed": cell.seed, "tests": tests})
    return rows


def demo(path: Path, weights: card.Weights | None) -> dict[str, dict[str, float]]:
    """The comparison that `byol demo` leaves beside its run, if the run's encoder is still the one it compared."""
    try:
        stored = read_json(path / "demo.json")
        if not weights or stored["weights"] != weights.checksum:
            return {}
        return {str(name): {str(k): float(v) for k, v in scores.items()} for name, scores in stored["results"].items()}
    except (DiskError, KeyError, TypeError, ValueError, AttributeError):
        return {}


def environment(run: RunRecord) -> list[tuple[str, str]]:
    """What the figures depend on besides the config."""
    return [
        *run.versions.items(),
        ("device", run.machine.device_name),
        ("precision", run.machine.precision),
        ("threads", str(run.machine.threads)),
        ("commit", run.commit or "not run from a checkout"),
        ("begun", run.created),
        *(("session", f"{each.status} {each.ended} after {each.seconds:,.0f} s") for each in run.sessions),
    ]


def checksums(record: Record) -> list[dict[str, str]]:
    """Of the encoder, of every checkpoint (verified against its own name) and of the images' names and labels."""
    sums = [{"name": "images (names and labels)", "value": record.run.data.fingerprint, "state": ""}]
    file = record.path / checkpoint.ENCODER
    if record.encoder is not None:
        digest = hashlib.sha256(read_regular(file, checkpoint.MOST_BYTES)).hexdigest()
        sums.append({"name": checkpoint.ENCODER, "value": f"sha256 {digest}", "state": ""})
        sums.append({"name": "encoder's weights", "value": record.encoder.checksum(), "state": ""})
    for path in checkpoint.found(record.path / "checkpoints"):
        match = checkpoint.NAME.fullmatch(path.name)
        assert match
        try:
            checkpoint.read(path)
            state = "verified"
        except DiskError:
            state = "damaged"
        sums.append({"name": f"checkpoint after step {int(match[1]):,}", "value": match[2], "state": state})
    return sums


def skipped(path: Path) -> Facts:
    """How many images were left out, and the first of them with the reason."""
    try:
        lines = regular_text(path / "skipped.txt", errors="backslashreplace").splitlines()
    except OSError:
        return {"count": 0, "first": []}
    return {"count": len(lines), "first": [line.split("\t", 1) for line in lines[:FEW_SKIPPED]]}
