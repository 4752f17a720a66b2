"""The cases of the matrix of verbs and faults, by families: outputs, files, links, records, headers, streams."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import stat
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from byol.evals.record import EncoderFacts, EvaluationRecord, Figure, SeedResult, TaskFacts
from byol.run.record import encode
from tests.chaos.ground import VERBS, End, Ground, attempt, changed_json, command
from tests.chaos.headers import with_header
from tests.chaos.scale import LONG
from tests.zygote import STREAMS, Zygote

ROOT = Path(__file__).resolve().parents[2]
STORED = ROOT / "tests" / "fixtures" / "format-2" / "run.json"  # has the fields that every run.json has
SHARE = 12  # of the cases, one in so many is in `make test`

Places = dict[str, Path]
RUN_READERS = [name for name, verb in VERBS.items() if verb.reads_run]
WRITERS = [name for name, verb in VERBS.items() if verb.writes]
RECORD_READERS = ["pretrain", "report", "export", "paper"]  # of run.json; the others read the encoder alone


class Case(NamedTuple):
    """A verb with a fault: `fault` is a row of the page, `detail` the file, field or value that is wrong."""

    verb: str
    fault: str
    detail: str
    act: Callable[[Ground], Places]
    stream: str = ""
    more: tuple[str, ...] = ()  # words of the command
    long: bool = False
    named: bool = False  # the command names the user's folder: new files may come, those that are there stay

    @property
    def name(self) -> str:
        return f"{self.verb}, {self.fault}" + f" ({self.detail})" * bool(self.detail)


# Outputs


def _blocked(ground: Ground, verb: str) -> Path:
    """The output's good place, with nothing there yet."""
    return ground.good(verb)["out"]


def below_a_file(ground: Ground, verb: str) -> Path:
    (ground.place / "out" / "file").write_text("a file")
    return ground.place / "out" / "file" / f"below{VERBS[verb].suffix}"


def nothing_can_be_made(_: Ground, verb: str) -> Path:
    return Path("/proc/byol") / f"written{VERBS[verb].suffix}"


def something_else_is_there(ground: Ground, verb: str) -> Path:
    """A folder of the user's where a file goes, a file where a folder goes."""
    out = _blocked(ground, verb)
    if VERBS[verb].suffix:
        (out / "kept").mkdir(parents=True)
    else:
        out.write_text("a file")
    return out


def link_to_the_user_s(ground: Ground, verb: str) -> Path:
    out = _blocked(ground, verb)
    out.symlink_to(ground.victim / ".bashrc" if VERBS[verb].suffix else ground.victim)
    return out


def link_to_nothing(ground: Ground, verb: str) -> Path:
    out = _blocked(ground, verb)
    out.symlink_to(ground.victim / "new")
    return out


def a_pipe(ground: Ground, verb: str) -> Path:
    out = _blocked(ground, verb)
    os.mkfifo(out)
    return out


def a_device(ground: Ground, verb: str) -> Path:
    """The device that is always full, made here; without the right to make one, a pipe."""
    out = _blocked(ground, verb)
    try:
        os.mknod(out, 0o666 | stat.S_IFCHR, os.makedev(1, 7))
    except PermissionError:
        os.mkfifo(out)
    return out


def long_name(ground: Ground, verb: str) -> Path:
    return ground.place / "out" / f"{'x' * 300}{VERBS[verb].suffix}"


def the_user_s_folder(ground: Ground, verb: str) -> Path:
    """A folder of somebody else's things; for a file, a link to such a folder above it."""
    if not VERBS[verb].suffix:
        return ground.victim
    (ground.place / "out" / "link").symlink_to(ground.victim)
    return ground.place / "out" / "link" / f"written{VERBS[verb].suffix}"


