"""Records on disk as typed values: dataclasses to JSON and back, with the field named where a file does not fit.

`run.json` is a `RunRecord`; an evaluation's `result.json` and a table's cell have their types in their own rooms and
use the same `write` and `read`.
"""

from __future__ import annotations

import subprocess
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from byol.config import Config, Plan, apply
from byol.errors import DiskError, OutputBusy, UsageError
from byol.presets import Reason
from byol.run.files import read_json, write_json
from byol.run.machine import DTYPES, PASSES, Machine

T = TypeVar("T")
FORMAT = 2  # of run.json
NAME = "run.json"
DEVICES = ("cpu", "cuda", "mps")
MOST = 2.0**53  # of any number in run.json: beyond it a float skips whole numbers
MOST_FLOAT = int(sys.float_info.max)

Status = Literal["running", "finished", "interrupted", "diverged"]


@dataclass(frozen=True)
class Asked:
    """What the user asked for, before anything was looked at."""

    data: str
    preset: str
    overrides: dict[str, Any]  # of config file and flags together


@dataclass(frozen=True)
class DataFacts:
    """The images of a run, as they were when it began."""

    name: str
    images: int
    bad: int
    classes: int
    in_memory: bool
    fingerprint: str
    location: str = ""  # the same from every working directory; empty in records that do not know it
    sample: str = ""  # a digest of some images' pixels, by which images that were moved are known


@dataclass(frozen=True)
class WeightsFacts:
    """Weights that a run began from, by which other weights at the same place are known."""

    place: str
    origin: str
    digest: str
    resolution: int


@dataclass(frozen=True)
class Plugin:
    """A file of the user's that a run was made with: named, so that it can be asked for, and never loaded from here."""

    name: str
    digest: str


@dataclass(frozen=True)
class Estimate:
    """What the plan expected the run to need; memory is one process's."""

    seconds: float
    images_per_second: float
    memory_gb: float
    fixed_bytes: int
    bytes_an_image: int
    checkpoint_bytes: int


@dataclass(frozen=True)
class Session:
    """One stretch of work on a run, from a start of the command to its end."""

    ended: str
    seconds: float
    status: Status
    processes: int = 1


@dataclass(frozen=True)
class Verdict:
    """The monitor's judgement: one word for programs and a few sentences for people, which begin with the word."""

    word: Literal["too early", "learning", "stalled", "worse", "collapsing", "collapsed data"]
    sentence: str


@dataclass(frozen=True)
class RunRecord:
    """Everything that run.json holds."""

    format: int
    request: Asked
    created: str
    config: dict[str, Any]  # flat, every field
    reasons: list[Reason]
    machine: Machine
    versions: dict[str, str]
    commit: str
    data: DataFacts
    plugin: Plugin | None = None  # that objective, encoder or views come from
    processes: int = 1
    status: Status = "running"
    plan: Plan | None = None
    estimate: Estimate | None = None
    sessions: list[Session] = field(default_factory=list)
    verdict: Verdict | None = None
    weights: dict[str, WeightsFacts] = field(default_factory=dict)  # by config field: network.init, network.target_init


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


def read_run(out: Path) -> RunRecord:
    """The record of the run in a directory; a `DiskError` names the field whose value no run can have."""
    path = out / NAME
    value = read_json(path)
    number = value.get("format") if isinstance(value, dict) else None
    if type(number) is int and number != FORMAT:
        raise OutputBusy(f"{path} has format {number}, of another version of byol; this version reads format {FORMAT}.")
    run = decode(RunRecord, value, path)
    with blamed(path):
        apply(Config(), run.config, "config")
        apply(Config(), run.request.overrides, "request.overrides", check=False)
        told = {reason.field: reason.value for reason in run.reasons if reason.field != "views"}  # of all views at once
        apply(Config(), told, "reasons", check=False)
    measured = {name: encode(getattr(run, name)) for name in ("machine", "data", "processes", "plan", "estimate")}
    for name, figure in _numbers({**measured, "sessions": encode(run.sessions)}, ""):
        low, high = RANGES.get(name, (0, MOST))
        if not low <= figure <= high:
            raise DiskError(f"{path} is damaged or is not ours: {name} cannot be {figure!r:.40}.")
    for name, choices in (("device_name", DEVICES), ("precision", DTYPES), ("passes", PASSES)):
        if getattr(run.machine, name) not in choices:
            raise DiskError(f"{path} is damaged or is not ours: machine.{name} is none of {', '.join(choices)}.")
    return run


@contextmanager
def blamed(path: Path) -> Iterator[None]:
    """Around the use of settings that a record holds: what is wrong with them is the file's fault, not the user's."""
    try:
        yield
    except UsageError as error:
        raise DiskError(f"{path} is damaged, or of another version of byol: {error}") from None


