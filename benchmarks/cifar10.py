"""CIFAR-10 on this machine: pretrain for some epochs, then kNN and linear accuracy beside the random encoder's.

    python benchmarks/cifar10.py FOLDER --epochs 5 --seeds 0 1 2 --name cifar10-10min

FOLDER holds train/<class>/ and test/<class>/. One file results/NAME-seedS.json a seed; weights stay in runs/.
--larger 24 also scores the encoder where it looks at images of 24 px.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from byol import data
from byol.config import flatten
from byol.data.parts import Task
from byol.evals import knn, transfer
from byol.evals.encoder import Encoder, open_encoder, random_encoder
from byol.evals.protocol import Session
from byol.evals.spec import Knn, Transfer
from byol.pretraining import pretrain
from byol.run.files import read_json, write_json
from byol.run.record import encode, read_run


def scores(encoder: Encoder, task: Task, cache: Path) -> dict[str, Any]:
    session = Session(cache=cache)
    linear = transfer.evaluate(encoder, task.again(), Transfer(), session)
    neighbours = knn.evaluate(encoder, task.again(), Knn(k=200, temperature=0.1), session)
    return {"linear": linear.test["top1"], "linear_penalty": linear.chosen["penalty"], "knn": neighbours.test["top1"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--epochs", type=float, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--name", required=True)
    parser.add_argument("--larger", type=int, metavar="PX")
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
        record = read_run(run.out)
        minutes = sum(session.seconds for session in record.sessions) / 60
        encoder, cache = open_encoder(run.out), run.out / "features"
        task = data.open_task(arguments.folder, run.config.data)
        larger = {}
        if arguments.larger:
            looking = open_encoder(run.out, {"data.resolution": arguments.larger})
            larger = {"byol_larger": {"px": arguments.larger, **scores(looking, task, cache)}}
        write_json(
            Path("results") / f"{name}.json",
            {
                "what": "accuracy on the test images of cifar10-jpeg: knn (k=200, T=0.1) and transfer-linear",
                "byol": scores(encoder, task, cache),
                **larger,
                "random": scores(random_encoder(encoder, seed), task, cache),
                "pretraining_minutes": round(minutes, 2),
                "images_per_second": round(run.plan.steps * run.plan.batch / minutes / 60, 1),
                "seed": seed,
                "verdict": run.verdict.sentence,
                "commit": record.commit,
                "machine": encode(record.machine),
                "versions": record.versions,
                "config": flatten(run.config),
            },
        )
        print(read_json(Path("results") / f"{name}.json")["byol"])


if __name__ == "__main__":
    main()
