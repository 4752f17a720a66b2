"""Where the matrix of verbs and faults is tried: good files once, a copy for each case, and a judge of how it ended."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from tests.conftest import TINY, write_images
from tests.zygote import Zygote, flags, slowness

ALLOWED = (0, 2, 65, 73, 74, 75)
SECONDS = 5.0  # of a case on an idle machine; a case that works to its end takes about one
MEMORY = 1_500_000_000  # bytes that a case may take beyond what is loaded already
SETTINGS = TINY | {"network.width": 0.125, "optim.epochs": 1}


class Verb(NamedTuple):
    """A good command with places to fill in, how the name of its output ends, and whether it reads a run."""

    words: list[str]
    suffix: str = ""
    reads_run: bool = False

    @property
    def writes(self) -> bool:
        return any("{out}" in word for word in self.words)


TABLE = ["table", "target-decay", "--scale=cpu", "--seeds=1", "--data=scenes:20", "--rows=τ 1", "--out={out}"]
FEW = ["--optim.epochs=1", "--optim.batch=8", "--network.width=0.125"]  # quick with a spoiled config file too
PRETRAIN = ["pretrain", "{images}", "--preset=cifar10-cpu", "--config={config}", "--data.exclude={exclude}", *FEW]
VERBS = {
    "pretrain": Verb([*PRETRAIN, "--out={out}"], reads_run=True),
    "evaluate": Verb(
        ["evaluate", "{run}", "--on={images}", "--protocol=knn", "--out={out}", "--cache={cache}"], reads_run=True
    ),
    "embed": Verb(["embed", "{run}", "{images}", "--out={out}"], ".npz", reads_run=True),
    "export": Verb(["export", "{run}", "--to=huggingface", "--out={out}"], reads_run=True),
    "report": Verb(["report", "{run}", "--out={out}", "--images=0"], ".html", reads_run=True),
    "search": Verb(["search", "{query}", "{run}", "{images}", "--out={out}"], ".csv", reads_run=True),
    "dedupe": Verb(["dedupe", "{run}", "{images}", "--out={out}"], ".csv", reads_run=True),
    "outliers": Verb(["outliers", "{run}", "{images}", "--out={out}"], ".csv", reads_run=True),
    "pick": Verb(["pick", "3", "{run}", "{images}", "--exclude={exclude}", "--out={out}"], ".csv", reads_run=True),
    "views": Verb(["views", "{images}", "--preset=cifar10-cpu", "--config={config}", "--out={out}"], ".png"),
    "doctor": Verb(
        ["doctor", "{images}", "--no-speed", "--preset=cifar10-cpu", "--config={config}", "--out={out}"],
    ),
    "import": Verb(["import", "{weights}", "--out={out}"], ".safetensors"),
    "shard": Verb(["shard", "{images}", "{out}", "--shard-size=20KB"]),
    "table": Verb([*TABLE, *flags(SETTINGS | {"optim.tau": 0.9})]),
    "plan": Verb(["plan", "cifar10-cpu", "--device-type=a100"]),
    "config": Verb(["config", "cifar10-cpu"]),
    "paper": Verb(["paper", "--check={run}", "--out={out}"], ".json", reads_run=True),
}


class Ground(NamedTuple):
    """The good files that all cases share, and the directory of one case: a copy of the run, and a stranger's files."""

    base: Path
    place: Path

    @property
    def run(self) -> Path:
        return self.place / "run"

    @property
    def victim(self) -> Path:
        return self.place / "victim"

    def good(self, verb: str) -> dict[str, Path]:
        """The places of the verb's command when nothing is wrong."""
        names = ("images", "weights", "query", "config", "exclude", "features", "shards")
        shared = {name: self.base / FILES.get(name, name) for name in names}
        out = self.place / "out" / f"written{VERBS[verb].suffix}"
        return {**shared, "run": self.run, "out": out, "cache": self.place / "cache"}


FILES = {
    "weights": "weights.pth",
    "query": "images/class0/000.jpg",
    "config": "config.yaml",
    "exclude": "exclude.txt",
    "features": "features.npz",
}


