"""LARS as the reference code has it, and the split of parameters into adapted and plain ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.optim import Optimizer

from byol.config import Optim
from byol.errors import UsageError
from byol.networks import ResNet

NORMALIZATION = (_NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm, nn.LocalResponseNorm)


class LARS(Optimizer):
    """Layer-wise adaptive rate scaling with momentum.

    g' = g + wd·w;  s = eta·‖w‖/‖g'‖, or 1 where either norm is 0;  m ← mu·m + s·g';  w ← w − lr·m.
    No epsilon, no clipping, and the learning rate outside the momentum buffer (SimCLR's has it inside).
    A group with `adapt=False` is neither adapted nor decayed. Nothing here waits for the device: `found_inf` is what
    torch's fused optimizers have too, a number () on the device, 1 for a step that is to change nothing.
    """

    found_inf: Tensor

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust_coefficient: float = 1e-3,
    ) -> None:
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "weight_decay": weight_decay,
            "trust_coefficient": trust_coefficient,
            "adapt": True,
        }
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        left_out: Tensor | None = getattr(self, "found_inf", None)
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            if not params:
                continue
            updates = [p.grad for p in params]
            momenta = [self._momentum(p) for p in params]
            if left_out is not None:
                _step_unless(left_out, params, updates, momenta, group)
                continue
            if group["adapt"]:
                updates = _adapt(params, updates, group["weight_decay"], group["trust_coefficient"])
            torch._foreach_mul_(momenta, group["momentum"])
            torch._foreach_add_(momenta, updates)
            torch._foreach_add_(params, momenta, alpha=-group["lr"])
        return loss

    def _momentum(self, param: Tensor) -> Tensor:
        state = self.state[param]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(param)
        buffer: Tensor = state["momentum"]
        return buffer


def _adapt(params: list[Tensor], grads: list[Tensor], weight_decay: float, trust_coefficient: float) -> list[Tensor]:
    decayed = torch._foreach_add(grads, params, alpha=weight_decay)
    param_norms = torch.stack(torch._foreach_norm(params))
    grad_norms = torch.stack(torch._foreach_norm(decayed))
    trust = trust_coefficient * param_norms / grad_norms
    trust = torch.where((param_norms > 0) & (grad_norms > 0), trust, torch.ones_like(trust))
    return list(torch._foreach_mul(decayed, list(trust.unbind())))


def _step_unless(
    left_out: Tensor, params: list[Tensor], grads: list[Tensor], momenta: list[Tensor], group: dict[str, Any]
) -> None:
    """The same step with the same bits, or none where `left_out` is 1: gradients become 0, for NaN times 0 is NaN."""
    for grad in grads:
        (grad.to_local() if hasattr(grad, "to_local") else grad).masked_fill_(left_out.bool(), 0.0)
    taken = (1 - left_out).to(params[0].dtype)
    if group["adapt"]:
        grads = _adapt(params, grads, group["weight_decay"], group["trust_coefficient"])
        torch._foreach_mul_(grads, taken)
    torch._foreach_mul_(momenta, torch.where(taken > 0, group["momentum"], torch.ones_like(taken)))
    torch._foreach_add_(momenta, grads)
    torch._foreach_add_(params, torch._foreach_mul(momenta, taken), alpha=-group["lr"])


def parameter_groups(module: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Two groups: weights to adapt and decay; biases, normalization and other vectors to leave alone."""
    weights: list[Tensor] = []
    plain: list[Tensor] = []
    seen: set[Tensor] = set()  # a weight may belong to two modules
    for owner in module.modules():
        for name, param in owner.named_parameters(recurse=False):
            if not param.requires_grad or param in seen:
                continue
            seen.add(param)
            vector = param.ndim <= 1 or name.endswith("bias")
            (plain if vector or isinstance(owner, NORMALIZATION) else weights).append(param)
    return [
        {"params": weights, "weight_decay": weight_decay, "adapt": True},
        {"params": plain, "weight_decay": 0.0, "adapt": False},
    ]


def build(module: nn.Module, config: Optim) -> Optimizer:
    """The optimizer of a run; its learning rate is set anew at every step. Decides which parameters learn at all."""
    if config.norm_only:
        learn(module, config, heads_only=False)
    groups = parameter_groups(module, config.weight_decay)
    if config.encoder_lr != 1.0 or config.layer_decay != 1.0:
        for params, factor in encoder_rates(module.get_submodule("online.encoder"), config):
            groups = scale(groups, params, factor)
    for part, factor in (("predictor", config.predictor_lr), ("online.projector", config.projector_lr)):
        if factor != 1.0:
            groups = scale(groups, set(module.get_submodule(part).parameters()), factor)
    return OPTIMIZERS[config.optimizer](groups, config)


def learn(module: nn.Module, config: Optim, heads_only: bool) -> None:
    """Sets which parameters of the online encoder learn in this step: none, all, or those of its normalization.

    One that does not learn has no gradient, so that the optimizer passes it over and its momentum does not move.
    """
    for owner in module.get_submodule("online.encoder").modules():
        for param in owner.parameters(recurse=False):
            param.requires_grad_(not heads_only and (not config.norm_only or isinstance(owner, NORMALIZATION)))
            if heads_only:
                param.grad = None


def encoder_rates(encoder: nn.Module, config: Optim) -> list[tuple[set[nn.Parameter], float]]:
    """The encoder's parameters with what multiplies their rate: block by block where the rate decays with depth."""
    if config.layer_decay == 1.0:
        return [(set(encoder.parameters()), config.encoder_lr)]
    if not isinstance(encoder, ResNet):
        raise UsageError("optim.layer_decay is for the ResNets of byol; other encoders have blocks it does not know.")
    blocks = [block for group in (encoder.layer1, encoder.layer2, encoder.layer3, encoder.layer4) for block in group]
    parts = [nn.ModuleList([encoder.conv1, encoder.bn1]), *blocks]
    depths = range(len(parts) - 1, -1, -1)
    return [
        (set(part.parameters()), config.encoder_lr * config.layer_decay**depth)
        for part, depth in zip(parts, depths, strict=True)
    ]


def scale(groups: list[dict[str, Any]], chosen: set[nn.Parameter], factor: float) -> list[dict[str, Any]]:
    """Splits the groups so that the chosen parameters learn at `factor` times the rate; `update` applies it."""
    split = []
    for group in groups:
        for inside in (False, True):
            params = [p for p in group["params"] if (p in chosen) == inside]
            if params:
                split.append(group | {"params": params, "scale": factor if inside else group.get("scale", 1.0)})
    return split


def _sgd(groups: list[dict[str, Any]], config: Optim) -> Optimizer:
    optimizer = torch.optim.SGD(groups, lr=0.0, momentum=config.momentum, fused=True)
    if config.momentum:  # torch makes them in its first step, without values if that is left out
        for group in groups:
            for param in group["params"]:
                optimizer.state[param]["momentum_buffer"] = torch.zeros_like(param)
    return optimizer


# torch's fused optimizers are a few times as fast on a CPU, and on a GPU leave a step out without asking the host.
OPTIMIZERS: dict[str, Callable[[list[dict[str, Any]], Optim], Optimizer]] = {
    "lars": lambda groups, c: LARS(groups, lr=0.0, momentum=c.momentum, trust_coefficient=c.trust_coefficient),
    "sgd": _sgd,
    "adamw": lambda groups, c: torch.optim.AdamW(groups, lr=0.0, fused=True),
}
