"""A run directory from request to training: refuse, resume or begin.

What the user asks for is a `Request`, whose config is complete but for what `auto` chooses. `open_run` opens the
images, chooses the config once, and yields a `Setup`, all that training needs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from byol import checkpoint, data, objectives, presets
from byol.algorithm import Step
from byol.checkpoint import Given
from byol.config import Config, Plan, apply, declared, flatten, resolve
from byol.data import loader
from byol.data.address import is_remote, parse
from byol.data.loader import Bad, BadList, Images
from byol.data.source import Source
from byol.errors import BadData, DiskError, OutputBusy, UsageError
from byol.method import Method
from byol.networks import check_encoder
from byol.parallel import processes
from byol.presets import Reason
from byol.run import files, machine, record
from byol.run.machine import Machine
from byol.run.progress import say
from byol.run.record import Asked, DataFacts, RunRecord, Session, Status, Verdict, commit, now

if TYPE_CHECKING:
    from byol.run.logs import Logs

DIVERGED = "diverged.json"
SKIPPED = "skipped.txt"
WRITTEN = (
    *("metrics.jsonl", SKIPPED, DIVERGED, checkpoint.ENCODER, checkpoint.BEST),
    *("neighbours.json", "report.html", "loggers.json"),
)


@dataclass(frozen=True)
class Request:
    """What the user asked for, checked before anything is looked at."""

    asked: Asked
    location: str  # of the data, the same from every working directory
    out: Path
    config: Config  # under the preset `auto` without what it chooses for the images
    began: float = field(default_factory=time.monotonic)

    @classmethod
    def make(
        cls,
        data: str | Path,
        out: str | Path | None,
        preset: str,
        overrides: Mapping[str, Any],
        config_file: str | Path | None,
    ) -> Request:
        """Checks names, types and ranges; the run directory follows from data and preset unless it is given."""
        in_file: dict[str, Any] = {}
        if config_file:
            from byol.config_file import read_yaml

            in_file = read_yaml(Path(config_file))
        from byol.config_file import flat

        # Sections may be nested; numbers and arrays of NumPy as Python's own, which JSON can write.
        overrides = flat(overrides, "overrides")
        overrides = {name: value.tolist() if hasattr(value, "tolist") else value for name, value in overrides.items()}
        config, _ = presets.compose(preset, overrides, in_file, str(config_file or ""))
        check_encoder(config.network.encoder)
        objectives.check(config.objective.name)
        if config.run.log:
            from byol.run import logs  # loggers are loaded when a run asks for some

            logs.check(config.run.log)
        asked = Asked(str(data), preset, {**in_file, **overrides})
        location = parse(str(data), config.data.root).location(config.data.root)
        return cls(asked, location, files.run_place(data, location, out, preset), config)


@dataclass
class Setup:
    """All that a run needs, opened and checked."""

    out: Path
    config: Config
    plan: Plan
    machine: Machine
    images: Images
    record_of_run: RunRecord
    bad: BadList
    classes: int  # of the watching classifier; 0: there is none
    given: dict[str, Given] = field(default_factory=dict)  # weights to begin with, by config field
    overwrite: bool = False  # whether the directory still holds an old run, which goes when this one begins
    started: float = field(default_factory=time.monotonic)
    whole: Method | None = None  # where weights are in parts: the network that the first process looks at
    logs: Logs | None = None  # loggers of others, which only the first process has

    @property
    def checkpoints(self) -> Path:
        return self.out / checkpoint.FOLDER

    @property
    def finished(self) -> bool:
        """Whether the run had ended before this session: by its record, and by the name of its last checkpoint."""
        last = [checkpoint.step_of(path) for path in checkpoint.found(self.checkpoints)[:1]]
        ended = self.record_of_run.status == "finished" and self.record_of_run.verdict is not None
        return ended and last == [self.plan.steps]

    @property
    def pace(self) -> float:
        """Images a second that were expected when the run was planned; 0 where nothing was."""
        return self.record_of_run.estimate.images_per_second if self.record_of_run.estimate else 0.0

    def metrics_line(self, k: int, step: Step, **schedules: float) -> dict[str, Any]:
        """The line of metrics.jsonl for step k, with the values of this step's schedules."""
        values = {"step": k, "epoch": round((k + 1) / self.plan.steps_per_epoch, 4), **schedules}
        return values | {name: value for name, value in step._asdict().items() if value is not None}

    def open_logs(self, step: int) -> None:
        """The loggers that the config names, whose room is entered only when there are some."""
        if self.config.run.log and processes.rank() == 0:
            from byol.run.logs import Logs

            self.logs = Logs(self, step)

    def collect_bad(self) -> None:
        """Adds the images that the other processes could not read."""
        for note in processes.posted():
            self.bad.add([Bad(*pair) for pair in note])

    def note_diverged(self, k: int, reason: str) -> int:
        """Writes down the images of step k, whose numbers are not finite; returns how many such steps there are."""
        path = self.out / DIVERGED
        known = files.read_json(path) if path.exists() else []
        positions = loader.batch_positions(
            self.config.run.seed, k, self.plan.batch, len(self.images.train), self.images.blocks
        )
        names = [self.images.source.describe(int(index)) for index in self.images.train[positions]]
        known = [step for step in known if step["step"] < k] + [{"step": k, "reason": reason, "images": names}]
        files.write_json(path, known)
        return len(known)

    def begin(self) -> None:
        """Puts the run on disk, once all that can be refused has been refused: an old run goes, run.json comes.

        run.json is written first, so that a directory without it never holds anything of ours; where an old run is
        overwritten, its run.json stays until the new one takes its place.
        """
        if processes.rank() or self.finished:
            return
        if self.overwrite:
            _clear(self.out)
        self.write("running")
        self.bad.add(self.images.bad)

    def write(self, status: Status) -> None:
        """Writes run.json; of several processes, only the first one writes, here and everywhere."""
        self.record_of_run = replace(self.record_of_run, status=status)
        if processes.rank() == 0:
            record.write_run(self.out, self.record_of_run)

    def finish(self, status: Status, verdict: Verdict | None = None) -> None:
        """Notes in run.json how this session of the run has ended."""
        session = Session(now(), round(time.monotonic() - self.started, 1), status, processes.world())
        stored = self.record_of_run
        self.record_of_run = replace(stored, sessions=[*stored.sessions, session], verdict=verdict or stored.verdict)
        if processes.rank() == 0:
            files.require_there(self.out)
        self.write(status)
        if self.logs:
            self.logs.end(status, verdict)


