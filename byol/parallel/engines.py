"""Several processes by torch's own engines: gradients by DistributedDataParallel, or weights in parts by FSDP2."""

from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from byol import optim
from byol.algorithm import Statistics, clear_gradients
from byol.config import Config
from byol.method import Engine, Method
from byol.networks import ResNet
from byol.parallel import processes
from byol.parallel.processes import together
from byol.run.machine import Machine

TRIED = 2  # images of a pass that shows torch the order of the gradients


def engine(method: Method, optimizer: Optimizer, config: Config, place: Machine) -> Engine:
    """What exchanges this method's gradients; to be made anew when other parameters learn."""
    passes = config.optim.accumulate
    if processes.world() == 1:
        return Engine(method, passes=passes)
    if config.run.shard:
        return Engine(method, passes=passes, left=())
    return replicated(method, optimizer, config, place)


def replicated(method: Method, optimizer: Optimizer, config: Config, place: Machine) -> Engine:
    """Every process has all weights, and exchanges gradients while the rest of the backward pass goes on.

    The watching classifier is not part of it, as its gradient comes by a pass of its own.
    """
    apart = [name for name, _ in method.named_parameters() if name.startswith("classifier.")]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(method, apart)
    # Statistics are each process's own, or are shared by the norms themselves.
    known = inspect.signature(DistributedDataParallel).parameters
    buffers = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"
    how: dict[str, Any] = {buffers: False, "init_sync": False, "gradient_as_bucket_view": True}
    with together():
        module = DistributedDataParallel(method, **how)
    left = () if method.classifier is None else tuple(method.classifier.parameters())
    made = Engine(module, module.no_sync, config.optim.accumulate, left)
    _show_order(method, optimizer, made, config, place)
    return made


def _show_order(method: Method, optimizer: Optimizer, made: Engine, config: Config, place: Machine) -> None:
    """A pass of a few images that leaves no trace: after the first one torch sorts the gradients anew, by when they are
    ready. A sum over three processes depends in its last bit on where a gradient stands, and the first step after a
    resume has to have the bits of the same step of a run that was never interrupted."""
    fresh = [param for param in method.parameters() if param.grad is None]
    size = config.data.resolution
    view1, view2 = (place.images(torch.rand(TRIED, config.network.channels, size, size), config) for _ in range(2))
    mode = method.training
    with Statistics(method) as statistics:
        for orders in method.train().orders(view1, view2, place.autocast, made):
            with together():
                method.loss(orders).backward()
        statistics.put_back()
    method.train(mode)
    clear_gradients(optimizer)
    for param in fresh:
        param.grad = None


def shard(method: Method, optimizer: Optimizer, config: Config, place: Machine) -> tuple[Optimizer, Method | None]:
    """Each process keeps its part of every weight, of the target and of the optimizer, and gets the rest of a block
    while it is used. Returns the optimizer of the parts, and in the first process a whole network to look at."""
    names: dict[torch.Tensor, str] = {param: name for name, param in method.named_parameters()}
    slots = {names[param]: held for param, held in optimizer.state.items()}
    whole = _to_look_at(method) if processes.rank() == 0 else None
    for param in method.parameters():
        param.data = param.data.contiguous()  # FSDP2 has no other layout for weights; that of images stays
    # A view may leave a network: nothing of ours changes it in place, which is what torch warns of.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module")
    mesh = init_device_mesh(place.device.type, (processes.world(),))
    for part in _parts(method):
        fully_shard(part, mesh=mesh, reshard_after_forward=True)  # the target has no backward pass to do it after
    sharded = optim.build(method, config.optim)
    for name, param in method.named_parameters():
        assert isinstance(param, DTensor)
        if name in slots:
            whole_ones = {slot: value.contiguous() for slot, value in slots[name].items()}
            sharded.state[param] = {
                slot: distribute_tensor(value, mesh, param.placements) if value.shape == param.shape else value
                for slot, value in whole_ones.items()
            }
    return sharded, whole


def _parts(method: Method) -> Iterator[nn.Module]:
    """What is brought together at a time, blocks before the networks that hold them."""
    for branch in filter(None, (method.online, method.target)):
        encoder = branch.encoder
        groups = [*encoder.children()]
        if isinstance(encoder, ResNet):
            groups = [block for n in range(1, 5) for block in encoder.get_submodule(f"layer{n}").children()]
        yield from (group for group in groups if any(True for _ in group.parameters()))
        yield branch
    yield from (m for m in (method.predictor, method.classifier) if m is not None and any(True for _ in m.parameters()))


def _to_look_at(method: Method) -> Method:
    """The online network alone, as nothing else is looked at."""
    target, method.target = method.target, None
    whole = copy.deepcopy(method)
    method.target = target
    return whole
