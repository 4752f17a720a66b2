"""Linear evaluation on ImageNet (paper, section 4 and appendix C.1): a linear classifier on a frozen encoder.

All learning rates train as one bank of heads in one pass over the images; the best on validation is trained again on
train and validation together, and scored on test once. The variant of appendix C is three fields of the spec.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from byol import networks, schedules, views
from byol.config import resolve
from byol.data.loader import Images, batches
from byol.data.task import Task, joined
from byol.evals import training
from byol.evals.encoder import Encoder, frozen, spatial_views
from byol.evals.metrics import METRICS, score
from byol.evals.spec import Linear
from byol.evals.sweep import Result, Session, Trial, best, cut, timed_first
from byol.progress import bar


def evaluate(encoder: Encoder, task: Task, spec: Linear = Linear(), session: Session = Session()) -> Result:
    """The learning rate is chosen on validation; the frozen encoder is proved unmoved by its checksum."""
    classes = len(task.classes)
    spec = replace(spec, batch=min(spec.batch, len(task.train)))
    with frozen(encoder):
        images = training.images_of(task.train, encoder)
        spec, notes = _affordable(encoder, images, classes, spec, session)
        bank = train_bank(encoder, images, classes, spec.lrs, spec, session.seed)
        trials = _scored(encoder, task, bank, spec.lrs)
        chosen = best(trials).setting
        both = training.images_of(joined(task.train, task.validation), encoder)
        final = train_bank(encoder, both, classes, [chosen["lr"]], spec, session.seed + 1)[0]
        test = training.Held(task.test.open(), encoder).predict(nn.Sequential(encoder.module, final))
    return Result(trials, chosen, score(task.metric, *test), notes)


@torch.inference_mode()
def _scored(encoder: Encoder, task: Task, bank: nn.ModuleList, lrs: Sequence[float]) -> list[Trial]:
    """Every head on the validation images, which pass the encoder once."""
    values, targets = training.Held(task.validation, encoder).predict(encoder.module)
    inputs = torch.from_numpy(values).to(encoder.place.device)
    return [
        Trial({"lr": lr}, METRICS[task.metric](head(inputs).cpu().numpy(), targets))
        for lr, head in zip(lrs, bank, strict=True)
    ]


def train_bank(
    encoder: Encoder, images: Images, classes: int, lrs: Sequence[float], spec: Linear, seed: int, steps: int = 0
) -> nn.ModuleList:
    """One head a learning rate, all on the same features: SGD, Nesterov 0.9, cosine without warm-up, no decay."""
    config, place = encoder.config, encoder.place
    chosen = config.views if spec.views == "pretraining" else spatial_views(config.views)
    config = training.training_config(encoder, spec.batch, seed, chosen)
    steps = steps or training.steps_of(spec.epochs, len(images.train), spec.batch)
    heads = _heads(encoder, classes, len(lrs), seed)
    optimizer = torch.optim.SGD(
        [{"params": list(head.parameters())} for head in heads], lr=0.0, momentum=0.9, nesterov=True
    )
    plan = resolve(config, len(images.train), steps=steps)
    passes = batches(images, config, plan, 0, place.device, count=1)
    with contextlib.closing(passes), bar("Linear", steps, "images", units_each=spec.batch) as shown:
        for k, batch in enumerate(passes):
            view = views.finish_(batch.crops[0].to(place.device), batch.draws[0], config.views)
            with torch.no_grad(), place.autocast():
                representation = encoder.module(place.images(view, config)).float()
            assert batch.labels is not None
            targets = batch.labels.to(place.device)
            losses = [regularized_loss(head(representation), targets, spec.tclip, spec.logit_penalty) for head in heads]
            optimizer.zero_grad(set_to_none=True)
            torch.stack(losses).sum().backward()
            for lr, group in zip(lrs, optimizer.param_groups, strict=True):
                peak = lr * spec.batch / 256
                group["lr"] = schedules.learning_rate(k, peak=peak, warmup_steps=0, total_steps=steps)
            optimizer.step()
            shown.advance(text=f"loss {min(losses).item():.3f}")
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


def tclip(logits: Tensor, alpha: float) -> Tensor:
    """α · tanh(x / α); 0 leaves the logits alone."""
    return alpha * torch.tanh(logits / alpha) if alpha else logits


def regularized_loss(logits: Tensor, targets: Tensor, alpha: float, beta: float) -> Tensor:
    """cross_entropy(tclip(x), y) + β · average(tclip(x)²) (appendix C)."""
    clipped = tclip(logits, alpha)
    return training.loss_of(clipped, targets) + beta * clipped.square().mean()


def _affordable(
    encoder: Encoder, images: Images, classes: int, spec: Linear, session: Session
) -> tuple[Linear, list[str]]:
    """Fewer epochs when the budget asks for it; the bank costs the same for one learning rate as for five."""
    steps = training.steps_of(spec.epochs, len(images.train), spec.batch)
    if not timed_first(session, steps):
        return spec, []
    train_bank(encoder, images, classes, spec.lrs, spec, session.seed, steps=training.WARM_STEPS)
    began = time.monotonic()
    train_bank(encoder, images, classes, spec.lrs, spec, session.seed, steps=training.TIMED_STEPS)
    each = (time.monotonic() - began) / training.TIMED_STEPS
    shortened = cut([{"epochs": spec.epochs}], lambda _: steps, each, session.left * 0.9)
    return replace(spec, epochs=spec.epochs * shortened.share), shortened.notes
