"""What the processes of a run exchange while they train: sums, means, parts. With one process nothing is exchanged."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from byol.parallel.processes import current, rank, together, world

BUCKET_BYTES = 25_000_000


def group(size: int) -> Any:
    """This process's group of `size` neighbouring ones (None: all); every process has to ask for it."""
    job = current()
    assert job
    if size in (0, world()):
        return None
    if size not in job.groups:
        with together():
            job.groups[size], _ = dist.new_subgroups(size, timeout=timedelta(seconds=job.timeout))
    return job.groups[size]


def all_reduce(tensor: Tensor, size: int = 0) -> Tensor:
    """The sum over processes, in place; no gradient."""
    if world() > 1:
        with together():
            dist.all_reduce(tensor, group=group(size))
    return tensor


def all_gather(tensor: Tensor, size: int = 0) -> list[Tensor]:
    """Every process's tensor, in their order; no gradient."""
    if world() == 1:
        return [tensor]
    parts = [torch.empty_like(tensor) for _ in range(size or world())]
    with together():
        dist.all_gather(parts, tensor, group=group(size))
    return parts


def broadcast(tensors: Iterable[Tensor], source: int = 0) -> None:
    """The source's values for all, in place and in buckets."""
    if world() == 1:
        return
    for bucket in _buckets(tensors):
        flat = _flat(bucket)
        with together():
            dist.broadcast(flat, source)
        _unflat(flat, bucket)


def average(tensors: Iterable[Tensor]) -> None:
    """The mean over processes, in place; each bucket is sent while the next one is packed."""
    if world() == 1:
        return
    with together():
        sent = []
        for bucket in _buckets(tensors):
            flat = _flat(bucket)
            sent.append((bucket, flat, dist.all_reduce(flat, async_op=True)))
        for bucket, flat, work in sent:
            work.wait()
            _unflat(flat.div_(world()), bucket)


def _buckets(tensors: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """Tensors of one type and device together, about BUCKET_BYTES at a time."""
    open_: dict[Any, list[Tensor]] = {}
    filled: dict[Any, int] = {}
    for tensor in tensors:
        kind = (tensor.dtype, tensor.device)
        open_.setdefault(kind, []).append(tensor)
        filled[kind] = filled.get(kind, 0) + tensor.numel() * tensor.element_size()
        if filled[kind] >= BUCKET_BYTES:
            filled[kind] = 0
            yield open_.pop(kind)
    yield from open_.values()


def _flat(bucket: list[Tensor]) -> Tensor:
    return torch.cat([tensor.detach().reshape(-1) for tensor in bucket])


def _unflat(flat: Tensor, bucket: list[Tensor]) -> None:
    parts = flat.split([tensor.numel() for tensor in bucket])
    for tensor, part in zip(bucket, parts, strict=True):
        tensor.detach().copy_(part.view(tensor.shape))


class _Total(torch.autograd.Function):
    """Each process's loss depends on every term, so each term's gradient is the sum over processes too."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        return all_reduce(tensor.detach().clone())

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return all_reduce(grad.clone(memory_format=torch.contiguous_format))


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        return torch.cat(all_gather(tensor.detach().contiguous()))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        count = len(grad) // world()
        return all_reduce(grad.clone(memory_format=torch.contiguous_format))[rank() * count : (rank() + 1) * count]


def total(tensor: Tensor) -> Tensor:
    """The sum over processes, with gradient."""
    if world() == 1:
        return tensor
    result: Tensor = _Total.apply(tensor)
    return result


def gathered(tensor: Tensor) -> Tensor:
    """The rows of all processes (B, …) → (world·B, …), in their order, with gradient."""
    if world() == 1:
        return tensor
    result: Tensor = _Gathered.apply(tensor)
    return result
