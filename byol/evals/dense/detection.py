"""Object detection (paper, section 4 and appendix D.5): Faster R-CNN with the encoder as its C4 backbone.

Images are scaled so that their longest edge has a random length, nothing else; SGD whose rate falls to a tenth twice.
AP50 by VOC's rules on the test images, each at one size. Where the paper is silent the values are those of the setup it
reproduces, MoCo's on Detectron: objects marked difficult are trained on, and do not count in the test.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from byol import views
from byol.config import Data
from byol.data.dense.boxes import open_boxes
from byol.data.loader import generator
from byol.data.parts import Boxes, Part, Sample, Task
from byol.errors import BadData
from byol.evals.budget import coarse_first
from byol.evals.dense.average_precision import Found, Precision, average_precisions, mean_precision
from byol.evals.dense.backbone import backbone
from byol.evals.dense.faster_rcnn import FasterRCNN, Pixels
from byol.evals.dense.geometry import resize_image, unit
from byol.evals.dense.training import Work, readable, samples_of, train, visible, watched
from byol.evals.encoder import Encoder
from byol.evals.fit import Recipe
from byol.evals.protocol import Result, Session
from byol.evals.spec import Detection
from byol.run import pictures

TILE, CERTAIN = 320, 0.3  # longer side of an image in the picture, and the score that a box needs to be drawn there


class Batch(NamedTuple):
    """Images (C, H, W) of any size with their objects, and the seed by which anchors and regions are drawn."""

    samples: list[Sample[Boxes]]
    seed: int


class Prediction(NamedTuple):
    """An image with what is in it, and what was found, in the image's own pixels."""

    sample: Sample[Boxes]
    found: Found


def open_data(on: str, config: Data, spec: Detection) -> Task:
    return open_boxes(on, config)


def evaluate(encoder: Encoder, task: Task, spec: Detection, session: Session) -> Result:
    """The encoder itself stays as it is: each run trains a copy."""
    classes = len(task.classes)
    work = Work(
        partial(detector, encoder, classes, spec),
        partial(make_batch, spec.longest),
        partial(_loss, encoder),
        lambda model, part: _score(model, part, classes, spec, encoder),
        replace(spec, lrs=()),
    )
    batch = min(spec.batch, len(task.train))
    recipe = Recipe(spec.steps, batch, 0.0, spec.weight_decay, spec.drops, spec.warmup_steps, nesterov=False)
    settings = [{"lr": lr * batch} for lr in coarse_first(spec.lrs)]
    model, chosen = train(work, task, recipe, settings, encoder, session)
    test, kept = task.test.open(), list[Prediction]()
    found = predictions(model, test, spec.test_longest, encoder, "Testing")
    each = precisions(watched(found, len(test), kept), classes)
    mean = mean_precision(each)
    if not mean.objects:
        raise BadData(f"{task.name}: none of the {len(test)} test images has an object that counts.")
    _picture(session.out, kept, task.classes, encoder.config.data)
    extra = {"steps": chosen.steps, "AP50": {n: _record(p) for n, p in zip(task.classes, each, strict=True)}}
    return chosen.result(_record(mean), extra)


def _record(precision: Precision) -> dict[str, Any]:
    """None for a class that the test images do not have."""
    values = {"AP50": precision.area, "AP50 (11 points)": precision.eleven}
    return {name: None if math.isnan(value) else value for name, value in values.items()}


def detector(encoder: Encoder, classes: int, spec: Detection, seed: int) -> FasterRCNN:
    torch.manual_seed(seed)
    return FasterRCNN(backbone(encoder), classes, spec)


def make_batch(longest: tuple[int, int], part: Part, recipe: Recipe, step: int) -> Batch:
    """The longest edge is drawn anew for each image, every whole number of pixels equally likely."""
    random = generator("longest", recipe.seed, step)
    low, high = sorted(longest)
    edges = torch.randint(low, high + 1, (recipe.batch,), generator=random).tolist()
    samples = [scaled(sample, edge) for sample, edge in zip(samples_of(part, recipe, step), edges, strict=True)]
    return Batch(samples, int(torch.randint(2**62, (), generator=random)))


