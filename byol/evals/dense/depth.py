"""Depth from one image (paper, appendix D.6, after Laina et al.): fast up-projections on conv5, reverse Huber loss.

Flips and colour changes on the central crop; metres are predicted at half the crop's resolution or finer, made larger
bilinearly, and compared with every reading of the depth map at its own resolution.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from byol import networks, views
from byol.config import Data
from byol.crops import sent
from byol.data.dense.depths import open_depth
from byol.data.loader import generator
from byol.data.parts import Part, Sample, Task
from byol.evals.dense import geometry
from byol.evals.dense.backbone import backbone, feature_maps, strides
from byol.evals.dense.training import Work, normalized, picture, readable, samples_of, train, visible, watched
from byol.evals.encoder import Encoder
from byol.evals.fit import Recipe
from byol.evals.protocol import Result, Session
from byol.evals.spec import Depth
from byol.run import pictures

NEAREST = 1e-3  # metres; nothing is predicted to be nearer
THRESHOLD = 0.2  # of the largest error, where the reverse Huber loss becomes quadratic
FINEST = 2  # pixels of the image that a predicted place stands for at least


class FastUnpool(nn.Module):
    """A 5×5 convolution of a map made twice as large with zeros, without computing with the zeros.

    Of the 25 weights a place meets 9, 6, 6 or 4 that do not fall on zeros, by the parity of its row and column: so many
    has each of four convolutions of the small map, whose results are woven together.
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        # Parity of row and column (0, 0), (0, 1), (1, 0), (1, 1).
        self.parts = nn.ModuleList(
            nn.Conv2d(inputs, outputs, kernel, bias=False) for kernel in ((3, 3), (3, 2), (2, 3), (2, 2))
        )

    def forward(self, x: Tensor) -> Tensor:
        """(B, inputs, h, w) → (B, outputs, 2h, 2w)."""
        # left, right, top, bottom: an even place sees the readings on both sides, an odd one its own and the next.
        pads = ((1, 1, 1, 1), (0, 1, 1, 1), (1, 1, 0, 1), (0, 1, 0, 1))
        found = [part(F.pad(x, pad)) for part, pad in zip(self.parts, pads, strict=True)]
        return F.pixel_shuffle(torch.stack(found, 2).flatten(1, 2), 2)


