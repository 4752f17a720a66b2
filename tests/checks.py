"""What each of several processes checks about what they compute together; called by tests.chaos.several."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from byol import method, objectives, optim, presets
from byol.algorithm import Pass, average_gradients, update
from byol.config import apply
from byol.parallel import collectives, engines, norms, processes
from byol.predictors import Isotropic, OptimalLinear
from byol.run.machine import Machine
from tests.conftest import TINY

TIMEOUT = 30.0
Both = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


@contextmanager
def alone() -> Iterator[None]:
    """Inside, the process is the only one: what it computes there of the whole batch is the reference."""
    job, processes._job = processes._job, None
    try:
        yield
    finally:
        processes._job = job


def mine(tensor: Tensor) -> Tensor:
    return tensor.chunk(processes.world())[processes.rank()]


def close(found: Tensor, expected: Tensor, tolerance: float = 1e-12) -> None:
    found, expected = found.detach(), expected.detach()
    error = float((found - expected).abs().max() / expected.abs().max().clamp(min=1e-300))
    assert error <= tolerance, error


def norm_over(size: int, plain: nn.Module, images: Tensor, tolerance: float = 1e-12) -> None:
    """Three training passes and their gradients, then evaluation, against torch's on the images of a whole group."""
    plain = copy.deepcopy(plain)
    synced = norms.synchronize(nn.Sequential(copy.deepcopy(plain)), size)[0]  # type: ignore[index]
    assert isinstance(synced, norms.SyncBatchNorm)
    assert list(synced.state_dict()) == list(plain.state_dict())
    world, rank = processes.world(), processes.rank()
    members = size or world
    group = rank // members
    torch.manual_seed(1)
    for _ in range(3):
        images = images + torch.randn(images.shape[1:], dtype=torch.float32).to(images.dtype)
        weights = torch.randn(images.shape, dtype=torch.float32).to(images.dtype)
        of_group, weights_of_group = images.chunk(world // members)[group], weights.chunk(world // members)[group]
        whole = of_group.clone().requires_grad_()
        part = mine(images).clone().requires_grad_()
        expected = plain(whole)
        (expected * weights_of_group).sum().backward()
        found = synced(part)
        (found * mine(weights)).sum().backward()
        place = rank % members
        close(found, expected.chunk(members)[place], tolerance)
        close(part.grad, whole.grad.chunk(members)[place], tolerance)  # type: ignore[union-attr,arg-type]
    for name, value in plain.named_buffers():
        close(synced.get_buffer(name).double(), value.double(), tolerance)
    for name, value in plain.named_parameters():
        total = collectives.all_reduce(synced.get_parameter(name).grad.clone(), size)  # type: ignore[union-attr]
        close(total, value.grad, tolerance)  # type: ignore[arg-type]
    close(synced.eval()(mine(images)), plain.eval()(mine(images)), 10 * tolerance)


def norms_agree() -> None:
    with processes.joined(False, TIMEOUT):
        torch.manual_seed(0)
        maps = torch.randn(8, 3, 5, 4, dtype=torch.float64).contiguous(memory_format=torch.channels_last)
        vectors = torch.randn(8, 6, dtype=torch.float64)
        without_offset, cumulative = nn.BatchNorm1d(6), nn.BatchNorm1d(6, momentum=None)
        without_offset.bias = None  # type: ignore[assignment]
        for size in (0, 2):
            norm_over(size, nn.BatchNorm2d(3).double(), maps)
            norm_over(size, without_offset.double(), vectors)
            norm_over(size, cumulative.double(), vectors)
        norm_over(0, nn.BatchNorm1d(6, affine=False).double(), vectors)
        # A large mean, at which E[x²] − E[x]² has no digit of the variance left in float32.
        norm_over(0, nn.BatchNorm2d(3), (maps + 3e4).float(), 1e-2)
        norm_over(0, nn.BatchNorm2d(3), maps.bfloat16(), 2e-2)
        one = nn.BatchNorm2d(3)
        assert norms.synchronize(one, 1) is one


def losses_agree() -> None:
    with processes.joined(False, TIMEOUT):
        torch.manual_seed(0)
        whole = [torch.randn(8, 5, dtype=torch.float64) for _ in range(4)]
        for loss in LOSSES.values():
            parts = [mine(tensor).clone().requires_grad_() for tensor in whole]
            loss(*parts).backward()
            average = collectives.all_reduce(loss(*parts).detach()) / processes.world()
            with alone():
                inputs = [tensor.clone().requires_grad_() for tensor in whole]
                expected = loss(*inputs)
                expected.backward()
            close(average, expected.detach())
            for part, tensor in zip(parts, inputs, strict=True):
                # The gradient of the mean over processes: each process's own is that of the sum.
                if tensor.grad is not None:
                    close(part.grad / processes.world(), mine(tensor.grad))  # type: ignore[operator]


def both(loss: objectives.Loss) -> Both:
    """Both orders of the views, of predictions φ and targets ψ of both."""
    return lambda phi1, psi1, phi2, psi2: loss(phi1, psi2, psi1) + loss(phi2, psi1, psi2)


def predicted(phi: Tensor, psi: Tensor, own: Tensor) -> Tensor:
    return objectives.regression(OptimalLinear(1e-6)(phi, psi), psi, own)


def isotropic(phi: Tensor, psi: Tensor, own: Tensor) -> Tensor:
    return objectives.regression(Isotropic(0.1)(phi, psi), psi, own)


LOSSES: dict[str, Both] = {
    "l2": both(objectives.regression),
    "batch": both(partial(objectives.regression, normalization="batch")),
    "info-nce": both(partial(objectives.info_nce, temperature=0.3, beta=0.7)),
    "without negatives": both(partial(objectives.info_nce, temperature=0.3, beta=0.0)),
    "optimal-linear": both(predicted),
    "isotropic": both(isotropic),
}


def exchanges_agree() -> None:
    collectives.BUCKET_BYTES = 100
    before = os.sched_getaffinity(0)
    with processes.joined(False, TIMEOUT):
        rank, world = processes.rank(), processes.world()
        own = torch.tensor([core in os.sched_getaffinity(0) for core in range(max(before) + 1)]).int()
        assert processes.cores() == max(1, int(own.sum()) if len(before) >= world else len(before) // world)
        # Each core is one process's, all are somebody's, and nobody has fewer than its share.
        counts = collectives.all_reduce(own.clone()).tolist()
        assert set(counts) - {0} == {1 if len(before) >= world else world}
        assert {core for core, count in enumerate(counts) if count} == before
        tensors = [torch.full((3, 7), float(rank)), torch.full((2,), float(rank), dtype=torch.float64)]
        tensors += [torch.full((2, 2, 3, 3), rank + 1.0).contiguous(memory_format=torch.channels_last)] * 1
        collectives.average(tensors)
        mean = (world - 1) / 2
        for tensor, expected in zip(tensors, (mean, mean, mean + 1), strict=True):
            assert (tensor == expected).all()
        collectives.broadcast(sent := [torch.arange(40.0) + rank, torch.tensor(rank)], source=1)
        assert torch.equal(sent[0], torch.arange(40.0) + 1)
        assert int(sent[1]) == 1
        assert processes.any_of(rank == 1, False) == (True, False)
        assert processes.from_first(lambda: {"rank": rank}) == {"rank": 0}
        if rank:
            processes.post(f"from {rank}")
        processes.meet()
        assert rank or set(processes.posted()) == {f"from {other}" for other in range(1, world)}
        assert rank or processes.posted() == []
    assert os.sched_getaffinity(0) == before
    with processes.joined(False, TIMEOUT):  # a second run of the same processes
        assert processes.from_first(lambda: rank) == 0


def gradients_agree() -> None:
    """A pass of Algorithm 1 over slices, against one over the whole batch: gradients and running statistics (G8).

    In float32 with few units: of the thousands of a ResNet some lie so close to the edge of their ReLU that rounding
    decides whether they have a gradient at all.
    """
    for encoder, dtype, of_gradient, of_statistics in (
        ("resnet18", torch.float64, 1e-12, 1e-12),
        ("small", torch.float64, 1e-12, 1e-12),
        ("small", torch.float32, 5e-6, 1e-6),
    ):
        torch.manual_seed(1)
        whole = [torch.rand(16, 3, 16, 16).to(dtype) for _ in range(2)]
        expected = passed(encoder, whole)
        for shard, together in ((False, False), (True, False), (False, True), (True, True)):
            with processes.joined(False, TIMEOUT):
                found = passed(encoder, [mine(view) for view in whole], shard, together)
            errors = [float((f - e).norm() / e.norm()) for f, e in zip(found, expected, strict=True)]
            told = {"encoder": encoder, "type": str(dtype), "gradient": errors[0], "statistics": errors[1]}
            print(json.dumps(told | {"shard": shard, "together": together}))
            assert errors[0] <= of_gradient, errors
            assert errors[1] <= of_statistics, errors


def weights_are_in_parts() -> None:
    """Of every weight, its momentum and its target a process holds no more than its part, rounded up."""
    config = apply(presets.cifar10_cpu(), TINY | {"network.width": 0.25, "run.shard": True})
    place = Machine("cpu", "float32", 1)
    with processes.joined(False, TIMEOUT):
        torch.manual_seed(0)
        model = norms.synchronize(method.build(config.network), 0)
        whole = sum(p.numel() for p in model.parameters())
        optimizer, to_look_at = engines.shard(model, optim.build(model, config.optim), config, place)
        assert (to_look_at is None) == (processes.rank() > 0)
        engine = engines.engine(model, optimizer, config, place)
        seen = [Pass(*torch.rand(2, 4, 3, 32, 32).unbind(), None)]
        update(model, optimizer, seen, lr=0.1, tau=0.9, machine=place, engine=engine)
        held = sum(p.to_local().numel() for p in model.parameters())  # type: ignore[attr-defined]
        momentum = sum(v["momentum"].to_local().numel() for v in optimizer.state.values())
        told = {"world": processes.world(), "share_of_weights": held / whole, "momentum": momentum / held}
        print(json.dumps(told))
        assert held / whole < 1.02 / processes.world()
        assert momentum < held


def passed(encoder: str, views: list[Tensor], shard: bool = False, together: bool = False) -> tuple[Tensor, Tensor]:
    """All gradients, averaged over processes, and all running statistics after one pass."""
    config = apply(presets.cifar10_cpu(), TINY | {"network.encoder": encoder})
    torch.manual_seed(0)
    model = norms.synchronize(method.build(config.network).to(views[0].dtype), 0)
    if together:
        method.pass_together(model)
    optimizer = optim.build(model, config.optim)
    place = Machine("cpu", "float64" if views[0].dtype == torch.float64 else "float32", 1)
    if shard and processes.world() > 1:
        optimizer, _ = engines.shard(model, optimizer, config, place)
    engine = engines.engine(model, optimizer, apply(config, {"run.shard": shard}), place)
    for orders in model.orders(views[0], views[1], engine=engine):
        model.loss(orders).backward()
    average_gradients(optimizer, 1, left=engine.left)
    learned = [p.grad for p in model.parameters() if p.grad is not None]
    grads = [(g.full_tensor() if hasattr(g, "full_tensor") else g).reshape(-1) for g in learned]
    stats = [b.reshape(-1) for b in model.buffers() if b.is_floating_point()]
    return torch.cat(grads).double(), torch.cat(stats).double()


def cells_of_one_job() -> None:
    """The cells of a table, computed by all processes together, as each task of a job of Slurm does."""
    from byol.tables.cells import stored
    from byol.tables.jobs import Job
    from tests.tables.test_jobs import plan_together

    for cell in plan_together(Path(os.environ["BYOL_TEST_PLACE"])).distinct():
        first = processes.seat().rank == 0
        assert Job(cell)() == ("finished" if first else "")
        before = cell.path.stat().st_mtime_ns
        Job(cell)()  # there is nothing to do, and those that wait are told so
        assert cell.path.stat().st_mtime_ns == before
        known = stored(cell)
        assert known
        assert known.finished, known.error
