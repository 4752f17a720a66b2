"""How often the monitor's verdict is right: healthy runs and runs made to fail, judged by their looks, and by labels.

    python benchmarks/verdicts.py --cifar10 FOLDER --imagenette FOLDER --flowers FOLDER

CIFAR-10's folder holds train/<class>/ and test/<class>/; a part of it is copied. Every run is short (16 px, a few
hundred steps, less than a minute of one core), and what is finished is not repeated.
"""

from __future__ import annotations

import argparse
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from byol import data
from byol.errors import Diverged
from byol.evals import knn, transfer
from byol.evals.encoder import Encoder, open_encoder, random_encoder
from byol.evals.protocol import Session
from byol.evals.spec import Knn, Transfer
from byol.pretraining import pretrain
from byol.run.files import read_json, read_metrics, write_json

Settings = dict[str, Any]
BASE: Settings = {
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
    for cell in cells():
        path = arguments.work / "cells" / f"{cell.key}.json"
        if not path.exists() and time.process_time() < arguments.minutes * 60:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, computed(cell, folders[cell.data], arguments.work))
            found = read_json(path)
            print(cell.key, found.get("untrained"), found.get("trained"), found["seconds"], flush=True)


if __name__ == "__main__":
    main()
