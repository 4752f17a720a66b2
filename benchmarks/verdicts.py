"""How often the monitor's verdict is right: healthy runs and runs made to fail, judged by their looks, and by labels.

    python benchmarks/verdicts.py --cifar10 FOLDER --imagenette FOLDER --flowers FOLDER

CIFAR-10's folder holds train/<class>/ and test/<class>/; a part of it is copied. Every run is short (16 px, a few
hundred steps, less than a minute of one core), and what is finished, also in the committed record, is not repeated.
Writes results/verdicts.json with all looks, words, hits, misses and false alarms, which `benchmarks/render.py` puts
into docs/learning.md.

Labels are the truth: an encoder is better than the untrained network when the accuracy of a linear classifier or of
nearest neighbours is two points above the untrained network's and neither is two points below; it is worse when both
are two points below, and level otherwise. Of the false alarms, those are also counted that are runs made to collapse,
in which a linear classifier finds two points more nevertheless. Committed cells are those of the tables, of which the
linear accuracy is known alone, and the runs of benchmarks/fast.py and auto.py that kept their looks. Thresholds were
chosen on two thirds of the cells that there were then; the rest were held out.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from fast import FADING, PLAIN
from PIL import Image

from byol import data
from byol.errors import Diverged
from byol.evals import knn, transfer
from byol.evals.encoder import Encoder, open_encoder, random_encoder
from byol.evals.protocol import Session
from byol.evals.spec import Knn, Transfer
from byol.pretraining import pretrain
from byol.run.files import read_json, read_metrics, write_json
from byol.run.machine import versions
from byol.run.record import commit
from byol.run.verdict import measured
from byol.tables.record import read_table

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / "results" / "verdicts.json"
WHAT = "the monitor's verdict on every run, beside what labels say of its encoder and of the untrained network"
POINTS = 0.02  # of accuracy, that tell better and worse from level
HELD_OUT_FROM = 2  # the seed
ALARMS = ("worse", "collapsing", "collapsed data")
Settings = dict[str, Any]
BASE: Settings = {
    **PLAIN,
    "data.resolution": 16,
    "network.width": 0.25,
    "network.projector_hidden": 512,
    "network.predictor_hidden": 512,
    "network.projection": 128,
    "optim.batch": 64,
    "optim.probe": False,
    "run.precision": "float32",
    "run.threads": 1,
}
EPOCHS = {"cifar10": 4.0, "imagenette": 10.0, "flowers": 4.0, "same": 10.0}  # some 250 steps each

COLLAPSED = (  # made to collapse, here and in the tables
    *("no predictor, tau 0", "no predictor", "lambda 0", "rate 30 times", "all equal"),
    *("predictor, β 0", "target, β 0", "β 0", "λ 0"),
)
SETS = ("cifar10", "imagenette", "flowers")
ROUNDS = 5  # seeds, each with another data set for a kind of run
SIMCLR: Settings = {"network.predictor": "none", "network.target": "online", "objective.name": "info-nce"}
TAU_0: Settings = {"network.target": "stop-gradient"}
STRONG = {
    f"views.{each}.{name}": value
    for each in ("t", "t_prime")
    for name, value in {
        **{"area_min": 0.001, "area_max": 0.01, "jitter": 1.0, "brightness": 1.0, "contrast": 1.0},
        **{"saturation": 1.0, "hue": 0.5, "grayscale": 0.5, "solarize": 0.5},
    }.items()
}
FADE: Settings = FADING | {"network.zero_init_last": False, "optim.tau": 0.97}
CROP_ONLY = {f"views.{each}.{name}": 0.0 for each in ("t", "t_prime") for name in ("jitter", "grayscale", "solarize")}


@dataclass(frozen=True)
class Cell:
    name: str
    data: str
    seed: int = 0
    settings: Settings = field(default_factory=dict)

    @property
    def key(self) -> str:
        return f"{self.name} {self.data} {self.seed}".replace(" ", "-").replace(",", "")


def cells() -> Iterator[Cell]:
    """Failing and healthy ones in turn, so that a part of them is worth looking at."""
    failing: dict[str, Settings] = {
        "no predictor, tau 0": {"network.predictor": "none"} | TAU_0,
        "no predictor": {"network.predictor": "none"},
        "lambda 0": {"optim.predictor_lr": 0.0} | TAU_0,
        "rate 30 times": {"optim.lr": 12.0},
        "rate of auto": {"optim.lr": 2.0, "optim.trust_coefficient": 0.001, "optim.predictor_lr": 1.0},
        "no normalization": {"objective.normalization": "none"},
        "too strong views": STRONG,
        "all equal": {},
    }
    nce: Settings = {"objective.name": "info-nce"}
    healthy: dict[str, Settings] = {
        "simclr": SIMCLR,
        "predictor, target, beta 1": nce,
        "target, beta 1": nce | {"network.predictor": "none"},
        "simclr, crop only": SIMCLR | CROP_ONLY,
        "simclr, batch 32": SIMCLR | {"optim.batch": 32},
        "byol": {},
        "predictor, beta 1": nce | {"network.target": "online"},
        "simclr, batch 128": SIMCLR | {"optim.batch": 128},
        "simclr, rate 2 times": SIMCLR | {"optim.lr": 0.8},
        "tau 0, predictor": TAU_0,
        "negatives that fade": FADE,
        "negatives that fade, crop only": FADE | CROP_ONLY,
        "negatives that fade, half the rate": FADE | {"optim.lr": 0.002},
    }
    for number, (name, settings) in enumerate(failing.items()):
        yield Cell(name, "same" if name == "all equal" else SETS[number % 3], 0, settings)
    for seed in range(1, ROUNDS):
        for number, (name, settings) in enumerate(healthy.items()):
            yield Cell(name, SETS[(number + seed) % 3], seed, settings)
            if number % 2:
                name, settings = list(failing.items())[(number // 2 + 5 * (seed - 1)) % (len(failing) - 1)]
                yield Cell(name, SETS[(number // 2 + seed) % 3], seed, settings)


def prepared(work: Path, cifar10: Path) -> dict[str, Path]:
    """A part of CIFAR-10, and images that are all the same."""
    part, same = work / "cifar10-part", work / "same"
    for split, count in (("train", 400), ("test", 200)):
        for kind in sorted((cifar10 / split).iterdir()):
            to = part / split / kind.name
            if not to.exists():
                to.mkdir(parents=True)
                for file in sorted(kind.iterdir())[:count]:
                    shutil.copy(file, to / file.name)
    if not same.exists():
        image = Image.open(next((part / "train").rglob("*.*")))
        for number in range(1000):
            to = same / f"class{number % 4}" / f"{number}.png"
            to.parent.mkdir(parents=True, exist_ok=True)
            image.save(to)
    return {"cifar10": part, "same": same}


def scores(encoder: Encoder, folder: Path) -> dict[str, float]:
    task, session = data.open_task(str(folder), encoder.config.data), Session()
    linear = transfer.evaluate(encoder, task.again(), Transfer(penalties=(1e-2, 1.0), max_iterations=100), session)
    near = knn.evaluate(encoder, task.again(), Knn(), session)
    return {"linear": round(linear.test["top1"], 4), "knn": round(near.test["top1"], 4)}


def untrained(encoder: Encoder, cell: Cell, folder: Path, work: Path) -> dict[str, float]:
    """The scores of the same network before training, which cells of a data set and seed share."""
    path = work / "untrained" / f"{cell.data}-{cell.seed}-{encoder.resolution}.json"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, scores(random_encoder(encoder, cell.seed), folder))
    found: dict[str, float] = read_json(path)
    return found


def computed(cell: Cell, folder: Path, work: Path) -> dict[str, Any]:
    """The looks of a cell's run, and what labels say of its encoder before and after."""
    out, began = work / "runs" / cell.key, time.process_time()
    settings = BASE | {"optim.epochs": EPOCHS[cell.data], "run.seed": cell.seed} | cell.settings
    status = "finished"
    try:
        pretrain(folder, out, "cifar10-cpu", settings)
    except Diverged:
        status = "diverged"
    trained = open_encoder(out)
    if cell.data == "same":
        truth: dict[str, Any] = {}
    else:
        truth = {"trained": scores(trained, folder), "untrained": untrained(trained, cell, folder, work)}
    looks = [line for line in read_metrics(out / "metrics.jsonl") if "spread" in line]
    took = round(time.process_time() - began, 1)
    return {
        "name": cell.name,
        "data": cell.data,
        "seed": cell.seed,
        "status": status,
        **truth,
        "seconds": took,
        "settings": settings,
        "looks": looks,
    }


