"""The ways to train on a CPU in one process: with all threads or one, and the two views one after the other, side by
side in a thread each, or together as one batch."""

from __future__ import annotations

import copy
from dataclasses import replace

import torch

from byol.config import Config
from byol.method import Method
from byol.parallel import processes
from byol.run import cost, machine
from byol.run.machine import SIDE_BY_SIDE, TOGETHER, Machine

ROOM = 0.8  # of free memory, that two views at a time may fill


def others(method: Method, config: Config, place: Machine) -> list[Machine]:
    """Those that may be chosen by timing, beside the threads of `place` for one view after the other."""
    if place.device.type != "cpu" or processes.world() > 1:
        return []
    threads = [place] if config.run.threads or place.threads == 1 else [place, replace(place, threads=1)]
    both = [way for each in threads for way in both_at_a_time(method, config, each)]
    return threads[1:] + both


def both_at_a_time(method: Method, config: Config, place: Machine) -> list[Machine]:
    """With two views at a time, where nobody asked for another way, memory holds both, and nothing stands against it.

    Side by side needs two threads. As one batch the views take half as many operations, each of twice the size: that
    pays where operations are so small that starting them is a part of their time.
    """
    if config.run.passes != "auto" or config.run.recompute or place.device.type != "cpu":
        return []
    needed = cost.memory(cost.on_paper(config), config, place.precision, SIDE_BY_SIDE)
    if needed.of(config.optim.batch // config.optim.accumulate) > ROOM * machine.free_memory(place) * 1e9:
        return []
    if against(method, config, place):
        return []
    ways = (SIDE_BY_SIDE, TOGETHER) if place.threads > 1 else (TOGETHER,)
    return [replace(place, passes=way) for way in ways]


def against(method: Method, config: Config, place: Machine) -> str:
    """Why the views had better not pass at a time, found by passing two images; empty if they may."""
    if processes.world() > 1:
        return "there are several processes"
    if config.run.compile:
        return "run.compile is for one thread"
    blank = torch.zeros(2, config.network.channels, config.data.resolution, config.data.resolution)
    from byol.parallel import lanes  # only where it may be of use

    why = lanes.unsuited(copy.deepcopy(method.online).train(), place.images(blank, config))
    return f"the encoder {config.network.encoder} {why}" if why else ""
