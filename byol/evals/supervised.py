"""The same encoder from scratch with all labels (paper, appendix C.2): what BYOL's representation is measured against.

RandAugment, label smoothing, warm-up and cosine; of several learning rates one is chosen on validation, then trained
again on train and validation together and tested once. The trained encoder is kept for the other protocols.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from byol import checkpoint
from byol.crops import scale_of
from byol.data.loader import Images
from byol.data.parts import Task
from byol.errors import UsageError
from byol.evals import classifier
from byol.evals.budget import Setting
from byol.evals.encoder import Encoder
from byol.evals.fit import Recipe, steps_of
from byol.evals.protocol import Result, Session, Study, dependencies
from byol.evals.spec import Supervised


def evaluate(encoder: Encoder, task: Task, spec: Supervised, session: Session) -> Result:
    """Of the encoder only the shape is used."""
    if spec.augment_ops and (encoder.config.network.channels != 3 or scale_of(encoder.config.data)):
        raise UsageError("RandAugment changes 8-bit colours, which these images are not: --supervised.augment-ops 0.")
    spec = replace(spec, batch=min(spec.batch, len(task.train)))
    first = classifier.images_of(task.train, encoder)

    def trained(images: Images, setting: Setting, steps: int, title: str) -> nn.Module:
        steps = max(1, int(steps * len(images.train) / len(first.train)))  # as many epochs of more images
        own = replace(spec, lrs=(setting["lr"],))
        return train(encoder, images, len(task.classes), own, session.seed, steps, title)

    study = Study(
        [{"lr": lr} for lr in spec.lrs],
        lambda setting: steps_of(spec.epochs, len(first.train), spec.batch),
        trained,
        lambda model, held: held.score(model, task.metric),
        first,
        classifier.Held(task.validation, encoder),
        dependencies(encoder, task, replace(spec, lrs=()), session.seed),
    )
    model, result = classifier.chosen_and_tested(study, task, encoder, session)
    if session.out:
        extra = {"step": 0, "trained": "supervised"}
        checkpoint.save_encoder(session.out / checkpoint.ENCODER, model.get_submodule("0"), encoder.config, extra)
    return result


def train(
    encoder: Encoder, images: Images, classes: int, spec: Supervised, seed: int, steps: int = 0, title: str = "Training"
) -> nn.Module:
    """A new network of the encoder's shape with a head, trained at the first learning rate of the spec."""
    torch.manual_seed(seed)
    model = classifier.classifier(encoder.fresh(), encoder.num_features, classes, seed)
    steps = steps or steps_of(spec.epochs, len(images.train), spec.batch)
    recipe = Recipe(
        steps,
        spec.batch,
        spec.lrs[0] * spec.batch / 256,
        spec.weight_decay,
        warmup_steps=min(int(spec.warmup_epochs * len(images.train) / spec.batch), steps // 2),
        seed=seed,
    )
    change = partial(rand_augment, spec, seed) if spec.augment_ops else None
    return classifier.train(model, images, recipe, encoder, title, spec.label_smoothing, change)


def rand_augment(spec: Supervised, seed: int, crops: Tensor, step: int) -> Tensor:
    """RandAugment, drawn anew for each image from (seed, step), on crops (B, 3, S, S) in [0, 1]."""
    from torchvision.transforms import v2

    change = v2.RandAugment(spec.augment_ops, spec.augment_magnitude)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed * 1_000_003 + step)
        changed = [change(image) for image in (crops * 255).round().to(torch.uint8).cpu()]
    return torch.stack(changed).to(crops.device).float() / 255
