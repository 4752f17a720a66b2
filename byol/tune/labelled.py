"""The judge's labelled images: some of each class of a folder, at the size of the views."""

from __future__ import annotations

import numpy as np
import torch

from byol.config import Data
from byol.crops import center_crop, scale_of
from byol.data.loader import readable
from byol.data.source import Source
from byol.errors import UsageError
from byol.tune.trials import Labelled

EACH = 50  # images of a class that are looked at, at most
FEWEST = 5  # of a class, one for each fold


def enough(source: Source) -> bool:
    """Whether the images are sorted by classes of which each has as many as the judge needs."""
    if source.labels is None or source.labels.ndim != 1 or len(source.classes) < 2:
        return False
    return int(np.bincount(source.labels, minlength=len(source.classes)).min()) >= FEWEST


def labelled(source: Source, config: Data, each: int = EACH) -> Labelled:
    """Of every class the same number of images, as far as there are."""
    if source.labels is None or source.labels.ndim != 1 or len(source.classes) < 2:
        raise UsageError(f"--labels {source.name} should be a folder with a folder of images for each of its classes.")
    random = np.random.default_rng(29)
    chosen: list[int] = []
    for label, name in enumerate(source.classes):
        own = random.permutation(np.flatnonzero(source.labels == label))[:each]
        if len(own) < FEWEST:
            raise UsageError(f"--labels {source.name}: {name} has {len(own)} images; {FEWEST} a class is the fewest.")
        chosen += own.tolist()
    images, targets = [], []
    for index, image in readable(source, sorted(chosen)):
        images.append(center_crop(image, config.resolution, scale=scale_of(config)))
        targets.append(int(source.labels[index]))
    return Labelled(torch.stack(images), torch.tensor(targets))
