"""The images and reference views by which all policies are compared, and what an encoder gives for them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from byol import views
from byol.config import Config, View
from byol.crops import center_crop, scale_of
from byol.data.loader import readable
from byol.data.source import Source
from byol.errors import BadData
from byol.evals.encoder import Encoder, frozen
from byol.tune.measures import Features

IMAGES = 512  # that are looked at
FEWEST = 16
CROPS = 4  # reference views of each
SEED = 23  # of the images and their reference views: the same for every policy, whatever a run's own seed
# Crops of a third and more with a little light: nothing that one policy trains for and another does not, such as a
# flip, a turn or a hue.
REFERENCE = View(
    **{**dict.fromkeys(views.OPERATIONS, 0.0), "jitter": 1.0},
    area_min=0.3,
    brightness=0.2,
    contrast=0.2,
    saturation=0.0,
    hue=0.0,
)


@dataclass(frozen=True)
class Looks:
    """Fixed images at the size of the views, in [0, 1]: themselves (N, C, S, S) and their reference views (N, Q, …)."""

    plain: Tensor
    crops: Tensor


def looks(source: Source, config: Config, count: int = IMAGES) -> Looks:
    """Of some images spread over the source at random."""
    order = np.random.default_rng(SEED).permutation(len(source))[:count]
    images = [image for _, image in readable(source, order.tolist())]
    if len(images) < FEWEST:
        raise BadData(f"{source.name} has {len(images)} readable images; tuning needs {FEWEST} at least.")
    size, scale = config.data.resolution, scale_of(config.data)
    fixed = views.unnormalized(replace(config.views, t=REFERENCE, t_prime=REFERENCE))
    draws = [draw for step in range(CROPS // 2) for draw in views.draw(SEED, step, len(images), fixed)]
    crops = torch.stack([views.make(images, draw, fixed, size, scale) for draw in draws], 1)
    return Looks(torch.stack([center_crop(image, size, scale=scale) for image in images]), crops)


def features(encoder: Encoder, seen: Looks) -> Features:
    """The encoder's representations of all that is looked at."""
    turned = [represented(encoder, seen.plain.rot90(quarter, (2, 3))) for quarter in range(4)]
    crops = [represented(encoder, seen.crops[:, number]) for number in range(seen.crops.shape[1])]
    return Features(turned[0], torch.stack(crops, 1), torch.stack(turned, 1))


@torch.no_grad()
def represented(encoder: Encoder, images: Tensor) -> Tensor:
    """Float32 (N, D) on the CPU, of images (N, C, S, S) in [0, 1]."""
    config, place = encoder.config, encoder.place
    found = []
    with frozen(encoder) as module:
        for chunk in images.split(place.at_once(images)):
            scaled = views.normalize(chunk.to(place.device), config.views.mean, config.views.std)
            with place.autocast():
                found.append(module(place.images(scaled, config)).float().cpu())
    return torch.cat(found)
