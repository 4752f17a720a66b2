"""`byol evaluate`: opens encoder and data, runs protocols within a budget, writes result.json, prints one table."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

from byol import data, machine
from byol.checkpoint import ENCODER_FIELDS
from byol.config import Data, flatten
from byol.data.boxes import open_boxes
from byol.data.dense import DenseTask, Samples
from byol.data.depths import open_depth
from byol.data.masks import open_masks
from byol.data.task import Part, Task
from byol.errors import Interrupted, UsageError
from byol.evals import (
    depth,
    detection,
    features,
    finetune,
    knn,
    linear,
    segmentation,
    semi_supervised,
    supervised,
    transfer,
)
from byol.evals.encoder import Encoder, open_encoder, random_encoder
from byol.evals.metrics import shown
from byol.evals.spec import PROTOCOLS, Specs, chosen_protocols
from byol.evals.sweep import Result, Session
from byol.progress import duration, say
from byol.records import only_writer, plain_name, write_json
from byol.rundir import commit, now

AnyTask = Task | DenseTask[Any]

# The data of the dense protocols, which are not class folders; all others share one task.
OPEN: dict[str, Callable[[str, Data, Any], AnyTask]] = {
    "segmentation": lambda on, config, spec: open_masks(on, config, spec.void, spec.colours),
    "detection": lambda on, config, spec: open_boxes(on, config),
    "depth": lambda on, config, spec: open_depth(on, config, spec.unit),
}
EVALUATE: dict[str, Callable[[Encoder, Any, Any, Session], Result]] = {
    "knn": knn.evaluate,
    "transfer-linear": transfer.evaluate,
    "linear": linear.evaluate,
    "semi-supervised": semi_supervised.evaluate,
    "finetune": finetune.evaluate,
    "supervised": supervised.evaluate,
    "segmentation": segmentation.evaluate,
    "detection": detection.evaluate,
    "depth": depth.evaluate,
}


def evaluate(
    run: str | Path,
    on: str,
    protocols: Sequence[str] = ("all",),
    *,
    specs: Specs | None = None,
    seeds: Sequence[int] = (0,),
    seconds: float = float("inf"),
    out: str | Path | None = None,
    cache: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
) -> dict[str, dict[str, Any]]:
    """Every protocol on the data set `on`: protocol → what its result.json holds. `run` may also be random:RUN."""
    specs = specs or Specs()
    names = chosen_protocols(protocols)
    encoder = _open(str(run), settings or {})
    tasks = _tasks(names, on, encoder.config.data, specs)
    place = Path(out) if out else _place(str(run), on)
    _announce(encoder, tasks, seconds)
    began, found = time.monotonic(), {}
    with only_writer(place):
        for number, name in enumerate(names):
            left = began + seconds - time.monotonic()
            share = left / (len(names) - number)  # what the quick ones leave over goes to the slow ones
            base = Session(cache=Path(cache) if cache else features.default_cache(), seconds=share, out=place / name)
            try:
                found[name] = _protocol(name, encoder, tasks[name], getattr(specs, PROTOCOLS[name]), base, seeds)
            except Interrupted:
                raise Interrupted("Interrupted; what was tried is kept, the same command goes on after it.") from None
            except UsageError as error:
                if len(names) == 1:
                    raise
                say(f"{name} was left out: {error}")
                continue
            write_json(place / name / "result.json", found[name])
    print(table(found))
    return found


def _open(run: str, settings: Mapping[str, Any]) -> Encoder:
    if run.startswith("random:"):
        return random_encoder(open_encoder(run.removeprefix("random:"), settings), 0)
    return open_encoder(run, settings)


def _place(run: str, on: str) -> Path:
    """Beside the encoder: RUN/evaluations/DATA."""
    path, prefix = Path(run.removeprefix("random:")), "random-" if run.startswith("random:") else ""
    return (path if path.is_dir() else path.parent) / "evaluations" / f"{prefix}{plain_name(on)}"


def _tasks(names: Sequence[str], on: str, config: Data, specs: Specs) -> dict[str, AnyTask]:
    """protocol → its data set; those of classification share one."""
    tasks: dict[str, AnyTask] = {}
    classification = [name for name in names if name not in OPEN]
    if classification:
        tasks |= dict.fromkeys(classification, data.open_task(on, config))
    return tasks | {n: open_data(n, on, config, getattr(specs, PROTOCOLS[n])) for n in names if n in OPEN}


def open_data(protocol: str, on: str, config: Data, spec: Any) -> AnyTask:
    """The data set as the protocol needs it."""
    return OPEN[protocol](on, config, spec) if protocol in OPEN else data.open_task(on, config)


def _announce(encoder: Encoder, tasks: Mapping[str, AnyTask], seconds: float) -> None:
    network = encoder.config.network
    say(
        f"Evaluating {encoder.name} ({network.encoder}, width {network.width:g}, {encoder.resolution} px)"
        + (f" within {duration(seconds)}" if seconds != float("inf") else "")
    )
    for task in {id(task): task for task in tasks.values()}.values():
        classes = f"{len(task.classes)} classes, " if task.classes else ""
        say(
            f"on {task.name}: {len(task.train):,} images to train, {len(task.validation):,} to choose on, "
            f"{classes}{task.metric}; {', '.join(n for n in tasks if tasks[n] is task)}"
        )


def _protocol(
    name: str, encoder: Encoder, task: AnyTask, spec: Any, base: Session, seeds: Sequence[int]
) -> dict[str, Any]:
    """One protocol with every seed: the record that is written."""
    runs, began = [], time.monotonic()
    for number, seed in enumerate(seeds):
        started = time.monotonic()
        seconds = (base.seconds - (started - began)) / (len(seeds) - number)
        out = base.out / f"seed{seed}" if base.out and len(seeds) > 1 else base.out
        session = replace(base, seed=seed, seconds=seconds, started=started, out=out)
        result = EVALUATE[name](encoder, task.again(), spec, session)
        say(f"{name}, seed {seed}: " + ", ".join(f"{k} {shown(k, v)}" for k, v in result.test.items()))
        runs.append(_record(seed, result, time.monotonic() - started))
    return {
        "protocol": name,
        "encoder": {
            "name": Path(encoder.name).name,
            "checksum": encoder.checksum(),
            "network": {field: getattr(encoder.config.network, field) for field in ENCODER_FIELDS},
            "resolution": encoder.resolution,
        },
        "data": _describe(task),
        "spec": flatten(spec),
        "test": _summary([run["test"] for run in runs]),
        "runs": runs,
        "created": now(),
        "commit": commit(),
        "machine": {"device": encoder.place.device_name, "precision": encoder.place.precision},
        "versions": machine.versions(),
    }


def _record(seed: int, result: Result, seconds: float) -> dict[str, Any]:
    return {
        "seed": seed,
        "choices": [{"setting": t.setting, "validation": t.validation} for t in result.trials],
        "chosen": result.chosen,
        "test": result.test,
        "notes": result.notes,
        "seconds": round(seconds, 1),
        **result.extra,
    }


def _describe(task: AnyTask) -> dict[str, Any]:
    """Sizes and checksums of the parts; the test part is looked at again only after the result is known."""
    test = task.test.again().open()
    parts: dict[str, Part | Samples[Any]] = {"train": task.train, "validation": task.validation, "test": test}
    return {
        "name": Path(task.name).name,
        "classes": len(task.classes),
        "metric": task.metric,
        "images": {name: len(part) for name, part in parts.items()},
        "checksums": {name: _fingerprint(part) for name, part in parts.items()},
    }


def _fingerprint(part: Part | Samples[Any]) -> str:
    return part.fingerprint() if isinstance(part, Samples) else features.fingerprint(part)


def _summary(tests: Sequence[Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Mean and half the range over the seeds, by figure."""
    summary = {}
    for figure in tests[0]:
        values = [test[figure] for test in tests]
        summary[figure] = {"mean": mean(values), "half_range": (max(values) - min(values)) / 2, "seeds": len(values)}
    return summary


def table(found: Mapping[str, Mapping[str, Any]]) -> str:
    """A line a figure, for people; what a budget cut is said below."""
    lines = [f"{'protocol':<18}{'figure':<28}{'test':>8}{'±':>7}{'seconds':>9}"]
    notes = []
    for name, record in found.items():
        seconds = sum(run["seconds"] for run in record["runs"])
        for figure, value in record["test"].items():
            spread = shown(figure, value["half_range"]).removesuffix("%") if value["seeds"] > 1 else ""
            lines.append(f"{name:<18}{figure:<28}{shown(figure, value['mean']):>8}{spread:>7}{seconds:>9.0f}")
            name, seconds = "", 0.0
        notes += [f"{record['protocol']}: {note}" for run in record["runs"] for note in run["notes"]]
    return "\n".join([*lines, *dict.fromkeys(notes)])
