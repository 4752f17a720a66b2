"""The classification protocols on real images: BYOL's encoder beside a random and a supervised one of the same size.

    python benchmarks/evaluations.py RUN CIFAR FLOWERS --minutes 35

RUN was pretrained on CIFAR (train/<class>/, test/<class>/); FLOWERS holds class folders without given parts. One file
results/evaluation-DATA-PROTOCOL.json a comparison, with three seeds of the evaluation on each encoder.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from byol.evals.evaluation import evaluate
from byol.evals.spec import Finetune, Knn, Linear, SemiSupervised, Specs, Supervised
from byol.run.files import write_json
from byol.run.record import encode

SEEDS = (0, 1, 2)
SPECS = Specs(
    knn=Knn(k=200, temperature=0.1),
    linear=Linear(epochs=20, batch=128),  # of 3,107 images the protocol's batch of 1024 would make three steps an epoch
    semi_supervised=SemiSupervised(fractions=(0.01, 0.1)),
    # Of the protocol's sweep three rates without decay, and the same few steps for every encoder.
    finetune=Finetune(steps=200, batch=128, lrs=(0.1, 0.01, 10**-1.5), weight_decays=(0.0,)),
    supervised=Supervised(epochs=6, warmup_epochs=1, augment_ops=1),
)
ALL = ("byol", "random", "supervised")
# data, protocol, encoders, share of the time; 0: what it takes. Semi-supervised trains from scratch by itself.
COMPARISONS = [
    ("cifar", "knn", ALL, 0.0),
    ("cifar", "transfer-linear", ALL, 0.0),
    ("flowers", "knn", ALL, 0.0),
    ("flowers", "transfer-linear", ALL, 0.0),
    ("flowers", "semi-supervised", ("byol",), 0.4),
    ("flowers", "linear", ALL, 0.0),
    ("flowers", "finetune", ALL, 0.0),
]
KEPT = ("data", "spec", "commit", "machine", "versions")


def compared(encoders: dict[str, str], on: str, protocol: str, seconds: float, work: Path) -> dict[str, Any]:
    """protocol on every encoder, as one record."""
    records = {
        name: evaluate(
            path,
            on,
            [protocol],
            specs=SPECS,
            seeds=SEEDS,
            seconds=seconds / len(encoders) if seconds else float("inf"),
            out=work / f"{Path(on).name}-{name}",
            cache=work / "features",
            compare=False,
        )[protocol]
        for name, path in encoders.items()
    }
    first = next(iter(records.values()))
    return {
        "protocol": protocol,
        **{key: encode(getattr(first, key)) for key in KEPT},
        "encoders": {
            name: {key: encode(getattr(record, key)) for key in ("test", "encoder", "runs")}
            for name, record in records.items()
        },
        "minutes": round(sum(run.seconds for record in records.values() for run in record.runs) / 60, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("cifar")
    parser.add_argument("flowers")
    parser.add_argument("--minutes", type=float, default=35.0, help="for all comparisons together")
    parser.add_argument("--only", nargs="*", help="protocols, instead of all")
    parser.add_argument("--work", type=Path, default=Path("runs/evaluations"))
    arguments = parser.parse_args()
    folders = {"cifar": arguments.cifar, "flowers": arguments.flowers}
    baseline = arguments.work / "supervised"
    if not (baseline / "supervised" / "encoder.safetensors").exists():
        found = evaluate(arguments.run, arguments.cifar, ["supervised"], specs=SPECS, out=baseline, compare=False)[
            "supervised"
        ]
        write_json(Path("results/evaluation-cifar-supervised.json"), encode(found))
    paths = {
        "byol": arguments.run,
        "random": f"random:{arguments.run}",
        "supervised": str(baseline / "supervised"),
    }
    for data, protocol, names, share in COMPARISONS:
        if protocol not in (arguments.only or protocol):
            continue
        seconds = share * arguments.minutes * 60
        record = compared({n: paths[n] for n in names}, folders[data], protocol, seconds, arguments.work)
        write_json(Path("results") / f"evaluation-{data}-{protocol}.json", record)


if __name__ == "__main__":
    main()
