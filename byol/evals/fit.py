"""One training run by SGD: the loop of every evaluation that trains."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from byol import optim, schedules
from byol.algorithm import Late, Outcome
from byol.errors import Diverged
from byol.evals.encoder import Encoder
from byol.run.progress import bar

B = TypeVar("B")
READ_EVERY = 10  # steps: on a GPU the losses of so many are read together


@dataclass(frozen=True)
class Recipe:
    """One training run by SGD with momentum 0.9; `lr` is the peak as it is used."""

    steps: int
    batch: int
    lr: float
    weight_decay: float = 0.0  # not applied to biases and normalization
    drops: tuple[float, ...] | None = None  # fractions of the steps at which the rate falls to a tenth; None: a cosine
    warmup_steps: int = 0  # linear; with drops at most a tenth of all steps
    nesterov: bool = True
    seed: int = 0


def steps_of(epochs: float, images: int, batch: int) -> int:
    return max(1, int(epochs * images / batch))


def rate(recipe: Recipe, step: int, peak: float) -> float:
    """The learning rate of a step, counted from 0."""
    if recipe.drops is None:
        return schedules.learning_rate(step, peak=peak, warmup_steps=recipe.warmup_steps, total_steps=recipe.steps)
    lr = schedules.in_pieces(step, base=peak, drops=recipe.drops, total_steps=recipe.steps)
    return lr * min(1.0, (step + 1) / (min(recipe.warmup_steps, recipe.steps // 10) + 1))


def fit(
    model: nn.Module,
    batches: Generator[B, None, None],
    loss_of: Callable[[nn.Module, B, int], Tensor],
    recipe: Recipe,
    encoder: Encoder,
    title: str,
    groups: list[dict[str, Any]] | None = None,
) -> None:
    """Trains the model in place, where the encoder computes; a loss that stops being finite is `Diverged`.

    `loss_of` gets the model in training mode, the batch and the number of the step. `groups` are models
    of their own, trained together, each with its learning rate `peak`: the caller looks which of them diverged.
    """
    model.train().to(**encoder.place.placement(encoder.config))
    lost = f"{title} diverged: the loss is no longer finite. Lower the learning rate."
    usual = optim.parameter_groups(model, recipe.weight_decay)
    optimizer = torch.optim.SGD(groups or usual, lr=0.0, momentum=0.9, nesterov=recipe.nesterov)
    late = Late(READ_EVERY)
    with contextlib.closing(batches), bar(title, recipe.steps, "images", units_each=recipe.batch) as shown:
        for step, batch in enumerate(batches):
            loss = loss_of(model, batch, step)
            late.add(step, Outcome(loss.detach()[None]))
            for _, outcome, _ in late.good():
                shown.text = f"loss {outcome.values()[0]:.3f} lr {optimizer.param_groups[0]['lr']:.3g}"
            if late.wrong:  # on a GPU a step later, when the weights of a model that is thrown away have changed too
                raise Diverged(lost)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            for group in optimizer.param_groups:
                group["lr"] = rate(recipe, step, group.get("peak", recipe.lr))
            optimizer.step()
            shown.advance()
    if not all(outcome.finite for _, outcome, _ in late.all()):
        raise Diverged(lost)
    if groups is None and not finite(model):
        raise Diverged(f"{title} diverged: the weights are no longer finite. Lower the learning rate.")


def finite(module: nn.Module) -> bool:
    """Whether every weight and statistic is a number: scores of a broken network would all look right."""
    return bool(torch.stack([value.isfinite().all() for value in module.state_dict().values()]).all())
