"""One and two processes on this machine, and what each feature for large runs costs, as ratios of one run.

    python benchmarks/scaling.py [--minutes 10] [--rounds 3] [--steps 8] [--batch 128] [--only NAME …]

Every variant is started anew in every round, forwards and backwards in turn, so that what else the machine does falls
on all of them alike; a round's figure is its fastest step, which others on the machine have lengthened least, and a
variant's figure is its best round; its range says what that is worth. No round begins that would not end within the
minutes. The last lines compare `byol plan --device-type here` with measured steps of twice the images. Writes
results/scaling.json after every round. On a machine with other work the ratios of one and two processes mean little:
the record says how busy it was.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fast import QUARTER

VARIANTS: dict[str, dict[str, Any]] = {
    "1 process": {"processes": 1},
    "2 processes apart": {"processes": 2, "apart": True},
    "2 processes": {"processes": 2},
    "4 processes": {"processes": 4},
    "2 processes, views together": {"processes": 2, "run.passes": "together"},
    "2 processes, any core": {"processes": 2, "any_core": True},
    "2 processes, our exchange": {"processes": 2, "ours": True},
    "2 processes, weights in parts": {"processes": 2, "run.shard": True},
    "2 processes, own statistics": {"processes": 2, "network.norm_group": 1},
    "2 processes, 4 passes": {"processes": 2, "optim.accumulate": 4},
    "views together": {"processes": 1, "run.passes": "together"},
    "recompute": {"processes": 1, "run.recompute": True},
    "compile": {"processes": 1, "run.compile": True},
    **{f"plan of {count}": {"processes": 1, "plan": count} for count in (1, 2, 4)},
}
# What each variant is divided by: the same work without the thing that is measured.
AGAINST = {
    "2 processes": ("1 process", "speed-up of a second process"),
    "2 processes apart": ("1 process", "speed-up if nothing were exchanged"),
    "2 processes, own statistics": ("2 processes apart", "left after exchanging gradients alone"),
    "4 processes": ("1 process", "speed-up of three more processes"),
    "2 processes, views together": ("1 process", "speed-up of a second process, both views in one pass"),
    "2 processes, any core": ("2 processes", "processes that may share a core instead of having their own"),
    "views together": ("1 process", "both views in one pass instead of one after the other"),
    "2 processes, our exchange": ("2 processes", "gradients sent after the backward pass instead of during it"),
    "2 processes, weights in parts": ("2 processes", "a part of every weight in each process (FSDP2)"),
    "2 processes, 4 passes": ("2 processes", "four passes a step instead of one"),
    "recompute": ("1 process", "blocks computed again for their gradients"),
    "compile": ("1 process", "torch.compile, compiling not counted"),
}


LONGEST = 300.0  # seconds of a variant that hangs


def stepper(config: Any, settings: dict[str, Any], ours: bool) -> Callable[[], object]:
    """A function that takes a step of this process."""
    import torch

    from byol import method, networks, optim
    from byol.algorithm import Pass, update
    from byol.parallel import engines, norms, processes
    from byol.run import machine

    place = machine.choose(config)
    machine.use(place)
    torch.manual_seed(0)
    model = method.build(config.network).to(**place.placement(config))
    norms.synchronize(model, config.network.norm_group)
    if config.run.passes == "together":
        method.pass_together(model)
    if config.run.recompute:
        networks.use_recompute(model.online.encoder)
    optimizer = optim.build(model, config.optim)
    if config.run.shard:
        optimizer, _ = engines.shard(model, optimizer, config, place)
    engine = None if ours else engines.engine(model, optimizer, config, place)
    if config.run.compile:
        networks.use_compile(model.online.encoder)
        networks.use_compile(model.target.encoder)  # type: ignore[union-attr]
    share = config.optim.batch // config.optim.accumulate // processes.world()
    share //= 2 if settings.get("apart") else 1
    size = config.data.resolution
    view = place.images(torch.rand(share, 3, size, size), config)
    passes = [Pass(view, view, None)] * config.optim.accumulate
    return lambda: update(model, optimizer, passes, lr=0.1, tau=0.99, machine=place, engine=engine)


def work(settings: dict[str, Any]) -> None:
    """One process of a variant: images a second of all processes, as measured or planned, printed by the first."""
    from byol import presets
    from byol.config import apply
    from byol.parallel import processes
    from byol.run import cost

    fields = {name: value for name, value in settings.items() if "." in name}
    config = apply(presets.cifar10_cpu(), {**QUARTER, "run.threads": 1, "optim.batch": settings["batch"], **fields})
    if count := settings.get("plan"):  # rated with half the images, asked about all of them
        half = apply(config, {"optim.batch": config.optim.batch // 2})
        planned = min(cost.cost(config, cost.here(half, count), count).seconds for _ in range(3))
        print(json.dumps({"images_per_second": config.optim.batch / planned, "step": planned}))
        return
    if settings.get("any_core"):
        processes._keep_to_share = lambda who, store: None
    with processes.joined(False, 300):
        step, seconds = stepper(config, settings, settings.get("ours", False)), []
        for _ in range(2 + settings["steps"]):
            began = time.perf_counter()
            step()
            seconds.append(time.perf_counter() - began)
        fastest = min(seconds[2:])
        found = {"images_per_second": config.optim.batch / fastest, "step": fastest}
        if processes.rank() == 0:
            print(json.dumps(found))


HALF = "1 process, half the images"  # by which the plan rates this machine
TURNS: dict[str, dict[str, Any]] = {
    "1 process": {"alone": True},
    "2 processes": {},
    "2 processes, views together": {"run.passes": "together"},
    "2 processes, our exchange": {"ours": True},
    HALF: {"alone": True, "half": True},
    "2 processes apart": {"alone": True, "half": True, "both": True},  # nothing is exchanged: no two can be faster
}


def in_turns(settings: dict[str, Any]) -> None:
    """Steps of several variants in turns, in the same two processes, of which one process alone is the first: a machine
    that is faster at one moment than at the next is so for neighbours alike. Prints every cycle's seconds."""
    import torch.distributed as dist

    from byol import presets
    from byol.config import apply
    from byol.parallel import processes

    common = apply(presets.cifar10_cpu(), {**QUARTER, "run.threads": 1, "optim.batch": settings["batch"]})
    steps: dict[str, Callable[[], object]] = {}
    with processes.joined(False, 300):
        job = processes._job
        for name, about in TURNS.items():
            config = apply(common, {field: value for field, value in about.items() if "." in field})
            config = apply(config, {"optim.batch": settings["batch"] // 2}) if about.get("half") else config
            processes._job = None if about.get("alone") else job
            steps[name] = stepper(config, about, about.get("ours", False))
        cycles: dict[str, list[float]] = {name: [] for name in steps}
        for _ in range(2 + settings["steps"]):
            for name, step in steps.items():
                alone = TURNS[name].get("alone", False)
                processes._job = None if alone else job
                dist.barrier()
                began = time.perf_counter()
                if not alone or TURNS[name].get("both") or dist.get_rank() == 0:
                    step()
                cycles[name].append(time.perf_counter() - began)
                dist.barrier()
        processes._job = job
        if processes.rank() == 0:
            print(json.dumps({"cycles": {name: seconds[2:] for name, seconds in cycles.items()}, "step": 0.0}))


def compared(cycles: dict[str, list[float]]) -> dict[str, Any]:
    """How many times as fast each variant is as one process, and as torch's engine: the median of neighbours."""
    found: dict[str, Any] = {}
    for name, seconds in cycles.items():
        ratios = {}
        for base in ("1 process", "2 processes"):
            pairs = sorted(other / own for other, own in zip(cycles[base], seconds, strict=True))
            quarter = len(pairs) // 4
            ratios[base] = {"median": statistics.median(pairs), "quartiles": [pairs[quarter], pairs[-1 - quarter]]}
        found[name] = {"fastest_seconds": min(seconds), "times_as_fast_as": ratios}
    return found


def start(settings: dict[str, Any]) -> dict[str, Any]:
    """All processes of a variant to their end; several apart count as one run of the slowest. Empty: it failed."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    count = settings["processes"]
    command = [sys.executable, __file__, "--work", json.dumps(settings)]
    started = []
    for rank in range(count):
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        if count > 1 and not settings.get("apart"):
            environment |= {
                "RANK": str(rank),
                "WORLD_SIZE": str(count),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
            }
        started.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
    try:
        outputs = [process.communicate(timeout=LONGEST)[0] for process in started]
    except subprocess.TimeoutExpired:
        outputs = []
    finally:
        for process in started:
            process.kill()
            process.wait()
    if not outputs or any(process.returncode for process in started):
        return {}
    found = [json.loads(output.splitlines()[-1]) for output in outputs if output.strip()]
    slowest: dict[str, Any] = max(found, key=lambda each: each["step"])
    return slowest


def summary(rounds: dict[str, list[float]]) -> dict[str, Any]:
    """Best rounds, what they are divided by, and the range of each variant over its rounds; the plan's time of a step
    beside that of one, two and four processes."""
    rates = {name: max(values) for name, values in rounds.items() if values}
    plans = {count: (f"plan of {count}", f"{count} process{'es' * (count > 1)}") for count in (1, 2, 4)}
    known_plans = {count: pair for count, pair in plans.items() if all(name in rates for name in pair)}
    planned = {str(count): rates[run] / rates[plan] for count, (plan, run) in known_plans.items()}
    rates = {name: rate for name, rate in rates.items() if not name.startswith("plan")}
    known = {name: AGAINST[name] for name in rates if name in AGAINST and AGAINST[name][0] in rates}
    ratios = [
        {"of": name, "to": base, "ratio": rates[name] / rates[base], "meaning": meaning}
        for name, (base, meaning) in known.items()
    ]
    spread = {name: min(values) / max(values) for name, values in rounds.items() if values}
    failed = [name for name, values in rounds.items() if not values]
    return {
        "rounds": rounds,
        "best": rates,
        "worst_over_best": spread,
        "ratios": ratios,
        "failed": failed,
        "planned_over_measured": planned,
    }


def planned_in_turns(cycles: dict[str, list[float]], batch: int) -> dict[str, float]:
    """The plan's time of a step of one and two processes over the measured one: the median of neighbours."""
    from byol import presets
    from byol.config import apply
    from byol.run import cost

    config = apply(
        presets.cifar10_cpu(), {**QUARTER, "run.threads": 1, "run.precision": "float32", "optim.batch": batch}
    )
    an_image = cost.pass_flops(cost.on_paper(config), config)[1]
    found = {}
    for count, name in ((1, "1 process"), (2, "2 processes")):
        ratios = []
        for half, measured in zip(cycles[HALF], cycles[name], strict=True):
            rate = an_image * (batch // 2) / half
            device = cost.Device(rate, 1.0, 1e9, 1e9, cost.GLOO_SECONDS, "timed", "float32")
            ratios.append(cost.cost(config, device, count).seconds / measured)
        found[str(count)] = statistics.median(ratios)
    return found


def turned(arguments: argparse.Namespace) -> None:
    """Writes results/scaling-turns.json."""
    from byol.run.files import write_json
    from byol.run.machine import versions
    from byol.run.record import commit

    settings = {"processes": 2, "turns": True, "batch": arguments.batch, "steps": arguments.turns}
    busy = os.getloadavg()[0]
    cycles: Any = start(settings)["cycles"]
    about = {"batch": arguments.batch, "cycles": arguments.turns, "cores": os.cpu_count(), "load_before": busy}
    about |= {"variants": compared(cycles), "planned_over_measured": planned_in_turns(cycles, arguments.batch)}
    record = about | {"seconds": cycles, "versions": versions(), "commit": commit()}
    write_json(Path("results/scaling-turns.json"), record)
    print(json.dumps({name: record[name] for name in ("variants", "planned_over_measured")}, indent=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--only", nargs="*", default=list(VARIANTS), choices=list(VARIANTS))
    parser.add_argument("--out", type=Path, default=Path("results/scaling.json"))
    parser.add_argument(
        "--turns", type=int, default=0, help="so many steps of each of a few variants in turns, instead"
    )
    parser.add_argument("--work", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        settings = json.loads(arguments.work)
        in_turns(settings) if settings.get("turns") else work(settings)
        return
    if arguments.turns:
        turned(arguments)
        return
    from byol.run.files import write_json
    from byol.run.machine import versions
    from byol.run.record import commit

    rounds: dict[str, list[float]] = {name: [] for name in arguments.only}
    busy, began, longest = os.getloadavg()[0], time.monotonic(), 0.0
    for number in range(arguments.rounds):
        round_began = time.monotonic()
        if round_began - began + longest > 60 * arguments.minutes:
            print(f"No time for more than {number} rounds.")
            break
        for name in arguments.only if number % 2 == 0 else reversed(arguments.only):
            found = start({"batch": arguments.batch, "steps": arguments.steps} | VARIANTS[name])
            if found:
                rounds[name].append(found["images_per_second"])
            said = f"{found['images_per_second']:8.1f} images/s" if found else "failed"
            print(f"{name:32} {said}", flush=True)
        longest = max(longest, time.monotonic() - round_began)
        record = summary(rounds) | {"batch": arguments.batch, "steps": arguments.steps}
        record |= {"cores": os.cpu_count(), "load_before": busy, "minutes": (time.monotonic() - began) / 60}
        write_json(arguments.out, record | {"versions": versions(), "commit": commit()})
    for each in record["ratios"]:
        print(f"{each['ratio']:6.2f} x  {each['of']} / {each['to']}: {each['meaning']}")
    for count, ratio in record["planned_over_measured"].items():
        print(f"{ratio:6.2f} x  time of a step as planned / as measured, {count} at a time")
    if record["failed"]:
        raise SystemExit(f"Failed: {', '.join(record['failed'])}.")


if __name__ == "__main__":
    main()
