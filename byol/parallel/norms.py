"""Batch normalization over the images of several processes, and of two views in one batch, on any device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from byol.errors import UsageError
from byol.parallel import collectives, processes


class _Normalize(torch.autograd.Function):
    """Images (B, C, …) by the statistics of all processes' images; keeps no more for the gradient than plain BN.

    `stats` are mean and variance (views, C) of the views that B is made of, one after the other, and how many numbers
    each mean is of.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, stats: tuple[Tensor, Tensor, float], how: Any
    ) -> Tensor:
        mean, variance, ctx.count = stats
        ctx.eps, ctx.size = how
        ctx.save_for_backward(x, weight, mean, variance)
        if len(mean) == 1:
            return F.batch_norm(x, mean[0], variance[0], weight, bias, False, 0.0, ctx.eps)
        normalized, none = torch.empty_like(x), mean.new_empty(0)
        for part, out, own in _views(x, normalized, mean, variance):
            given = (part, weight, bias, *own, False, 0.0, ctx.eps)
            torch.native_batch_norm(*given, out=(out, none, none.clone()))
        return normalized

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """dx = w/σ·(dy − mean(dy) − x̂·mean(dy·x̂)), the means over all processes; dw and db are this one's share."""
        x, weight, mean, variance = ctx.saved_tensors
        parts, sums = [], []
        for part, dy, own in _views(x, grad, mean, variance):
            given = (dy, part, weight, *own, None, None, False, ctx.eps, [True, True, True])
            dx, *both = torch.ops.aten.native_batch_norm_backward(*given)
            parts.append(dx)
            sums.append(torch.stack(both))
        own_sums = torch.stack(sums)  # (views, 2, C): of dy·x̂ and of dy
        means = collectives.all_reduce(own_sums.clone(), ctx.size) / ctx.count
        inverse = torch.rsqrt(variance + ctx.eps)
        slope = weight * inverse * inverse * means[:, 0]
        offset = weight * inverse * means[:, 1] - slope * mean
        shape = (1, -1) + (1,) * (x.ndim - 2)
        whole = parts[0] if len(parts) == 1 else torch.empty_like(x)
        for number, (part, out, _) in enumerate(_views(x, whole, mean, variance)):
            shift = torch.addcmul(offset[number].view(shape), part, slope[number].view(shape)).to(out.dtype)
            torch.sub(parts[number], shift, out=out)
        dw, db = own_sums.sum(0)
        return whole, dw, db if ctx.needs_input_grad[2] else None, None, None


def _views(x: Tensor, other: Tensor, mean: Tensor, variance: Tensor) -> Iterator[tuple[Tensor, Tensor, Any]]:
    """Of each view: its part of two tensors, and its statistics."""
    yield from zip(x.chunk(len(mean)), other.chunk(len(mean)), zip(mean, variance, strict=True), strict=True)


