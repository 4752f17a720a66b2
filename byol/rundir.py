"""A run directory from request to training: refuse, resume or begin; the plan is made, shown and stored here."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

from byol import data, distributed, machine, monitor, objectives, presets, records
from byol.config import Config, Plan, apply, declared, flatten, resolve
from byol.config_file import read_yaml
from byol.data import loader
from byol.data.loader import Bad, BadList, Images
from byol.data.source import Source
from byol.errors import BadData, OutputBusy, UsageError
from byol.machine import Machine
from byol.networks import check_encoder
from byol.progress import say

DIVERGED = "diverged.json"
WRITTEN = (
    *("run.json", "metrics.jsonl", "skipped.txt", DIVERGED, "encoder.safetensors"),
    *("neighbours.json", "report.html"),
)

FORMAT = 1  # of run.json
STORED = ("format", "request", "config", "reasons", "machine", "data")  # what a continued run goes by


@dataclass(frozen=True)
class Request:
    """What the user asked for, before anything is looked at."""

    data: str
    out: Path
    preset: str
    overrides: dict[str, Any]  # of file and flags together
    config_file: str
    timeout: float
    device: str

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
        in_file = read_yaml(Path(config_file)) if config_file else {}
        config, _ = presets.compose(preset, overrides, in_file, str(config_file or ""))
        check_encoder(config.network.encoder)
        objectives.check(config.objective.name)
        place = records.run_place(data, out, preset)
        values = {**in_file, **overrides}
        return cls(str(data), place, preset, values, str(config_file or ""), config.run.timeout, config.run.device)

    def asked(self) -> dict[str, Any]:
        return {"data": self.data, "preset": self.preset, "overrides": self.overrides}


@dataclass
class Setup:
    """All that a run needs, opened and checked."""

    request: Request
    out: Path
    config: Config
    plan: Plan
    machine: Machine
    images: Images
    reasons: list[str]
    record_of_run: dict[str, Any]
    bad: BadList
    classes: int
    started: float = field(default_factory=time.monotonic)

    @property
    def checkpoints(self) -> Path:
        return self.out / "checkpoints"

    def record(self, k: int, step: Any, lr: float, tau: float) -> dict[str, Any]:
        """A line of metrics.jsonl."""
        values = {"step": k, "epoch": round((k + 1) / self.plan.steps_per_epoch, 4), "lr": lr, "tau": tau}
        return values | {name: value for name, value in step._asdict().items() if value is not None}

    def collect_bad(self) -> None:
        """What the other processes could not read."""
        for note in distributed.posted():
            self.bad.add([Bad(*pair) for pair in note])

    def note_diverged(self, k: int, reason: str) -> int:
        """Writes down which images step k was computed from; how many steps were not finite so far, it among them."""
        path = self.out / DIVERGED
        known = records.read_json(path) if path.exists() else []
        positions = loader.batch_positions(
            self.config.run.seed, k, self.plan.batch, len(self.images.train), self.images.blocks
        )
        names = [self.images.source.describe(int(index)) for index in self.images.train[positions]]
        known = [one for one in known if one["step"] < k] + [{"step": k, "reason": reason, "images": names}]
        records.write_json(path, known)
        return len(known)

    def write(self, status: str) -> None:
        """Of several processes, only the first one writes, here and everywhere."""
        if distributed.rank() == 0:
            self.record_of_run["status"] = status
            records.write_json(self.out / "run.json", self.record_of_run)

    def finish(self, status: str, verdict: monitor.Verdict | None = None) -> None:
        session = {"ended": now(), "seconds": round(time.monotonic() - self.started, 1), "status": status}
        session["processes"] = distributed.world()
        self.record_of_run.setdefault("sessions", []).append(session)
        if verdict:
            self.record_of_run["verdict"] = verdict._asdict()
        if distributed.rank() == 0:
            records.require_there(self.out)
        self.write(status)


@contextmanager
def open_run(request: Request, overwrite: bool) -> Iterator[Setup]:
    """The run directory, held: begun anew, or continued when it holds the same run."""
    if distributed.rank():
        yield _follow(request)
        return
    if not overwrite:
        records.refuse_foreign(request.out)
    source = data.open_source(request.data, _first_config(request, _stored(request, overwrite)).data)
    with records.only_writer(request.out):
        if overwrite:
            _clear(request.out)
        stored = _stored(request, overwrite)
        config, reasons, place = _choose(request, source, stored)
        here = {**machine.versions(), "threads": str(torch.get_num_threads())}
        distributed.from_first(lambda: {"config": flatten(config), "machine": asdict(place)})
        images, plan = _prepare(source, config, place)
        if stored:
            _refuse_changed(request.out, stored, config, images)
            _tell_differences(stored, here)
        record = stored or _new_record(request, config, reasons, place, images)
        record |= {"config": flatten(config), "machine": asdict(place), "processes": distributed.world()}
        report = lambda bad: _write_skipped(request.out, bad)
        bad = BadList(images.bad, len(source), config, report)
        distributed.from_first(lambda: images.fingerprint)
        classes = _classes(config, images)
        yield Setup(request, request.out, config, plan, place, images, reasons, record, bad, classes)


def _follow(request: Request) -> Setup:
    """The run as the first process has opened it; what is bad among this process's images is left to that one."""
    told = distributed.from_first(dict[str, Any])
    config, place = apply(Config(), told["config"], "run.json"), Machine(**told["machine"])
    source = data.open_source(request.data, config.data)
    images, plan = _prepare(source, config, place)
    bad = BadList(images.bad, len(source), config, distributed.post)
    if distributed.from_first(str) != images.fingerprint:
        raise BadData(f"process {distributed.rank()} sees other images in {request.data} than the first one does.")
    return Setup(request, request.out, config, plan, place, images, [], {}, bad, _classes(config, images))


