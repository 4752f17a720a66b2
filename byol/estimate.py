"""The plan before the work: what the run will do, how long it takes on this machine and what it needs."""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import Any

import torch

from byol import checkpoint, distributed, records
from byol.algorithm import Pass, update
from byol.data import loader
from byol.errors import Diverged
from byol.method import Method
from byol.progress import duration, say
from byol.rundir import Setup

SHORT_SECONDS = 600.0  # of a run for those who do not want to wait
LOG_BYTES = 10_000_000  # and the small files


def announce(setup: Setup, method: Method) -> None:
    """The plan, on the screen and in run.json."""
    cost = measure_cost(method, setup)
    lines = plan_lines(setup, method, cost)
    for line in lines:
        say(line)
    if distributed.rank():
        return
    if "plan" not in setup.record_of_run:
        setup.record_of_run |= {"plan": asdict(setup.plan), "estimate": cost, "plan_text": lines}
    there = len(checkpoint.found(setup.checkpoints))
    files = max(setup.config.run.keep + 1 - there, 1)  # the oldest goes when the newest is whole
    records.require_space(setup.out, files * cost["checkpoint_bytes"] + LOG_BYTES, f"{files} checkpoints and the log")
    setup.write("running")


def measure_cost(method: Method, setup: Setup) -> dict[str, Any]:
    """Seconds, memory and disk of the run, from two small steps of a copy of the method; memory is a process's."""
    config, plan, place = setup.config, setup.plan, setup.machine
    trial = copy.deepcopy(method)
    size = config.data.resolution
    share, processes = plan.micro_batch // distributed.world(), distributed.world()
    count = max(2, min(share, 2**17 // size**2))
    view = place.images(torch.rand(count, 3, size, size), config)
    labels = torch.zeros(count, dtype=torch.long, device=place.device) if setup.classes else None
    optimizer = torch.optim.SGD((p for p in trial.parameters() if p.requires_grad), lr=0.0)
    saved: list[int] = []

    def count_bytes(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(tensor.numel() * tensor.element_size())
        return tensor

    def once() -> None:
        with suppress(Diverged):  # of noise, in a copy: that is for the run to find out
            update(trial, optimizer, [Pass(view, view, labels)], lr=0.0, tau=1.0, machine=place)

    with torch.autograd.graph.saved_tensors_hooks(count_bytes, lambda tensor: tensor):
        once()
    began = time.perf_counter()
    once()
    if place.device.type == "cuda":
        torch.cuda.synchronize()
    seconds = time.perf_counter() - began
    weights = sum(t.numel() * t.element_size() for t in method.state_dict().values())
    trained = sum(p.numel() * p.element_size() for p in method.parameters() if p.requires_grad)
    pixels = 0 if setup.images.pixels is None else setup.images.pixels.numel()
    at_a_time = sum(saved) / (1 if method.target is None else 2)  # see `Method.orders`
    fixed, each = weights + 2 * trained + pixels, at_a_time / count
    return {
        "seconds": round(seconds / count / processes * plan.batch * plan.steps, 1),
        "images_per_second": round(count * processes / seconds, 1),
        "memory_gb": round((fixed + each * share) / 1e9, 2),
        "fixed_bytes": fixed,
        "bytes_an_image": round(each),
        "checkpoint_bytes": weights + trained,
    }


def plan_lines(setup: Setup, method: Method, cost: Mapping[str, Any]) -> list[str]:
    """The plan in words, a line each."""
    config, plan, images, place = setup.config, setup.plan, setup.images, setup.machine
    where = "in memory" if images.pixels is not None else f"streamed by {loader.worker_count(config)} workers"
    encoder = sum(p.numel() for p in method.online.encoder.parameters())
    left_out = f"{plan.held_out} held out, {len(images.bad)} left out"
    split = f" in {plan.accumulate} passes of {plan.micro_batch}" if plan.accumulate > 1 else ""
    labels = f"{len(images.source.classes)} classes (watched, never trained on)" if setup.classes else "no labels used"
    together = f"{distributed.world()} processes, each: " if distributed.world() > 1 else ""
    lines = [f"  auto: {reason}" for reason in setup.reasons]
    if plan.batch > plan.images:
        lines.append(f"  note: the batch of {plan.batch} is larger than the {plan.images} images")
    return [
        f"Plan for {setup.out}",
        *lines,
        f"  images    {plan.images} from {images.source.name}, {where}; {left_out}; {labels}",
        f"  encoder   {config.network.encoder} width {config.network.width:g}, {encoder:,} parameters, "
        f"{config.data.resolution} px",
        f"  steps     {plan.steps} of {plan.batch} images{split} = {config.optim.epochs:g} epochs, "
        f"{plan.warmup_steps} of warm-up",
        f"  optimizer {config.optim.optimizer}, peak learning rate {plan.peak_lr:g} "
        f"({config.optim.lr:g} x {plan.batch}/256), weight decay {config.optim.weight_decay:g}",
        f"  target    {target_in_words(setup)}",
        f"  objective {objective_in_words(setup)}",
        f"  machine   {together}{place.device_name}, {place.precision}, {place.threads} threads, "
        f"about {cost['memory_gb']:.1f} GB",
        f"  time      about {duration(cost['seconds'])} ({cost['images_per_second']:.0f} images/s without loading)",
        *shorter(setup, cost["seconds"]),
    ]


def shorter(setup: Setup, seconds: float) -> list[str]:
    """How to have a long run that `auto` chose end earlier."""
    epochs, overrides = setup.config.optim.epochs, setup.request.overrides
    few = max(1, int(epochs * SHORT_SECONDS / max(seconds, 1.0)))
    if setup.request.preset != "auto" or "optim.epochs" in overrides or few >= epochs / 2:
        return []
    return [f"  shorter   --optim.epochs {few} takes about {duration(few / epochs * seconds)}"]


def target_in_words(setup: Setup) -> str:
    return {
        "moving-average": f"tau from {setup.plan.tau:g} "
        + ("to 1" if setup.config.optim.tau_schedule == "cosine" else "constant"),
        "stop-gradient": "the online network, its gradient stopped",
        "online": "the online network, its gradient flowing",
        "fixed": "a fixed random network",
    }[setup.config.network.target]


def objective_in_words(setup: Setup) -> str:
    objective, predictor = setup.config.objective, setup.config.network.predictor
    contrastive = f"temperature {objective.temperature:g}, beta {objective.beta:g}"
    how = contrastive if objective.name == "info-nce" else f"normalization {objective.normalization}"
    return f"{objective.name}, {how}; predictor {predictor}"