OUTPUTS: dict[str, Callable[[Ground, str], Path]] = {
    "below a file": below_a_file,
    "where nothing can be made": nothing_can_be_made,
    "something else is there": something_else_is_there,
    "a link to the user's": link_to_the_user_s,
    "a link to nothing": link_to_nothing,
    "a pipe": a_pipe,
    "a device": a_device,
    "a name of 300 letters": long_name,
    "the user's folder, or a link to it": the_user_s_folder,
}

NAMED = ("a link to the user's", "a link to nothing", "the user's folder, or a link to it")


def outputs() -> Iterator[Case]:
    def act(verb: str, fault: str, ground: Ground) -> Places:
        return {"out": OUTPUTS[fault](ground, verb)}

    for verb, fault in itertools.product(WRITERS, OUTPUTS):
        named = fault in NAMED and (not VERBS[verb].suffix or OUTPUTS[fault] is the_user_s_folder)
        yield Case(verb, f"output: {fault}", "", partial(act, verb, fault), named=named)


def overwriting() -> Iterator[Case]:
    """--overwrite into a folder of the user's whose files have the names of ours."""

    def act(ground: Ground) -> Places:
        return {"out": ground.victim}

    for verb in ("pretrain", "shard"):
        yield Case(verb, "output: the user's folder, with --overwrite", "", act, more=("--overwrite",), named=True)


# Files from outside


