"""How fast images can be loaded and trained on here, which of the two waits for the other, and which batch fits."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from byol import method, views
from byol.config import Config, Plan, resolve
from byol.data import loader
from byol.data.loader import Images
from byol.data.source import Source
from byol.data.stored import is_eight_bit
from byol.errors import UsageError
from byol.explore.examine import Look
from byol.run import machine, planning
from byol.run.progress import say

SECONDS = 3.0
SAMPLE = 256  # images that are loaded again and again
BATCH = 16
SAFE = 0.8  # of the memory


def measure(source: Source, good: Sequence[Look], config: Config) -> dict[str, Any]:
    """Images a second of loader and training, the batch that fits, and what the run would wait for."""
    try:
        plan = resolve(config, len(good))
    except UsageError as error:
        return {"note": str(error)}
    place = machine.choose(config)
    machine.use(place)
    size = (config.data.channels or 3) * (1 if is_eight_bit(config.data) else np.dtype(good[0].values).itemsize)
    decoded = sum(size * look.height * look.width for look in good)
    in_memory = loader.fits(decoded, config)
    images = _sample(source, good, in_memory)
    say("Measuring how fast images are loaded and trained on.")
    classes = len(source.classes) if config.optim.probe and source.labels is not None else 0
    torch.manual_seed(config.run.seed)
    model = method.build(config.network, classes, config.objective, config.data.resolution)
    model = model.to(**place.placement(config))
    found = planning.timed(model, config, plan, place, decoded if in_memory else 0)
    place, needed = found.place, found.needed
    loading, augmenting = loading_rate(images, config, plan, place.device), augmenting_rate(config, place.device)
    training = 1 / (1 / needed.images_per_second + 1 / augmenting)
    room = machine.memory(place) * 1e9 * SAFE - needed.fixed_bytes
    most = max(room / max(needed.bytes_an_image, 1), 0)
    waits = "loading" if loading < training else "training"
    together = images.pixels is not None  # then the training process itself makes the crops
    total = 1 / (1 / loading + 1 / training) if together else min(loading, training)
    return {
        "loader": round(loading, 1),
        "workers": 0 if together else loader.worker_count(config),
        "in_memory": in_memory,
        "augmenting": round(augmenting, 1),
        "step": needed.images_per_second,
        "threads": place.threads,
        "training": round(training, 1),
        "total": round(total, 1),
        "bottleneck": waits,
        "hours": round(plan.steps * plan.batch / total / 3600, 2),
        "memory_gb": round(machine.memory(place), 1),
        "batch": plan.batch,
        "passes": plan.accumulate,
        "batch_that_fits": 2 ** int(math.log2(most)) if most >= 1 else 0,
    }


def rate(number: float) -> str:
    """Three digits, without a power of ten: `1,996`, `37.2`."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def lines(found: Mapping[str, Any] | None) -> Iterator[tuple[str, str]]:
    """The measures in words, with a title each."""
    if not found:
        return
    if "note" in found:
        yield "speed", found["note"]
        return
    where = "from memory" if found["in_memory"] else f"by {found['workers']} workers"
    yield (
        "speed",
        f"loading {rate(found['loader'])} images/s {where}, training {rate(found['training'])} with "
        f"{found['threads']} thread{'s' * (found['threads'] > 1)}: "
        f"{found['bottleneck']} is the bottleneck",
    )
    if found["bottleneck"] == "loading" and not found["in_memory"]:
        yield "", "more data.workers, smaller files or data.in_memory always would help"
    passes = f" in {found['passes']} passes" if found["passes"] > 1 else ""
    yield (
        "batch",
        f"{found['batch']}{passes} planned, a pass of up to {found['batch_that_fits']:,} fits into "
        f"{found['memory_gb']:.0f} GB; about {found['hours']:.1f} hours",
    )


def _sample(source: Source, good: Sequence[Look], in_memory: bool) -> Images:
    """Some images spread over all, held as training would hold them."""
    some = [good[i].number for i in np.unique(np.linspace(0, len(good) - 1, min(SAMPLE, len(good))).astype(int))]
    none = np.arange(0)
    if not in_memory:
        return Images(source, np.array(some), none, None, [], "")
    held: list[Tensor] = [source.read(i) for i in some]
    whole = np.arange(len(held))
    if all(image.shape == held[0].shape for image in held):
        pixels = torch.stack(held)
        return Images(Source(source.name, len(held), pixels.__getitem__, str), whole, none, pixels, [], "")
    return Images(Source(source.name, len(held), held.__getitem__, str), whole, none, None, [], "")


def loading_rate(images: Images, config: Config, plan: Plan, device: torch.device) -> float:
    """Images a second that come out of the loader as pairs of crops, once its workers are under way."""
    plan = replace(plan, batch=BATCH, micro_batch=BATCH, accumulate=1, steps=10**6)
    passes = loader.batches(images, config, plan, 0, device)
    # what workers have made ahead while they were waited for says nothing of their pace
    ahead = 1 if images.pixels is not None else 1 + config.data.prefetch * loader.worker_count(config)
    with contextlib.closing(passes):
        for _ in range(ahead):
            next(passes)
        began, count = time.perf_counter(), 0
        while time.perf_counter() - began < SECONDS:
            count += len(next(passes).crops[0])
        return count / (time.perf_counter() - began)


def augmenting_rate(config: Config, device: torch.device) -> float:
    """Images a second whose two crops become views, in the training process."""
    size = config.data.resolution
    crops = torch.rand(BATCH, config.network.channels, size, size, device=device)
    draws = views.draw(0, 0, BATCH, config.views)
    for draw in draws:  # once to warm up
        views.finish_(crops, draw, config.views)
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < SECONDS / 10:
        for draw in draws:
            views.finish_(crops, draw, config.views)
        if device.type == "cuda":
            torch.cuda.synchronize()
        count += BATCH
    return count / (time.perf_counter() - began)