class SyncBatchNorm(_BatchNorm):
    """What torch's SyncBatchNorm is on GPUs: in training, statistics over all processes, or over groups of `size`.

    Made from a plain one, whose parameters and buffers it shares; timm's norms that include an activation keep it. Of
    two `views` in one batch each has its own statistics, which are exchanged together.
    """

    def __init__(self, plain: _BatchNorm, size: int) -> None:
        super().__init__(plain.num_features, plain.eps, plain.momentum, False, plain.track_running_stats)
        self.size, self.views = size, 1
        self.exchanges = True
        self.drop, self.act = _take_over(self, plain)

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
        """Mean, biased variance (views, C) and count over the processes; the running averages follow, view by view.

        Each process's own mean and variance are exact, and are put together by their distances to the common mean
        (Chan et al., 1979): no difference of large sums.
        """
        wide = torch.promote_types(x.dtype, torch.float32)
        scratch = torch.zeros(self.num_features, dtype=wide, device=x.device)  # makes bf16 inputs give wide statistics
        update = torch.batch_norm_update_stats
        own = [torch.stack(update(part, scratch, scratch.clone(), 0.0)) for part in x.chunk(self.views)]
        parts = torch.stack(collectives.all_gather(torch.stack(own), self.size))  # (processes, views, 2, C)
        mean = parts[:, :, 0].mean(0)
        variance = (parts[:, :, 1] + (parts[:, :, 0] - mean).square()).mean(0)
        count = float(x.numel() // x.shape[1] // self.views) * len(parts)
        if self.track_running_stats and self.running_mean is not None and self.running_var is not None:
            assert self.num_batches_tracked is not None
            unbiased = variance * (count / max(count - 1, 1))
            for one_mean, one_variance in zip(mean, unbiased, strict=True):
                self.num_batches_tracked.add_(1)
                share = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
                self.running_mean.lerp_(one_mean.to(self.running_mean.dtype), share)
                self.running_var.lerp_(one_variance.to(self.running_var.dtype), share)
        return mean, variance, count


class _ByView(torch.autograd.Function):
    """Two views in one batch, each by its own statistics: torch's kernels on either half, in one piece of memory."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, buffers: Any, how: Any) -> Tensor:
        ctx.eps, shares = how
        normalized = torch.empty_like(x)
        wide = torch.promote_types(x.dtype, torch.float32)
        kept = torch.empty(2, 2, x.shape[1], dtype=wide, device=x.device)  # (views, mean and 1/σ, C)
        for part, out, own, share in zip(x.chunk(2), normalized.chunk(2), kept, shares, strict=True):
            given = (part, weight, bias, *buffers, True, share, ctx.eps)
            torch.native_batch_norm(*given, out=(out, own[0], own[1]))
        ctx.save_for_backward(x, weight, kept)
        return normalized

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, kept = ctx.saved_tensors
        found = []
        for part, dy, own in zip(x.chunk(2), grad.chunk(2), kept, strict=True):
            given = (dy, part, weight, None, None, own[0], own[1], True, ctx.eps, [True, True, True])
            found.append(torch.ops.aten.native_batch_norm_backward(*given))
        dx, dw, db = zip(*found, strict=True)
        learned = ctx.needs_input_grad
        return torch.cat(dx), dw[0] + dw[1] if learned[1] else None, db[0] + db[1] if learned[2] else None, None, None


class BatchNormByView(_BatchNorm):
    """In training, a plain batch norm of two views that are one batch, the first half of it the first view."""

    def __init__(self, plain: _BatchNorm) -> None:
        super().__init__(plain.num_features, plain.eps, plain.momentum, False, plain.track_running_stats)
        self.drop, self.act = _take_over(self, plain)

    def _check_input_dim(self, input: Tensor) -> None:
        assert input.ndim >= 2

    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            normalized = super().forward(input)
        elif input.is_meta or torch.compiler.is_compiling():
            normalized = torch.cat([super(BatchNormByView, self).forward(part) for part in input.chunk(2)])
        else:
            buffers = (self.running_mean, self.running_var) if self.track_running_stats else (None, None)
            normalized = _ByView.apply(input, self.weight, self.bias, buffers, (self.eps, self.shares()))
        result: Tensor = self.act(self.drop(normalized))
        return result

    def shares(self) -> tuple[float, float]:
        """Of each view in the running averages; counts both."""
        counts = self.num_batches_tracked if self.track_running_stats else None
        if counts is not None:
            counts.add_(2)
        if self.momentum is not None or counts is None:
            return self.momentum or 0.0, self.momentum or 0.0
        return 1.0 / (float(counts) - 1), 1.0 / float(counts)


def _take_over(norm: _BatchNorm, plain: _BatchNorm) -> list[nn.Module]:
    """What a plain norm has: parameters, buffers and mode; returns what timm's have besides, dropout and activation."""
    norm.affine, norm.weight, norm.bias = plain.affine, plain.weight, plain.bias
    for name in ("running_mean", "running_var", "num_batches_tracked"):
        setattr(norm, name, getattr(plain, name))
    norm.train(plain.training)
    return [getattr(plain, name, None) or nn.Identity() for name in ("drop", "act")]


def by_view(module: nn.Module) -> None:
    """From here on every batch in training is two views, each with its own statistics; evaluation stays as it is."""
    for name, child in module.named_children():
        if isinstance(child, SyncBatchNorm):
            child.views = 2
        elif isinstance(child, _BatchNorm):
            setattr(module, name, BatchNormByView(child))
        else:
            by_view(child)


def synchronize(module: nn.Module, size: int, cuda: bool = False, by_view: bool = False) -> nn.Module:
    """Batch norms over all processes (size 0) or groups of `size`; 1 leaves them as they are.

    On GPUs torch's own, which is faster; it has no groups that can be copied, and knows no views, so those are ours
    there too.
    """
    if processes.world() == 1 or size == 1:
        return module
    if size and processes.world() % size:
        raise UsageError(f"network.norm_group {size} does not divide the {processes.world()} processes.")
    collectives.group(size)
    if cuda and not size and not by_view and not _has_activations(module):
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
