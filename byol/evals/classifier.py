"""A classifier trained with labels on random crops, and its scores on centre crops: what linear evaluation,
fine-tuning, semi-supervised and supervised training share."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from byol import networks, views
from byol.config import Config, Optim, View, Views, resolve
from byol.crops import scale_of, sent
from byol.data.loader import Crops, Images, batches, fits, prepare, worker_count
from byol.data.parts import Metric, Part, Task, as_source, joined
from byol.evals.encoder import Encoder
from byol.evals.features import Chunk, centre_crops
from byol.evals.fit import Recipe, fit
from byol.evals.metrics import METRICS, score
from byol.evals.protocol import Result, Session, Study, choose, final
from byol.run.machine import represent

# Appendix C.1: random crops and flips and nothing else, whatever augmentations the encoder was pretrained with.
SPATIAL = View(area_min=0.08, area_max=1.0, ratio_min=3 / 4, ratio_max=4 / 3, flip=0.5, jitter=0, grayscale=0, blur=0)
Change = Callable[[Tensor, int], Tensor]  # crops (B, 3, S, S) in [0, 1] and the step → crops


def images_of(part: Part, encoder: Encoder) -> Images:
    """A part ready to be trained on: in memory when it fits, else streamed."""
    config = encoder.config
    return prepare(as_source(part), replace(config, data=replace(config.data, holdout=0.0)))


def spatial(chosen: Views) -> Views:
    """The same sampler, arithmetic and normalization, with crops and flips alone."""
    return replace(chosen, t=SPATIAL, t_prime=SPATIAL)


def training_config(encoder: Encoder, chosen: Views, recipe: Recipe) -> Config:
    """The encoder's config with the views, batch and seed of an evaluation."""
    config = encoder.config
    return replace(config, views=chosen, optim=Optim(batch=recipe.batch), run=replace(config.run, seed=recipe.seed))


def passes(
    images: Images, config: Config, recipe: Recipe, encoder: Encoder, count: int = 1
) -> Generator[Crops, None, None]:
    """The crops of every step; `count` 2 also makes those of T'."""
    plan = resolve(config, len(images.train), steps=recipe.steps)
    return batches(images, config, plan, 0, encoder.place.device, count=count)


def view_of(batch: Crops, config: Config, encoder: Encoder, number: int = 0) -> Tensor:
    """Normalized images (B, 3, S, S) of one view, T (0) or T' (1), where the encoder computes."""
    view = views.finish_(sent(batch.crops[number], encoder.place.device), batch.draws[number], config.views)
    return encoder.place.images(view, config)


def labels_of(batch: Crops, encoder: Encoder) -> Tensor:
    assert batch.labels is not None
    return sent(batch.labels, encoder.place.device)


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


def train(
    model: nn.Module,
    images: Images,
    recipe: Recipe,
    encoder: Encoder,
    title: str,
    label_smoothing: float = 0.0,
    change: Change | None = None,
) -> nn.Module:
    """The model, trained in place on random crops and flips; `change` may alter the crops of a step."""
    config = training_config(encoder, spatial(encoder.config.views), recipe)

    def loss(model: nn.Module, batch: Crops, step: int) -> Tensor:
        if change:
            batch = batch._replace(crops=(change(batch.crops[0], step),))
        with encoder.place.autocast():
            logits = model(view_of(batch, config, encoder))
        return loss_of(logits.float(), labels_of(batch, encoder), label_smoothing)

    fit(model, passes(images, config, recipe, encoder), loss, recipe, encoder, title)
    return model


class Held:
    """The centre crops of a part, read once when they fit in memory, and scored as often as needed."""

    def __init__(self, part: Part, encoder: Encoder) -> None:
        self.part, self.encoder, self.source = part, encoder, as_source(part)
        self.workers = worker_count(encoder.config) if len(part) > 2000 else 0
        each = (
            encoder.config.network.channels
            * encoder.resolution**2
            * (1 if scale_of(encoder.config.data) is None else 4)
        )
        self.chunks = list(self._read()) if fits(len(part) * each, encoder.config) else None

    def __len__(self) -> int:
        return len(self.part)

    def take(self, positions: Sequence[int]) -> Held:
        return Held(self.part.take(positions), self.encoder)

    def _read(self) -> Iterator[Chunk]:
        return centre_crops(self.source, self.encoder.config.data, self.workers)

    def readable(self) -> list[int]:
        """The positions of the images that could be read."""
        return [i for chunk in (self.chunks if self.chunks is not None else self._read()) for i in chunk.indices]

    def predict(self, model: nn.Module) -> tuple[np.ndarray, np.ndarray]:
        """Scores (N, classes) by the model in evaluation mode, and the targets of the images that could be read."""
        model.eval().to(**self.encoder.place.placement(self.encoder.config))
        scores, kept = [], list[int]()
        for chunk in self.chunks if self.chunks is not None else self._read():
            if chunk.indices:
                scores.append(represent(model, chunk.pixels, self.encoder.config, self.encoder.place).numpy())
            kept += chunk.indices
        return np.concatenate(scores), self.part.targets[kept]

    def score(self, model: nn.Module, metric: Metric) -> float:
        return METRICS[metric](*self.predict(model))


def chosen_and_tested(
    study: Study[Images, Held], task: Task, encoder: Encoder, session: Session
) -> tuple[nn.Module, Result]:
    """The best setting trained again on train and validation together (appendix D), then tested once."""
    chosen = choose(study, session)
    model = final(study, chosen, images_of(joined(task.train, task.validation), encoder))
    return model, chosen.result(score(task.metric, *Held(task.test.open(), encoder).predict(model)))