def build(base: Path, zygote: Zygote) -> None:
    """The good files: images, a finished run with a result beside it, its features and weights, shards."""
    images, run = write_images(base / "images", 12), base / "run"
    (base / "config.yaml").write_text(yaml.safe_dump(nested(SETTINGS)))
    (base / "exclude.txt").write_text("class1/001.jpg\n")
    ground = Ground(base, base)
    for verb, changed in (
        ("pretrain", {"out": run}),
        ("evaluate", {"out": run / "evaluations" / "images"}),
        ("embed", {"out": base / "features.npz"}),
        ("shard", {"out": base / "shards"}),
    ):
        code, said = zygote.run(*command(verb, ground.good(verb) | changed))
        assert code == 0, said
    code, said = zygote.run("export", str(run), "--to=torchvision", f"--out={base / 'weights.pth'}")
    assert code == 0, said
    assert (run / "evaluations" / "images" / "knn" / "result.json").exists()
    shutil.rmtree(base / "cache")
    assert len(list(images.rglob("*.jpg"))) == 12


def nested(settings: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Fields such as optim.batch as the sections of a config file."""
    sections: dict[str, dict[str, Any]] = {}
    for name, value in settings.items():
        section, _, field = name.partition(".")
        sections.setdefault(section, {})[field] = value
    return sections


def command(verb: str, places: Mapping[str, Path]) -> list[str]:
    return [word.format(**places) for word in VERBS[verb].words]


def prepare(base: Path, place: Path) -> Ground:
    """A directory for one case."""
    ground = Ground(base, place)
    for name in ("victim/checkpoints", "out", "here"):
        (place / name).mkdir(parents=True)
    shutil.copytree(base / "run", ground.run, symlinks=True)
    for name in (".bashrc", "config.json", "metrics.jsonl", "checkpoints/my_phd_model.pt"):
        (ground.victim / name).write_text(f"the user's own {name}")
    return ground


def snapshot(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Every path below a folder with its mode, its time of change and what it holds."""
    seen = {}
    for path in [folder, *sorted(folder.rglob("*"))]:
        facts = path.lstat()
        content = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
        seen[str(path.relative_to(folder))] = (facts.st_mode, facts.st_mtime_ns, content)
    return seen


@lru_cache
def limit() -> float:
    """Seconds after which a case hangs, on the machine as busy as it is."""
    return SECONDS * min(slowness(), 4.0)


class End(NamedTuple):
    """How a case ended: the exit code, and what is wrong with that end, empty if nothing is."""

    code: int
    wrong: str


def attempt(zygote: Zygote, ground: Ground, words: list[str], stream: str = "", named: bool = False) -> End:
    """Runs a command, and judges its end, its words and what it has written.

    `named`: the command names the folder of the user's, where new files may come and no file may change.
    """
    before = snapshot(ground.victim), snapshot(ground.base)
    pid = zygote.start(*words, cwd=str(ground.place / "here"), memory=MEMORY, stream=stream)
    until = time.monotonic() + limit()
    hung = False
    while not zygote.ended(pid) and not hung:
        time.sleep(0.01)
        hung = time.monotonic() > until
    if hung:
        os.kill(pid, signal.SIGKILL)
    code, said = zygote.wait(pid)
    wrong = [f"it hung for {SECONDS:g} s"] * hung + _wrong_words(code, said)
    theirs, shared = snapshot(ground.victim), snapshot(ground.base)
    if named:  # a folder changes when a file comes, so only what files hold is compared
        before[0].update({name: theirs.get(name, facts) for name, facts in before[0].items() if not facts[2]})
        theirs = {name: facts for name, facts in theirs.items() if name in before[0]}
    if (theirs, shared) != before:
        wrong.append("it changed files that the command did not name")
    return End(code, f"{'; '.join(wrong)}: {said[-600:]}" if wrong else "")


def _wrong_words(code: int, said: str) -> list[str]:
    wrong = [] if code in ALLOWED else [f"its exit code is {code}"]
    wrong += [f"it says {words!r}" for words in ("Traceback", "This should not happen") if words in said]
    lines = said.splitlines()
    begins = [number for number, line in enumerate(lines) if line.startswith("byol: ")]
    if code and begins and len(lines) - begins[-1] > 3:
        wrong.append("its message has more than three lines")
    if any("\x1b" in line for line in lines):
        wrong.append("it sends escapes to the terminal")
    return wrong


def changed_json(path: Path, change: Callable[[Any], None]) -> None:
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))