def _prepare(source: Source, config: Config, place: Machine) -> tuple[Images, Plan]:
    machine.use(place, config.run.deterministic)
    images = loader.prepare(source, config)
    plan = resolve(config, len(images.train), len(images.held_out))
    if plan.micro_batch % distributed.world():
        raise UsageError(
            f"{plan.micro_batch} images a pass (optim.batch / optim.accumulate) cannot be shared by "
            f"{distributed.world()} processes: it must be a multiple of them."
        )
    if plan.micro_batch == distributed.world() > 1 == config.network.norm_group:
        raise UsageError(
            "Each process has one image a pass, and with network.norm_group 1 its own batch statistics: they need two."
        )
    return images, plan


def _classes(config: Config, images: Images) -> int:
    """Of the watching classifier; 0: there is none."""
    return len(images.source.classes) if config.optim.probe and images.source.labels is not None else 0


def _stored(request: Request, overwrite: bool) -> dict[str, Any] | None:
    """What run.json says of the run that is to go on, if there is one."""
    path = request.out / "run.json"
    if overwrite or not path.exists():
        return None
    stored = records.read_object(path, *STORED)
    if stored["format"] != FORMAT:
        raise OutputBusy(f"{path} is of format {stored['format']!r}, of another version of byol. Choose another --out.")
    return stored


def _first_config(request: Request, stored: Mapping[str, Any] | None) -> Config:
    """Enough to open the images, before `auto` has seen them."""
    if stored and stored["request"] == request.asked():
        return apply(Config(), stored["config"], "run.json")
    return presets.compose(request.preset, request.overrides, {})[0]


def _choose(request: Request, source: Source, stored: Mapping[str, Any] | None) -> tuple[Config, list[str], Machine]:
    """The stored choices when the same is asked again, so that `auto` cannot change its mind in between."""
    if stored and stored["request"] == request.asked():
        return apply(Config(), stored["config"], "run.json"), stored["reasons"], _machine(stored)
    facts = _facts(source, request) if request.preset == "auto" else None
    config, reasons = presets.compose(request.preset, request.overrides, _kept(request, stored), "run.json", facts)
    return config, reasons, _machine(stored) if stored else machine.choose(config)


