"""How fast byol is beside its peers and beside what the machine can do, as ratios of one run.

    python benchmarks/speed.py [ENTRY …] [--cifar FOLDER] [--photos FOLDER] [--rounds 3] [--render]

Contestants alternate in every round, each in its own process; a figure is the median over rounds, with the lowest and
the highest. One file results/speed-ENTRY.json an entry, with the goals and whether the machine was idle: figures from a
busy one are kept but never rendered. FOLDERs hold JPEG files of 32 px and photographs; without them, scenes are drawn.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import peers
import scaling
import torch

from byol import data
from byol.config import Data
from byol.run.files import write_json
from byol.run.machine import versions
from byol.run.progress import say
from byol.run.record import commit

HERE = Path(__file__).resolve().parent
BUSY = 0.15  # of the cores, by others, in the seconds before an entry
CIFAR = {"depth": 18, "width": 0.25, "small": True, "size": 32, "batch": 256, "hidden": 1024, "steps": 12, "warm": 3}
PHOTOS = {"depth": 50, "width": 1, "small": False, "size": 224, "batch": 32, "hidden": 4096, "steps": 2, "warm": 2}
SHIPPED_WORKERS = {"lightly": 8, "byol-pytorch": 0, "by hand": 2}  # of their examples
SKLEARN_FITS = 3
EXACT = ("torchvision v2", "kornia")  # the others' hue has 256 values, and PIL's blur is made of boxes


@dataclass(frozen=True)
class Bench:
    """What all entries need."""

    cifar: str
    photos: str
    rounds: int

    def run(self, python: str | Path, script: str, *arguments: Any, **environment: str) -> dict[str, Any]:
        """One process to its end; its last line is the result."""
        command = [str(python), str(HERE / script), *(a if isinstance(a, str) else json.dumps(a) for a in arguments)]
        paths = {"PYTHONPATH": os.pathsep.join((str(HERE.parent), str(HERE)))}
        done = subprocess.run(command, env=os.environ | paths | environment, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found

    def inside(self, work: str, **spec: Any) -> dict[str, Any]:
        return self.run(sys.executable, "inside.py", work, spec)


def summary(values: list[float]) -> dict[str, Any]:
    return {"median": statistics.median(values), "low": min(values), "high": max(values), "values": values}


def goal(
    what: str,
    figure: float,
    wanted: float | None,
    least: bool = True,
    unit: str = "×",
    rounds: Sequence[float] = (),
) -> dict[str, Any]:
    """A figure with what it should at least, or at most, be (None: it is only reported), and its range over rounds."""
    reached = None if wanted is None else bool(figure >= wanted if least else figure <= wanted)
    found = {"what": what, "figure": figure, "goal": wanted, "least": least, "unit": unit, "reached": reached}
    return found | ({"low": min(rounds), "high": max(rounds)} if len(rounds) > 1 else {})


def own(what: str, rounds: list[float], unit: str) -> dict[str, Any]:
    """byol's own figure, reported."""
    return goal(what, statistics.median(rounds), None, unit=unit, rounds=rounds)


def against(
    what: str, found: dict[str, list[float]], others: Iterable[str], wanted: float | None, less: bool = False
) -> dict[str, Any]:
    """How many times better byol's median is than that of the best of the others, and the range of this over rounds;
    `less` is better where seconds are counted."""
    middle = medians(found)
    best = (min if less else max)(others, key=middle.__getitem__)
    pair = ("byol", best) if not less else (best, "byol")
    rounds = [one / two for one, two in zip(*(found[name] for name in pair), strict=True)]
    return goal(what, middle[pair[0]] / middle[pair[1]], wanted, rounds=rounds)


def medians(found: dict[str, list[float]]) -> dict[str, float]:
    return {name: statistics.median(values) for name, values in found.items() if isinstance(values, list)}


