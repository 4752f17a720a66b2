"""What a run costs: the one model of operations, memory, exchange between devices, and time.

Shapes come from the network itself on torch's `meta` device, which computes nothing; rates come from a table of devices
with an assumed utilization, or from a step that is timed on this machine. `byol plan` and the plan that `byol pretrain`
shows both go by it.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode

from byol import method, networks, optim
from byol.algorithm import Pass, update
from byol.config import Config, Optim
from byol.errors import UsageError, nearest
from byol.parallel import processes
from byol.run import machine
from byol.run.machine import Machine

PROBE_IMAGES = 2  # enough for batch norm; everything is proportional to the number of images
TIMED_PIXELS = 2**18  # of the images that are timed together
TIMED_STEPS, TIMED_SECONDS = (2, 8), 1.0  # at least and at most so many, after one that warms up, for about so long
# Of an exchange between processes of one machine, waiting for each other included (results/scaling.json): where each
# has a core, and where more of them take turns.
GLOO_SECONDS, TURN_SECONDS = 1.1e-3, 5e-3
SLOTS = {"lars": 1, "sgd": 1, "adamw": 2}  # numbers that each optimizer keeps for a weight
ACTIVATION_SIZE = {"bf16": 0.5, "float32": 1.0, "float64": 2.0}  # relative to float32


class Pace(NamedTuple):
    """How fast a step was here."""

    seconds: float  # for each image of this process
    share: float  # of the time in which this process had a core: less than 1 on one that others use too


class Memory(NamedTuple):
    """Bytes that one process needs, besides images that it holds."""

    weights: int  # online, target, gradients, optimizer
    an_image: float  # activations kept for the gradient, for each image of a pass
    checkpoint: int  # of a file with networks and optimizer

    def of(self, images: float) -> float:
        """All of it, with this many images a pass."""
        return self.weights + self.an_image * images


@dataclass(frozen=True)
class Device:
    """One process's device: its peak, how much of the peak a ResNet's training reaches, and its link to the others."""

    peak: float  # FLOP/s
    utilization: float  # of the peak, for a whole training step
    memory: float  # bytes
    link: float  # bytes/s of an all-reduce, each way
    latency: float  # seconds that an exchange takes however small it is
    origin: str
    precision: str = "bf16"  # that run.precision auto stands for


class Cost(NamedTuple):
    """Of one device in one optimizer step of all devices."""

    parameters: int  # of the encoder
    forward: float  # FLOPs of encoder and projector for a view of an image
    flops: float  # FLOPs of the step
    weights: float  # bytes: online, target, gradients, optimizer
    activations: float  # bytes kept for the gradient
    traffic: float  # bytes sent
    exchanges: int
    compute_seconds: float
    exchange_seconds: float

    @property
    def seconds(self) -> float:
        return self.compute_seconds + self.exchange_seconds

    @property
    def efficiency(self) -> float:
        """The share of the time that is computation, not exchange."""
        return self.compute_seconds / self.seconds


@contextmanager
def counted(module: nn.Module) -> Iterator[list[float]]:
    """FLOPs (two for a multiplication with its addition) of every convolution and linear layer that runs inside."""
    flops: list[float] = []

    def add(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        weight: Tensor = layer.weight  # type: ignore[assignment]
        flops.append(2.0 * output.numel() * weight[0].numel())

    hooks = [m.register_forward_hook(add) for m in module.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    try:
        yield flops
    finally:
        for hook in hooks:
            hook.remove()


def on_paper(config: Config, classes: int = 0) -> method.Method:
    """The method of a config with shapes but without memory or numbers."""
    with torch.device("meta"):
        made = method.build(config.network, classes, config.objective, config.data.resolution)
    return method.pass_together(made) if config.run.passes == "together" else made


def _blank_view(config: Config) -> Tensor:
    return torch.empty(
        PROBE_IMAGES, config.network.channels, config.data.resolution, config.data.resolution, device="meta"
    )


def pass_flops(model: method.Method, config: Config) -> tuple[float, float]:
    """FLOPs for an image: one view through encoder and projector, and a step of Algorithm 1.

    The gradient costs twice its forward pass. A step passes two views through the online network and its predictor,
    forward and back, and two through the target, forward.
    """
    view, mode = _blank_view(config), model.training
    model.eval()  # so that a batch is one view, whatever it is in training
    with torch.no_grad():
        with counted(model.online) as branch:
            _, projection = model.online(view)
        with counted(model.predictor) as predictor:
            if not model.closed:
                model.predictor(projection)
        with counted(model.target or nn.Identity()) as other:
            if model.target is not None:
                model.target(view)
    model.train(mode)
    one, more, target = (sum(flops) / PROBE_IMAGES for flops in (branch, predictor, other))
    trained = 3 * (one + more) + (one if config.run.recompute else 0.0)
    return one, 2 * trained + 2 * target


def memory(model: method.Method, config: Config, precision: str, passes: str = machine.IN_TURN) -> Memory:
    """What training `model`, a method on paper, needs at a precision and with passes that are not `auto`."""
    size = 8 if precision == "float64" else 4
    trained = size * sum(p.numel() for p in model.parameters() if p.requires_grad)
    target = size * sum(p.numel() for p in model.target.parameters()) if model.target else 0
    stored = size * sum(t.numel() for t in model.state_dict().values())
    slots = SLOTS[config.optim.optimizer] * trained
    at_a_time = 0 if passes == machine.IN_TURN else 2
    activations = activation_bytes(model, config, at_a_time) * ACTIVATION_SIZE[precision]
    return Memory(2 * trained + target + slots, activations, stored + slots)


def in_parts(needed: Memory, devices: int) -> Memory:
    """What a process needs where each of them keeps a part of every weight."""
    return needed._replace(weights=math.ceil(needed.weights / devices))


def activation_bytes(model: method.Method, config: Config, views: int = 0) -> float:
    """Bytes in float32 that autograd keeps for an image, each tensor counted once: of so many views, or of those that
    pass at a time (see `Method.orders`)."""
    if config.run.recompute:
        networks.use_recompute(model.online.encoder)
    view = _blank_view(config)
    weights = {p.untyped_storage()._cdata for p in model.parameters()}
    kept: dict[int, Tensor] = {}  # alive, so that no number of a storage is used twice

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()._cdata
        if storage not in weights:
            kept[storage] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), _NormsOnPaper():
        passed = len(next(model.orders(view, view)))
    return sum(t.untyped_storage().nbytes() for t in kept.values()) / PROBE_IMAGES * (views or passed) / passed


class _Norm(torch.autograd.Function):
    """A batch norm that only keeps what the real one keeps for the gradient."""

    @staticmethod
    def forward(ctx: Any, view: Tensor, *others: Tensor) -> Tensor:
        statistics = view.new_empty(2, view.shape[1])
        ctx.save_for_backward(view, statistics, *others)
        return torch.empty_like(view)


class _NormsOnPaper(TorchFunctionMode):
    """Inside, batch norms keep without computing: on the device `meta`, torch works each one out of forty small steps,
    which takes ten times as long as all the rest of a network."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is not F.batch_norm:
            return func(*args, **(kwargs or {}))
        tensors = [given for given in (*args, *(kwargs or {}).values()) if isinstance(given, Tensor)]
        return _Norm.apply(*tensors)


