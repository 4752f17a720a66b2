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
from typing import Any, NamedTuple

from byol import data
from byol.checkpoint import encoder_shape
from byol.config import Data, flatten
from byol.data.address import parse
from byol.data.dense.images import adapted
from byol.data.parts import Task
from byol.errors import DiskError, Interrupted, OutputBusy, UsageError
from byol.evals import features, record, untrained
from byol.evals.encoder import Encoder, open_encoder, random_encoder
from byol.evals.metrics import chance, shown
from byol.evals.protocol import Result, Session
from byol.evals.record import Choice, EncoderFacts, EvaluationRecord, Figure, SeedResult, TaskFacts
from byol.evals.spec import DENSE, MODULES, PROTOCOLS, Specs, chosen_protocols
from byol.run import caution, machine
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
    compare: bool = True,
) -> dict[str, EvaluationRecord]:
    """Every protocol on the data set `on`: protocol → what its result.json holds. `run` may also be random:RUN.

    `compare` puts the untrained network of the same shape beside it, which is scored once for a data set.
    """
    specs = specs or Specs()
    names = chosen_protocols(protocols)
    encoder = _open(str(run), settings or {})
    tasks = _tasks(names, on, encoder.config.data, specs)
    location = _location(on, encoder.config.data)
    place = followed(Path(out)) if out else _place(str(run), on, location)
    if _known_location(place) not in ("", _digest(location)):
        raise OutputBusy(f"{place} holds results on another data set than {location}. Choose another --out.")
    if not encoder.untrained:
        caution.repeat(run)
    _announce(encoder, tasks, seconds)
    asked = _Asked(encoder, tasks, specs, seeds, time.monotonic() + seconds, _digest(location), cache)
    began = time.monotonic()
    records = _scored(asked, names, place)
    took, before, notes = time.monotonic() - began, dict[str, EvaluationRecord](), list[str]()
    if compare and not encoder.untrained:
        beside = place / "untrained" if out else _place(f"{RANDOM}{run}", on, location)
        before, notes = _untrained(asked, records, beside)
    told = f" and {duration(time.monotonic() - began - took)} for the untrained network" if before else ""
    tell("\n".join([table(records, before), *notes, f"Took {duration(took)}{told}."]))
    return records


class _Asked(NamedTuple):
    """What is to be scored, on what, how, until when, and where features are kept."""

    encoder: Encoder
    tasks: Mapping[str, Task]
    specs: Specs
    seeds: Sequence[int]
    until: float
    location: str
    cache: str | Path | None

    def session(self, seconds: float, out: Path) -> Session:
        return Session(cache=Path(self.cache) if self.cache else features.default_cache(), seconds=seconds, out=out)

    def score(self, name: str, encoder: Encoder, session: Session) -> EvaluationRecord:
        """One protocol with every seed."""
        spec = getattr(self.specs, PROTOCOLS[name])
        found = _protocol(name, encoder, self.tasks[name], spec, session, self.seeds)
        return replace(found, data=replace(found.data, location=self.location))


def _scored(asked: _Asked, names: Sequence[str], place: Path) -> dict[str, EvaluationRecord]:
    """Every protocol that can be run; each result is written as soon as it is known."""
    records = {}
    with only_writer(place):
        for number, name in enumerate(names):
            left = asked.until - time.monotonic()
            share = left / (len(names) - number)  # what the quick ones leave over goes to the slow ones
            try:
                records[name] = asked.score(name, asked.encoder, asked.session(share, place / name))
            except Interrupted:
                raise Interrupted("Interrupted; what was tried is kept, the same command goes on after it.") from None
            except UsageError as error:
                if len(names) == 1:
                    raise
                say(f"{name} was left out: {error}")
                continue
            record.write(place / name / record.NAME, records[name])
    return records


def _untrained(
    asked: _Asked, records: Mapping[str, EvaluationRecord], place: Path
) -> tuple[dict[str, EvaluationRecord], list[str]]:
    """The same network before training, by the same protocols, if the budget has as much time left as it will take;
    and what was left out."""
    encoder, found, notes = random_encoder(asked.encoder, 0), dict[str, EvaluationRecord](), list[str]()
    with only_writer(place):
        for name, own in records.items():
            if name in untrained.NEEDLESS:
                continue
            needed, left = sum(run.seconds for run in own.runs), asked.until - time.monotonic()
            known = untrained.Known(own, asked.seeds, asked.cache)
            result = known.read()
            if result is None and needed > left:
                notes.append(f"{name}: no time was left for the untrained network")
                continue
            if result is None:
                result = known.write(asked.score(name, encoder, asked.session(left, place / name)))
            found[name] = replace(result, data=replace(result.data, location=asked.location))
            record.write(place / name / record.NAME, found[name])
    return found, notes


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
    return adapted(task, config)


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
        who = "untrained network, " * encoder.untrained
        say(f"{who}{name}, seed {seed}: " + ", ".join(f"{k} {shown(k, v)}" for k, v in result.test.items()))
        results.append(_seed_result(seed, result, time.monotonic() - started))
    network = encoder_shape(encoder.config.network)
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


def table(records: Mapping[str, EvaluationRecord], before: Mapping[str, EvaluationRecord] | None = None) -> str:
    """A line a figure, for people, beside the untrained network and chance; what a budget cut is said below."""
    several = any(value.seeds > 1 for result in records.values() for value in result.test.values())
    heads = ["test", *["±"] * several, *["untrained"] * bool(before), "chance", "seconds"]
    lines, notes = [f"{'protocol':<18}{'figure':<28}" + "".join(f"{head:>11}" for head in heads)], list[str]()
    for name, result in records.items():
        label, seconds = name, f"{sum(run.seconds for run in result.runs):.0f}"
        untrained_test = before[name].test if before and name in before else {}
        for figure, value in result.test.items():
            spread = shown(figure, value.half_range).removesuffix("%") if value.seeds > 1 else ""
            known, luck = untrained_test.get(figure), chance(figure, result.data.classes)
            cells = [
                *(shown(figure, value.mean), *[spread] * several),
                *[shown(figure, known.mean) if known else "–"] * bool(before),
                *("–" if luck is None else shown(figure, luck), seconds),
            ]
            lines.append((f"{label:<18}{figure:<28}" + "".join(f"{cell:>11}" for cell in cells)).rstrip())
            label, seconds = "", ""
        notes += [f"{name}: {note}" for run in result.runs for note in run.notes]
    return "\n".join([*lines, *dict.fromkeys(notes)])
