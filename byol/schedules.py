"""Rates, tau and the weight of negatives as pure functions of the step: nothing to save, nothing to lose."""

from __future__ import annotations

import math
from collections.abc import Sequence

from byol.config import Config, Plan


def learning_rate(step: int, *, peak: float, warmup_steps: int, total_steps: int) -> float:
    """Linear from 0 to `peak` over the warm-up, then half a cosine down to 0; `step` counts from 0."""
    if step < warmup_steps:
        return peak * step / warmup_steps
    progress = (step - warmup_steps) / max(total_steps - warmup_steps, 1)
    return peak * 0.5 * (1.0 + math.cos(math.pi * progress))


def target_decay(step: int, *, base: float, total_steps: int) -> float:
    """tau: from `base` to 1 along half a cosine over all steps, without regard to the warm-up."""
    return 1.0 - (1.0 - base) * 0.5 * (1.0 + math.cos(math.pi * step / total_steps))


def fading(step: int, *, base: float, share: float, total_steps: int) -> float:
    """beta: from `base` straight down to 0 over the first `share` of all steps, then 0; at share 0 always `base`."""
    return base * max(0.0, 1.0 - step / (share * total_steps)) if share else base


def in_pieces(step: int, *, base: float, drops: Sequence[float], total_steps: int) -> float:
    """`base`, divided by ten at each of the `drops`, which are fractions of all steps."""
    return base * 0.1 ** sum(step >= drop * total_steps for drop in drops)


def tau(step: int, config: Config, plan: Plan) -> float:
    """Of a step of a run: 0 for a target that is the online network itself, 1 for a fixed one."""
    if config.network.target != "moving-average":
        return 1.0 if config.network.target == "fixed" else 0.0
    if config.optim.tau_schedule == "constant":
        return config.optim.tau
    return target_decay(step, base=config.optim.tau, total_steps=plan.steps)


def beta(step: int, config: Config, plan: Plan) -> float:
    """Of a step of a run: the weight of negative examples, of which the paper's loss has none."""
    objective = config.objective
    if not objective.contrasts:
        return 0.0
    return fading(step, base=objective.beta, share=objective.fade, total_steps=plan.steps)
