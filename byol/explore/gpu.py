"""`byol check-gpu`: what only a GPU can show, measured once and written into a report to send back.

Steps of the CPU and of the GPU are compared, what makes the host wait is counted by CUDA itself, and speed and memory
are measured beside the plan's.
"""

from __future__ import annotations

import platform
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from byol import method, networks, optim, presets
from byol.algorithm import Pass, update
from byol.config import Config, apply
from byol.errors import UsageError
from byol.method import Method
from byol.run import cost, files
from byol.run.machine import Machine, choose, versions
from byol.run.progress import say, tell

COMPARED = 3  # steps on both devices
WARM = 3  # steps before any that is measured
CLOSE = {"float64": 1e-8, "float32": 1e-2}  # of the weights' change, after the compared steps
SMALL = {"data.resolution": 32, "network.encoder": "resnet18", "network.width": 0.25, "network.small_images": True}
LARGE: dict[str, str | int | float] = {"data.resolution": 224, "network.encoder": "resnet50", "optim.batch": 64}


@dataclass(frozen=True)
class Speed:
    """Steps of one kind, timed by the GPU's own clock."""

    images_per_second: float
    peak_gb: float
    planned_gb: float
    waits_a_step: float
    where: list[str]  # the lines that made the host wait
    error: str = ""


@dataclass(frozen=True)
class Report:
    """What was found on one GPU."""

    device: str
    capability: str
    memory_gb: float
    system: str
    versions: dict[str, str]
    apart: dict[str, float]  # how far the weights of CPU and GPU are after some steps, by number type
    agrees: bool
    config: dict[str, str | int | float]
    speed: dict[str, Speed]


def check(out: Path, settings: dict[str, str | int | float], steps: int = 20, compiled: bool = True) -> Report:
    """Runs all checks on the first GPU and writes the report; without a GPU a `UsageError`."""
    if not torch.cuda.is_available():
        raise UsageError(
            f"byol check-gpu needs a CUDA device, and torch {torch.__version__} sees none here: run it where there is "
            "one, with a torch that is built for it (python -c 'import torch; print(torch.cuda.is_available())')."
        )
    files.refuse_link(out)
    apart = {precision: distance(precision) for precision in CLOSE}
    agrees = all(apart[precision] <= CLOSE[precision] for precision in CLOSE)
    say(f"CPU and GPU after {COMPARED} steps: " + ", ".join(f"{p} {d:.1e} apart" for p, d in apart.items()))
    config = apply(presets.PRESETS["imagenette"](), {**LARGE, **settings, "run.device": "cuda"})
    place = choose(config)
    speed = {}
    for name in ("plain", "compiled") if compiled else ("plain",):
        speed[name] = timed(config, place, steps, name == "compiled")
        say(in_words(name, speed[name]))
    about = torch.cuda.get_device_properties(0)
    major, minor = torch.cuda.get_device_capability(0)
    asked: dict[str, str | int | float] = {**LARGE, **settings, "run.precision": place.precision}
    found = Report(
        torch.cuda.get_device_name(0),
        f"{major}.{minor}",
        round(about.total_memory / 1e9, 2),
        platform.platform(),
        versions(),
        apart,
        agrees,
        asked,
        speed,
    )
    files.write_json(out, asdict(found))
    tell(f"{'CPU and GPU agree' if agrees else 'CPU and GPU DISAGREE'}. Report: {out}")
    return found


def in_words(name: str, speed: Speed) -> str:
    if speed.error:
        return f"{name}: not measured, {speed.error}"
    return (
        f"{name}: {speed.images_per_second:,.0f} images/s, {speed.peak_gb:.2f} GB at most where the plan says "
        f"{speed.planned_gb:.2f} GB, {speed.waits_a_step:g} waits a step"
    )


def distance(precision: str) -> float:
    """After the same steps on CPU and GPU: the distance of the weights over how far they have come."""
    ends = []
    for device in ("cpu", "cuda"):
        config, place = apply(presets.cifar10_cpu(), SMALL), Machine(device, precision, torch.get_num_threads())
        start, model, optimizer = built(config, place)
        for number in range(COMPARED):
            update(model, optimizer, [drawn(config, place, 16, number)], lr=0.1, tau=0.9, machine=place)
        ends.append(flat(model))
    return float((ends[1] - ends[0]).norm() / (ends[0] - start).norm())


def flat(model: Method) -> Tensor:
    return torch.cat([p.detach().double().reshape(-1).cpu() for p in model.parameters()])


def built(config: Config, place: Machine) -> tuple[Tensor, Method, torch.optim.Optimizer]:
    """A method from fixed random numbers, with the weights that it starts from."""
    torch.manual_seed(0)
    model = method.build(config.network, 0, config.objective, config.data.resolution)
    start = flat(model)
    model = model.to(**place.placement(config)).train()
    return start, model, optim.build(model, config.optim)


def drawn(config: Config, place: Machine, count: int, seed: int) -> Pass:
    """Two views of noise, the same ones on every device."""
    random, size = torch.Generator().manual_seed(seed), config.data.resolution
    shape = (count, config.network.channels, size, size)
    view1, view2 = (place.images(torch.randn(shape, generator=random), config) for _ in range(2))
    return Pass(view1, view2, None)


def timed(config: Config, place: Machine, steps: int, compiled: bool) -> Speed:
    """Steps of one network, after some that warm up; an error of the compiler is told and ends nothing."""
    _, model, optimizer = built(config, place)
    needed = cost.memory(cost.on_paper(config), config, place.precision).of(config.optim.batch) / 1e9
    seen = drawn(config, place, config.optim.batch, 0)
    try:
        if compiled:
            for branch in filter(None, (model.online, model.target)):
                networks.use_compile(branch.encoder)
        for _ in range(WARM):
            update(model, optimizer, [seen], lr=0.1, tau=0.99, machine=place)
    except Exception as error:  # whatever a compiler may raise
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
        return Speed(0.0, 0.0, round(needed, 2), 0.0, [], f"{type(error).__name__}: {reason}")
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    with waiting() as waits:
        begin.record()
        for _ in range(steps):
            update(model, optimizer, [seen], lr=0.1, tau=0.99, machine=place)
        end.record()
    torch.cuda.synchronize()
    rate = steps * config.optim.batch / max(begin.elapsed_time(end) / 1e3, 1e-9)
    peak = torch.cuda.max_memory_allocated() / 1e9
    return Speed(round(rate, 1), round(peak, 3), round(needed, 3), len(waits) / steps, sorted(set(waits))[:20])


@contextmanager
def waiting() -> Iterator[list[str]]:
    """The lines at which CUDA says that the host waits for it, one for each time."""
    found: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        before = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield found
        finally:
            torch.cuda.set_sync_debug_mode(before)
    synchronizing = [w for w in caught if "synchronizing" in str(w.message)]
    found += [f"{Path(w.filename).name}:{w.lineno}" for w in synchronizing]
