"""One step of the paper's Algorithm 1: predictions, targets, loss, gradient, optimizer, moving average."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.optim import Optimizer

from byol.errors import Diverged
from byol.machine import Machine
from byol.method import Method


class Step(NamedTuple):
    """What one optimizer step measured, averaged over its passes."""

    loss: float
    grad_norm: float
    probe_loss: float | None
    probe_accuracy: float | None


class Pass(NamedTuple):
    """The two views of one forward pass, and labels when there are any."""

    view1: Tensor
    view2: Tensor
    labels: Tensor | None


def update(
    method: Method, optimizer: Optimizer, passes: Iterable[Pass], *, lr: float, tau: float, machine: Machine
) -> Step:
    """One step of Algorithm 1: the gradient of the mean loss over all passes, then the optimizer, then the target."""
    optimizer.zero_grad(set_to_none=True)
    losses, probes, correct = [], [], []
    for view1, view2, labels in passes:
        with machine.autocast():
            out = method(view1, view2)
            logits = method.probe(out.representation1) if method.classifier is not None else None
        loss = method.objective(out.prediction1, out.target1, out.prediction2, out.target2)
        losses.append(loss.detach())
        if logits is not None and labels is not None:
            probe_loss = F.cross_entropy(logits.to(loss.dtype), labels)
            probes.append(probe_loss.detach())
            correct.append((logits.argmax(1) == labels).to(loss.dtype).mean())
            loss = loss + probe_loss
        loss.backward()
    average_gradients(optimizer, len(losses))
    step = measure(optimizer, losses, probes, correct)
    for group in optimizer.param_groups:
        group["lr"] = lr * group.get("scale", 1.0)
    optimizer.step()
    method.update_target(tau)
    return step


def average_gradients(optimizer: Optimizer, passes: int) -> None:
    """The gradient of the mean over passes; exact no-op for a single one."""
    if passes > 1:
        torch._foreach_div_([p.grad for g in optimizer.param_groups for p in g["params"] if p.grad is not None], passes)


def measure(optimizer: Optimizer, losses: list[Tensor], probes: list[Tensor], correct: list[Tensor]) -> Step:
    """The numbers of a step; if they are not finite, the weights are still those of before it."""
    grads = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    loss = float(torch.stack(losses).mean())
    grad_norm = float(torch.nn.utils.get_total_norm(grads))
    if not (math.isfinite(loss) and math.isfinite(grad_norm)):
        raise Diverged(f"the loss is {loss} and the gradient's norm {grad_norm}")
    if not probes:
        return Step(loss, grad_norm, None, None)
    return Step(loss, grad_norm, float(torch.stack(probes).mean()), float(torch.stack(correct).mean()))
