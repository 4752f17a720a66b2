"""Two views side by side, a thread each, against one after the other (`run.passes`): time of a step on an idle machine.

    python benchmarks/beside.py [--rounds 5]

The ways of a case take turns: one thread, all threads for one view after the other, and the views side by side. A
round's figure is the median of some steps, a way's figure its median round. Writes results/side-by-side.json.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from fast import QUARTER

from byol import method, optim, presets
from byol.algorithm import Pass, update
from byol.run import machine
from byol.run.files import read_json, write_json
from byol.run.machine import IN_TURN, SIDE_BY_SIDE, Machine
from byol.run.record import commit

STEPS = 6  # of a round, after one that warms up
CASES: tuple[dict[str, Any], ...] = (
    {"data.resolution": 16},
    {"data.resolution": 16, "network.width": 0.5},
    {"data.resolution": 32},
    {"data.resolution": 64, "network.small_images": False},
    {"data.resolution": 64, "network.small_images": False, "network.width": 0.5},
)


def ways() -> dict[str, Machine]:
    here = machine.choose(presets.cifar10_cpu())
    every = replace(here, threads=os.cpu_count() or 1, passes=IN_TURN)
    return {
        "one thread": replace(every, threads=1),
        "all threads": every,
        "side by side": replace(every, passes=SIDE_BY_SIDE),
    }


def milliseconds(case: dict[str, Any], place: Machine) -> float:
    config = presets.compose("cifar10-cpu", QUARTER | case, {})[0]
    machine.use(place)
    torch.manual_seed(0)
    made = method.build(config.network, 0, config.objective, config.data.resolution)
    model = made.to(**place.placement(config)).train()
    if place.passes == SIDE_BY_SIDE:
        method.pass_side_by_side(model, place.at_a_time)
    optimizer, size = optim.build(model, config.optim), config.data.resolution
    views = [place.images(torch.rand(config.optim.batch, 3, size, size), config) for _ in range(2)]
    seconds = []
    for _ in range(STEPS + 1):
        began = time.perf_counter()
        update(model, optimizer, [Pass(views[0], views[1], None)], lr=0.1, tau=0.99, beta=0.5, machine=place)
        seconds.append(time.perf_counter() - began)
    return 1000 * statistics.median(seconds[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    rows = []
    for case in CASES:
        found: dict[str, list[float]] = {name: [] for name in ways()}
        for _ in range(asked.rounds):
            for name, place in ways().items():
                found[name].append(milliseconds(case, place))
        middle = {name: round(statistics.median(values), 1) for name, values in found.items()}
        spread = {name: [round(min(values), 1), round(max(values), 1)] for name, values in found.items()}
        rows.append({**case, "milliseconds": middle, "range": spread})
        print(json.dumps(rows[-1]), flush=True)
    what = "milliseconds of a step of cifar10-cpu, 128 images, with the views in turn and side by side"
    record = {"what": what, "rounds": asked.rounds, "cores": os.cpu_count(), "rows": rows}
    place = Path("results/side-by-side.json")
    before = {"another_hour": read_json(place)["another_hour"]} if place.exists() else {}
    write_json(place, record | before | {"versions": machine.versions(), "commit": commit()})


if __name__ == "__main__":
    main()
