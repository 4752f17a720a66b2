"""Transfer by fine-tuning (paper, appendix D.3): the whole network trained on another data set.

20,000 steps of 256 images; learning rate and weight decay chosen on validation, trained again on train and validation
together, tested once. The schedule, on which the paper is silent, is a cosine as in the protocol it cites.
"""

from __future__ import annotations

from torch import nn

from byol.data.task import Part, Task, joined
from byol.evals import features, training
from byol.evals.encoder import Encoder
from byol.evals.metrics import score
from byol.evals.spec import Finetune
from byol.evals.sweep import Ledger, Result, Session, Setting, best, coarse_first, cut, timed_first, tried


def evaluate(encoder: Encoder, task: Task, spec: Finetune = Finetune(), session: Session = Session()) -> Result:
    """The encoder itself stays as it is: each run trains a copy."""
    batch = min(spec.batch, len(task.train))
    images = training.images_of(task.train, encoder)
    settings, notes, steps = grid(spec), list[str](), spec.steps
    if timed_first(session, spec.steps * len(settings)):
        model = _model(encoder, task, len(task.train), batch, session.seed)
        each = training.seconds_a_step(model, images, training.Recipe(1, batch, 0.0), encoder)
        settings, share, notes = cut(settings, lambda _: spec.steps, each, session.left * 0.9)
        steps = max(1, int(spec.steps * share))
    held = training.Held(task.validation, encoder)

    def attempt(setting: Setting) -> float:
        model = _model(encoder, task, len(task.train), batch, session.seed)
        good = training.fit(model, images, recipe(setting, steps, batch, session.seed), encoder, "Fine-tuning")
        return held.score(model, task.metric) if good else -1.0

    key = [encoder.checksum(), features.fingerprint(task.train), steps, batch, session.seed]
    trials = tried(settings, attempt, Ledger(session.out, key))
    chosen = best(trials).setting
    both: Part = joined(task.train, task.validation)
    final = _model(encoder, task, len(both), batch, session.seed + 1)
    last = recipe(chosen, steps, batch, session.seed + 1)
    training.fit(final, training.images_of(both, encoder), last, encoder, "Final fine-tuning")
    found = training.Held(task.test.open(), encoder).predict(final)
    return Result(trials, chosen, score(task.metric, *found), notes)


def grid(spec: Finetune) -> list[Setting]:
    """All pairs, in an order of which any beginning covers the range: rates first, at no weight decay."""
    decays = [0.0] * (0.0 in spec.weight_decays) + coarse_first([d for d in spec.weight_decays if d])
    return [{"lr": lr, "weight_decay": decay} for decay in decays for lr in coarse_first(spec.lrs)]


def recipe(setting: Setting, steps: int, batch: int, seed: int) -> training.Recipe:
    """SGD multiplies the decay by the learning rate, so the paper divides it by the learning rate first."""
    decay = setting["weight_decay"] / setting["lr"] if setting["lr"] else 0.0
    return training.Recipe(steps, batch, setting["lr"], weight_decay=decay, seed=seed)


def _model(encoder: Encoder, task: Task, images: int, batch: int, seed: int) -> nn.Module:
    model = training.classifier(encoder.trainable(), encoder.num_features, len(task.classes), seed)
    set_statistics_momentum(model, images / batch)
    return model


def set_statistics_momentum(model: nn.Module, steps_per_epoch: float) -> None:
    """max(1 − 10/s, 0.9) as the paper writes it is what torch calls 1 − momentum."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d | nn.BatchNorm1d):
            module.momentum = min(10 / steps_per_epoch, 0.1)
