"""One step of the paper's Algorithm 1: predictions, targets, loss, gradient, optimizer, moving average."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.optim import Optimizer

from byol.errors import Diverged
from byol.method import Method
from byol.parallel import collectives
from byol.run.machine import Machine


class Step(NamedTuple):
    """What one optimizer step measured, averaged over its passes and processes."""

    loss: float
    grad_norm: float
    probe_loss: float | None = None
    probe_accuracy: float | None = None


class Pass(NamedTuple):
    """The two views of one forward pass of this process, and labels when there are any."""

    view1: Tensor
    view2: Tensor
    labels: Tensor | None


def update(
    method: Method,
    optimizer: Optimizer,
    passes: Iterable[Pass],
    *,
    lr: float,
    tau: float,
    beta: float | None = None,
    machine: Machine,
    clip: float = 0.0,
) -> Step:
    """One step of Algorithm 1: the gradient of the mean loss over all passes, then the optimizer, then the target.

    Processes exchange gradients once a step, however many passes it has; each then takes the same step. `beta`, the
    weight of negative examples, is the config's when left out; the paper's loss has none.
    """
    clear_gradients(optimizer)
    measured = []
    for view1, view2, labels in passes:
        terms, representations = [], []
        for orders in method.orders(view1, view2, machine.autocast):
            loss = method.loss(orders, beta)
            loss.backward()  # frees this view's activations before the other view's are computed
            terms.append(loss.detach())
            representations.append(orders[0].representation.detach())
        measured.append([torch.stack(terms).sum(), *watch(method, representations[0], labels, machine)])
    means = [torch.stack(values).mean() for values in zip(*measured, strict=True)]
    average_gradients(optimizer, len(measured), means)
    step = checked(optimizer, means)
    shorten(method, clip)
    for group in optimizer.param_groups:
        group["lr"] = lr * group.get("scale", 1.0)
    optimizer.step()
    method.update_target(tau)
    return step


def watch(method: Method, representation: Tensor, labels: Tensor | None, machine: Machine) -> list[Tensor]:
    """The watching classifier's loss and accuracy, its gradient added; nothing without a classifier or labels."""
    if method.classifier is None or labels is None:
        return []
    with machine.autocast():
        logits = method.probe(representation)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    loss = F.cross_entropy(logits, labels)
    loss.backward()
    return [loss.detach(), (logits.argmax(1) == labels).to(loss.dtype).mean()]


def gradients(optimizer: Optimizer) -> list[Tensor]:
    return [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]


def clear_gradients(optimizer: Optimizer) -> None:
    """Set every gradient to -0, in the memory it already has.

    Gradients that were freed would be allocated anew between the next step's activations, which then no longer fit into
    the memory of the last step's. The value is -0 because x + -0 is x in every bit, while 0 would turn a gradient of -0
    into +0: the first step after a resume, which has no gradients to add to, would then differ from the same step of an
    uninterrupted run.
    """
    for gradient in gradients(optimizer):
        gradient.fill_(-0.0)


def average_gradients(optimizer: Optimizer, passes: int, numbers: Sequence[Tensor] = ()) -> None:
    """Turn summed gradients into their mean over passes and processes, and `numbers` into their mean over processes."""
    summed = gradients(optimizer)
    if passes > 1:
        torch._foreach_div_(summed, passes)
    collectives.average([*summed, *numbers])


def shorten(method: Method, clip: float) -> None:
    """Scales the gradients of online network and predictor down together to a norm of at most `clip`; 0: of any.

    Those of the watching classifier do not count: labels must not change what is learned.
    """
    if clip:
        learned = (*method.online.parameters(), *method.predictor.parameters())
        torch.nn.utils.clip_grad_norm_(learned, clip)


def checked(optimizer: Optimizer, means: Sequence[Tensor]) -> Step:
    """The step's measurements; a loss or gradient that is not finite raises before any weight has changed."""
    loss, *probe = (float(mean) for mean in means)
    grad_norm = float(torch.nn.utils.get_total_norm(gradients(optimizer)))
    if not (math.isfinite(loss) and math.isfinite(grad_norm)):
        raise Diverged(f"the loss is {loss} and the gradient's norm {grad_norm}")
    return Step(loss, grad_norm, *probe)