@contextmanager
def open_run(request: Request, overwrite: bool, read_weights: Callable[[str], Given] | None = None) -> Iterator[Setup]:
    """The run directory, held: begun anew, or continued when it holds the same run."""
    from byol.run import choosing, given  # not when a module of the loop is loaded

    if processes.rank():
        yield _follow(request)
        return
    _read_stored(request.out, overwrite)  # what is wrong there is said before the images, which may take long to open
    found = data.open_stored(request.asked.data, request.config.data)
    with files.only_writer(request.out):
        stored = _read_stored(request.out, overwrite)
        plugin = _plugin(request.out, stored)
        begun_before = bool(stored and checkpoint.found(request.out / checkpoint.FOLDER))
        weights = given.opened(request.config, stored, begun_before, request.out, read_weights)
        config, reasons, place, source = choosing.choose(request, found, stored, weights)
        here = {**machine.versions(), "threads": str(torch.get_num_threads())}
        processes.from_first(lambda: {"config": flatten(config), "machine": asdict(place)})
        images, plan = _prepare(source, config, place)
        if stored:
            _refuse_changed(request.out, stored, config, images)
            _tell_differences(stored, here)
            begun = _continued(request, stored, source)
        else:
            if overwrite:
                loader.try_images(source, config)
            begun = _new_record(request, config, reasons, place, images, source)
            begun = replace(begun, weights=weights.facts)
        begun = replace(begun, config=flatten(config), machine=place, processes=processes.world(), plugin=plugin)
        processes.from_first(lambda: record.encode(begun))
        from byol.run.remembered import remember  # not when a module of the loop is loaded

        remember(begun, config.data)
        bad = BadList([], len(source), config, lambda bad: _write_skipped(request.out, bad))
        classes = _classes(config, images)
        yield Setup(request.out, config, plan, place, images, begun, bad, classes, weights.given, overwrite)


def _follow(request: Request) -> Setup:
    """The run as the first process has opened it; the first process lists the images that this one cannot read."""
    told = processes.from_first(dict[str, Any])
    config, place = apply(Config(), told["config"], record.NAME), Machine(**told["machine"])
    source = data.open_source(request.asked.data, config.data)
    images, plan = _prepare(source, config, place)
    bad = BadList(images.bad, len(source), config, processes.post)
    begun = record.decode(RunRecord, processes.from_first(dict[str, Any]), request.out / record.NAME)
    if begun.data.fingerprint != images.fingerprint:
        raise BadData(f"process {processes.rank()} sees other images in {request.asked.data} than the first one does.")
    return Setup(request.out, config, plan, place, images, begun, bad, _classes(config, images))


def _prepare(source: Source, config: Config, place: Machine) -> tuple[Images, Plan]:
    machine.use(place, config.run.deterministic)
    images = loader.prepare(source, config)
    plan = resolve(config, len(images.train), len(images.held_out))
    if plan.micro_batch % processes.world():
        raise UsageError(
            f"{plan.micro_batch} images a pass (optim.batch / optim.accumulate) cannot be shared by "
            f"{processes.world()} processes: it must be a multiple of them."
        )
    if plan.micro_batch == processes.world() > 1 == config.network.norm_group:
        raise UsageError(
            "Each process has one image a pass, and with network.norm_group 1 its own batch statistics: they need two."
        )
    return images, plan


