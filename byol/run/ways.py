"""The ways to train on a CPU in one process: all threads or one for one view after the other, or views side by side."""

from __future__ import annotations

import copy
from dataclasses import replace

import torch

from byol.config import Config
from byol.method import Method
from byol.parallel import processes
from byol.run import cost, machine
from byol.run.machine import SIDE_BY_SIDE, Machine

ROOM = 0.8  # of free memory, that two views at a time may fill


def others(method: Method, config: Config, place: Machine) -> list[Machine]:
    """Those that may be chosen by timing, beside all threads for one view after the other."""
    if place.device.type != "cpu" or place.threads == 1 or processes.world() > 1:
        return []
    alone = [] if config.run.threads else [replace(place, threads=1)]
    return alone + side_by_side(method, config, place)


def side_by_side(method: Method, config: Config, place: Machine) -> list[Machine]:
    """That way, where nobody asked for another, memory holds two views, and nothing stands against it; or none."""
    beside = replace(place, passes=SIDE_BY_SIDE)
    if config.run.passes != "auto" or config.run.recompute or place.device.type != "cpu" or place.threads == 1:
        return []
    needed = cost.memory(cost.on_paper(config), config, place.precision, SIDE_BY_SIDE)
    if needed.of(config.optim.batch // config.optim.accumulate) > ROOM * machine.free_memory(place) * 1e9:
        return []
    return [] if against(method, config, place) else [beside]


def against(method: Method, config: Config, place: Machine) -> str:
    """Why the views cannot pass side by side, found by passing two images; empty if they can."""
    if processes.world() > 1:
        return "there are several processes"
    if config.run.compile:
        return "run.compile is for one thread"
    blank = torch.zeros(2, config.network.channels, config.data.resolution, config.data.resolution)
    from byol.parallel import lanes  # only where it may be of use

    why = lanes.unsuited(copy.deepcopy(method.online).train(), place.images(blank, config))
    return f"the encoder {config.network.encoder} {why}" if why else ""