class UpProjection(nn.Module):
    """Twice the resolution: an unpooling convolution and a 3×3 one, and a projection beside them as in a ResNet."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.unpool, self.bn1 = FastUnpool(inputs, outputs), nn.BatchNorm2d(outputs)
        self.conv, self.bn2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs)
        self.project, self.bn3 = FastUnpool(inputs, outputs), nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.unpool(x)), inplace=True)
        return F.relu(self.bn2(self.conv(y)) + self.bn3(self.project(x)), inplace=True)


class DepthNetwork(nn.Module):
    """Images (B, 3, H, W) → metres (B, H, W).

    Of the filters as many are used as bring conv5 to half the image's resolution: all four from a stride of 32, two
    with a small-image stem, whose stride is 8.
    """

    def __init__(self, network: networks.ResNet, filters: tuple[int, ...]) -> None:
        super().__init__()
        self.network = network
        stride, inputs = strides(network)[-1], network.num_features // 2
        layers: list[nn.Module] = [nn.Conv2d(network.num_features, inputs, 1, bias=False), nn.BatchNorm2d(inputs)]
        for outputs in filters:
            if stride > FINEST:
                layers.append(UpProjection(inputs, outputs))
                inputs, stride = outputs, stride // 2
        self.head = nn.Sequential(*layers, nn.Conv2d(inputs, 1, 3, padding=1))
        networks.initialize(self.head)

    def forward(self, images: Tensor) -> Tensor:
        found = self.head(feature_maps(self.network, images)[-1]).float()
        return F.interpolate(found, images.shape[2:], mode="bilinear", align_corners=False)[:, 0]


class Batch(NamedTuple):
    images: Tensor  # float (B, 3, h, w) in [0, 1]
    depths: Tensor  # float32 (B, h, w) metres, 0: no reading


def open_data(on: str, config: Data, spec: Depth) -> Task:
    return open_depth(on, config, spec.unit)


def evaluate(encoder: Encoder, task: Task, spec: Depth, session: Session) -> Result:
    """The encoder itself stays as it is: each run trains a copy."""
    batch = min(spec.batch, len(task.train))
    work = Work(
        partial(_model, encoder, spec),
        partial(make_batch, spec),
        partial(_loss, encoder),
        lambda model, part: scores(predictions(model, part, spec, encoder, "Choosing"))[task.metric],
        replace(spec, lrs=()),
    )
    settings = [{"lr": lr * batch / 256} for lr in spec.lrs]
    recipe = Recipe(spec.steps, batch, 0.0, spec.weight_decay, spec.drops, nesterov=False)
    model, chosen = train(work, task, recipe, settings, encoder, session)
    test, kept = task.test.open(), list[Prediction]()
    figures = scores(watched(predictions(model, test, spec, encoder, "Testing"), len(test), kept))
    _picture(session.out, kept, encoder.config.data)
    return chosen.result(figures, {"steps": chosen.steps, "batch": batch})


def _model(encoder: Encoder, spec: Depth, seed: int) -> DepthNetwork:
    torch.manual_seed(seed)
    return DepthNetwork(backbone(encoder), spec.filters)


def crop(sample: Sample[Tensor], spec: Depth) -> tuple[Tensor, Tensor]:
    """The shrunk central crop, and the same part of the depth map at its own resolution."""
    return geometry.shrunk(*sample, spec.shrink, spec.crop[1], spec.crop[0])


def make_batch(spec: Depth, part: Part, recipe: Recipe, step: int) -> Batch:
    """Crops of the smallest size in the batch, flipped and recoloured."""
    found = [crop(sample, spec) for sample in samples_of(part, recipe, step)]
    height, width = (min(image.shape[side] for image, _ in found) for side in (1, 2))
    flips = geometry.draw(recipe.seed, step, recipe.batch).flip
    images, depths = [], []
    for (image, depth), flip in zip(found, flips, strict=True):
        small = geometry.resize_map(depth, (image.shape[1], image.shape[2]))
        pair = [geometry.central(pixels, height, width) for pixels in (image, small)]
        image, depth = (pixels.flip(-1) for pixels in pair) if flip else pair
        images.append(image)
        depths.append(depth)
    return Batch(recolour(geometry.unit(torch.stack(images)), spec, recipe.seed, step), torch.stack(depths))


def recolour(images: Tensor, spec: Depth, seed: int, step: int) -> Tensor:
    """Brightness, saturation and hue of every image (B, 3, H, W) in [0, 1]; some lose their colour first. Of other
    channels than colours the brightness alone."""
    uniform = torch.rand(len(images), 4, generator=generator("depth colours", seed, step))
    grey, brightness, saturation, hue = uniform.unbind(1)
    colours = images.shape[1] == 3
    if colours:
        images = torch.where((grey < spec.grayscale)[:, None, None, None], views.to_grayscale(images), images)
    images = views.adjust_brightness(images, spec.brightness * (2 * brightness - 1)).clamp_(0, 1)
    if not colours:
        return images
    images = views.adjust_saturation(images, 1 + spec.saturation * (2 * saturation - 1)).clamp_(0, 1)
    return views.adjust_hue(images, spec.hue * (2 * hue - 1)).clamp_(0, 1)


def _loss(encoder: Encoder, model: nn.Module, batch: Batch) -> Tensor:
    depths = sent(batch.depths, encoder.place.device)
    return reverse_huber(model(normalized(batch.images, encoder)).float(), depths)


def reverse_huber(found: Tensor, depths: Tensor) -> Tensor:
    """Mean over the readings (depth over 0) of |e| up to c and (e² + c²) / 2c beyond; c is a fifth of the largest |e|.

    0 where a batch has no readings.
    """
    read = depths > 0
    error = (found - depths).abs() * read  # not picked out by the mask: a GPU would be asked how many there are
    c = (THRESHOLD * error.detach().max()).clamp(min=torch.finfo(error.dtype).tiny)
    return torch.where(error <= c, error, (error**2 + c**2) / (2 * c)).sum() / read.sum().clamp(min=1)


class Prediction(NamedTuple):
    image: Tensor  # (C, h, w), as the network saw it
    depth: Tensor  # float32 (H, W) metres, 0: no reading
    found: Tensor  # float32 (H, W)


def predictions(model: nn.Module, part: Part, spec: Depth, encoder: Encoder, title: str) -> Iterator[Prediction]:
    for _, sample in readable(part, title):
        image, depth = crop(sample, spec)
        with torch.inference_mode(), encoder.place.autocast():
            found = model(normalized(geometry.unit(image[None]), encoder))
        size = (depth.shape[0], depth.shape[1])
        found = F.interpolate(found[None].float(), size, mode="bilinear", align_corners=False)[0, 0]
        yield Prediction(image, depth, found.clamp(min=NEAREST).cpu())


def scores(found: Iterator[Prediction]) -> dict[str, float]:
    """Over all readings of all images together: shares within a factor, rms in metres, mean relative error."""
    total, sums = 0, np.zeros(5)
    for _, depth, guess in found:
        there = depth > 0
        truth, value = depth[there].double().numpy(), guess[there].double().numpy()
        ratio = np.maximum(truth / value, value / truth)
        within = [(ratio < 1.25**n).sum() for n in (1, 2, 3)]
        sums += [*within, ((truth - value) ** 2).sum(), (np.abs(truth - value) / truth).sum()]
        total += len(truth)
    shares = sums / max(total, 1)
    names = ("pct<1.25", "pct<1.25^2", "pct<1.25^3", "rms", "rel")
    shares[3] = np.sqrt(shares[3])
    return dict(zip(names, map(float, shares), strict=True))


def _picture(out: Path | None, kept: list[Prediction], data: Data) -> None:
    """Image, prediction and truth, in colours over the range of nearly all readings."""
    readings = torch.cat([p.depth[p.depth > 0] for p in kept]) if kept else torch.empty(0)
    if not len(readings):
        return
    low, high = np.percentile(readings.numpy(), (1, 99)).tolist()
    seen, words = visible([p.image for p in kept], data)
    maps = ([pictures.of_depth(depth, low, high) for depth in (p.found, p.depth)] for p in kept)
    rows = [[image, *both] for image, both in zip(seen, maps, strict=True)]
    metres = torch.linspace(low, high, 5)
    colours = pictures.of_depth(metres[None], low, high)[:, 0].T.tolist()
    legend = [(f"{m:.1f} m", (r, g, b)) for m, (r, g, b) in zip(metres.tolist(), colours, strict=True)]
    legend.append(("no reading", (0, 0, 0)))
    picture(out, rows, ("image", "prediction", "truth"), legend, words)
