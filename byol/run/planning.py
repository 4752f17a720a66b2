"""The plan before the work, in words: what a run will do, how long it takes and what it needs.

`announce` shows the plan of a run that begins; `byol plan` shows what a run on any devices would cost.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import NamedTuple

from byol import checkpoint
from byol.config import Config, Network, Plan, resolve
from byol.data import loader
from byol.method import Method
from byol.parallel import processes
from byol.run import cost, files
from byol.run.cost import Cost, Device
from byol.run.directory import Setup
from byol.run.machine import Machine
from byol.run.progress import bar, duration, say
from byol.run.record import Estimate

SHORT_SECONDS = 600.0  # of a run for those who do not want to wait
LOG_BYTES = 10_000_000  # of metrics.jsonl and the small files
IMAGENET = 1_281_167


def announce(setup: Setup, method: Method) -> None:
    """The plan, on the screen and in the run's record."""
    pixels = 0 if setup.images.pixels is None else setup.images.pixels.numel()
    needed = estimate(method, setup.config, setup.plan, setup.machine, pixels)
    for line in plan_lines(setup, method, needed):
        say(line)
    if processes.rank():
        return
    if setup.record_of_run.plan != setup.plan:  # a run that goes on for other epochs has another plan
        setup.record_of_run = replace(setup.record_of_run, plan=setup.plan, estimate=needed)
    there = len(checkpoint.found(setup.checkpoints))
    count = max(setup.config.run.keep + 1 - there, 1)  # the oldest goes when the newest is whole
    files.require_space(setup.out, count * needed.checkpoint_bytes + LOG_BYTES, f"{count} checkpoints and the log")


def estimate(method: Method, config: Config, plan: Plan, place: Machine, held_bytes: int = 0) -> Estimate:
    """Time, memory and disk of a run, from a copy of its method; `held_bytes` are those of images held in memory."""
    world, share = processes.world(), plan.micro_batch // processes.world()
    classes = 0 if method.classifier is None else method.classifier.out_features
    memory = cost.memory(cost.on_paper(config, classes), config, place.precision)  # type: ignore[arg-type]
    seconds = cost.seconds_an_image(copy.deepcopy(method), config, place, share) / world
    return Estimate(
        seconds=round(seconds * plan.batch * plan.steps, 1),
        images_per_second=round(1 / seconds, 1),
        memory_gb=round((memory.of(share) + held_bytes) / 1e9, 2),
        fixed_bytes=memory.weights + held_bytes,
        bytes_an_image=round(memory.an_image),
        checkpoint_bytes=memory.checkpoint,
    )


def plan_lines(setup: Setup, method: Method, needed: Estimate) -> list[str]:
    """The plan of a run, a line each."""
    config, plan, images, place = setup.config, setup.plan, setup.images, setup.machine
    where = "in memory" if images.pixels is not None else f"streamed by {loader.worker_count(config)} workers"
    encoder = sum(p.numel() for p in method.online.encoder.parameters())
    left_out = f"{plan.held_out} held out, {len(images.bad)} left out"
    split = f" in {plan.accumulate} passes of {plan.micro_batch}" if plan.accumulate > 1 else ""
    labels = f"{len(images.source.classes)} classes (watched, never trained on)" if setup.classes else "no labels used"
    together = f"{processes.world()} processes, each: " if processes.world() > 1 else ""
    lines = [f"  auto: {reason}" for reason in setup.record_of_run.reasons]
    if plan.batch > plan.images:
        lines.append(f"  note: the batch of {plan.batch} is larger than the {plan.images} images")
    return [
        f"Plan for {setup.out}",
        *lines,
        f"  images    {plan.images} from {images.source.name}, {where}; {left_out}; {labels}",
        f"  encoder   {config.network.encoder} width {config.network.width:g}, {encoder:,} parameters, "
        f"{config.data.resolution} px",
        f"  steps     {plan.steps} of {plan.batch} images{split} = {config.optim.epochs:g} epochs, "
        f"{plan.warmup_steps} of warm-up",
        f"  optimizer {config.optim.optimizer}, peak learning rate {plan.peak_lr:g} "
        f"({config.optim.lr:g} x {plan.batch}/256), weight decay {config.optim.weight_decay:g}",
        f"  target    {target_in_words(config)}",
        f"  objective {objective_in_words(config)}",
        f"  machine   {together}{place.device_name}, {place.precision}, {place.threads} threads, "
        f"about {needed.memory_gb:.1f} GB",
        f"  time      about {duration(needed.seconds)} ({needed.images_per_second:.0f} images/s without loading)",
        *shorter(setup, needed.seconds),
    ]


def shorter(setup: Setup, seconds: float) -> list[str]:
    """How to end a long run that `auto` chose earlier."""
    asked = setup.record_of_run.request
    if asked.preset != "auto" or asked.overrides.keys() & {"optim.epochs", "run.budget"} or seconds < 2 * SHORT_SECONDS:
        return []
    return [f"  shorter   --budget {SHORT_SECONDS / 60:g}m plans for {duration(SHORT_SECONDS)}"]


def target_in_words(config: Config) -> str:
    end = "to 1" if config.optim.tau_schedule == "cosine" else "constant"
    return {
        "moving-average": f"tau from {config.optim.tau:g} {end}",
        "stop-gradient": "the online network, its gradient stopped",
        "online": "the online network, its gradient flowing",
        "fixed": "a fixed random network",
    }[config.network.target]


def objective_in_words(config: Config) -> str:
    objective = config.objective
    contrastive = f"temperature {objective.temperature:g}, beta {objective.beta:g}"
    if objective.fade:
        contrastive += f" falling to 0 over the first {objective.fade:.0%} of the run"
    how = contrastive if objective.name == "info-nce" else f"normalization {objective.normalization}"
    return f"{objective.name}, {how}; predictor {config.network.predictor}"


def device_lines(config: Config, name: str, devices: int, images: int) -> list[str]:
    """What a run would cost on some devices, a line each."""
    device = cost.named(name, config)
    step, plan = cost.cost(config, device, devices), resolve(config, images)
    seconds = plan.steps * step.seconds
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
        f"  time       {seconds_in_words(seconds)} for {plan.steps:,} steps of {step.seconds:.3g} s; "
        f"{plan.batch / step.seconds:,.0f} images/s, efficiency {step.efficiency:.0%}",
        *published_lines(config, plan, step, name, devices),
    ]


def seconds_in_words(seconds: float) -> str:
    return f"{seconds / 86400:.1f} days" if seconds > 2 * 86400 else duration(seconds)


def remedy(config: Config, step: Cost, device: Device) -> str:
    """What to try when a run does not fit on a device."""
    if step.weights > device.memory:
        return "the weights alone are too large; it needs a device with more memory"
    if not config.run.recompute:
        return "try run.recompute true, or a larger optim.accumulate"
    return "try a larger optim.accumulate or more devices"


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
    device = cost.named(name, config)
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
