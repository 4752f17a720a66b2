"""`byol evaluate`: opens encoder and data, runs protocols within a budget, writes result.json, prints one table."""

from __future__ import annotations

import hashlib
import importlib
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

from byol import data
from byol.checkpoint import ENCODER_FIELDS
from byol.config import Data, flatten
from byol.data.address import parse
from byol.data.parts import Task
from byol.errors import DiskError, Interrupted, OutputBusy, UsageError
from byol.evals import features, record
from byol.evals.encoder import Encoder, open_encoder, random_encoder
from byol.evals.metrics import shown
from byol.evals.protocol import Result, Session
from byol.evals.record import Choice, EncoderFacts, EvaluationRecord, Figure, SeedResult, TaskFacts
from byol.evals.spec import DENSE, MODULES, PROTOCOLS, Specs, chosen_protocols
from byol.run import machine
from byol.run.files import distinct_names, followed, only_writer, refuse_link
from byol.run.progress import duration, say, tell
from byol.run.record import commit, encode, now

RANDOM = "random:"  # before a run: its network as it was before training


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
) -> dict[str, EvaluationRecord]:
    """Every protocol on the data set `on`: protocol → what its result.json holds. `run` may also be random:RUN."""
    specs = specs or Specs()
    names = chosen_protocols(protocols)
    encoder = _open(str(run), settings or {})
    tasks = _tasks(names, on, encoder.config.data, specs)
    location = _location(on, encoder.config.data)
    place = followed(Path(out)) if out else _place(str(run), on, location)
    if _known_location(place) not in ("", _digest(location)):
        raise OutputBusy(f"{place} holds results on another data set than {location}. Choose another --out.")
    _announce(encoder, tasks, seconds)
    began, records = time.monotonic(), dict[str, EvaluationRecord]()
    with only_writer(place):
        for number, name in enumerate(names):
            left = began + seconds - time.monotonic()
            share = left / (len(names) - number)  # what the quick ones leave over goes to the slow ones
            base = Session(cache=Path(cache) if cache else features.default_cache(), seconds=share, out=place / name)
            try:
                result = _protocol(name, encoder, tasks[name], getattr(specs, PROTOCOLS[name]), base, seeds)
            except Interrupted:
                raise Interrupted("Interrupted; what was tried is kept, the same command goes on after it.") from None
            except UsageError as error:
                if len(names) == 1:
                    raise
                say(f"{name} was left out: {error}")
                continue
            records[name] = replace(result, data=replace(result.data, location=_digest(location)))
            record.write(place / name / record.NAME, records[name])
    tell(table(records))
    return records


def _open(run: str, settings: Mapping[str, Any]) -> Encoder:
    if run.startswith(RANDOM):
        return random_encoder(open_encoder(run.removeprefix(RANDOM), settings), 0)
    return open_encoder(run, settings)


def _location(on: str, config: Data) -> str:
    return parse(on, config.root).location(config.root)


def _digest(location: str) -> str:
    """Results are published: they tell locations apart without naming them."""
    return hashlib.sha256(os.fsencode(location)).hexdigest()[:16]


def _place(run: str, on: str, location: str) -> Path:
    """Beside the encoder: RUN/evaluations/DATA; a data set of the same name at another location has its own folder."""
    path, prefix = Path(run.removeprefix(RANDOM)), "random-" if run.startswith(RANDOM) else ""
    above = followed(path if path.is_dir() else path.parent) / "evaluations"
    places = [above / f"{prefix}{name}" for name in distinct_names(on, location)]
    known = {place: _known_location(place) for place in places}
    own = [place for place in places if known[place] == _digest(location)]
    place = (own or [place for place in places if not known[place]] or places[-1:])[0]
    refuse_link(above, place)
    return place


def _known_location(place: Path) -> str:
    """The digest of the location that results in a folder are of; empty: there are none, or they do not tell."""
    for path in sorted(place.glob(f"*/{record.NAME}")):
        with suppress(DiskError):
            return record.read(path).data.location
    return ""


