"""What the preset `auto` goes by: the images, the machine, and how long this machine takes to train on an image.

The time is that of a training step and of cutting and changing views, measured with some of the images; images that do
not stay in memory are decoded meanwhile, by other processes.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from byol import method, views
from byol.config import Config, apply
from byol.crops import scale_of, shrink
from byol.kinds import Look, recognized, suffixes_of
from byol.presets import Facts
from byol.run import cost, machine, ways

TIMED_IMAGES = 16
FLAT_RANGE = 0.05  # of an image's range: what is next to its lowest value
GREY_RANGE = 0.02  # of the highest value, by which channels of a grey image differ at most


def facts(
    images: int,
    sample: Sequence[Tensor],
    config: Config,
    names: Sequence[str] = (),
    settled: Mapping[str, Any] | None = None,
) -> Facts:
    """Of this many images, some of which are the sample (C, H, W), and their names; before anything is chosen.

    `settled` are the config fields that follow from the channels and the values of the images.
    """
    place = machine.choose(config)
    look = look_at(sample, names)
    kind = recognized(look)
    sides = [min(image.shape[1:]) for image in sample]
    return Facts(
        images=images,
        side=int(np.median(sides)) if sides else 32,
        cores=place.threads,
        memory=machine.memory(place),
        accelerator=place.device.type != "cpu",
        seconds=partial(seconds_an_image, list(sample[:TIMED_IMAGES]), settled=settled or {}),
        bf16=place.device.type == "cpu" and place.precision == "bf16",
        channels=look.channels,
        kind=kind.kind,
        kind_why=kind.why,
    )


def look_at(sample: Sequence[Tensor], names: Sequence[str]) -> Look:
    """What the kind of images is told by: channels, colour, bits, empty ground, and what the files are called."""
    if not sample:
        return Look()
    flat, grey, bits = [], [], 8
    for image in sample:
        values = image.float()
        low, high = values.amin((1, 2), keepdim=True), values.amax((1, 2), keepdim=True)
        flat.append((values <= low + FLAT_RANGE * (high - low)).float().mean().item())
        grey.append(float((values - values[:1]).abs().max() <= GREY_RANGE * float(high.max())))
        bits = max(bits, 8 * image.element_size())
    channels = int(np.median([len(image) for image in sample]))
    return Look(channels, float(np.mean(grey)), bits, float(np.median(flat)), suffixes_of(names))


def seconds_an_image(sample: Sequence[Tensor], config: Config, settled: Mapping[str, Any]) -> float:
    """Of training, views included; loading by other processes takes time only where it shares the processor."""
    config = apply(config, settled, "images", check=False)
    place = machine.choose(config)
    machine.use(place)
    with torch.random.fork_rng():
        model = method.build(config.network, objective=config.objective).to(**place.placement(config))
        seconds = []
        for way in (place, *ways.both_at_a_time(model, config, place)):
            machine.use(way)
            seconds.append(cost.pace(copy.deepcopy(model), config, way, config.optim.batch).seconds)
        machine.use(place)
    cut = seconds_of_views(sample, config)
    return min(seconds) + cut if place.device.type == "cpu" else max(*seconds, cut)


def seconds_of_views(sample: Sequence[Tensor], config: Config) -> float:
    """Both views of an image: at once where all images are of one size, as in training, or one by one, shared by the
    cores."""
    if not sample:
        return 0.0
    images = [shrink(image, config.data.shrink) for image in sample]
    alike = all((image.shape, image.dtype) == (images[0].shape, images[0].dtype) for image in images)
    batch = torch.stack(images) if alike else images
    seconds = []
    for step in range(3):
        began = time.perf_counter()
        for draw in views.draw(0, step, len(images), config.views):
            views.make(batch, draw, config.views, config.data.resolution, scale_of(config.data))
        seconds.append(time.perf_counter() - began)
    return min(seconds) / len(images) / (1 if alike else torch.get_num_threads())
