"""What a run costs before it is begun: operations, memory, exchange between devices, and time, on paper.

Shapes come from the network itself on torch's `meta` device, which computes nothing; rates from a small table of
devices with the utilization that is assumed for each. `byol plan` shows it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from byol import machine, method, networks
from byol.algorithm import Pass, update
from byol.config import Config, Network, Plan, resolve
from byol.errors import UsageError, nearest
from byol.progress import bar, duration

IMAGENET = 1_281_167
PROBE_IMAGES = 2  # enough for batch norm; everything is proportional to images


@dataclass(frozen=True)
class Device:
    """One process's device: its peak at bf16, what of it a ResNet's training reaches, and its way to the others."""

    peak: float  # FLOP/s
    utilization: float  # of the peak, for a whole training step
    memory: float  # bytes
    link: float  # bytes/s of an all-reduce, each way
    latency: float  # seconds an exchange takes however small it is
    origin: str


class Cost(NamedTuple):
    """Of one device in one optimizer step of all."""

    parameters: int  # of the encoder
    forward: float  # FLOPs an image and view: encoder and projector
    flops: float  # FLOPs of the step
    weights: float  # bytes: online, target, gradients, optimizer
    activations: float  # bytes kept for the gradient
    traffic: float  # bytes sent
    exchanges: int
    compute_seconds: float
    exchange_seconds: float

    @property
    def efficiency(self) -> float:
        """Of the compute that is left beside the exchange."""
        return self.compute_seconds / (self.compute_seconds + self.exchange_seconds)


@contextmanager
def counted(module: nn.Module) -> Iterator[list[float]]:
    """FLOPs (two a multiplication with its addition) of every convolution and linear layer that runs inside."""
    found: list[float] = []

    def add(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        weight: Tensor = layer.weight  # type: ignore[assignment]
        found.append(2.0 * output.numel() * weight[0].numel())

    hooks = [m.register_forward_hook(add) for m in module.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


def on_paper(config: Config) -> method.Method:
    """The method of a config without memory or numbers."""
    with torch.device("meta"):
        return method.build(config.network, objective=config.objective)


def pass_flops(model: method.Method, config: Config) -> tuple[float, float]:
    """FLOPs an image: one view through encoder and projector, and a step of Algorithm 1.

    The gradient costs twice its forward pass. A step passes two views through the online network and its predictor,
    forward and back, and two through the target, forward.
    """
    view = torch.empty(PROBE_IMAGES, 3, config.data.resolution, config.data.resolution, device="meta")
    with torch.no_grad():
        with counted(model.online) as branch:
            _, projection = model.online(view)
        with counted(model.predictor) as predictor:
            if not hasattr(model.predictor, "ridge"):
                model.predictor(projection)
    one, more = sum(branch) / PROBE_IMAGES, sum(predictor) / PROBE_IMAGES
    trained = 3 * (one + more) + (one if config.run.recompute else 0.0)
    return one, 2 * trained + (2 * one if model.target is not None else 0.0)


def activation_bytes(model: method.Method, config: Config) -> float:
    """Bytes an image that autograd keeps at a time (see `Method.orders`), each tensor once; half of them at bf16."""
    if config.run.recompute:
        networks.use_recompute(model.online.encoder)
    view = torch.empty(PROBE_IMAGES, 3, config.data.resolution, config.data.resolution, device="meta")
    weights = {p.untyped_storage()._cdata for p in model.parameters()}
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()._cdata
        if storage not in weights:
            kept[storage] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        next(model.orders(view, view))
    total = sum(t.numel() * t.element_size() for t in kept.values())
    return total / PROBE_IMAGES * (0.5 if config.run.precision in ("auto", "bf16") else 1.0)


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
    online = [p for part in (model.online, model.predictor) for p in part.parameters()]
    trained = 4.0 * sum(p.numel() for p in online)
    target = 4.0 * sum(p.numel() for p in model.target.parameters()) if model.target else 0.0
    slots = {"lars": 1, "sgd": 1, "adamw": 2}[config.optim.optimizer]
    state = slots * trained / (devices if config.run.shard_optimizer else 1)
    traffic, exchanges = _exchange(model, config, devices, trained)
    flops = an_image * batch
    return Cost(
        parameters=sum(p.numel() for p in model.online.encoder.parameters()),
        forward=one,
        flops=flops,
        weights=2 * trained + target + state,
        activations=activation_bytes(model, config) * batch / config.optim.accumulate,
        traffic=traffic,
        exchanges=exchanges,
        compute_seconds=flops / (device.peak * device.utilization),
        exchange_seconds=traffic / device.link + exchanges * device.latency,
    )


def _exchange(model: method.Method, config: Config, devices: int, trained: float) -> tuple[float, int]:
    """Bytes a device sends in a step, and in how many exchanges: gradients once, statistics in every pass.

    An all-reduce sends its bytes almost twice; a batch norm sends mean and variance forward and two sums back.
    """
    group = config.network.norm_group or devices
    if devices == 1:
        return 0.0, 0
    channels = [m.num_features for m in model.modules() if isinstance(m, _BatchNorm)]
    learned = [
        m.num_features for part in (model.online, model.predictor) for m in part.modules() if isinstance(m, _BatchNorm)
    ]
    passes = 2 * config.optim.accumulate  # two views
    statistics = 0.0 if group == 1 else passes * 8.0 * (sum(channels) * (group - 1) + 2 * sum(learned))
    count = 0 if group == 1 else passes * (len(channels) + len(learned))
    return 2 * trained * (devices - 1) / devices + statistics, count + math.ceil(trained / 25e6) + 1


def here(config: Config) -> Device:
    """This machine as a device: its rate is that of one timed step of this very network with few images."""
    place = machine.choose(config)
    machine.use(place)
    model = method.build(config.network, objective=config.objective).to(**place.placement(config))
    size = config.data.resolution
    count = max(2, min(config.optim.batch // config.optim.accumulate, 2**18 // size**2))
    view = place.images(torch.rand(count, 3, size, size), config)
    optimizer = torch.optim.SGD((p for p in model.parameters() if p.requires_grad), lr=0.0)
    seconds = []
    for _ in range(3):
        began = time.perf_counter()
        update(model, optimizer, [Pass(view, view, None)], lr=0.0, tau=1.0, machine=place)
        if place.device.type == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    rate = pass_flops(on_paper(config), config)[1] * count / min(seconds[1:])
    return Device(rate, 1.0, machine.memory(place) * 1e9, 1e9, 1e-4, f"one step of {count} images timed here just now")


def named(name: str, config: Config) -> Device:
    if name == "here":
        return here(config)
    if name not in DEVICES:
        raise UsageError(f"There is no device '{name}'. {nearest(name, [*DEVICES, 'here'])}")
    return DEVICES[name]


def plan_lines(config: Config, name: str, devices: int, images: int) -> list[str]:
    """The plan in words, a line each."""
    device = named(name, config)
    step, plan = cost(config, device, devices), resolve(config, images)
    seconds = plan.steps * (step.compute_seconds + step.exchange_seconds)
    memory = step.weights + step.activations
    fits = "" if memory <= device.memory else "; it does not fit: " + remedy(config, step, device)
    network, total = config.network, step.flops * devices / 1e12
    return [
        f"  encoder    {network.encoder} width {network.width:g}, {step.parameters:,} parameters, "
        f"{config.data.resolution} px, {step.forward / 1e9:.2f} GFLOPs a view (projector included)",
        f"  step       {plan.batch} images, {plan.batch // devices} a device; {total:,.2f} TFLOPs: "
        "two views online, forward and back, and two of the target",
        f"  memory     {memory / 1e9:.1f} of {device.memory / 1e9:.0f} GB a device: {step.weights / 1e9:.2f} weights, "
        f"gradients and optimizer, {step.activations / 1e9:.2f} activations{fits}",
        f"  exchange   {step.traffic / 1e6:,.1f} MB a device and step, in {step.exchanges} exchanges",
        f"  device     {devices} x {name}, {device.peak / 1e12:,.3g} TFLOP/s at {device.utilization:.1%} "
        f"utilization ({device.origin})",
        f"  time       {seconds_in_words(seconds)} for {plan.steps:,} steps of "
        f"{step.compute_seconds + step.exchange_seconds:.3g} s; {plan.batch / (seconds / plan.steps):,.0f} images/s, "
        f"efficiency {step.efficiency:.0%}",
        *published_lines(config, plan, step, name, devices, seconds),
    ]


def seconds_in_words(seconds: float) -> str:
    return f"{seconds / 86400:.1f} days" if seconds > 2 * 86400 else duration(seconds)


def remedy(config: Config, step: Cost, device: Device) -> str:
    if step.weights > device.memory:
        return "the weights alone are too large; run.shard_optimizer true saves some, a larger device more"
    if not config.run.recompute:
        return "try run.recompute true, or a larger optim.accumulate"
    return "try a larger optim.accumulate or more devices"


def published_lines(config: Config, plan: Plan, step: Cost, name: str, devices: int, seconds: float) -> list[str]:
    """The paper's own time for this very run, and the utilization that it implies."""
    for published in PUBLISHED:
        same = (published.batch, published.epochs) == (plan.batch, config.optim.epochs)
        if same and published.devices == devices and name == "tpu-v3-core" and config.network == Network():
            device = DEVICES[name]
            implied = step.flops * plan.steps / published.seconds / device.peak
            return [
                f"  paper      {published.text}: {seconds_in_words(published.seconds)}, which is {implied:.1%} "
                f"utilization; this prediction is {seconds / published.seconds:.2f} of it"
            ]
    return []