def _tasks(names: Sequence[str], on: str, config: Data, specs: Specs) -> dict[str, Task]:
    """protocol → its data set; those of classification share one."""
    classification = [name for name in names if name not in DENSE]
    tasks = dict.fromkeys(classification, data.open_task(on, config)) if classification else {}
    return tasks | {n: open_data(n, on, config, getattr(specs, PROTOCOLS[n])) for n in names if n in DENSE}


def open_data(protocol: str, on: str, config: Data, spec: Any) -> Task:
    """The data set as the protocol needs it."""
    if protocol not in DENSE:
        return data.open_task(on, config)
    task: Task = importlib.import_module(MODULES[protocol]).open_data(on, config, spec)
    return task


def run_protocol(protocol: str, encoder: Encoder, task: Task, spec: Any, session: Session) -> Result:
    """One protocol with one seed; its module is imported here, since it alone may need libraries of its own."""
    result: Result = importlib.import_module(MODULES[protocol]).evaluate(encoder, task, spec, session)
    return result


def _announce(encoder: Encoder, tasks: Mapping[str, Task], seconds: float) -> None:
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
    name: str, encoder: Encoder, task: Task, spec: Any, base: Session, seeds: Sequence[int]
) -> EvaluationRecord:
    """One protocol with every seed."""
    results, began = [], time.monotonic()
    for number, seed in enumerate(seeds):
        started = time.monotonic()
        seconds = (base.seconds - (started - began)) / (len(seeds) - number)
        out = base.out / f"seed{seed}" if base.out and len(seeds) > 1 else base.out
        session = replace(base, seed=seed, seconds=seconds, started=started, out=out)
        result = run_protocol(name, encoder, task.again(), spec, session)
        say(f"{name}, seed {seed}: " + ", ".join(f"{k} {shown(k, v)}" for k, v in result.test.items()))
        results.append(_seed_result(seed, result, time.monotonic() - started))
    network = {field: getattr(encoder.config.network, field) for field in ENCODER_FIELDS}
    return EvaluationRecord(
        protocol=name,
        encoder=EncoderFacts(
            Path(encoder.name).name, encoder.checksum(), network, encoder.resolution, encoder.untrained
        ),
        data=_facts(task),
        spec=encode(flatten(spec)),
        test=_summary([result.test for result in results]),
        runs=results,
        created=now(),
        commit=commit(),
        machine={"device": encoder.place.device_name, "precision": encoder.place.precision},
        versions=machine.versions(),
    )


def _seed_result(seed: int, result: Result, seconds: float) -> SeedResult:
    choices = [Choice(trial.setting, trial.validation) for trial in result.trials]
    return SeedResult(seed, choices, result.chosen, result.test, result.notes, round(seconds, 1), result.extra)


def _facts(task: Task) -> TaskFacts:
    """Sizes and checksums of the parts; the test part is looked at again only after the result is known."""
    parts = {"train": task.train, "validation": task.validation, "test": task.test.again().open()}
    return TaskFacts(
        Path(task.name).name,
        len(task.classes),
        task.metric,
        {name: len(part) for name, part in parts.items()},
        {name: part.fingerprint() for name, part in parts.items()},
    )


def _summary(tests: Sequence[Mapping[str, float]]) -> dict[str, Figure]:
    """Mean and half the range over the seeds, by figure."""
    summary = {}
    for figure in tests[0]:
        values = [test[figure] for test in tests]
        summary[figure] = Figure(mean(values), (max(values) - min(values)) / 2, len(values))
    return summary


def table(records: Mapping[str, EvaluationRecord]) -> str:
    """A line a figure, for people; what a budget cut is said below."""
    lines = [f"{'protocol':<18}{'figure':<28}{'test':>8}{'±':>7}{'seconds':>9}"]
    notes = []
    for name, result in records.items():
        label, seconds = name, sum(run.seconds for run in result.runs)
        for figure, value in result.test.items():
            spread = shown(figure, value.half_range).removesuffix("%") if value.seeds > 1 else ""
            lines.append(f"{label:<18}{figure:<28}{shown(figure, value.mean):>8}{spread:>7}{seconds:>9.0f}")
            label, seconds = "", 0.0
        notes += [f"{name}: {note}" for run in result.runs for note in run.notes]
    return "\n".join([*lines, *dict.fromkeys(notes)])
