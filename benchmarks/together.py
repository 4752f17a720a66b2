"""Both views in one pass against one after the other (`run.passes together`): time and memory of a step on one core.

    python benchmarks/together.py [--steps 10]

The steps of both take turns in one process, and a step's time is the processor's, which other work on the machine does
not lengthen by waiting. Memory is that of a process which takes steps of one kind alone. Writes
results/views-together.json.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from fast import QUARTER

CASES: tuple[dict[str, Any], ...] = (
    {"preset": "cifar10-cpu", **QUARTER, "optim.batch": 32},
    {"preset": "cifar10-cpu", **QUARTER, "optim.batch": 128},
    {"preset": "imagenette", "network.encoder": "resnet18", "optim.batch": 4, "data.resolution": 224},
    {"preset": "imagenette", "network.encoder": "resnet18", "optim.batch": 8, "data.resolution": 224},
)


def stepper(case: dict[str, Any], together: bool) -> Any:
    """A function that takes a step."""
    import torch

    from byol import method, optim, presets
    from byol.algorithm import Pass, update
    from byol.run import machine

    fixed = {"run.threads": 1, "run.precision": "float32", "optim.accumulate": 1}
    values = {name: value for name, value in case.items() if name != "preset"}
    config = presets.compose(case["preset"], fixed | values, {})[0]
    place = machine.choose(config)
    machine.use(place)
    torch.manual_seed(0)
    model = method.build(config.network).to(**place.placement(config)).train()
    if together:
        method.pass_together(model)
    optimizer = optim.build(model, config.optim)
    size = config.data.resolution
    views = [place.images(torch.rand(config.optim.batch, 3, size, size), config) for _ in range(2)]
    return lambda: update(model, optimizer, [Pass(views[0], views[1], None)], lr=0.1, tau=0.99, machine=place)


def memory(case: dict[str, Any], together: bool) -> float:
    """Megabytes that steps of one kind add to a process."""
    command = [sys.executable, __file__, "--alone", json.dumps([case, together])]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def alone(case: dict[str, Any], together: bool) -> None:
    step = stepper(case, together)
    before = most()
    for _ in range(3):
        step()
    print(most() - before)


def most() -> float:
    """Megabytes that this process has used at most; the kernel's count for getrusage begins with the parent's."""
    return int(re.findall(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[0]) / 1024


def measured(case: dict[str, Any], steps: int) -> dict[str, Any]:
    both = [stepper(case, together) for together in (False, True)]
    seconds: list[list[float]] = [[], []]
    for number in range(steps + 1):
        for which in (0, 1) if number % 2 else (1, 0):
            began = time.process_time()
            both[which]()
            if number:
                seconds[which].append(time.process_time() - began)
    apart, together = map(min, seconds)
    middle = [statistics.median(each) for each in seconds]
    return {
        **case,
        "seconds": {"apart": apart, "together": together},
        "median_seconds": {"apart": middle[0], "together": middle[1]},
        "speed": apart / together,
        "median_speed": middle[0] / middle[1],
        "megabytes": {"apart": memory(case, False), "together": memory(case, True)},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--alone", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=Path("results/views-together.json"))
    arguments = parser.parse_args()
    if arguments.alone:
        alone(*json.loads(arguments.alone))
        return
    from byol.run.files import write_json
    from byol.run.machine import versions
    from byol.run.record import commit

    rows = []
    for case in CASES:
        rows.append(measured(case, arguments.steps))
        print(json.dumps(rows[-1]), flush=True)
        record = {"steps": arguments.steps, "rows": rows, "versions": versions(), "commit": commit()}
        write_json(arguments.out, record)


if __name__ == "__main__":
    main()
