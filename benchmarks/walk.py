"""A new user's first hour, timed and counted: `python benchmarks/walk.py PHOTOS LABELLED WEIGHTS CIFAR`.

Clones this repository as it was last committed, sets it up with the README's own commands in an environment of its own,
and walks to a first encoder, a first classifier and a first row of a table. Writes results/walk.json, from which
benchmarks/render.py makes the table of docs/own-images.md. Time is by the clock, and of the processor; what is read is
counted in lines: of the README down to the task's commands, and of what the commands print.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from byol.run.files import write_json

ROOT = Path(__file__).resolve().parents[1]
SETUP = ("git clone --quiet {root} byol", "make setup")
WALKS = {  # task of the README → commands after `. .venv/bin/activate`
    "1. From photos to an encoder": ("byol pretrain ./images --budget 5m", "byol report runs/images-auto"),
    "2. From given weights": (
        "byol fit resnet18.pth --on ./labelled -o model",
        "byol predict model ./images -o predictions.csv",
    ),
    "4. Reproduce a table": ("byol table target-decay --scale cpu --data ./cifar10 --seeds 1 --rows 0.99",),
    "make docs": ("make docs",),
}


@dataclass(frozen=True)
class Step:
    """A command that was given, and what it took."""

    command: str
    seconds: float
    processor: float  # seconds of the processor
    lines: int  # printed, without those of progress


def spent() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def take(command: str, place: Path, log: Path) -> Step:
    """A command as a shell gives it, {root} being this repository; one that fails ends the walk."""
    began, before = time.monotonic(), spent()
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    active = ". .venv/bin/activate && " if (place / ".venv").exists() else ""
    line = active + command.replace("{root}", str(ROOT))
    done = subprocess.run(["sh", "-c", line], cwd=place, env=environment, capture_output=True, text=True)
    said = done.stdout + done.stderr
    with log.open("a") as stream:
        stream.write(f"$ {command}\n{said}")
    if done.returncode:
        sys.exit(f"{command} ended with {done.returncode}; {log} has what it said.")
    kept = [line for line in said.splitlines() if not re.search(r" left$|^WARNING: ", line)]
    return Step(command, round(time.monotonic() - began, 1), round(spent() - before, 1), len(kept))


def readme_lines(task: str) -> int:
    """Lines of the README down to the end of the task's commands; of all commands before the tasks, for another one."""
    text = (ROOT / "README.md").read_text("utf-8")
    begin = text.find(f"**{task}")
    return len(text[: text.index("```\n", text.index("```sh", max(begin, 0)) + 5)].splitlines())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("photos", "labelled", "weights", "cifar"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--place", type=Path, help="where to walk; a folder that goes when left out")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as spare:
        place = (given.place or Path(spare)).resolve()
        log, clone = place / "walk.log", place / "byol"
        setup = [take(SETUP[0], place, log), take(SETUP[1], clone, log)]
        for name, target in (("images", given.photos), ("labelled", given.labelled), ("cifar10", given.cifar)):
            (clone / name).symlink_to(target.resolve())
        (clone / "resnet18.pth").symlink_to(given.weights.resolve())
        walks = [
            {"task": task, "readme": readme_lines(task), "steps": [asdict(take(each, clone, log)) for each in commands]}
            for task, commands in WALKS.items()
        ]
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)
    record = {
        "commit": commit.stdout.strip(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[2], 1),
        "threads": os.environ.get("OMP_NUM_THREADS", ""),
        "setup": [asdict(step) for step in setup],
        "walks": walks,
    }
    write_json(ROOT / "results" / "walk.json", record)


if __name__ == "__main__":
    main()
