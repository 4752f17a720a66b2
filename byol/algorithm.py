"""One step of the paper's Algorithm 1: predictions, targets, loss, gradient, optimizer, moving average."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.optim import Optimizer

from byol import collectives
from byol.errors import Diverged
from byol.machine import Machine
from byol.method import Method


class Step(NamedTuple):
    """What one optimizer step measured, averaged over its passes and processes."""

    loss: float
    grad_norm: float
    probe_loss: float | None
    probe_accuracy: float | None


class Pass(NamedTuple):
    """The two views of one forward pass of this process, and labels when there are any."""

    view1: Tensor
    view2: Tensor
    labels: Tensor | None


def update(
    method: Method, optimizer: Optimizer, passes: Iterable[Pass], *, lr: float, tau: float, machine: Machine
) -> Step:
    """One step of Algorithm 1: the gradient of the mean loss over all passes, then the optimizer, then the target.

    Processes exchange gradients once a step, however many passes it has; each then takes the same step.
    """
    clear_gradients(optimizer)
    losses, probes, correct = [], [], []
    for view1, view2, labels in passes:
        terms: list[Tensor] = []
        for orders in method.orders(view1, view2, machine.autocast):
            loss = method.loss(orders)
            if not terms and method.classifier is not None and labels is not None:  # the probe watches the first view
                with machine.autocast():
                    logits = method.probe(orders[0].representation)
                probe_loss = F.cross_entropy(logits.to(loss.dtype), labels)
                probe_loss.backward()
                probes.append(probe_loss.detach())
                correct.append((logits.argmax(1) == labels).to(loss.dtype).mean())
            loss.backward()
            terms.append(loss.detach())
        losses.append(torch.stack(terms).sum())
    numbers = [torch.stack(values).mean() for values in (losses, probes, correct) if values]
    average_gradients(optimizer, len(losses), numbers)
    step = measure(optimizer, numbers)
    for group in optimizer.param_groups:
        group["lr"] = lr * group.get("scale", 1.0)
    optimizer.step()
    method.update_target(tau)
    return step


def gradients(optimizer: Optimizer) -> list[Tensor]:
    return [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]


def clear_gradients(optimizer: Optimizer) -> None:
    """They stay where they are, so that activations fit where the last ones were. What is added to -0 keeps all its
    bits, even a zero its sign: a step after a resume, which has no gradients yet, is the same."""
    for gradient in gradients(optimizer):
        gradient.fill_(-0.0)


def average_gradients(optimizer: Optimizer, passes: int, numbers: Sequence[Tensor] = ()) -> None:
    """The gradient of the mean over passes and processes, and the processes' mean numbers; no-op for one of each."""
    found = gradients(optimizer)
    if passes > 1:
        torch._foreach_div_(found, passes)
    collectives.average([*found, *numbers])


def measure(optimizer: Optimizer, numbers: Sequence[Tensor]) -> Step:
    """Loss, and the probe's loss and accuracy; if they are not finite, the weights are still those of before."""
    loss, *probe = (float(number) for number in numbers)
    grad_norm = float(torch.nn.utils.get_total_norm(gradients(optimizer)))
    if not (math.isfinite(loss) and math.isfinite(grad_norm)):
        raise Diverged(f"the loss is {loss} and the gradient's norm {grad_norm}")
    return Step(loss, grad_norm, probe[0] if probe else None, probe[1] if probe else None)