def pretraining(bench: Bench, base: dict[str, Any], folder: str, wanted: tuple[float, float]) -> dict[str, Any]:
    """Images a second from files to weights, and peak memory, of byol and every peer, as shipped and tuned."""
    others = peers.environment(["lightly", "byol-pytorch", "solo-learn"])
    names = [name for name in ("lightly", "byol-pytorch") if name in others.versions] + ["by hand"]

    def once(who: str, tuned: bool, workers: int, **fields: Any) -> dict[str, Any]:
        python = others.python if who in others.versions else sys.executable
        spec = base | {"who": who, "folder": folder, "tuned": tuned, "workers": workers} | fields
        found = bench.run(python, "contestants.py", spec)
        say(f"  {who:14} {'tuned' if tuned else 'as shipped':10} {found['images_per_second']:8.1f} images/s")
        return found

    def best_workers(who: str) -> int:
        if not base["small"]:
            return 2  # loading is a hundredth of the time
        rates = {n: once(who, True, n, steps=4, warm=2)["images_per_second"] for n in (1, 2)}
        return max(rates, key=rates.__getitem__)

    workers = {(name, True): best_workers(name) for name in names} | {
        (name, False): SHIPPED_WORKERS[name] for name in names
    }
    rounds: dict[str, list[dict[str, Any]]] = {}
    for _ in range(bench.rounds):
        rounds.setdefault("byol", []).append(once("byol", True, 0))
        for (who, tuned), count in workers.items():
            rounds.setdefault(f"{who} {'tuned' if tuned else 'as shipped'}", []).append(once(who, tuned, count))
    figures = {
        name: {key: summary([each[key] for each in found]) for key in found[0]} for name, found in rounds.items()
    }
    rates = {name: each["images_per_second"]["values"] for name, each in figures.items()}
    memory = {name: each["peak_mb"]["median"] for name, each in figures.items()}
    as_shipped, when_tuned = ([name for name in rates if name.endswith(kind)] for kind in ("as shipped", "tuned"))
    size = (
        f"ResNet-{base['depth']}{'' if base['width'] == 1 else ' width 0.25'}, {base['size']} px, batch {base['batch']}"
    )
    goals = [
        own(f"pretraining from JPEG files, {size}: images/s", rates["byol"], "images/s"),
        against("… against the best peer as shipped", rates, as_shipped, wanted[0]),
        against("… against the best peer tuned", rates, when_tuned, wanted[1]),
    ]
    if not base["small"]:
        least = min(value for name, value in memory.items() if name != "byol")
        goals.append(goal("peak memory against the best peer", memory["byol"] / least, 0.8, least=False))
    first = figures["byol"]["first_step_seconds"]["median"]
    goals.append(goal("first step after the command, reading included", first, None, unit="s"))
    return {
        "figures": figures,
        "goals": goals,
        "workers": {str(k): v for k, v in workers.items()},
        "peers": peers.asked(others),
    }


def pretrain_32(bench: Bench) -> dict[str, Any]:
    return pretraining(bench, CIFAR, bench.cifar, (3.0, 1.7))


def pretrain_224(bench: Bench) -> dict[str, Any]:
    return pretraining(bench, PHOTOS, bench.photos, (2.5, 1.05))


def step(bench: Bench) -> dict[str, Any]:
    figures, goals = {}, []
    for batch in (64, 256):
        found = bench.inside("step", batch=batch, rounds=2 * bench.rounds + 1)
        middle = medians(found)
        figures[f"batch {batch}"] = {name: summary(v) for name, v in found.items() if isinstance(v, list)}
        name = f"step against its bare encoder passes, batch {batch}"
        goals.append(goal(name, middle["step"] / middle["bare"], 1.1 if batch == 256 else None, least=False))
    share = middle["bare_gflops"] / middle["peak_gflops"]
    goals.append(
        goal(f"bare passes, share of the matrix product's peak ({found['precision']})", 100 * share, None, unit="%")
    )
    return {"figures": figures, "goals": goals}


def update(bench: Bench) -> dict[str, Any]:
    found = bench.inside("share", batch=PHOTOS["batch"], rounds=2)
    middle = medians(found)
    part = 100 * middle["update"] / middle["step"]
    goals = [goal("LARS and moving average, share of a ResNet-50 step", part, 2.0, least=False, unit="%")]
    return {"figures": {name: summary(values) for name, values in found.items()}, "goals": goals}


