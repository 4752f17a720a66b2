"""Which images are nearest to which, from the first look to the last: kept small, for people to watch it change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from byol import records
from byol.config import Config, Plan
from byol.crops import center_crop
from byol.data.loader import Images
from byol.errors import DiskError
from byol.evals.features import represent
from byol.machine import Machine
from byol.method import Method
from byol.pictures import nearest

FILE = "neighbours.json"
QUERIES, NEAREST = 12, 8
FEWEST, MOST = 200, 500  # images searched; 500 at 224 px fill 75 MB
SHARE = 0.01  # of the training time, at most, unless the run is very short


class Moments:
    """A fixed choice of images; at every look each query's nearest among them, in RUN/neighbours.json."""

    def __init__(self, images: Images, config: Config, plan: Plan, machine: Machine, out: Path, step: int) -> None:
        """Looks at or after `step` will be made again, so they are dropped."""
        self.config, self.machine, self.path = config, machine, out / FILE
        count = int(min(MOST, max(FEWEST, SHARE * 8 * plan.monitor_steps * plan.batch)))  # see monitor.Monitor
        random = np.random.default_rng([config.run.seed, 4])
        order = [*random.permutation(images.held_out), *random.permutation(images.train)]
        crops, names = [], []
        for index in order[:count]:
            for image in images.read(np.array([index])):
                crops.append((center_crop(image, config.data.resolution) * 255).round().to(torch.uint8))
                names.append(images.source.describe(int(index)))
        self.pixels = torch.stack(crops) if len(crops) > 1 else None
        looks = [look for look in _looks(self.path) if look["step"] < step]
        self.record: dict[str, Any] = {"format": 1, "names": names, "queries": QUERIES, "looks": looks}

    def keep(self, method: Method, step: int) -> None:
        """The neighbours after `step`; leaves the method as it was."""
        if self.pixels is None:
            return
        method.eval()
        vectors = represent(method.online.encoder, self.pixels, self.config, self.machine)
        method.train()
        found = nearest(vectors, torch.arange(min(QUERIES, len(vectors))), NEAREST)
        look = {"step": step, "nearest": found.positions.tolist(), "cosines": found.cosines.round(4).tolist()}
        self.record["looks"].append(look)
        records.write_json(self.path, self.record)


def _looks(path: Path) -> list[dict[str, Any]]:
    """What an earlier session kept; a damaged file costs the pictures, never the run."""
    try:
        looks = records.read_json(path)["looks"]
        return [look for look in looks if isinstance(look["step"], int)]
    except (DiskError, KeyError, TypeError):
        return []
