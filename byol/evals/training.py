"""A classifier trained with labels on random crops: the part that fine-tuning and supervised training share."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from byol import networks, optim, schedules, views
from byol.config import Config, Optim, Views, resolve
from byol.data.loader import Images, batches, fits, prepare, worker_count
from byol.data.task import Metric, Part, as_source
from byol.evals.encoder import Encoder, spatial_views
from byol.evals.features import Chunk, centre_crops, represent
from byol.evals.metrics import METRICS
from byol.progress import bar

WARM_STEPS, TIMED_STEPS = 2, 3


@dataclass(frozen=True)
class Recipe:
    """One training run by SGD with Nesterov momentum 0.9 and a cosine; `lr` is the peak as it is used."""

    steps: int
    batch: int
    lr: float
    weight_decay: float = 0.0
    warmup_steps: int = 0
    label_smoothing: float = 0.0
    augment_ops: int = 0
    augment_magnitude: int = 0
    seed: int = 0


def steps_of(epochs: float, images: int, batch: int) -> int:
    return max(1, int(epochs * images / batch))


def images_of(part: Part, encoder: Encoder) -> Images:
    """A part ready to be trained on: in memory when it fits, else streamed."""
    config = encoder.config
    return prepare(as_source(part), replace(config, data=replace(config.data, holdout=0.0)))


def training_config(encoder: Encoder, batch: int, seed: int, chosen: Views | None = None) -> Config:
    """The encoder's config with the views, batch and seed of an evaluation."""
    config = encoder.config
    return replace(
        config,
        views=chosen or spatial_views(config.views),
        optim=Optim(batch=batch),
        run=replace(config.run, seed=seed),
    )


def classifier(encoder: nn.Module, features: int, classes: int, seed: int) -> nn.Sequential:
    """The encoder with a new linear head, which the reference code draws like every other weight."""
    torch.manual_seed(seed)
    head = nn.Linear(features, classes)
    networks.initialize(head)
    return nn.Sequential(encoder, head)


def loss_of(logits: Tensor, targets: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """Cross-entropy; of several labels an image the mean binary one over those that count."""
    if targets.ndim == 1:
        return F.cross_entropy(logits, targets, label_smoothing=label_smoothing)
    counted = targets != 0
    losses = F.binary_cross_entropy_with_logits(logits, (targets > 0).to(logits.dtype), reduction="none")
    return (losses * counted).sum() / counted.sum().clamp(min=1)


def fit(model: nn.Module, images: Images, recipe: Recipe, encoder: Encoder, title: str = "Training") -> bool:
    """Trains the model in place; False when the loss stopped being finite."""
    config, place = training_config(encoder, recipe.batch, recipe.seed), encoder.place
    plan = resolve(config, len(images.train), steps=recipe.steps)
    model.train().to(**place.placement(config))
    groups = optim.parameter_groups(model, recipe.weight_decay)
    optimizer = torch.optim.SGD(groups, lr=0.0, momentum=0.9, nesterov=True)
    passes = batches(images, config, plan, 0, place.device, count=1)
    with contextlib.closing(passes), bar(title, recipe.steps, "images", units_each=recipe.batch) as shown:
        for k, batch in enumerate(passes):
            crops = augment(batch.crops[0], recipe, k)
            view = views.finish_(crops.to(place.device), batch.draws[0], config.views)
            assert batch.labels is not None
            with place.autocast():
                logits = model(place.images(view, config))
            loss = loss_of(logits.float(), batch.labels.to(place.device), recipe.label_smoothing)
            if not math.isfinite(loss.item()):
                return False
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            lr = schedules.learning_rate(k, peak=recipe.lr, warmup_steps=recipe.warmup_steps, total_steps=recipe.steps)
            for group in optimizer.param_groups:
                group["lr"] = lr
            optimizer.step()
            shown.advance(text=f"loss {loss.item():.3f} lr {lr:.3g}")
    return True


def augment(crops: Tensor, recipe: Recipe, step: int) -> Tensor:
    """RandAugment, drawn anew for each image, on crops in [0, 1]."""
    if not recipe.augment_ops:
        return crops
    from torchvision.transforms import v2

    change = v2.RandAugment(recipe.augment_ops, recipe.augment_magnitude)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed * 1_000_003 + step)
        changed = [change(image) for image in (crops * 255).round().to(torch.uint8).cpu()]
    return torch.stack(changed).to(crops.device).float() / 255


def seconds_a_step(model: nn.Module, images: Images, recipe: Recipe, encoder: Encoder) -> float:
    """Measured on the model itself, so hand in one that is not needed afterwards."""
    fit(model, images, replace(recipe, steps=WARM_STEPS), encoder, "Warming up")
    began = time.monotonic()
    fit(model, images, replace(recipe, steps=TIMED_STEPS), encoder, "Measuring")
    return (time.monotonic() - began) / TIMED_STEPS


class Held:
    """The centre crops of a part, read once when they fit in memory, and scored as often as needed."""

    def __init__(self, part: Part, encoder: Encoder) -> None:
        self.encoder, self.source = encoder, as_source(part)
        self.targets = part.targets
        self.workers = worker_count(encoder.config) if len(part) > 2000 else 0
        self.chunks = list(self._read()) if fits(len(part) * 3 * encoder.resolution**2, encoder.config) else None

    def _read(self) -> Iterator[Chunk]:
        return centre_crops(self.source, self.encoder.resolution, self.workers)

    def predict(self, model: nn.Module) -> tuple[np.ndarray, np.ndarray]:
        """Scores (N, classes) by the model in evaluation mode, and the targets of the images that could be read."""
        model.eval().to(**self.encoder.place.placement(self.encoder.config))
        found, kept = [], []
        for chunk in self.chunks if self.chunks is not None else self._read():
            if chunk.indices:
                found.append(represent(model, chunk.pixels, self.encoder.config, self.encoder.place).numpy())
            kept += chunk.indices
        return np.concatenate(found), self.targets[kept]

    def score(self, model: nn.Module, metric: Metric) -> float:
        return METRICS[metric](*self.predict(model))