def views(bench: Bench, size: int, folder: str) -> dict[str, Any]:
    """Two views an image, on one core."""
    others = peers.environment(["kornia", "albumentations"])
    names = ["byol", "torchvision v2", "PIL", *others.versions]
    rounds: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(bench.rounds):
        for name in names:
            python = others.python if name in others.versions else sys.executable
            spec = {"who": name, "folder": folder, "size": size, "decode": size > 32, "seconds": 3}
            rate = bench.run(python, "view_makers.py", spec, OMP_NUM_THREADS="1")["images_per_second"]
            rounds[name].append(rate)
            say(f"  {name:16} {rate:8.0f} images/s")
    goals = [own(f"two views at {size} px on one core: images/s", rounds["byol"], "images/s")]
    if size == 32:
        goals.append(against("… against the fastest other", rounds, names[1:], 5.0))
    else:
        exact = [name for name in names if name in EXACT]
        goals.append(against("… decoding included, against the fastest with the same maths", rounds, exact, 2.0))
        if "albumentations" in rounds:
            goals.append(against("… against albumentations, which approximates", rounds, ["albumentations"], 1.0))
    return {"figures": {n: summary(v) for n, v in rounds.items()}, "goals": goals, "peers": peers.asked(others)}


def views_32(bench: Bench) -> dict[str, Any]:
    return views(bench, 32, bench.cifar)


def views_224(bench: Bench) -> dict[str, Any]:
    return views(bench, 224, bench.photos)


def features(bench: Bench) -> dict[str, Any]:
    found = bench.inside("features", folder=bench.cifar, images=4096, rounds=bench.rounds)
    seconds = {name: values for name, values in found.items() if isinstance(values, list)}
    plain = [name for name in seconds if name != "byol"]
    goals = [
        own("features of JPEG files, 32 px: images/s", [found["images"] / s for s in seconds["byol"]], "images/s"),
        against("… against a plain loop with a tuned DataLoader", seconds, plain, 1.3, less=True),
    ]
    return {"figures": {name: summary(values) for name, values in seconds.items()}, "goals": goals}


def knn(bench: Bench) -> dict[str, Any]:
    found = bench.inside("neighbours", bank=50_000, queries=10_000, width=512, k=200, rounds=bench.rounds)
    goals = [
        own("kNN, 10,000 against 50,000 × 512", found["byol"], "s"),
        against("… against faiss, exact", found, ["faiss"], 1.0, less=True),
        against("… against scikit-learn", found, ["scikit-learn"], None, less=True),
    ]
    return {"figures": {name: summary(values) for name, values in found.items()}, "goals": goals}


def logistic(bench: Bench) -> dict[str, Any]:
    found = bench.inside("logistic", rows=10_000, width=2048, classes=100, sample=SKLEARN_FITS)
    ratio = found["scikit-learn"][0] / found["byol"][0]
    goals = [
        goal("logistic regression, 45 penalties, 10,000 × 2,048, 100 classes", found["byol"][0], None, unit="s"),
        goal("… against scikit-learn", ratio, 10.0),
    ]
    return {"figures": found, "goals": goals}


def startup(bench: Bench) -> dict[str, Any]:
    """Seconds by the clock, the median of several starts."""
    python = sys.executable
    commands = {
        "byol --help": [python, "-m", "byol", "--help"],
        "import byol": [python, "-c", "import byol; byol.pretrain"],
        "import torch": [python, "-c", "import torch"],
    }
    rounds: dict[str, list[float]] = {name: [] for name in commands}
    for number in range(2 * bench.rounds + 2):
        for name, command in commands.items():
            began = time.perf_counter()
            subprocess.run(command, check=True, capture_output=True, cwd=HERE.parent)
            if number:
                rounds[name].append(time.perf_counter() - began)
    middle = medians(rounds)
    goals = [
        goal("start-up: byol --help", middle["byol --help"], 0.3, least=False, unit="s"),
        goal("import byol, beyond torch", middle["import byol"] - middle["import torch"], 1.5, least=False, unit="s"),
    ]
    return {"figures": {name: summary(values) for name, values in rounds.items()}, "goals": goals}