def spoil(path: Path, kind: str) -> None:
    """Puts something else in the place of a file."""
    content = path.read_bytes() if path.is_file() else b""
    if path.is_dir():
        path.rename(path.with_name(f"{path.name}-before"))
    else:
        path.unlink(missing_ok=True)
    if kind == "a pipe":
        os.mkfifo(path)
    elif kind == "an endless device":
        path.symlink_to("/dev/zero")
    elif kind == "a directory":
        path.mkdir()
    elif kind == "a link to nothing":
        path.symlink_to(path.with_name("nowhere"))
    else:
        path.write_bytes({"empty": b"", "cut": content[: len(content) // 2], "noise": bytes(range(256)) * 20}[kind])


KINDS = ("a pipe", "an endless device", "a directory", "a link to nothing", "empty", "cut", "noise")
RESULT = "evaluations/images/knn/result.json"
NEWEST = "newest checkpoint"
OF_RUNS = {  # the verbs that read each file of a run
    "run.json": ("pretrain", "report", "export", "paper"),
    "encoder.safetensors": tuple(name for name in RUN_READERS if name != "paper"),
    RESULT: ("report", "export"),
    **dict.fromkeys(("metrics.jsonl", "skipped.txt", "checkpoints", NEWEST, "neighbours.json"), ("pretrain", "report")),
}
# (verb, place of its command, file there); a file that several verbs open in the same way is tried with one of them
FROM_OUTSIDE = (
    *(("pretrain", "config", ""), ("pretrain", "exclude", ""), ("doctor", "config", ""), ("pick", "exclude", "")),
    *(("dedupe", "run", "features"), ("pick", "run", "features"), ("outliers", "run", "features")),
    *(("search", "images", "features"), ("search", "query", "")),
    *(("import", "weights", ""), ("embed", "run", "weights"), ("evaluate", "run", "weights")),
    *(("embed", "images", "shards/shards.json"), ("embed", "images", "shards/shards.npz")),
    *(("pretrain", "images", "shards/shards.json"), ("embed", "images", "shards/*.tar")),
    *(("embed", "images", "images/class0/000.jpg"), ("doctor", "images", "images/class0/000.jpg")),
)


def files_of_runs() -> Iterator[Case]:
    def act(verb: str, name: str, kind: str, ground: Ground) -> Places:
        paths = {NEWEST: max((ground.run / "checkpoints").iterdir())}
        spoil(paths.get(name, ground.run / name), kind)
        return {"out": ground.run} if verb == "pretrain" else {}

    for name, readers in OF_RUNS.items():
        for kind, verb in itertools.product(KINDS, readers):
            slow = verb in ("outliers", "dedupe", "pick", "search") and kind not in ("a pipe", "an endless device")
            yield Case(verb, f"{Path(name).name} of the run: {kind}", "", partial(act, verb, name, kind), long=slow)


def files_from_outside() -> Iterator[Case]:
    def act(place: str, name: str, kind: str, ground: Ground) -> Places:
        given = ground.good("embed")[place]
        folder, _, inside = name.partition("/")
        source = ground.base / folder if inside else (ground.good("embed")[name] if name else given)
        copy = ground.place / source.name
        _copied(source, copy)
        spoil(sorted(copy.glob(inside))[0] if inside else copy, kind)
        return {place: copy}

    for (verb, place, name), kind in itertools.product(FROM_OUTSIDE, KINDS):
        yield Case(verb, f"{name or place}: {kind}", "", partial(act, place, name, kind))


def _copied(source: Path, copy: Path) -> None:
    shutil.copytree(source, copy) if source.is_dir() else shutil.copy(source, copy)


# Links that somebody prepared in a run directory

PREPARED = (
    *(".report.html.tmp", "report.html", ".run.json.tmp", ".lock", ".holder", "skipped.txt", "diverged.json"),
    *("metrics.jsonl", ".metrics.jsonl.tmp", "encoder.safetensors", "best.safetensors", "neighbours.json"),
)
FOLDERS = ("checkpoints", "evaluations", "evaluations/images", "tensorboard", "features")


def prepared_links() -> Iterator[Case]:
    def act(verb: str, name: str, ground: Ground) -> Places:
        path = ground.run / name
        if path.is_dir():
            path.rename(ground.place / "moved")
        else:
            path.unlink(missing_ok=True)
        path.symlink_to(ground.victim / ".bashrc" if name in PREPARED else ground.victim)
        if verb == "pretrain":
            changed_json(ground.run / "run.json", lambda run: run.update(status="running"))
        inside = {"report": "report.html", "evaluate": "evaluations/images"}
        return {"out": ground.run / inside.get(verb, "")}

    for name in (*PREPARED, *FOLDERS):
        yield Case("pretrain", "a link in the run", name, partial(act, "pretrain", name))
        if name in (".report.html.tmp", "report.html", ".lock", "checkpoints"):
            yield Case("report", "a link in the run", name, partial(act, "report", name))
        if name in ("evaluations", "evaluations/images"):
            yield Case("evaluate", "a link in the run", name, partial(act, "evaluate", name), named=True)  # by --out


# Records field by field

SAMPLE = EvaluationRecord(  # has the fields that the good run's result has
    "knn",
    EncoderFacts("run", "", {"encoder": "resnet18", "width": 0.125}, 32),
    TaskFacts("images", 2, "top1", {"train": 8}, {"train": ""}),
    {},
    {"top1": Figure(0.5, 0.0, 1)},
    [SeedResult(0, [], {"k": 3}, {"top1": 0.5}, [], 1.0)],
    *("", "", {"device": "cpu"}, {"torch": ""}),
)


def leaves(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The place of every value in a record, of objects and lists too."""
    if path:
        yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else ()
    for key, member in inner:
        yield from leaves(member, (*path, key))


def _wrong_type(value: Any) -> Any:
    return [[]] if isinstance(value, str) else "text" if not isinstance(value, dict | list) else 3


def _huge(value: Any) -> Any:
    if isinstance(value, bool | list | dict):
        return [value] * 10_000
    return "x" * 100_000 if isinstance(value, str) else 10**300 if isinstance(value, int) else 1e300


DAMAGE: dict[str, Callable[[Any], Any]] = {
    "of a wrong type": _wrong_type,
    "missing": lambda _: None,
    "huge": _huge,
    "negative": lambda value: -1 if isinstance(value, int | float) else "\x1b[31m</script>\n" * 3,
}


def damaged(record: Any, path: tuple[str | int, ...], kind: str) -> None:
    """Changes one value of a record; a missing one is taken out."""
    for key in path[:-1]:
        record = record[key]
    if kind == "missing":
        del record[path[-1]]
    else:
        record[path[-1]] = DAMAGE[kind](record[path[-1]])


def fields_of(name: str, record: Any, readers: list[str]) -> Iterator[Case]:
    """Every field of a record × every damage; in the short version each has one of the readers, in turn."""

    def act(verb: str, path: tuple[str | int, ...], kind: str, ground: Ground) -> Places:
        changed_json(ground.run / name, lambda value: damaged(value, path, kind))
        return {"out": ground.run} if verb == "pretrain" else {}

    title = Path(name).name
    for number, (path, kind) in enumerate(itertools.product(leaves(record), DAMAGE)):
        settings = path[0] == "config" and len(path) > 1  # a hundred fields that one function checks
        for place, verb in enumerate(readers):
            first = place == (number + number // len(DAMAGE)) % len(readers)
            if first or not settings:
                detail = ".".join(map(str, path))
                spoiled = partial(act, verb, path, kind)
                yield Case(
                    verb, f"a field of {title} {kind}", detail, spoiled, long=not first or (settings and number % 9 > 0)
                )


HEADERS = {
    "resolution": (10**9, 40_000, -1, "text", None),
    "network.width": (1e9, -1.0, "text", None),
    "network.encoder": ("resnet9000", 3, "../../etc", None),
    "views.mean": ("text", [1e300] * 3, None),
    "step": ("text", -5, 10**300),
    "format": (99, "text"),
}


def headers() -> Iterator[Case]:
    def act(field: str, value: Any, ground: Ground) -> Places:
        with_header(ground.run / "encoder.safetensors", field, value)
        return {}

    for field, values in HEADERS.items():
        for value, verb in itertools.product(values, ("embed", "export", "report", "evaluate", "search")):
            named = field == "resolution" and verb != "search"
            detail = f"{field} {value!r:.20}"
            yield Case(verb, "a value in the encoder's header", detail, partial(act, field, value), long=not named)


# Streams


def streams() -> Iterator[Case]:
    kinds = [name for name in STREAMS if name]
    for place, verb in enumerate(VERBS):
        for number, stream in enumerate(kinds):
            long = number % len(kinds) != place % len(kinds) or verb in ("table", "plan")
            yield Case(verb, f"stream: {stream}", "", lambda _: {}, stream, long=long and verb != "config")


FAMILIES: dict[str, Callable[[], Iterator[Case]]] = {
    "good": lambda: (Case(verb, "nothing is wrong", "", lambda _: {}) for verb in VERBS),
    "outputs": outputs,
    "overwriting": overwriting,
    "files of runs": files_of_runs,
    "links": prepared_links,
    "run.json": lambda: fields_of("run.json", json.loads(STORED.read_text()), RECORD_READERS),
    "result.json": lambda: fields_of(RESULT, encode(SAMPLE), ["report", "export"]),
    "headers": headers,
    "streams": streams,
    "files from outside": files_from_outside,
}


def short(every: list[Case]) -> list[Case]:
    """Of a family the first case of each kind of fault and of each verb, and some others, chosen by their names."""
    chosen, kinds, verbs = [], set[str](), set[str]()
    for case in every:
        kind = case.fault.rpartition(": ")[2]
        first = kind not in kinds or case.verb not in verbs
        if not case.long and (first or zlib.crc32(case.name.encode()) % SHARE == 0):
            kinds.add(kind)
            verbs.add(case.verb)
            chosen.append(case)
    return chosen


def cases(family: str) -> list[Case]:
    """All of a family with BYOL_CHAOS, else some."""
    every = list(FAMILIES[family]())
    return every if LONG or family == "good" else short(every)


def tried(case: Case, zygote: Zygote, ground: Ground) -> End:
    words = [*command(case.verb, ground.good(case.verb) | case.act(ground)), *case.more]
    return attempt(zygote, ground, words, case.stream, case.named)
