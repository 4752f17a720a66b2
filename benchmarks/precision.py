"""Whether the default precision learns as float32 does: the same cpu-scale run in both, over seeds.

    python benchmarks/precision.py FOLDER --seeds 3

FOLDER holds train/<class>/ and test/<class>/. The runs are cells of `byol table target-decay` (the paper's τ of 0.99):
what is finished is not repeated. Writes results/precision.json with the linear accuracy on the test images and the
monitor's kNN over the run, each with its range over the seeds; `benchmarks/render.py` puts it into docs/speed.md.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from byol.run.files import write_json
from byol.run.machine import versions
from byol.run.record import commit
from byol.tables.record import read_table

ROW = "τ 0.99"
KINDS = {"default": [], "float32": ["--run.precision", "float32"]}


def summary(values: list[float]) -> dict[str, float]:
    return {"mean": statistics.mean(values), "low": min(values), "high": max(values)}


def curves(folder: str, out: Path, seeds: int, jobs: str, flags: list[str]) -> dict[str, Any]:
    command = [sys.executable, "-m", "byol", "table", "target-decay", "--scale", "cpu", "--data", folder]
    own = ["--out", str(out), "--seeds", str(seeds), "--rows", ROW, "--jobs", jobs, *flags]
    subprocess.run([*command, *own], check=True)
    (row,) = (row for row in read_table(out / "target-decay-cpu.json").rows if ROW in row.label)
    cells = row.cells
    looks = [
        {"step": at[0]["step"], "knn": summary([each["knn"] for each in at])}
        for at in zip(*(cell.looks for cell in cells), strict=True)
    ]
    return {
        "linear": summary([cell.figures["Top-1"] for cell in cells]),
        "looks": looks,
        "seconds": [cell.seconds for cell in cells],
        "cells": [cell.key for cell in cells],
        "overrides": cells[0].overrides,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", default="local:2")
    parser.add_argument("--out", type=Path, default=Path("runs/precision"))
    arguments = parser.parse_args()
    found = {
        kind: curves(arguments.folder, arguments.out / kind, arguments.seeds, arguments.jobs, flags)
        for kind, flags in KINDS.items()
    }
    both = zip(found["default"]["looks"], found["float32"]["looks"], strict=True)
    inside = [one["knn"]["low"] <= two["knn"]["high"] and two["knn"]["low"] <= one["knn"]["high"] for one, two in both]
    record = {
        "what": "linear accuracy on test images in percent, and the monitor's kNN on held-out images over the run",
        "seeds": arguments.seeds,
        "overlapping_looks": sum(inside),
        "all_looks": len(inside),
        "commit": commit(),
        "versions": versions(),
    }
    write_json(Path(__file__).resolve().parents[1] / "results" / "precision.json", record | found)
    print({kind: each["linear"] for kind, each in found.items()}, f"{sum(inside)} of {len(inside)} looks overlap")


if __name__ == "__main__":
    main()
