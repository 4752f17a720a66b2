"""The dense protocols on real images: BYOL's encoder beside a random and a supervised one of the same size.

    python benchmarks/dense.py BYOL SUPERVISED --camvid DIR --bccd DIR --kitchen DIR --minutes 10

BYOL and SUPERVISED are runs or encoder files; the random encoder is BYOL's network before training. Every cell, an
encoder on a data set, has the same steps; --minutes is an upper limit. One file results/dense-DATA.json a data set.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from byol.config import apply
from byol.evals.evaluation import evaluate
from byol.evals.spec import Specs
from byol.run.files import write_json
from byol.run.record import encode

PROTOCOL = {"camvid": "segmentation", "bccd": "detection", "kitchen": "depth"}
# Sized for encoders of a few hundred thousand weights: under ten minutes a cell on one idle CPU core.
SETTINGS: dict[str, dict[str, Any]] = {
    "camvid": {
        "segmentation.steps": 600,
        "segmentation.batch": 8,
        "segmentation.lrs": (0.01, 0.05),
        "segmentation.shrink": 0.5,
        "segmentation.crop": 128,
        "segmentation.channels": 64,
    },
    "bccd": {
        "detection.steps": 600,
        "detection.batch": 2,
        "detection.lrs": (0.001, 0.005),
        "detection.longest": (160, 224),
        "detection.test_longest": 192,
        "detection.proposals": (200, 100),
        "detection.rois": 64,
        "detection.roi_size": 7,
    },
    "kitchen": {
        "depth.steps": 300,
        "depth.batch": 16,
        "depth.lrs": (0.16, 0.64),
        "depth.shrink": 0.25,
        "depth.crop": (152, 114),
        "depth.filters": (128, 64, 32, 16),
    },
}
KEPT = ("protocol", "data", "spec", "commit", "machine", "versions", "created")


def compared(name: str, on: str, encoders: dict[str, str], seconds: float, seeds: int, work: Path) -> dict[str, Any]:
    """The protocol of the data set on every encoder, as one record."""
    protocol = PROTOCOL[name]
    records = {
        who: evaluate(
            path,
            on,
            [protocol],
            specs=apply(Specs(), SETTINGS[name], "benchmark"),
            seeds=range(seeds),
            seconds=seconds,
            out=work / f"{name}-{who}",
            compare=False,
        )[protocol]
        for who, path in encoders.items()
    }
    first = next(iter(records.values()))
    return {
        **{key: encode(getattr(first, key)) for key in KEPT},
        "seconds_a_cell": seconds,
        "seeds": list(range(seeds)),
        "encoders": {
            who: {key: encode(getattr(record, key)) for key in ("test", "encoder", "runs")}
            for who, record in records.items()
        },
        "minutes": round(sum(run.seconds for record in records.values() for run in record.runs) / 60, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("byol")
    parser.add_argument("supervised")
    for name, protocol in PROTOCOL.items():
        parser.add_argument(f"--{name}", help=f"its folder, for {protocol}; left out when not given")
    parser.add_argument("--minutes", type=float, default=10.0, help="for a cell")
    parser.add_argument("--seeds", type=int, default=1, help="for a cell, within its minutes")
    parser.add_argument("--work", type=Path, default=Path("runs/dense"))
    parser.add_argument("--results", type=Path, default=Path("results"))
    arguments = parser.parse_args()
    encoders = {
        "byol": arguments.byol,
        "random": f"random:{arguments.byol}",
        "supervised": arguments.supervised,
    }
    for name in PROTOCOL:
        on = getattr(arguments, name)
        if on:
            seconds = 60 * arguments.minutes
            record = compared(name, on, encoders, seconds, arguments.seeds, arguments.work)
            write_json(arguments.results / f"dense-{name}.json", record)


if __name__ == "__main__":
    main()
