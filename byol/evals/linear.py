"""Linear evaluation on ImageNet (paper, section 4 and appendix C.1): a linear classifier on a frozen encoder.

All learning rates train as one bank of heads in one pass over the images; the head that is best on validation is scored
on test once. The variant of appendix C is three fields of the spec. Its pretraining augmentations are T and T': a step
draws all its views from T when its number is even and from T' when it is odd, so that both are seen equally often.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from byol import networks
from byol.data.loader import Crops, Images
from byol.data.parts import Task
from byol.evals import classifier
from byol.evals.budget import Setting
from byol.evals.classifier import Held
from byol.evals.encoder import Encoder, frozen
from byol.evals.fit import Recipe, fit, steps_of
from byol.evals.metrics import METRICS, score
from byol.evals.protocol import DIVERGED, Result, Session, Study, Trial, best, choose
from byol.evals.spec import Linear


def evaluate(encoder: Encoder, task: Task, spec: Linear, session: Session) -> Result:
    """The learning rate is chosen on validation; the frozen encoder is proved unmoved by its checksum."""
    spec, classes = replace(spec, batch=min(spec.batch, len(task.train))), len(task.classes)

    def train(images: Images, setting: Setting, steps: int, title: str) -> nn.Module:
        return train_bank(encoder, images, classes, spec, session.seed, steps, title)

    with frozen(encoder):
        images, held = classifier.images_of(task.train, encoder), Held(task.validation, encoder)
        # To the budget the bank is one setting: it costs the same for one learning rate as for five.
        steps = steps_of(spec.epochs, len(task.train), spec.batch)
        look = lambda bank, held: max(trial.validation for trial in scored(encoder, task, held, bank, spec.lrs))
        plan = choose(Study([{}], lambda setting: steps, train, look, images, held, []), session)
        bank = train(images, {}, plan.steps, "Linear")
        trials = scored(encoder, task, held, bank, spec.lrs)
        winner = best(trials)
        head = list(bank.children())[trials.index(winner)]
        test = Held(task.test.open(), encoder).predict(nn.Sequential(encoder.module, head))
    return Result(trials, winner.setting, score(task.metric, *test), plan.notes)


@torch.inference_mode()
def scored(encoder: Encoder, task: Task, held: Held, bank: nn.Module, lrs: Sequence[float]) -> list[Trial]:
    """Every head on the validation images, which pass the encoder once."""
    values, targets = held.predict(encoder.module)
    trials = []
    for lr, head in zip(lrs, bank.children(), strict=True):
        weight = next(head.parameters())
        logits = head(torch.from_numpy(values).to(weight)).float().cpu().numpy()
        figure = METRICS[task.metric](logits, targets) if np.isfinite(logits).all() else DIVERGED
        trials.append(Trial({"lr": lr}, figure))
    return trials


def train_bank(
    encoder: Encoder, images: Images, classes: int, spec: Linear, seed: int, steps: int, title: str = "Linear"
) -> nn.ModuleList:
    """One head a learning rate, all on the same features: SGD, Nesterov 0.9, cosine without warm-up, no decay."""
    recipe = Recipe(steps, spec.batch, 0.0, seed=seed)
    both = spec.views == "pretraining"
    own = encoder.config.views
    config = classifier.training_config(encoder, own if both else classifier.spatial(own), recipe)
    heads = _heads(encoder, classes, len(spec.lrs), seed)
    peaks = [lr * spec.batch / 256 for lr in spec.lrs]
    groups = [{"params": list(head.parameters()), "peak": peak} for head, peak in zip(heads, peaks, strict=True)]

    def loss(bank: nn.Module, batch: Crops, step: int) -> Tensor:
        view = classifier.view_of(batch, config, encoder, number=step % 2 if both else 0)
        with torch.no_grad(), encoder.place.autocast():
            representation = encoder.module(view)
        targets = classifier.labels_of(batch, encoder)
        logits = [head(representation.to(next(head.parameters()))) for head in bank.children()]
        losses = torch.stack([regularized_loss(each, targets, spec.tclip, spec.logit_penalty) for each in logits])
        return torch.where(losses.isfinite(), losses, 0).sum()  # a head that diverges leaves the others alone

    batches = classifier.passes(images, config, recipe, encoder, count=2 if both else 1)
    fit(heads, batches, loss, recipe, encoder, title, groups)
    return heads.eval()


def _heads(encoder: Encoder, classes: int, count: int, seed: int) -> nn.ModuleList:
    """All from the same random weights, so that they differ by their learning rate alone."""
    torch.manual_seed(seed)
    first = nn.Linear(encoder.num_features, classes)
    networks.initialize(first)
    heads = nn.ModuleList(nn.Linear(encoder.num_features, classes) for _ in range(count))
    for head in heads:
        head.load_state_dict(first.state_dict())
    return heads.to(encoder.place.device)


def regularized_loss(logits: Tensor, targets: Tensor, alpha: float, beta: float) -> Tensor:
    """cross_entropy(tclip(x), y) + β · average(tclip(x)²), tclip(x) = α · tanh(x / α) (appendix C); α 0: no clip."""
    clipped = alpha * torch.tanh(logits / alpha) if alpha else logits
    return classifier.loss_of(clipped, targets) + beta * clipped.square().mean()
