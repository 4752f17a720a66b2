"""CIFAR-10 on this machine: pretrain for some epochs, then kNN and linear accuracy beside the random encoder's.

    python benchmarks/cifar10.py FOLDER --epochs 5 --seeds 0 1 2 --name cifar10-10min

FOLDER holds train/<class>/ and test/<class>/. One file results/NAME-seedS.json a seed; weights stay in runs/.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch

from byol import checkpoint, data, networks
from byol.config import flatten
from byol.evals import features, knn, probe
from byol.machine import choose
from byol.pretraining import pretrain
from byol.records import read_json, write_json


def scores(encoder: torch.nn.Module, folder: str, config: Any) -> dict[str, Any]:
    place = choose(config)
    train, test = (
        features.extract(encoder, data.open_source(folder, config.data, split), config, place, workers=2)
        for split in ("train", "test")
    )
    assert train.labels is not None
    assert test.labels is not None
    classes = len(train.classes)
    linear = probe.linear_probe(train.values, train.labels, test.values, test.labels, classes=classes)
    found = knn.classify(
        torch.from_numpy(train.values),
        torch.from_numpy(train.labels),
        torch.from_numpy(test.values),
        classes=classes,
        k=200,
        temperature=0.1,
    )
    return {
        "linear": linear.accuracy,
        "linear_penalty": linear.penalty,
        "linear_validation": {f"{p:g}": a for p, a in linear.validation.items()},
        "knn": float((found.numpy() == test.labels).mean()),
        "train_images": len(train.labels),
        "test_images": len(test.labels),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--epochs", type=float, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--name", required=True)
    parser.add_argument("--set", nargs="*", default=[], metavar="FIELD=VALUE")
    arguments = parser.parse_args()
    Path("results").mkdir(exist_ok=True)
    overrides = dict(item.split("=", 1) for item in arguments.set)
    for seed in arguments.seeds:
        name = f"{arguments.name}-seed{seed}"
        run = pretrain(
            arguments.folder,
            Path("runs") / name,
            "cifar10-cpu",
            {"run.seed": seed, "optim.epochs": arguments.epochs, **overrides},
        )
        record = read_json(run.out / "run.json")
        minutes = sum(session["seconds"] for session in record["sessions"]) / 60
        torch.manual_seed(seed)
        random = networks.encoder(run.config.network)
        write_json(
            Path("results") / f"{name}.json",
            {
                "what": "kNN (k=200, T=0.1) and linear accuracy on the test images of cifar10-jpeg",
                "byol": scores(checkpoint.load_encoder(run.out), arguments.folder, run.config),
                "random": scores(random, arguments.folder, run.config),
                "pretraining_minutes": round(minutes, 2),
                "images_per_second": round(run.plan.steps * run.plan.batch / minutes / 60, 1),
                "seed": seed,
                "verdict": run.verdict.sentence,
                "commit": record["commit"],
                "machine": record["machine"],
                "versions": record["versions"],
                "config": flatten(run.config),
            },
        )
        print(read_json(Path("results") / f"{name}.json")["byol"])


if __name__ == "__main__":
    main()
