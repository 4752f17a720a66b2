"""Object detection (paper, section 4 and appendix D.5): Faster R-CNN with the encoder as its C4 backbone.

Images are scaled so that their longest edge has a random length, nothing else; SGD whose rate falls to a tenth twice.
AP50 by VOC's rules on the test images, each at one size. Where the paper is silent the values are those of the setup it
reproduces, MoCo's on Detectron: objects marked difficult are trained on, and do not count in the test.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from byol import pictures, views
from byol.data.dense import Boxes, DenseTask, Sample, Samples
from byol.data.loader import generator
from byol.errors import BadData
from byol.evals.average_precision import Found, Precision, average_precisions, mean_precision
from byol.evals.backbone import backbone
from byol.evals.dense import Recipe, Work, readable, samples_of, train
from byol.evals.encoder import Encoder
from byol.evals.faster_rcnn import FasterRCNN, Pixels
from byol.evals.geometry import resize_image
from byol.evals.spec import Detection
from byol.evals.sweep import Result, Session, Setting, coarse_first

SHOWN, TILE, CERTAIN = 8, 320, 0.5  # images in the picture, their side in pixels, the score a box needs to be drawn


class Batch(NamedTuple):
    """Images uint8 (3, H, W) of any size with their objects, and the seed by which anchors and regions are drawn."""

    samples: list[Sample[Boxes]]
    seed: int


class Seen(NamedTuple):
    """What is in the images of a part, what was found in them, and some of the images, by their place among these."""

    truth: list[Boxes]
    found: list[Found]
    images: dict[int, Tensor]


def evaluate(
    encoder: Encoder, task: DenseTask[Boxes], spec: Detection = Detection(), session: Session = Session()
) -> Result:
    """The encoder itself stays as it is: each run trains a copy."""
    classes = len(task.classes)
    work = Work(
        partial(detector, encoder, classes, spec),
        partial(make_batch, spec.longest),
        partial(_loss, encoder),
        lambda model, part: _score(model, part, classes, spec, encoder),
    )
    batch = min(spec.batch, len(task.train))
    recipe = Recipe(spec.steps, batch, 0.0, spec.weight_decay, spec.drops, warmup_steps=spec.warmup_steps)
    settings: list[Setting] = [{"lr": lr * batch} for lr in coarse_first(spec.lrs)]
    trained = train(work, task, recipe, settings, encoder, session)
    test = task.test.open()
    seen = detections(trained.model, test, spec.test_longest, encoder, "Testing", SHOWN if session.out else 0)
    each = average_precisions(seen.found, seen.truth, classes)
    mean = mean_precision(each)
    if not mean.objects:
        raise BadData(f"{task.name}: none of the {len(seen.truth)} test images has an object that counts.")
    if session.out:
        picture(session.out / "detections.png", seen, task.classes)
    extra = {"steps": trained.steps, "AP50": {n: _record(p) for n, p in zip(task.classes, each, strict=True)}}
    return Result(trained.trials, trained.chosen, _record(mean), trained.notes, extra)


def _record(precision: Precision) -> dict[str, Any]:
    """None for a class that the test images do not have."""
    values = {"AP50": precision.area, "AP50 (11 points)": precision.eleven}
    return {name: None if math.isnan(value) else value for name, value in values.items()}


def detector(encoder: Encoder, classes: int, spec: Detection, seed: int) -> FasterRCNN:
    torch.manual_seed(seed)
    return FasterRCNN(backbone(encoder), classes, spec)


def make_batch(longest: tuple[int, int], part: Samples[Boxes], recipe: Recipe, step: int) -> Batch:
    """The longest edge is drawn anew for each image, every whole number of pixels equally likely."""
    random = generator("longest", recipe.seed, step)
    edges = torch.randint(longest[0], max(longest) + 1, (recipe.batch,), generator=random).tolist()
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
    pixels = image.to(encoder.place.device).float() / 255
    return views.normalize(pixels, config.mean, config.std)


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


@torch.inference_mode()
def detections(
    model: nn.Module, part: Samples[Boxes], longest: int, encoder: Encoder, title: str, shown: int = 0
) -> Seen:
    """What the model finds in every readable image, in the image's own pixels; `shown` images are kept."""
    assert isinstance(model, FasterRCNN)
    seen = Seen([], [], {})
    wanted = {len(part) * place // shown for place in range(shown)}
    for index, sample in readable(part, title):
        image = scaled(sample, longest).image
        pixels = model.pixels([_prepared(image, encoder)])
        with encoder.place.autocast():
            (found,) = model.detect(_placed(pixels, encoder))
        back = _factors((image.shape[1], image.shape[2]), (sample.image.shape[1], sample.image.shape[2]))
        if index in wanted:
            seen.images[len(seen.truth)] = sample.image
        seen.truth.append(sample.target)
        boxes = found["boxes"].float().cpu() * back
        seen.found.append(Found(boxes, found["labels"].cpu(), found["scores"].float().cpu()))
    return seen


def _score(model: nn.Module, part: Samples[Boxes], classes: int, spec: Detection, encoder: Encoder) -> float:
    """0 where no object counts: every setting is then as good as another."""
    seen = detections(model, part, spec.test_longest, encoder, "Choosing")
    mean = mean_precision(average_precisions(seen.found, seen.truth, classes))
    return mean.area if mean.objects else 0.0


def picture(path: Path, seen: Seen, classes: Sequence[str]) -> None:
    """Truth on the left, what was found with some certainty on the right; a colour a class."""
    rows = []
    for place, image in seen.images.items():
        truth, found = seen.truth[place], seen.found[place]
        certain = found.scores >= CERTAIN
        hard = [" (difficult)" if difficult else "" for difficult in truth.difficult.tolist()]
        names = [f"{classes[label]}{mark}" for label, mark in zip(truth.labels.tolist(), hard, strict=True)]
        scores = zip(found.labels[certain].tolist(), found.scores[certain].tolist(), strict=True)
        guesses = [f"{classes[label]} {score:.0%}" for label, score in scores]
        rows.append(
            [
                pictures.boxed(image, truth.boxes, truth.labels, names, TILE),
                pictures.boxed(image, found.boxes[certain], found.labels[certain], guesses, TILE),
            ]
        )
    pictures.sheet(path, rows, ("truth", f"found, score at least {CERTAIN:.0%}"), TILE)
