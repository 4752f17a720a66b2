"""The two views side by side: one process, a thread a view, each with its own branch of the networks.

A view passes encoder and projector with batch statistics of its own, so nothing of one view's pass waits for the
other's. Two threads that take a view each therefore keep two cores busy where two threads that share every operation
wait for each other after each of them. Weights are shared; what batch norms remember is brought together in the order
of the views.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

T = TypeVar("T")
Branches = tuple[nn.Module, nn.Module | None]  # online and target, each: view → representation, projection


class Passed(NamedTuple):
    """One view after both branches; there is no target's projection where the online network is its own target."""

    representation: Tensor
    projection: Tensor  # with the graph of this view alone
    target: Tensor | None


class Lanes:
    """A thread for each of the two views, whose operations are shared by `threads`."""

    def __init__(self, online: nn.Module, target: nn.Module | None, threads: int) -> None:
        twin = None if target is None else twin_of(target)
        self.branches: tuple[Branches, Branches] = (online, target), (twin_of(online), twin)
        self.pool = ThreadPoolExecutor(2, "view", initializer=torch.set_num_threads, initargs=(threads,))

    def forward(
        self, views: tuple[Tensor, Tensor], autocast: Callable[[], AbstractContextManager[Any]]
    ) -> tuple[Passed, Passed]:
        def one(lane: int) -> Passed:
            (online, target), view = self.branches[lane], views[lane]
            with autocast():
                representation, projection = online(view)
                with torch.no_grad():
                    return Passed(representation, projection, None if target is None else target(view)[1])

        return self._both(one)

    def backward(self, projections: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
        """From each view's projection to the weights, which add up what comes from the two."""
        self._both(lambda lane: projections[lane].backward(gradients[lane]))

    def remember(self) -> None:
        """What batch norms remember, brought together; after the gradients, which autograd still wants it as it was
        for."""
        for ours, twin in zip(*self.branches, strict=True):
            if ours is not None and twin is not None:
                bring_together(ours, twin)

    def _both(self, work: Callable[[int], T]) -> tuple[T, T]:
        """What both threads give; an error of either is raised when both have ended."""
        running = [self.pool.submit(work, lane) for lane in range(2)]
        wait(running)
        return running[0].result(), running[1].result()


def twin_of(branch: nn.Module) -> nn.Module:
    """The same weights with buffers of its own, whose batch norms remember the last batch alone."""
    shared: dict[int, Any] = {id(weight): weight for weight in branch.parameters()}
    twin = copy.deepcopy(branch, shared)
    for norm in batch_norms(twin):
        norm.momentum = 1.0
    return twin


def batch_norms(module: nn.Module) -> list[_BatchNorm]:
    return [each for each in module.modules() if isinstance(each, _BatchNorm) and each.track_running_stats]


@torch.no_grad()
def bring_together(ours: nn.Module, twin: nn.Module) -> None:
    """The running averages of `ours`, which has seen the first view, follow the second one, which `twin` has."""
    for norm, other in zip(batch_norms(ours), batch_norms(twin), strict=True):
        assert norm.running_mean is not None
        assert norm.running_var is not None
        assert norm.num_batches_tracked is not None
        norm.num_batches_tracked.add_(1)
        share = 1 / float(norm.num_batches_tracked) if norm.momentum is None else norm.momentum
        norm.running_mean.lerp_(other.running_mean, share)  # type: ignore[arg-type]
        norm.running_var.lerp_(other.running_var, share)  # type: ignore[arg-type]


def unsuited(branch: nn.Module, view: Tensor) -> str:
    """Why views cannot pass this branch side by side, or nothing; its batch statistics change.

    Random numbers come from one generator, whose turns two threads would take in any order; and of what a network
    remembers only batch statistics can be brought together.
    """
    known = {id(buffer) for norm in batch_norms(branch) for buffer in norm.buffers()}
    before = {name: buffer.clone() for name, buffer in branch.named_buffers() if id(buffer) not in known}
    state = torch.get_rng_state()
    with torch.no_grad():
        branch(view)
    if not torch.equal(state, torch.get_rng_state()):
        return "draws random numbers as it passes images"
    changed = [name for name, buffer in branch.named_buffers() if name in before and not buffer.equal(before[name])]
    return f"remembers {changed[0]} from batch to batch" if changed else ""
