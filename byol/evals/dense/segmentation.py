"""Semantic segmentation (paper, appendix D.4): a fully convolutional network, FCN-16s, on the dilated encoder.

Random scale, crop and flip; the learning rate is chosen on validation, then train and validation are trained on
together; mean intersection over union on the central crop of the test images.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from byol import networks
from byol.config import Data
from byol.crops import sent
from byol.data.dense.masks import open_masks
from byol.data.parts import VOID, Part, Task
from byol.errors import UsageError
from byol.evals.budget import coarse_first
from byol.evals.dense import geometry
from byol.evals.dense.backbone import backbone, dilate, feature_maps
from byol.evals.dense.training import Work, normalized, picture, readable, samples_of, sizes, train, visible, watched
from byol.evals.encoder import Encoder
from byol.evals.fit import Recipe
from byol.evals.protocol import Result, Session
from byol.evals.spec import Segmentation
from byol.run import pictures


class Batch(NamedTuple):
    images: Tensor  # uint8 (B, 3, S, S), or float32 (B, C, S, S) of other images
    masks: Tensor  # uint8 (B, S, S)


class FCN(nn.Module):
    """Images (B, 3, H, W) → class scores (B, classes, H, W), computed at conv5's stride and made larger bilinearly."""

    def __init__(self, network: networks.ResNet, classes: int, channels: int, dilation: int) -> None:
        super().__init__()
        dilate(network)
        self.network = network
        inputs = network.num_features
        layers: list[nn.Module] = []
        for _ in range(2):
            layers.append(nn.Conv2d(inputs, channels, 3, padding=dilation, dilation=dilation, bias=False))
            layers += [nn.BatchNorm2d(channels), nn.ReLU(inplace=True)]
            inputs = channels
        self.head = nn.Sequential(*layers, nn.Conv2d(channels, classes, 1))
        networks.initialize(self.head)

    def forward(self, images: Tensor) -> Tensor:
        scores = self.head(feature_maps(self.network, images)[-1])
        return F.interpolate(scores.float(), images.shape[2:], mode="bilinear", align_corners=False)


def open_data(on: str, config: Data, spec: Segmentation) -> Task:
    return open_masks(on, config, spec.void, spec.colours)


def evaluate(encoder: Encoder, task: Task, spec: Segmentation, session: Session) -> Result:
    """The encoder itself stays as it is: each run trains a copy."""
    if spec.scales[0] > spec.scales[1]:
        raise UsageError(f"segmentation.scales should be the smallest and the largest scale, not {spec.scales}.")
    crop = crop_of(task.train, spec)
    work = Work(
        partial(_model, encoder, len(task.classes), spec),
        partial(make_batch, crop, spec, encoder.config.views.mean),
        partial(_loss, encoder),
        lambda model, part: mean_iou(confusion(predictions(model, part, spec, encoder), len(task.classes))),
        replace(spec, lrs=()),
    )
    batch = min(spec.batch, len(task.train))
    recipe = Recipe(spec.steps, batch, 0.0, spec.weight_decay, spec.drops, nesterov=False)
    settings = [{"lr": lr} for lr in coarse_first(spec.lrs)]
    model, chosen = train(work, task, recipe, settings, encoder, session)
    test, kept = task.test.open(), list[Prediction]()
    results = watched(predictions(model, test, spec, encoder, "Testing"), len(test), kept)
    counts = confusion(results, len(task.classes))
    _picture(session.out, kept, task.classes, encoder.config.data)
    scores = dict(zip(task.classes, _shares(counts), strict=True))
    extra = {"steps": chosen.steps, "crop": crop, "iou": {n: None if np.isnan(v) else v for n, v in scores.items()}}
    figures = {"mIoU": mean_iou(counts), "pixels": float(np.trace(counts) / max(counts.sum(), 1))}
    return chosen.result(figures, extra)


def crop_of(part: Part, spec: Segmentation) -> int:
    """The spec's, or what the largest image fills at the largest scale: beyond that is padding, which is not scored."""
    largest = max((max(size) for size in sizes(part)), default=spec.crop)
    return min(spec.crop, int(np.ceil(largest * spec.shrink * spec.scales[1])))