def scaled(sample: Sample[Boxes], longest: int) -> Sample[Boxes]:
    """The image with a longest edge of that many pixels, and its boxes with it."""
    height, width = sample.image.shape[1:]
    factor = longest / max(height, width)
    size = (max(1, round(height * factor)), max(1, round(width * factor)))
    boxes = sample.target.boxes * _factors((height, width), size)
    return Sample(resize_image(sample.image, size), sample.target._replace(boxes=boxes))


def _factors(before: tuple[int, int], after: tuple[int, int]) -> Tensor:
    """(4,) by which x0 y0 x1 y1 grow from one (height, width) to another."""
    y, x = after[0] / before[0], after[1] / before[1]
    return torch.tensor([x, y, x, y])


def _prepared(image: Tensor, encoder: Encoder) -> Tensor:
    config = encoder.config.views
    return views.normalize(unit(image.to(encoder.place.device)), config.mean, config.std)


def _placed(pixels: Pixels, encoder: Encoder) -> Pixels:
    return pixels._replace(images=encoder.place.images(pixels.images, encoder.config))


def _loss(encoder: Encoder, model: nn.Module, batch: Batch) -> Tensor:
    assert isinstance(model, FasterRCNN)
    device = encoder.place.device
    pixels = model.pixels([_prepared(sample.image, encoder) for sample in batch.samples])
    objects = [Boxes(*(value.to(device) for value in sample.target)) for sample in batch.samples]
    # torchvision draws from the global generator, which is put back.
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(batch.seed)
        return model.losses(_placed(pixels, encoder), objects)


def predictions(model: nn.Module, part: Part, longest: int, encoder: Encoder, title: str) -> Iterator[Prediction]:
    """What the model finds in every readable image."""
    assert isinstance(model, FasterRCNN)
    for _, sample in readable(part, title):
        image = scaled(sample, longest).image
        pixels = model.pixels([_prepared(image, encoder)])
        with torch.inference_mode(), encoder.place.autocast():
            (found,) = model.detect(_placed(pixels, encoder))
        back = _factors((image.shape[1], image.shape[2]), (sample.image.shape[1], sample.image.shape[2]))
        boxes = found["boxes"].float().cpu() * back
        yield Prediction(sample, Found(boxes, found["labels"].cpu(), found["scores"].float().cpu()))


def precisions(seen: Iterable[Prediction], classes: int) -> list[Precision]:
    """AP50 of each class; of the images nothing is kept."""
    pairs = [(prediction.found, prediction.sample.target) for prediction in seen]
    return average_precisions([found for found, _ in pairs], [truth for _, truth in pairs], classes)


def _score(model: nn.Module, part: Part, classes: int, spec: Detection, encoder: Encoder) -> float:
    """0 where no object counts: every setting is then as good as another."""
    mean = mean_precision(precisions(predictions(model, part, spec.test_longest, encoder, "Choosing"), classes))
    return mean.area if mean.objects else 0.0


def _picture(out: Path | None, kept: Sequence[Prediction], classes: Sequence[str], data: Data) -> None:
    """predictions.png: what was found with some certainty beside the truth, in cells of the first image's shape."""
    if out is None or not kept:
        return
    height, width = kept[0].sample.image.shape[1:]
    factor = TILE / max(height, width)
    cell = max(1, round(width * factor)), max(1, round(height * factor))
    seen, words = visible([prediction.sample.image for prediction in kept], data)
    rows = []
    for image, ((_, truth), found) in zip(seen, kept, strict=True):
        certain = found.scores >= CERTAIN
        scores = [f"{score:.0%}" for score in found.scores[certain].tolist()]
        marks = ["difficult" if hard else "" for hard in truth.difficult.tolist()]
        left = pictures.boxed(image, found.boxes[certain], found.labels[certain], scores, cell)
        rows.append([left, pictures.boxed(image, truth.boxes, truth.labels, marks, cell)])
    legend = [(name, pictures.class_colour(number + 1)) for number, name in enumerate(classes)]
    out.mkdir(parents=True, exist_ok=True)
    titles = (f"prediction, score from {CERTAIN:.0%}", "truth")
    pictures.sheet(out / "predictions.png", rows, titles, cell, legend, footnote=words)
