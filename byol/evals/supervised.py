"""The same encoder from scratch with all labels (paper, appendix C.2): what BYOL's representation is measured against.

RandAugment, label smoothing, warm-up and cosine; of several learning rates one is chosen on validation, then trained
again on train and validation together and tested once. The trained encoder is kept for the other protocols.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from byol import checkpoint, networks
from byol.data.loader import Images
from byol.data.task import Task, joined
from byol.evals import features, training
from byol.evals.encoder import Encoder
from byol.evals.metrics import score
from byol.evals.spec import Supervised
from byol.evals.sweep import Ledger, Result, Session, Setting, best, cut, timed_first, tried


def evaluate(encoder: Encoder, task: Task, spec: Supervised = Supervised(), session: Session = Session()) -> Result:
    """Of the encoder only the shape is used."""
    spec = replace(spec, batch=min(spec.batch, len(task.train)))
    images = training.images_of(task.train, encoder)
    settings: list[Setting] = [{"lr": lr} for lr in spec.lrs]
    spec, settings, notes = _affordable(encoder, task, images, spec, settings, session)
    trials = []
    if len(settings) > 1:
        held = training.Held(task.validation, encoder)

        def attempt(setting: Setting) -> float:
            model = train(encoder, images, len(task.classes), replace(spec, lrs=(setting["lr"],)), session.seed)
            return held.score(model, task.metric) if model else -1.0

        key = [features.fingerprint(task.train), spec, encoder.config.network, session.seed]
        trials = tried(settings, attempt, Ledger(session.out, key))
    chosen = best(trials).setting if trials else settings[0]
    both = training.images_of(joined(task.train, task.validation), encoder)
    final = train(encoder, both, len(task.classes), replace(spec, lrs=(chosen["lr"],)), session.seed)
    if final is None:
        return Result(trials, chosen, {task.metric: float("nan")}, [*notes, "training diverged"])
    if session.out:
        extra = {"step": 0, "trained": "supervised"}
        checkpoint.save_encoder(session.out / checkpoint.ENCODER, final[0], encoder.config, extra)
    found = training.Held(task.test.open(), encoder).predict(final)
    return Result(trials, chosen, score(task.metric, *found), notes)


def train(encoder: Encoder, images: Images, classes: int, spec: Supervised, seed: int) -> nn.Sequential | None:
    """A new network of the encoder's shape with a head, trained at the first learning rate; None when it diverged."""
    recipe = _recipe(spec, len(images.train), seed)
    model = _model(encoder, classes, seed)
    return model if training.fit(model, images, recipe, encoder, "Supervised") else None


def _model(encoder: Encoder, classes: int, seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    fresh = networks.encoder(encoder.config.network)
    return training.classifier(fresh, encoder.num_features, classes, seed)


def _recipe(spec: Supervised, images: int, seed: int) -> training.Recipe:
    steps = training.steps_of(spec.epochs, images, spec.batch)
    return training.Recipe(
        steps=steps,
        batch=spec.batch,
        lr=spec.lrs[0] * spec.batch / 256,
        weight_decay=spec.weight_decay,
        warmup_steps=min(int(spec.warmup_epochs * images / spec.batch), steps // 2),
        label_smoothing=spec.label_smoothing,
        augment_ops=spec.augment_ops,
        augment_magnitude=spec.augment_magnitude,
        seed=seed,
    )


def _affordable(
    encoder: Encoder, task: Task, images: Images, spec: Supervised, settings: list[Setting], session: Session
) -> tuple[Supervised, list[Setting], list[str]]:
    recipe = _recipe(spec, len(images.train), session.seed)
    if not timed_first(session, recipe.steps * len(settings)):
        return spec, settings, []
    model = _model(encoder, len(task.classes), session.seed)
    each = training.seconds_a_step(model, images, replace(recipe, warmup_steps=0), encoder)
    finals = 1 if len(settings) > 1 else 0  # a single setting is trained once, on everything
    shortened = cut(settings, lambda _: recipe.steps, each, session.left * 0.9, finals)
    return replace(spec, epochs=spec.epochs * shortened.share), shortened.settings, shortened.notes
