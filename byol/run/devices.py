"""What a run would cost on devices that need not be here, in words: the lines of `byol plan`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from byol import data, presets
from byol.config import Config, Network, Plan, apply, resolve
from byol.data import loader
from byol.data.stored import fitted
from byol.data.values import settle
from byol.presets import Reason
from byol.run import cost
from byol.run.cost import Cost, Device
from byol.run.facts import facts
from byol.run.planning import encoder_in_words, fitting
from byol.run.progress import bar, duration

IMAGENET = 1_281_167
SUPPOSED = 16  # black images, by which views are timed where there are no images


class Seen(NamedTuple):
    """What a plan is for: the images themselves, or how many there are and how large."""

    data: str
    images: int
    side: int


class Composed(NamedTuple):
    """A config with what `auto` chose for some images on some device, and why."""

    config: Config
    images: int
    reasons: list[Reason]


def composed(preset: str, values: Mapping[str, Any], seen: Seen, name: str, devices: int) -> Composed:
    """The config of a run that is only planned; images are counted, and some of them measured, if they are named."""
    config, _ = presets.compose(preset, values, {})
    side = seen.side or 224
    count, sample = seen.images or IMAGENET, [torch.zeros(3, side, side, dtype=torch.uint8)] * SUPPOSED
    settled: dict[str, Any] = {}
    if seen.data:
        found = data.open_stored(seen.data, config.data)
        settled = settle(found, config, values, {}).fields
        source = fitted(found, apply(config, settled).data)
        count, sample = len(source), loader.sample(source)
    if not presets.chooses(preset):
        return Composed(apply(config, settled), count, [])
    known = facts(count, sample, config, settled=settled)
    if name != "here":
        device = cost.named(name, config, devices)
        known = replace(
            known,
            accelerator=True,
            memory=device.memory / 1e9 * devices,
            seconds=lambda config: cost.cost(apply(config, settled), device, devices).seconds / config.optim.batch,
            source=f"as reckoned for {name}",
            bf16=False,
        )
    config, reasons = presets.compose(preset, values, {}, "", known)
    return Composed(apply(config, settled), count, reasons)


class Reckoned(NamedTuple):
    """What a run would cost: the device, one of its steps, and how many of them."""

    device: Device
    step: Cost
    plan: Plan


def reckoned(config: Config, name: str, devices: int, images: int) -> Reckoned:
    device = cost.named(name, config, devices)
    return Reckoned(device, cost.cost(config, device, devices), resolve(config, images))


def device_lines(config: Config, found: Reckoned, name: str, devices: int) -> list[str]:
    """The same in words, a line each."""
    device, step, plan = found
    seconds = plan.steps * step.seconds
    memory = step.weights + step.activations
    fits = "" if memory <= device.memory else "; it does not fit, " + remedy(config, step, device, devices)
    total = step.flops * devices / 1e12
    return [
        f"  encoder    {encoder_in_words(config)}, {step.parameters:,} parameters, "
        f"{config.data.resolution} px, {step.forward / 1e9:.2f} GFLOPs a view (projector included)",
        f"  step       {plan.batch} images, {plan.batch // devices} a device; {total:,.2f} TFLOPs: "
        "two views online, forward and back, and two of the target",
        f"  memory     {memory / 1e9:.1f} of {device.memory / 1e9:.0f} GB a device: {step.weights / 1e9:.2f} weights, "
        f"gradients and optimizer, {step.activations / 1e9:.2f} activations{fits}",
        f"  exchange   {step.traffic / 1e6:,.1f} MB a device and step, in {step.exchanges} exchanges",
        f"  device     {devices} x {name}, {device.peak / 1e12:,.3g} TFLOP/s at {device.utilization:.1%} "
        f"utilization ({device.origin})",
        f"  time       {seconds_in_words(seconds)} for {plan.steps:,} steps of {step.seconds:.3g} s; "
        f"{plan.batch / step.seconds:,.0f} images/s, efficiency {step.efficiency:.0%}",
        *published_lines(config, plan, step, name, devices),
    ]


def seconds_in_words(seconds: float) -> str:
    return f"{seconds / 86400:.1f} days" if seconds > 2 * 86400 else duration(seconds)


def remedy(config: Config, step: Cost, device: Device, devices: int) -> str:
    """What would make a run fit on a device."""
    if step.weights > device.memory:
        return "the weights alone are too large; it needs a device with more memory"
    precision = device.precision if config.run.precision == "auto" else config.run.precision
    memory = cost.memory(cost.on_paper(config), config, precision)
    ways = fitting(config, memory, device.memory, devices, precision)
    return f"these would: {', '.join(ways)}" if ways else "try a lower data.resolution, or more devices"


def published_lines(config: Config, plan: Plan, step: Cost, name: str, devices: int) -> list[str]:
    """The paper's own time for this very run, and the utilization that it implies."""
    for published in PUBLISHED:
        same = (published.batch, published.epochs) == (plan.batch, config.optim.epochs)
        if same and published.devices == devices and name == "tpu-v3-core" and config.network == Network():
            implied = step.flops * plan.steps / published.seconds / cost.DEVICES[name].peak
            ratio = step.seconds * plan.steps / published.seconds
            return [
                f"  paper      {published.text}: {seconds_in_words(published.seconds)}, which is {implied:.1%} "
                f"utilization; this prediction is {ratio:.2f} of it"
            ]
    return []


class Published(NamedTuple):
    """A training time that the paper states."""

    batch: int
    epochs: float
    devices: int
    seconds: float
    text: str


PUBLISHED = (
    Published(4096, 1000, 512, 8 * 3600.0, "about 8 hours on 512 TPU v3 cores (section 3.3)"),
    Published(512, 1000, 64, 4 * 86400.0, "approximately 4 days on 64 TPU v3 cores (appendix G)"),
)

WIDTHS = {50: (1, 2, 3, 4), 101: (1, 2, 3), 152: (1, 2, 3), 200: (1, 2)}
ENCODERS = [(depth, width) for depth, widths in WIDTHS.items() for width in widths]


def encoder_rows(config: Config, name: str, devices: int, images: int) -> list[list[str]]:
    """Every encoder of the paper under a preset: parameters, FLOPs, memory and time."""
    device = cost.named(name, config, devices)
    rows = []
    with bar("Encoders", len(ENCODERS), "encoders") as shown:
        for depth, width in ENCODERS:
            network = replace(config.network, encoder=f"resnet{depth}", width=float(width))
            variant = replace(config, network=network)
            step, plan = cost.cost(variant, device, devices), resolve(variant, images)
            an_image = step.flops / (plan.batch // devices)
            figures = [f"{step.parameters / 1e6:.0f}", f"{step.forward / 1e9:.1f}", f"{an_image / 1e9:.0f}"]
            memory = [f"{step.weights / 1e9:.1f}", f"{step.activations / 1e9:.1f}"]
            rows.append([f"ResNet-{depth} ({width}x)", *figures, *memory, seconds_in_words(plan.steps * step.seconds)])
            shown.advance()
    return rows
