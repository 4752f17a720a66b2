"""Batch normalization over the images of several processes, on any device."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from byol.errors import UsageError
from byol.parallel import collectives, processes


class _Normalize(torch.autograd.Function):
    """Images (B, C, …) by the statistics of all processes' images; keeps no more for the gradient than plain BN."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, stats: tuple[Tensor, Tensor, float], how: Any
    ) -> Tensor:
        mean, variance, ctx.count = stats
        ctx.eps, ctx.size = how
        ctx.save_for_backward(x, weight, mean, variance)
        return F.batch_norm(x, mean, variance, weight, bias, False, 0.0, ctx.eps)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """dx = w/σ·(dy − mean(dy) − x̂·mean(dy·x̂)), the means over all processes; dw and db are this one's share."""
        x, weight, mean, variance = ctx.saved_tensors
        dx, dw, db = torch.ops.aten.native_batch_norm_backward(
            grad, x, weight, mean, variance, None, None, False, ctx.eps, [True, True, True]
        )
        sums = collectives.all_reduce(torch.stack([dw, db]), ctx.size) / ctx.count
        inverse = torch.rsqrt(variance + ctx.eps)
        slope = weight * inverse * inverse * sums[0]
        offset = weight * inverse * sums[1] - slope * mean
        shape = (1, -1) + (1,) * (x.ndim - 2)
        dx -= torch.addcmul(offset.view(shape), x, slope.view(shape)).to(dx.dtype)
        return dx, dw, db if ctx.needs_input_grad[2] else None, None, None


class SyncBatchNorm(_BatchNorm):
    """What torch's SyncBatchNorm is on GPUs: in training, statistics over all processes, or over groups of `size`.

    Made from a plain one, whose parameters and buffers it shares; timm's norms that include an activation keep it.
    """

    def __init__(self, plain: _BatchNorm, size: int) -> None:
        super().__init__(plain.num_features, plain.eps, plain.momentum, False, plain.track_running_stats)
        self.size, self.affine = size, plain.affine
        self.exchanges = True
        self.weight, self.bias = plain.weight, plain.bias
        for name in ("running_mean", "running_var", "num_batches_tracked"):
            setattr(self, name, getattr(plain, name))
        self.drop, self.act = (getattr(plain, name, None) or nn.Identity() for name in ("drop", "act"))
        self.train(plain.training)

    def _check_input_dim(self, input: Tensor) -> None:
        assert input.ndim >= 2

    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            normalized = super().forward(input)
        else:
            weight = (
                self.weight if self.affine else torch.ones(self.num_features, dtype=input.dtype, device=input.device)
            )
            stats = self.statistics(input)
            normalized = _Normalize.apply(input, weight, self.bias, stats, (self.eps, self.size))
        result: Tensor = self.act(self.drop(normalized))
        return result

    @torch.no_grad()
    def statistics(self, x: Tensor) -> tuple[Tensor, Tensor, float]:
        """Mean, biased variance and count over the processes; the running averages follow.

        Each process's own mean and variance are exact, and are put together by their distances to the common mean
        (Chan et al., 1979): no difference of large sums.
        """
        wide = torch.promote_types(x.dtype, torch.float32)
        scratch = torch.zeros(self.num_features, dtype=wide, device=x.device)  # makes bf16 inputs give wide statistics
        mean, variance = torch.batch_norm_update_stats(x, scratch, scratch.clone(), 0.0)
        count = float(x.numel() // x.shape[1])
        parts = torch.stack(collectives.all_gather(torch.stack([mean, variance]), self.size))  # (processes, 2, C)
        mean = parts[:, 0].mean(0)
        variance = (parts[:, 1] + (parts[:, 0] - mean).square()).mean(0)
        count *= len(parts)
        if self.track_running_stats and self.running_mean is not None and self.running_var is not None:
            assert self.num_batches_tracked is not None
            self.num_batches_tracked.add_(1)
            share = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
            self.running_mean.lerp_(mean.to(self.running_mean.dtype), share)
            unbiased = variance * (count / max(count - 1, 1))
            self.running_var.lerp_(unbiased.to(self.running_var.dtype), share)
        return mean, variance, count


def synchronize(module: nn.Module, size: int, cuda: bool = False) -> nn.Module:
    """Batch norms over all processes (size 0) or groups of `size`; 1 leaves them as they are.

    On GPUs torch's own, which is faster; it has no groups that can be copied, so groups are ours there too.
    """
    if processes.world() == 1 or size == 1:
        return module
    if size and processes.world() % size:
        raise UsageError(f"network.norm_group {size} does not divide the {processes.world()} processes.")
    collectives.group(size)
    if cuda and not size and not _has_activations(module):
        converted: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(module)
        return converted
    return _replaced(module, size)


def _has_activations(module: nn.Module) -> bool:
    return any(isinstance(m, _BatchNorm) and hasattr(m, "act") for m in module.modules())


def _replaced(module: nn.Module, size: int) -> nn.Module:
    if isinstance(module, _BatchNorm):
        return SyncBatchNorm(module, size)
    for name, child in module.named_children():
        setattr(module, name, _replaced(child, size))
    return module
