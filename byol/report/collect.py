"""A run directory as plain data: what was asked, what happened, what came out; whatever is missing is said in words."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from byol import checkpoint, monitor
from byol.config import Config, apply, flatten
from byol.errors import ByolError, DiskError, UsageError
from byol.evals.encoder import Encoder, open_encoder
from byol.evals.metrics import PLAIN, shown
from byol.records import meaning_of, read_json, read_metrics

MOST_POINTS = 1200  # of a curve: more than a screen has columns
NEEDED = ("request", "config", "data", "versions", "machine", "status")
FEW_SKIPPED = 50


@dataclass
class Record:
    """A run as it was found; `notes` say what could not be."""

    path: Path
    run: dict[str, Any]
    config: Config
    metrics: list[dict[str, Any]]
    verdict: monitor.Verdict
    encoder: Encoder | None
    notes: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.path.resolve().name


def read(path: Path) -> Record:
    """One sentence when this is no run, or its run.json is damaged; anything less becomes a note on the page."""
    if not (path / "run.json").is_file():
        raise UsageError(f"{path} is not a run of byol: there is no run.json in it.")
    run = read_json(path / "run.json")
    if not isinstance(run, dict) or any(name not in run for name in NEEDED):
        raise DiskError(f"{path / 'run.json'} is damaged or is not ours: it does not hold {', '.join(NEEDED)}.")
    known = flatten(Config())
    try:
        config = apply(Config(), {name: value for name, value in run["config"].items() if name in known})
        metrics = [m for m in read_metrics(path / "metrics.jsonl") if isinstance(m["step"], int)]
        stored = run.get("verdict") if run["status"] == "finished" else None
        verdict = monitor.Verdict(**stored) if stored else monitor.verdict(metrics, config)
    except (AttributeError, TypeError, KeyError, ValueError, UsageError):
        raise DiskError(
            f"{path / 'run.json'} or metrics.jsonl is damaged: its values are not those of a run."
        ) from None
    record = Record(path, run, config, metrics, verdict, None)
    try:
        record.encoder = open_encoder(path, {"run.device": "auto", "run.precision": "auto"})
    except ByolError as error:
        record.notes.append(str(error))
    return record


def described(record: Record) -> dict[str, Any]:
    """Everything that the page says of the run but for its pictures."""
    with meaning_of(record.path / "run.json"):
        return _described(record)


def _described(record: Record) -> dict[str, Any]:
    run, plan = record.run, record.run.get("plan", {})
    done = max((m["step"] + 1 for m in record.metrics), default=0)
    return {
        "name": record.name,
        "path": str(record.path),
        "status": run["status"],
        "verdict": record.verdict._asdict(),
        "done": done,
        "plan": plan,
        "estimate": run.get("estimate", {}),
        "plan_text": run.get("plan_text", []),
        "reasons": run.get("reasons", []),
        "request": run["request"],
        "config": run["config"],
        "data": run["data"],
        "created": run.get("created", ""),
        "seconds": sum(session.get("seconds", 0) for session in run.get("sessions", [])),
        "series": series(record.metrics),
        "evaluations": evaluations(record.path, record.notes),
        "table_rows": table_rows(record.path),
        "demo": demo(record.path),
        "environment": environment(run),
        "checksums": checksums(record),
        "skipped": skipped(record.path),
        "notes": record.notes,
    }


def series(metrics: Sequence[Mapping[str, Any]]) -> dict[str, list[list[float]]]:
    """Name → [steps, values], thinned to what a screen can show."""
    found: dict[str, list[list[float]]] = {}
    for record in metrics:
        for name, value in record.items():
            if name not in ("step", "epoch") and isinstance(value, int | float):
                steps, values = found.setdefault(name, [[], []])
                steps.append(record["step"])
                values.append(float(f"{value:.6g}"))
    return {name: thinned(steps, values) for name, (steps, values) in found.items()}


def thinned(steps: list[float], values: list[float], most: int = MOST_POINTS) -> list[list[float]]:
    """Of each stretch its least and its greatest value, so that no spike is lost; first and last stay."""
    if len(steps) <= most:
        return [steps, values]
    kept = {0, len(steps) - 1}
    stretches = most // 2 - 1
    for number in range(stretches):
        stretch = range(number * len(steps) // stretches, (number + 1) * len(steps) // stretches)
        kept |= {min(stretch, key=values.__getitem__), max(stretch, key=values.__getitem__)}
    return [[steps[i] for i in sorted(kept)], [values[i] for i in sorted(kept)]]


def evaluations(path: Path, notes: list[str]) -> list[dict[str, Any]]:
    """Every result.json below RUN/evaluations; one that cannot be read is named in `notes`."""
    found = []
    for file in sorted((path / "evaluations").rglob("result.json")):
        place = file.relative_to(path / "evaluations").parts
        try:
            record = read_json(file)
            found.append(
                {
                    "protocol": record["protocol"],
                    "encoder": "random" if place[0].startswith("random-") else "this run's",
                    "checksum": record["encoder"]["checksum"],
                    "data": record["data"]["name"],
                    "images": record["data"]["images"],
                    "test": {name: _in_words(name, value) for name, value in record["test"].items()},
                    "chosen": record["runs"][0]["chosen"],
                    "tried": sum(len(run["choices"]) for run in record["runs"]),
                    "seconds": sum(run["seconds"] for run in record["runs"]),
                    "notes": sorted({note for run in record["runs"] for note in run["notes"]}),
                    "created": record["created"],
                }
            )
        except DiskError as error:
            notes.append(str(error))
        except (KeyError, TypeError, ValueError, IndexError, AttributeError):
            notes.append(f"{file} is damaged or is not ours; it was left out.")
    return found


def _in_words(figure: str, value: Mapping[str, Any]) -> dict[str, Any]:
    """A figure with its text; `share` says whether it is part of a whole, and not metres or a ratio."""
    text = shown(figure, value["mean"])
    if value["seeds"] > 1:
        text += f" ± {shown(figure, value['half_range']).removesuffix('%')}"
    return {"mean": value["mean"], "text": text, "share": figure not in PLAIN}


def table_rows(path: Path) -> list[dict[str, Any]]:
    """Rows of the paper's tables that this run was made for: `byol table` keeps them two folders up."""
    found = []
    for file in sorted((path.resolve().parent.parent / "cells").glob("*.json")):
        try:
            record = read_json(file)
            if record["run"] != path.resolve().name or record["status"] != "finished":
                continue
            scored = zip(record["evaluations"], record["tests"], strict=True)
            words = [(e[0], e[1], ", ".join(f"{n} {shown(n, v)}" for n, v in test.items())) for e, test in scored]
            tests = [{"protocol": protocol, "data": data, "test": text} for protocol, data, text in words]
            found.append({"label": record["label"], "seed": record["seed"], "tests": tests})
        except (DiskError, KeyError, TypeError, ValueError, IndexError, AttributeError):
            continue
    return found