def pace(model: method.Method, config: Config, place: Machine, most: int) -> Pace:
    """A training step of this process, timed with some images, at most `most`.

    The middle one of several times counts: on a busy machine one may be many times as long as the next. The weights and
    the target stay as they are; the batch statistics change, so `model` is a copy.
    """
    if place.passes == machine.SIDE_BY_SIDE:
        method.pass_side_by_side(model, place.at_a_time)
    if place.passes == machine.TOGETHER:
        method.pass_together(model)
    size = config.data.resolution
    count = max(2, min(most, TIMED_PIXELS // size**2))
    view = place.images(torch.rand(count, config.network.channels, size, size), config)
    labels = torch.zeros(count, dtype=torch.long, device=place.device) if model.classifier is not None else None
    learned = [p for p in model.parameters() if p.requires_grad]
    optimizer = optim.OPTIMIZERS["sgd"]([{"params": learned}], Optim(momentum=0.0))
    seconds: list[float] = []
    least, worked = TIMED_STEPS[0] + 1, 0.0
    more = True
    while more:
        began, cpu = time.perf_counter(), time.process_time()
        update(model, optimizer, [Pass(view, view, labels)], lr=0.0, tau=1.0, machine=place)
        if place.device.type == "cuda":
            torch.cuda.synchronize()
        worked += time.process_time() - cpu if seconds else 0.0
        seconds.append(time.perf_counter() - began)
        more = len(seconds) < least or (len(seconds) <= TIMED_STEPS[1] and sum(seconds[1:]) < TIMED_SECONDS)
        (more,) = processes.any_of(more)  # all take as many steps, as in each of them they wait for each other
    return Pace(statistics.median_low(seconds[1:]) / count, worked / sum(seconds[1:]))


def cost(config: Config, device: Device, devices: int) -> Cost:
    """Of a step on `devices` devices that share the batch."""
    batch = config.optim.batch // devices
    if batch * devices != config.optim.batch or batch % config.optim.accumulate:
        raise UsageError(
            f"{config.optim.batch} images a step in {config.optim.accumulate} passes cannot be shared by {devices} "
            "devices: optim.batch / optim.accumulate must be a multiple of them."
        )
    model = on_paper(config)
    one, an_image = pass_flops(model, config)
    precision = device.precision if config.run.precision == "auto" else config.run.precision
    needed = memory(model, config, precision)
    needed = in_parts(needed, devices) if config.run.shard else needed
    traffic, exchanges = _exchange(model, config, devices)
    flops = an_image * batch
    return Cost(
        parameters=sum(p.numel() for p in model.online.encoder.parameters()),
        forward=one,
        flops=flops,
        weights=needed.weights,
        activations=needed.an_image * batch / config.optim.accumulate,
        traffic=traffic,
        exchanges=exchanges,
        compute_seconds=flops / (device.peak * device.utilization),
        exchange_seconds=traffic / device.link + exchanges * device.latency,
    )


def _exchange(model: method.Method, config: Config, devices: int) -> tuple[float, int]:
    """Bytes that a device sends in a step, and in how many exchanges: gradients once, statistics in every pass.

    An all-reduce sends its bytes almost twice; a batch norm sends mean and variance forward and two sums back.
    """
    group = config.network.norm_group or devices
    if devices == 1:
        return 0.0, 0
    gradients = 4.0 * sum(p.numel() for p in model.parameters() if p.requires_grad)
    channels = [m.num_features for m in model.modules() if isinstance(m, _BatchNorm)]
    learned = [
        m.num_features for part in (model.online, model.predictor) for m in part.modules() if isinstance(m, _BatchNorm)
    ]
    views = 2 * config.optim.accumulate
    passes = views // 2 if config.run.passes == "together" else views
    statistics = 0.0 if group == 1 else views * 8.0 * (sum(channels) * (group - 1) + 2 * sum(learned))
    count = 0 if group == 1 else passes * (len(channels) + len(learned))
    return 2 * gradients * (devices - 1) / devices + statistics, count + math.ceil(gradients / 25e6) + 1


def here(config: Config, devices: int = 1) -> Device:
    """One of so many processes of this machine: its rate is that of timed steps of this very network with few images.

    On CPUs the processes share the cores: each has a part of the threads, and more processes than cores take turns.
    """
    place, crowd = machine.choose(config), 1.0
    if place.device.type == "cpu" and devices > 1:
        cores = processes.cores()
        threads = config.run.threads or max(1, cores // devices)
        place, crowd = replace(place, threads=threads), max(1.0, devices * threads / cores)
    machine.use(place)
    model = method.build(config.network, 0, config.objective, config.data.resolution).to(**place.placement(config))
    if config.run.recompute:
        networks.use_recompute(model.online.encoder)
    seconds = pace(model, config, place, config.optim.batch // config.optim.accumulate).seconds
    rate = pass_flops(on_paper(config), config)[1] / seconds
    room = machine.memory(place) * 1e9
    latency = GLOO_SECONDS if crowd == 1 else TURN_SECONDS
    return Device(rate / crowd, 1.0, room, 1e9, latency, "a step timed here just now", place.precision)


def named(name: str, config: Config, devices: int = 1) -> Device:
    """A device of the table, or this machine, whose processes share it."""
    if name == "here":
        return here(config, devices)
    if name not in DEVICES:
        raise UsageError(f"There is no device '{name}'. {nearest(name, [*DEVICES, 'here'])}")
    return DEVICES[name]


# A TPU v3 core is half a chip of 123 TFLOP/s. The paper's two times, both at 8 images a core, imply 9.3 and 6.2 % of
# it; the table assumes what lies between them. GPUs: the share of the peak that ResNet-50 reaches in mixed precision
# training at large batches, rounded down. A gaming card multiplies at half its advertised rate where sums are float32,
# which the peak below counts, and exchanges over PCI Express. A T4 has no bf16.
MIXED = "assumed for ResNet-50 in mixed precision"
DEVICES: dict[str, Device] = {
    "tpu-v3-core": Device(61.5e12, 0.08, 16e9, 140e9, 5e-6, "between what the paper's two times imply"),
    "v100": Device(125e12, 0.25, 32e9, 60e9, 2e-5, MIXED),
    "a100": Device(312e12, 0.20, 80e9, 120e9, 2e-5, MIXED),
    "h100": Device(989e12, 0.13, 80e9, 200e9, 2e-5, MIXED),
    "rtx-3060": Device(25e12, 0.25, 12e9, 8e9, 3e-5, MIXED),
    "rtx-3090": Device(71e12, 0.25, 24e9, 8e9, 3e-5, MIXED),
    "rtx-4060-ti": Device(44e12, 0.25, 16e9, 8e9, 3e-5, MIXED),
    "rtx-4090": Device(165e12, 0.18, 24e9, 8e9, 3e-5, MIXED),
    "t4": Device(8.1e12, 0.30, 16e9, 8e9, 3e-5, "assumed for ResNet-50 in float32", "float32"),
}