def _model(encoder: Encoder, classes: int, spec: Segmentation, seed: int) -> FCN:
    torch.manual_seed(seed)
    return FCN(backbone(encoder), classes, spec.channels, spec.dilation)


def make_batch(crop: int, spec: Segmentation, colour: Sequence[float], part: Part, recipe: Recipe, step: int) -> Batch:
    drawn = geometry.draw(recipe.seed, step, recipe.batch, (spec.shrink * spec.scales[0], spec.shrink * spec.scales[1]))
    fill = geometry.Fill(colour, VOID)
    pairs = [
        geometry.apply(sample.image, sample.target, drawn, place, crop, fill)
        for place, sample in enumerate(samples_of(part, recipe, step))
    ]
    return Batch(torch.stack([image for image, _ in pairs]), torch.stack([mask for _, mask in pairs]))


def _loss(encoder: Encoder, model: nn.Module, batch: Batch) -> Tensor:
    """Cross-entropy a pixel, VOID left out; 0 where a batch has nothing else."""
    masks = sent(batch.masks, encoder.place.device).long()
    losses = F.cross_entropy(
        model(normalized(geometry.unit(batch.images), encoder)).float(), masks, ignore_index=VOID, reduction="sum"
    )
    return losses / (masks != VOID).sum().clamp(min=1)


class Prediction(NamedTuple):
    """The central crop of an image."""

    image: Tensor  # (C, h, w), as the network saw it
    mask: Tensor  # uint8 (H, W)
    found: Tensor  # uint8 (H, W), never VOID


def predictions(
    model: nn.Module, part: Part, spec: Segmentation, encoder: Encoder, title: str = "Choosing"
) -> Iterator[Prediction]:
    """Each image in its own size, so that nothing is padded; classes at the mask's resolution."""
    for _, sample in readable(part, title):
        image, mask = geometry.shrunk(*sample, spec.shrink, spec.test_crop, spec.test_crop)
        with torch.inference_mode(), encoder.place.autocast():
            scores = model(normalized(geometry.unit(image[None]), encoder))
        size = (mask.shape[0], mask.shape[1])
        scores = F.interpolate(scores, size, mode="bilinear", align_corners=False)
        yield Prediction(image, mask, scores[0].argmax(0).to(torch.uint8).cpu())


def confusion(found: Iterator[Prediction], classes: int) -> np.ndarray:
    """How many pixels of each class (rows) are called what (columns), int64 (classes, classes); VOID is left out."""
    return sum((counted(p.mask.numpy(), p.found.numpy(), classes) for p in found), np.zeros((classes, classes), int))


def counted(mask: np.ndarray, found: np.ndarray, classes: int) -> np.ndarray:
    """The confusion of one image."""
    real = mask != VOID
    pairs = classes * mask[real].astype(np.int64) + found[real]
    return np.bincount(pairs, minlength=classes * classes).reshape(classes, classes)


def _shares(counts: np.ndarray) -> list[float]:
    """Intersection over union of each class; NaN for one that is neither there nor predicted."""
    union = counts.sum(0) + counts.sum(1) - np.diag(counts)
    return [float(hit / all) if all else float("nan") for hit, all in zip(np.diag(counts), union, strict=True)]


def mean_iou(counts: np.ndarray) -> float:
    """Over the classes that the images have or the model names, from the pixels of all images together."""
    found = [share for share in _shares(counts) if not np.isnan(share)]
    return float(np.mean(found)) if found else 0.0


def _picture(out: Path | None, kept: list[Prediction], classes: tuple[str, ...], data: Data) -> None:
    seen, words = visible([p.image for p in kept], data)
    maps = ((pictures.of_classes(p.found, VOID), pictures.of_classes(p.mask, VOID)) for p in kept)
    rows = [[image, *both] for image, both in zip(seen, maps, strict=True)]
    legend = [(name, pictures.class_colour(number)) for number, name in enumerate(classes)]
    legend.append(("not counted", (255, 255, 255)))
    picture(out, rows, ("image", "prediction", "truth"), legend, words)