def is_run(out: Path) -> bool:
    """Whether run.json in a directory is a record of a run, perhaps of another version or with a damaged field."""
    try:
        value = read_json(out / NAME)
    except DiskError:
        return False
    return isinstance(value, dict) and {"format", "request", "config", "machine", "data"} <= value.keys()


def _numbers(value: Any, name: str) -> Iterator[tuple[str, float]]:
    """Every number below a JSON value with its dotted name, in which members of lists have no number."""
    if isinstance(value, dict):
        for key, member in value.items():
            yield from _numbers(member, f"{name}.{key}".strip("."))
    elif isinstance(value, list):
        for member in value:
            yield from _numbers(member, name)
    elif isinstance(value, int | float):
        yield name, value


def write_run(out: Path, record: RunRecord) -> None:
    write(out / NAME, record)


def write(path: Path, record: Any) -> None:
    """A dataclass as a JSON file, whole or not at all."""
    write_json(path, encode(record))


def read(kind: type[T], path: Path) -> T:
    """The dataclass that a JSON file holds; a `DiskError` names the file and the field that does not fit."""
    return decode(kind, read_json(path), path)


def encode(value: Any) -> Any:
    """Dataclasses as dicts, tuples as lists, all the way down; a field that is None is left out."""
    if is_dataclass(value) and not isinstance(value, type):
        items = ((item.name, getattr(value, item.name)) for item in fields(value))
        return {name: encode(member) for name, member in items if member is not None}
    if isinstance(value, dict):
        return {str(key): encode(member) for key, member in value.items()}
    if isinstance(value, list | tuple):
        return [encode(member) for member in value]
    return value


def decode(kind: type[T], value: Any, path: Path) -> T:
    """A JSON value as a dataclass. Fields that the type does not have are ignored."""
    try:
        decoded: T = _decode(kind, value, "")
    except _Misfit as misfit:
        raise DiskError(f"{path} is damaged or is not ours: {misfit}.") from None
    return decoded


class _Misfit(Exception):
    """A value that is not of its field's type; the message names the field."""


def _decode(kind: Any, value: Any, where: str) -> Any:
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    if origin in (Union, types.UnionType):
        inner = [argument for argument in arguments if argument is not types.NoneType]
        return None if value is None and len(inner) < len(arguments) else _decode(inner[0], value, where)
    if origin is Literal:
        if value not in arguments:
            raise _Misfit(f"{where} cannot be {value!r:.80}")
        return value
    if origin in (list, tuple):
        _expect(list, value, where)
        members = [_decode(arguments[0], member, f"{where}[{place}]") for place, member in enumerate(value)]
        return origin(members)
    if origin is dict:
        _expect(dict, value, where)
        return {key: _decode(arguments[1], member, f"{where}.{key}") for key, member in value.items()}
    if is_dataclass(kind):
        _expect(dict, value, where or "the record")
        hints = get_type_hints(kind)
        return kind(**{item.name: _member(item, hints[item.name], value, where) for item in fields(kind)})  # type: ignore[operator]
    return _plain(kind, value, where)


def _member(item: Field[Any], kind: Any, record: dict[str, Any], where: str) -> Any:
    name = f"{where}.{item.name}".strip(".")
    if item.name in record:
        return _decode(kind, record[item.name], name)
    if item.default is not MISSING:
        return item.default
    if item.default_factory is not MISSING:
        return item.default_factory()
    raise _Misfit(f"it does not hold {name}")


def _plain(kind: type, value: Any, where: str) -> Any:
    """A whole number may stand for any number; true and false are not numbers."""
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        if abs(value) > MOST_FLOAT:
            raise _Misfit(f"{where} is too large a number")
        return float(value)
    if isinstance(value, bool) and kind is not bool:
        raise _Misfit(f"{where} should be {_WORDS[kind]}, not {value}")
    _expect(kind, value, where)
    return value


def _expect(kind: type, value: Any, where: str) -> None:
    if not isinstance(value, kind):
        raise _Misfit(f"{where} should be {_WORDS[kind]}, not {value!r:.80}")


_WORDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    list: "a list",
    dict: "an object",
}

# Numbers of run.json that may not be 0, or that a machine could not stand at any height.
RANGES: dict[str, tuple[float, float]] = {
    **dict.fromkeys(("plan.images", "plan.steps", "plan.batch", "plan.accumulate", "plan.micro_batch"), (1, MOST)),
    **dict.fromkeys(("plan.monitor_steps", "processes", "sessions.processes"), (1, MOST)),
    "plan.steps_per_epoch": (1e-9, MOST),
    "plan.tau": (0, 1),
    "machine.threads": (1, 4096),
}