class Published(NamedTuple):
    batch: int
    epochs: float
    devices: int
    seconds: float
    text: str


PUBLISHED = (
    Published(4096, 1000, 512, 8 * 3600.0, "about 8 hours on 512 TPU v3 cores (section 3.3)"),
    Published(512, 1000, 64, 4 * 86400.0, "approximately 4 days on 64 TPU v3 cores (appendix G)"),
)

# A TPU v3 core is half a chip of 123 TFLOP/s. The paper's two times, both at 8 images a core, imply 9.3 and 6.2 % of
# it; assumed is what lies between them. GPUs: the share of the peak that ResNet-50 reaches in mixed precision training
# at large batches, rounded down.
DEVICES: dict[str, Device] = {
    "tpu-v3-core": Device(61.5e12, 0.08, 16e9, 140e9, 5e-6, "between what the paper's two times imply"),
    "v100": Device(125e12, 0.25, 32e9, 60e9, 2e-5, "assumed for ResNet-50 in mixed precision"),
    "a100": Device(312e12, 0.20, 80e9, 120e9, 2e-5, "assumed for ResNet-50 in mixed precision"),
    "h100": Device(989e12, 0.13, 80e9, 200e9, 2e-5, "assumed for ResNet-50 in mixed precision"),
}

WIDTHS = {50: (1, 2, 3, 4), 101: (1, 2, 3), 152: (1, 2, 3), 200: (1, 2)}
ENCODERS = [(depth, width) for depth, widths in WIDTHS.items() for width in widths]


def encoder_rows(config: Config, name: str, devices: int, images: int) -> list[list[str]]:
    """Every encoder of the paper under a preset: parameters, FLOPs, memory and time."""
    device = named(name, config)
    rows = []
    with bar("Encoders", len(ENCODERS), "encoders") as shown:
        for depth, width in ENCODERS:
            this = replace(config, network=replace(config.network, encoder=f"resnet{depth}", width=float(width)))
            step, plan = cost(this, device, devices), resolve(this, images)
            seconds = plan.steps * (step.compute_seconds + step.exchange_seconds)
            an_image = step.flops / (plan.batch // devices)
            figures = [f"{step.parameters / 1e6:.0f}", f"{step.forward / 1e9:.1f}", f"{an_image / 1e9:.0f}"]
            memory = [f"{step.weights / 1e9:.1f}", f"{step.activations / 1e9:.1f}"]
            rows.append([f"ResNet-{depth} ({width}x)", *figures, *memory, seconds_in_words(seconds)])
            shown.advance()
    return rows