def recorded() -> dict[str, dict[str, Any]]:
    """The cells of the committed record, without what was made of them."""
    before = read_json(RECORD)["cells"] if RECORD.exists() else []
    kept = ("name", "data", "seed", "status", "trained", "untrained", "seconds", "settings", "looks")
    fresh = [cell for cell in before if cell["status"] != "committed"]
    return {Cell(c["name"], c["data"], c["seed"]).key: {k: c[k] for k in kept if k in c} for c in fresh}


def truth(cell: dict[str, Any]) -> str:
    """What labels say: better, level or worse than the untrained network; nothing can be learned of equal images."""
    if cell["data"] == "same":
        return "worse"
    changes = [cell["trained"][name] - cell["untrained"][name] for name in cell["trained"]]
    if max(changes) <= -POINTS:
        return "worse"
    return "better" if max(changes) >= POINTS and min(changes) > -POINTS else "level"


def committed() -> Iterator[dict[str, Any]]:
    """Every trained cell of the committed tables, once, and every run of the other benchmarks that kept its looks."""
    yield from of_tables()
    runs = read_json(ROOT / "results" / "fast-recipes.json")
    for path in sorted((ROOT / "results").glob("auto-*-seed*.json")):
        about = read_json(path)
        name, data = path.stem.rsplit("-seed", 1)[0], about["what"].split(" of ")[1].split(":")[0]
        runs.append({"recipe": name, "data": data, "trained": about["byol"], **about})
    for run in runs:
        shares = [look["knn"] for look in run["looks"] if "knn" in look]
        images = counted(shares, 4)
        yield {
            **{"name": run["recipe"], "data": run["data"], "seed": run["seed"], "status": "committed"},
            "key": f"{run['recipe']} {run['data']} {run['seed']} {run['steps']}",
            **{which: run[which] for which in ("trained", "untrained")},
            "looks": [{"images": images, **look} for look in run["looks"]],
        }


