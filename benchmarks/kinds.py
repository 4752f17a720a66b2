"""Views by meaning against the views of photographs, on images that are none: CIFAR-10 turned into other kinds.

    python benchmarks/kinds.py --cifar FOLDER --work FOLDER --seeds 0 1 2

FOLDER of --cifar holds train/<class>/ and test/<class>/, of which 500 a class are taken each and turned into `grey`
(one channel of 16 bits, PNG) and `bands` (seven channels of 16 bits, .npy: a fixed random mixing of colours and their
gradients). BYOL that begins as SimCLR learns on them for the same steps with the views of photographs, whose colour
operations leave such images alone, and with those of a kind. Accuracy is that of nearest neighbours and of logistic
regression on the test images. What is finished is not repeated; results/kinds.json keeps every run.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fast import FAST, PLAIN
from PIL import Image

from byol import data, kinds
from byol.config import flatten
from byol.evals import knn, transfer
from byol.evals.encoder import Encoder, open_encoder, random_encoder
from byol.evals.protocol import Session
from byol.evals.spec import Knn, Transfer
from byol.presets import small_views
from byol.pretraining import pretrain
from byol.run.files import read_json, write_json
from byol.run.machine import versions
from byol.run.record import commit

RECORD = Path("results/kinds.json")
CHANNELS = {"grey": 1, "bands": 7}
TRIED = {"grey": ("", "grey"), "bands": ("", "bands", "satellite")}  # the kinds whose views are taken; "": photographs
TRAIN, TEST = 500, 500  # images of a class
BATCH, OBJECTIVE = 128, FAST["objective.name"]
SETTINGS: dict[str, Any] = {
    **PLAIN,
    **FAST,
    "data.resolution": 16,
    "optim.batch": BATCH,
    "optim.tau": 0.97,
    "optim.probe": False,
    "data.workers": 0,
    "run.threads": 1,
}


def written(cifar: Path, work: Path) -> None:
    """Both kinds of images, below WORK."""
    mixing = np.random.default_rng(0).normal(size=(7, 9))
    for split, count in (("train", TRAIN), ("test", TEST)):
        for label in sorted(path for path in (cifar / split).iterdir() if path.is_dir()):
            for file in sorted(label.iterdir())[:count]:
                colours = np.asarray(Image.open(file).convert("RGB"), np.float64) / 255
                name = f"{split}/{label.name}/{file.stem}"
                grey = (colours @ [0.299, 0.587, 0.114] * 65535).round().astype(np.uint16)
                place = work / "grey" / f"{name}.png"
                place.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(grey).save(place)
                slopes = np.concatenate(np.gradient(colours, axis=(0, 1)), 2)
                bands = np.concatenate([colours - 0.5, slopes], 2) @ mixing.T
                place = work / "bands" / f"{name}.npy"
                place.parent.mkdir(parents=True, exist_ok=True)
                np.save(place, (bands * 6000 + 32768).clip(0, 65535).round().astype(np.uint16).transpose(2, 0, 1))


def scores(encoder: Encoder, folder: Path) -> dict[str, float]:
    task, session = data.open_task(str(folder), encoder.config.data), Session()
    linear = transfer.evaluate(encoder, task.again(), Transfer(penalties=(1e-4, 1e-2, 1.0)), session)
    near = knn.evaluate(encoder, task.again(), Knn(), session)
    return {"linear": round(linear.test["top1"], 4), "knn": round(near.test["top1"], 4)}


def tried(name: str, kind: str, seed: int, steps: int, work: Path) -> dict[str, Any]:
    views, _ = kinds.views(kind, small_views(), CHANNELS[name])
    settings = {f"views.{field}": value for field, value in flatten(views).items() if field not in ("mean", "std")}
    epochs = {"optim.epochs": (steps + 0.5) * BATCH / (5000 * 0.98)}
    epochs["optim.warmup_epochs"] = epochs["optim.epochs"] / 20
    out = work / f"run-{name}-{kind or 'photo'}-{steps}-{seed}"
    run = pretrain(work / name / "train", out, "cifar10-cpu", SETTINGS | settings | epochs | {"run.seed": seed})
    encoder = open_encoder(out, {"data.workers": 0})
    return {
        **{"images": name, "views": kind or "photo", "seed": seed, "steps": run.plan.steps, "objective": OBJECTIVE},
        "test_images": 10 * TEST,
        "trained": scores(encoder, work / name),
        "untrained": scores(random_encoder(encoder, seed), work / name),
        "verdict": run.verdict.word,
        "commit": commit(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cifar", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--views", nargs="+", default=["", "grey", "bands"], help="kinds; empty: of photographs")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    if not (asked.work / "bands").exists():
        written(asked.cifar, asked.work)
    found = read_json(RECORD)["runs"] if RECORD.exists() else []
    done = {(run["images"], run["views"], run["seed"], run["steps"]) for run in found if run["objective"] == OBJECTIVE}
    for seed in asked.seeds:
        for name, each in TRIED.items():
            for kind in (kind for kind in each if kind in asked.views):
                if (name, kind or "photo", seed, asked.steps) not in done:
                    found.append(tried(name, kind, seed, asked.steps, asked.work))
                    what = "views by meaning against the views of photographs, on CIFAR-10 as other kinds of images"
                    write_json(RECORD, {"what": what, "settings": SETTINGS, "versions": versions(), "runs": found})
                    last = found[-1]
                    print(name, last["views"], seed, last["trained"], last["untrained"], last["verdict"], flush=True)


if __name__ == "__main__":
    main()