def slopes(bench: Bench) -> dict[str, Any]:
    """The power of the time's growth between the first and the last size: 1 is linear."""
    found = bench.inside("slopes", rounds=bench.rounds)
    goals = []
    for name, points in found.items():
        (low, fast), (high, slow) = points[0], points[-1]
        power = math.log(slow / fast) / math.log(high / low)
        goals.append(goal(f"growth of time with {name}, power", power, 1.05, least=False, unit=""))
    rates = {
        name: max(
            scaling.start(scaling.VARIANTS[name] | {"batch": 128, "steps": 6})["images_per_second"] for _ in range(2)
        )
        for name in ("1 process", "2 processes apart", "2 processes")
    }
    goals.append(goal("a second process", rates["2 processes"] / rates["1 process"], None))
    return {"figures": found | rates, "goals": goals}


ENTRIES: dict[str, Callable[[Bench], dict[str, Any]]] = {
    "pretrain-32": pretrain_32,
    "pretrain-224": pretrain_224,
    "step": step,
    "update": update,
    "views-32": views_32,
    "views-224": views_224,
    "features": features,
    "knn": knn,
    "logistic": logistic,
    "startup": startup,
    "slopes": slopes,
}


def busy(seconds: float = 4.0) -> float:
    """Share of the cores that somebody else uses while this process sleeps."""

    def ticks() -> tuple[int, int]:
        values = [int(v) for v in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
        return sum(values), values[3] + values[4]

    if not Path("/proc/stat").exists():
        return os.getloadavg()[0] / (os.cpu_count() or 1)
    total, idle = ticks()
    time.sleep(seconds)
    after, still = ticks()
    return 1 - (still - idle) / max(after - total, 1)


def drawn(folder: Path, count: int, size: int) -> str:
    """Scenes as JPEG files, where no images are given."""
    if not folder.exists():
        from PIL import Image

        folder.mkdir(parents=True)
        source = data.open_source(f"scenes:{count}", Data())
        for index in range(count):
            image = Image.fromarray(source.read(index).permute(1, 2, 0).numpy())
            image.resize((size, size)).save(folder / f"{index:05}.jpg", quality=90)
    return str(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("entries", nargs="*", choices=[*ENTRIES, []], help="all of them if none is named")
    parser.add_argument("--cifar", default="", help="JPEG files of 32 px")
    parser.add_argument("--photos", default="", help="photographs")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--work", type=Path, default=Path("runs/speed"))
    parser.add_argument("--results", type=Path, default=HERE.parent / "results")
    arguments = parser.parse_args()
    bench = Bench(
        arguments.cifar or drawn(arguments.work / "small", 5000, 32),
        arguments.photos or drawn(arguments.work / "photos", 250, 400),
        arguments.rounds,
    )
    for name in arguments.entries or ENTRIES:
        others, began = busy(), time.perf_counter()
        say(f"{name}{' (the machine is busy: these figures will not be rendered)' if others > BUSY else ''}")
        found = ENTRIES[name](bench)
        for each in found["goals"]:
            wanted = "" if each["goal"] is None else f"  (goal {'≥' if each['least'] else '≤'} {each['goal']:g})"
            say(f"  {each['figure']:10.3g} {each['unit']:8} {each['what']}{wanted}")
        about = {
            "entry": name,
            "command": f"python benchmarks/speed.py {name}",
            "rounds": bench.rounds,
            "minutes": round((time.perf_counter() - began) / 60, 2),
            "busy": round(others, 3),
            "idle": others <= BUSY,
            "data": {"cifar": Path(bench.cifar).name, "photos": Path(bench.photos).name},
            "threads": torch.get_num_threads(),
            "versions": versions(),
            "commit": commit(),
        }
        write_json(arguments.results / f"speed-{name}.json", about | found)


if __name__ == "__main__":
    main()