def _kept(request: Request, stored: Mapping[str, Any] | None) -> dict[str, Any]:
    """What `auto` derived from the first number of epochs, for a run that is to go on for another number of them."""
    if not stored or (request.preset, stored["request"]["preset"]) != ("auto", "auto"):
        return {}
    followed = ("optim.tau", "optim.warmup_epochs")
    return {name: stored["config"][name] for name in followed if name not in stored["request"]["overrides"]}


def _machine(stored: Mapping[str, Any]) -> Machine:
    """As it began; among another number of processes its threads are counted anew, as nothing is bit-exact then."""
    before = Machine(**stored["machine"])
    if stored.get("processes", 1) == distributed.world():
        return before
    return replace(before, threads=machine.choose(apply(Config(), stored["config"], "run.json")).threads)


def _facts(source: Source, request: Request) -> presets.Facts:
    sides = [min(size) for size in loader.sample_sizes(source)]
    return facts(len(source), sides, presets.compose(request.preset, request.overrides, {})[0])


def facts(images: int, sides: Sequence[int], config: Config) -> presets.Facts:
    """What `auto` goes by, from the number of images and the short sides of some of them."""
    place = machine.choose(config)
    return presets.Facts(
        images=images,
        side=int(np.median(sides)) if len(sides) else 32,
        cores=place.threads,
        memory=machine.memory(place),
        accelerator=place.device.type != "cpu",
    )


def _clear(out: Path) -> None:
    """Only what a run writes: --overwrite never deletes a stranger's file."""
    for name in WRITTEN:
        (out / name).unlink(missing_ok=True)
    shutil.rmtree(out / "checkpoints", ignore_errors=True)


def _refuse_changed(out: Path, stored: Mapping[str, Any], config: Config, images: Images) -> None:
    """A run goes on only as itself; fields marked `on_resume` may change."""
    free = {name for name, _, metadata in declared() if metadata["on_resume"]}
    before = flatten(apply(Config(), stored["config"], str(out / "run.json")))
    after = flatten(config)
    changes = [f"{n}: {before[n]} → {after[n]}" for n in after if n not in free and before[n] != after[n]]
    if stored["data"]["fingerprint"] != images.fingerprint:
        changes.append(f"the images: {stored['data']['images']} in {stored['data']['name']} → other files or labels")
    if changes:
        raise OutputBusy(
            f"{out} holds another run ({'; '.join(changes[:8])}{'; …' if len(changes) > 8 else ''}). "
            "Choose another --out, or --overwrite to start again."
        )


def _tell_differences(stored: Mapping[str, Any], here: Mapping[str, str]) -> None:
    """What a run may owe another last bit to, where it goes on in other surroundings than it began in."""
    began = {**stored["versions"], "threads": str(stored["machine"]["threads"])}
    names = [n for n in here if n not in ("byol", "cores", "threads") and began.get(n, here[n]) != here[n]]
    if names:
        changes = ", ".join(f"{n} {began[n]} → {here[n]}" for n in names)
        say(f"Not as when the run began: {changes}. The last bits of its results may differ.")
    if began["threads"] != here["threads"] and stored.get("processes", 1) == distributed.world():
        say(f"The run began with {began['threads']} threads, so it keeps them; here {here['threads']} are usual.")


def _new_record(request: Request, config: Config, reasons: list[str], place: Machine, images: Images) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "request": request.asked(),
        "created": now(),
        "config": flatten(config),
        "reasons": reasons,
        "machine": asdict(place),
        "versions": machine.versions(),
        "commit": commit(),
        "data": {
            "name": images.source.name,
            "images": len(images.source),
            "bad": len(images.bad),
            "classes": len(images.source.classes),
            "in_memory": images.pixels is not None,
            "fingerprint": images.fingerprint,
        },
    }


def _write_skipped(out: Path, bad: list[Bad]) -> None:
    lines = [f"{b.name}\t{b.reason}".replace("\n", "\\n") + "\n" for b in bad]
    records.write_atomically(out / "skipped.txt", "".join(lines).encode("utf-8", "surrogateescape"))


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def commit() -> str:
    """The commit of the code when it runs from a checkout, else nothing."""
    try:
        answer = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            timeout=5,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout.strip() if answer.returncode == 0 else ""