def of_tables() -> Iterator[dict[str, Any]]:
    seen = set()
    for path in sorted((ROOT / "results" / "tables").glob("*.json")):
        rows = [row for row in read_table(path).rows if not row.repeats]
        random = {cell.seed: cell.figures["Top-1"] for row in rows for cell in row.cells if not cell.looks}
        for label, cell in ((row.label, cell) for row in rows for cell in row.cells):
            if not cell.looks or cell.key in seen:
                continue
            seen.add(cell.key)
            images = counted([look["knn"] for look in cell.looks], 6)
            yield {
                **{"name": label, "data": path.stem, "seed": cell.seed, "key": cell.key, "status": "committed"},
                "trained": {"linear": round(cell.figures["Top-1"] / 100, 4)},
                "untrained": {"linear": round(random[cell.seed] / 100, 4)},
                "looks": [{"images": images, **look} for look in cell.looks],
            }


def counted(shares: list[float], digits: int) -> int:
    """The number of images that shares are of, which were rounded to so many digits."""
    off = 0.51 * 10**-digits
    return next(n for n in range(64, 2000) if all(abs(share * n - round(share * n)) < n * off for share in shares))


def held_out(cell: dict[str, Any]) -> bool:
    """A third: the last seeds of the new cells, and of the committed ones those that their key's digest names."""
    if cell["status"] == "committed":
        return int(hashlib.sha256(cell["key"].encode()).hexdigest(), 16) % 3 == 0
    return bool(cell["seed"] >= HELD_OUT_FROM)


def judged(cell: dict[str, Any]) -> dict[str, Any]:
    """A cell with the verdict's word, and with its word where nobody has labels."""
    unlabelled = [{name: value for name, value in look.items() if name != "knn"} for look in cell["looks"]]
    words = {"word": measured(cell["looks"]).word, "word_without_labels": measured(unlabelled).word}
    end = {"spread": cell["looks"][-1]["spread"], "held_out": held_out(cell)}
    return {**cell, "truth": truth(cell), **words, **end}


def counts(cells: list[dict[str, Any]], word: str) -> dict[str, int]:
    """Collapsed and worse cells that were found out, and healthy ones that raised an alarm."""
    worse, better = ([cell for cell in cells if cell["truth"] == truth] for truth in ("worse", "better"))
    collapsed = [cell for cell in worse if cell["name"] in COLLAPSED]
    return {
        "collapsed": len(collapsed),
        "collapsed_missed": sum(cell[word] in ("learning", "too early") for cell in collapsed),
        "worse": len(worse),
        "worse_missed": sum(cell[word] in ("learning", "too early") for cell in worse),
        "better": len(better),
        "false_alarms": sum(cell[word] in ALARMS for cell in better),
        "made_to_collapse": sum(cell[word] in ALARMS for cell in better if cell["name"] in COLLAPSED),
        "better_called_learning": sum(cell[word] == "learning" for cell in better),
        "level": len(cells) - len(worse) - len(better),
    }


def summary(found: list[dict[str, Any]]) -> dict[str, Any]:
    new, old = ([cell for cell in found if (cell["status"] == "committed") == known] for known in (False, True))
    groups = {"new cells": new, "committed cells": old, "all": found}
    parts = {"tuned on": False, "held out": True}
    return {
        name: {
            "all": counts(cells, word),
            **{part: counts([c for c in cells if c["held_out"] == held], word) for part, held in parts.items()},
        }
        for name, cells, word in (
            *((f"{group}", cells, "word") for group, cells in groups.items()),
            ("new cells, without labels", new, "word_without_labels"),
        )
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in SETS:
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--work", type=Path, default=Path("runs/verdicts"))
    parser.add_argument("--minutes", type=float, default=25)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    folders = prepared(arguments.work, arguments.cifar10)
    folders |= {"imagenette": arguments.imagenette, "flowers": arguments.flowers}
    found, known = [], recorded()
    for cell in cells():
        path = arguments.work / "cells" / f"{cell.key}.json"
        if cell.key in known and not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, known[cell.key])
        if not path.exists() and time.process_time() < arguments.minutes * 60:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, computed(cell, folders[cell.data], arguments.work))
        if path.exists():
            found.append(judged(read_json(path)))
            told = {name: found[-1].get(name) for name in ("untrained", "trained", "truth", "word")}
            print(cell.key, told, flush=True)
    found += [judged(cell) for cell in committed()]
    for cell in found:
        if cell["status"] == "committed":
            del cell["looks"]  # which the tables hold
    record = {"what": WHAT, "counts": summary(found), "commit": commit(), "versions": versions(), "cells": found}
    write_json(RECORD, record)
    print(record["counts"]["all"])


if __name__ == "__main__":
    main()