def demo(path: Path) -> dict[str, dict[str, float]]:
    """The comparison that `byol demo` leaves beside its run."""
    try:
        results = read_json(path / "demo.json")["results"]
        return {str(name): {str(k): float(v) for k, v in scores.items()} for name, scores in results.items()}
    except (DiskError, KeyError, TypeError, ValueError, AttributeError):
        return {}


def environment(run: Mapping[str, Any]) -> list[list[str]]:
    """What the figures depend on besides the config."""
    machine, sessions = run["machine"], run.get("sessions", [])
    return [
        *([name, str(value)] for name, value in run["versions"].items()),
        ["device", str(machine.get("device_name", ""))],
        ["precision", str(machine.get("precision", ""))],
        ["threads", str(machine.get("threads", ""))],
        ["commit", str(run.get("commit", "")) or "not run from a checkout"],
        ["begun", str(run.get("created", ""))],
        *(
            ["session", f"{s.get('status', '')} {s.get('ended', '')} after {s.get('seconds', 0):,.0f} s"]
            for s in sessions
        ),
    ]


def checksums(record: Record) -> list[dict[str, str]]:
    """Of the encoder, of every checkpoint (verified against its own name) and of the images' names and labels."""
    found = [
        {"name": "images (names and labels)", "value": str(record.run["data"].get("fingerprint", "")), "state": ""}
    ]
    file = record.path / checkpoint.ENCODER
    if record.encoder is not None:
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        found.append({"name": checkpoint.ENCODER, "value": f"sha256 {digest}", "state": ""})
        found.append({"name": "encoder's weights", "value": record.encoder.checksum(), "state": ""})
    for path in checkpoint.found(record.path / "checkpoints"):
        match = checkpoint.NAME.fullmatch(path.name)
        assert match
        try:
            checkpoint.read(path)
            state = "verified"
        except DiskError:
            state = "damaged"
        found.append({"name": f"checkpoint after step {int(match[1]):,}", "value": match[2], "state": state})
    return found


def skipped(path: Path) -> dict[str, Any]:
    """How many images were left out, and the first of them with the reason."""
    try:
        lines = (path / "skipped.txt").read_text(encoding="utf-8", errors="backslashreplace").splitlines()
    except OSError:
        return {"count": 0, "first": []}
    return {"count": len(lines), "first": [line.split("\t", 1) for line in lines[:FEW_SKIPPED]]}