def _classes(config: Config, images: Images) -> int:
    """Of the watching classifier; 0: there is none."""
    return len(images.source.classes) if config.optim.probe and images.source.labels is not None else 0


def _read_stored(out: Path, overwrite: bool) -> RunRecord | None:
    """The record of the run that is to go on in a directory; None: there is none, or it is to be overwritten."""
    files.refuse_foreign(out)
    if not (out / record.NAME).exists():
        return None
    if not overwrite:
        return record.read_run(out)
    if not record.is_run(out):
        raise OutputBusy(f"{out / record.NAME} is not the record of a run of byol: --overwrite leaves {out} alone.")
    return None


def _plugin(out: Path, stored: RunRecord | None) -> record.Plugin | None:
    """The plug-in that this process was given, which must be the one that a run to go on began with."""
    from byol import plugins  # not when a module of the loop is loaded

    if stored:
        plugins.require(stored.plugin, f"The run in {out}")
    return plugins.loaded()


def _clear(out: Path) -> None:
    """Removes an old run but for its run.json: only files of the names that a run writes, never a stranger's."""
    try:
        checkpoint.clear(out / checkpoint.FOLDER)
        for name in WRITTEN:
            (out / name).unlink(missing_ok=True)
    except OSError as error:
        raise DiskError(f"Cannot remove the old run in {out}: {error.strerror}.") from None


def _continued(request: Request, stored: RunRecord, source: Source) -> RunRecord:
    """The record of a run that goes on; its images may have been moved, but not exchanged for others of their names."""
    before, location = stored.data, request.location
    if before.location in ("", location):
        return stored
    if is_remote(location) or before.sample != loader.sample_digest(source):
        raise OutputBusy(
            f"{request.out} holds the run on {before.location}, and {location} holds other images of the same names. "
            "Choose another --out, or --overwrite to start again."
        )
    say(f"The images have moved from {before.location} to {location}: names, labels and some pixels are the same.")
    moved = replace(stored.request, data=request.asked.data)
    return replace(stored, request=moved, data=replace(before, location=location))


def _refuse_changed(out: Path, stored: RunRecord, config: Config, images: Images) -> None:
    """A run goes on only as itself; fields marked `on_resume` may change."""
    free = {name for name, _, metadata in declared() if metadata["on_resume"]}
    before = flatten(apply(Config(), stored.config, str(out / record.NAME)))
    after = flatten(config)
    changes = [f"{n}: {before[n]} → {after[n]}" for n in after if n not in free and before[n] != after[n]]
    if stored.data.fingerprint != images.fingerprint:
        changes.append(f"the images: {stored.data.images} in {stored.data.name} → other files or labels")
    if changes:
        raise OutputBusy(
            f"{out} holds another run ({'; '.join(changes[:8])}{'; …' if len(changes) > 8 else ''}). "
            "Choose another --out, or --overwrite to start again."
        )


def _tell_differences(stored: RunRecord, here: Mapping[str, str]) -> None:
    """Says where the surroundings of a run are not those that it began in: the last bits of results may differ."""
    began = {**stored.versions, "threads": str(stored.machine.threads)}
    names = [n for n in here if n not in ("byol", "cores", "threads") and began.get(n, here[n]) != here[n]]
    if names:
        changes = ", ".join(f"{n} {began[n]} → {here[n]}" for n in names)
        say(f"Not as when the run began: {changes}. The last bits of its results may differ.")
    if began["threads"] != here["threads"] and stored.processes == processes.world():
        say(f"The run began with run.threads {began['threads']} and keeps it; here {here['threads']} is usual.")


def _new_record(
    request: Request, config: Config, reasons: list[Reason], place: Machine, images: Images, source: Source
) -> RunRecord:
    return RunRecord(
        format=record.FORMAT,
        request=request.asked,
        created=now(),
        config=flatten(config),
        reasons=reasons,
        machine=place,
        versions=machine.versions(),
        commit=commit(),
        data=DataFacts(
            name=images.source.name,
            images=len(images.source),
            bad=len(images.bad),
            classes=len(images.source.classes),
            in_memory=images.held_bytes > 0,
            fingerprint=images.fingerprint,
            location=request.location,
            sample="" if is_remote(request.location) else loader.sample_digest(source),
        ),
    )


def _write_skipped(out: Path, bad: list[Bad]) -> None:
    lines = [f"{b.name}\t{b.reason}".replace("\n", "\\n") + "\n" for b in bad]
    files.write_atomically(out / SKIPPED, "".join(lines).encode("utf-8", "surrogateescape"))
