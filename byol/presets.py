"""Named recipes: functions to a Config, whose docstrings say where they come from, what they cost and what they give.

`compose` puts preset, file and flags together; nothing here needs torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

from byol.config import Config, Data, Network, Objective, Optim, Runtime, View, Views, apply, flatten
from byol.errors import UsageError, nearest

T = TypeVar("T")


@dataclass(frozen=True)
class Facts:
    """What `auto` looks at: the images and the machine."""

    images: int
    side: int  # median short side, in pixels
    cores: int
    memory: float  # of the device that trains, in GB
    accelerator: bool
    seconds: Callable[[Config], float]  # that training on an image takes here, measured
    bf16: bool = False  # whether the CPU claims to be fast at bf16


@dataclass(frozen=True)
class Reason:
    """Why `auto` chose the value of one config field."""

    field: str
    value: Any
    why: str

    def __str__(self) -> str:
        value = f"{self.value:g}" if isinstance(self.value, float) else str(self.value)
        return f"{self.field} {value}: {self.why}"


def paper(epochs: int, lr: float, weight_decay: float, tau: float, batch: int = 4096) -> Config:
    """ResNet-50 at 224 px as in the paper; trains on all images, so the monitor looks at training images."""
    return Config(
        data=Data(holdout=0.0),
        optim=Optim(epochs=epochs, lr=lr, weight_decay=weight_decay, tau=tau, batch=batch),
    )


def paper_1000() -> Config:
    """Main result: ImageNet, 8 h on 512 TPU v3 cores, 74.3 % linear top-1 (paper, sections 3.3 and 4)."""
    return paper(1000, 0.2, 1.5e-6, 0.996)


def paper_300() -> Config:
    """Baseline of the ablations: ImageNet, 72.5 % linear top-1 (paper, section 5)."""
    return paper(300, 0.3, 1e-6, 0.99)


def paper_100() -> Config:
    """The reference code's 100-epoch preset; no figure published."""
    return paper(100, 0.45, 1e-6, 0.99)


def paper_40() -> Config:
    """The reference code's 40-epoch preset: 61.5 ± 0.5 % linear top-1 (its authors)."""
    return paper(40, 0.45, 1e-6, 0.97)


def paper_512() -> Config:
    """Batch 512: ImageNet, 4 days on 64 TPU v3 cores, 73.7 % linear top-1 (paper, appendix G)."""
    return paper(1000, 0.4, 1.5e-6, 0.9995, batch=512)


def simclr() -> Config:
    """The original SimCLR for 300 epochs of ImageNet: 67.9 % linear top-1 in the BYOL paper (appendix F.5).

    From Chen et al. (2020) and their code: both views with jitter of strength 1 (0.8, 0.8, 0.8, 0.2; brightness added,
    as in its first version), blur in half of them and no solarization; a projector of 2048 and 128 units that ends in
    a batch norm; temperature 0.1; the loss of both orders summed, without the BYOL paper's factor of 2α. LARS,
    initialization and colour normalization are BYOL's, and blur is drawn for each image, not each batch. The 67.9 %
    were reached with BYOL's views. The paper's own variant, 69.4 %, is paper-300 with network.predictor none,
    network.target online and objective.name info-nce.
    """
    alpha = 0.1
    base = paper_300()
    view = View(brightness=0.8, contrast=0.8, saturation=0.8, hue=0.2, blur=0.5)
    return replace(
        base,
        views=Views(t=view, t_prime=view),
        network=replace(
            base.network,
            predictor="none",
            target="online",
            projector_hidden=2048,
            projection=128,
            projection_norm=True,
        ),
        objective=Objective(name="info-nce", temperature=alpha, beta=1.0, scale=1 / (2 * alpha)),
    )


def imagenette() -> Config:
    """The reference README's recipe: Imagenette-160 at 128 px, 4 h on one V100, about 92.3 % with its online probe."""
    return Config(
        data=Data(resolution=128),
        network=Network(encoder="resnet18"),
        optim=Optim(epochs=1000, lr=2.0, weight_decay=1e-6, tau=0.996, batch=256),
    )


def small_views() -> Views:
    """For 32 px: 8 % of such an image is 9 px wide, too little to recognize; and no blur, as is usual there."""
    t = View(area_min=0.2, blur=0.0)
    return Views(t=t, t_prime=replace(t, solarize=0.2))


def cifar10() -> Config:
    """CIFAR-10 with a full ResNet-18, for one GPU; 200 epochs. Same views as cifar10-cpu, not measured here."""
    return Config(
        data=Data(resolution=32),
        views=small_views(),
        network=Network(encoder="resnet18", small_images=True),
        optim=Optim(epochs=200, warmup_epochs=2, lr=2.0, weight_decay=1e-6, tau=0.99, batch=256),
    )


def cifar10_cpu() -> Config:
    """CIFAR-10 on two CPU cores, 20 epochs in about 45 minutes: ResNet-18 at a quarter of its width.

    A larger trust coefficient with a smaller rate than cifar10: weights move about as far, while biases and batch
    norm, which see the rate itself, move less. A faster predictor stays near its optimum when steps are few, which
    keeps the rank of the projections up (paper, appendix I).
    """
    base = cifar10()
    return replace(
        base,
        network=replace(base.network, width=0.25, projector_hidden=1024, predictor_hidden=1024),
        optim=replace(
            base.optim,
            epochs=20,
            warmup_epochs=0.5,
            batch=128,
            lr=0.4,
            trust_coefficient=0.005,
            predictor_lr=10.0,
            tau=0.98,
        ),
    )


def fast(config: Config) -> Config:
    """A config with the recipe that learned fastest where compute is small (results/fast-recipes.json).

    Negatives keep images apart in the first steps, in which BYOL alone loses the rank of its representation, and fade
    out over the first 70 % of the run, which ends as BYOL. Blocks begin as the identity. AdamW in place of LARS.
    """
    return replace(
        config,
        network=replace(config.network, zero_init_last=True),
        objective=Objective(name="info-nce", fade=0.7),
        optim=replace(config.optim, optimizer="adamw", lr=0.004, predictor_lr=1.0, trust_coefficient=1e-3),
    )


def auto(facts: Facts, asked: Mapping[str, Any] | None = None) -> tuple[Config, list[Reason]]:
    """Chooses for these images on this machine and for a time, around the fields that are `asked` for, and says why.

    The most detailed shape of views and network is chosen whose steps, timed here, are enough in the time.
    """
    choices = Choices(facts, dict(asked or {}))
    time = choices.get("run.budget", "")
    budget = seconds_of(time) if time else DEFAULT_SECONDS[facts.accelerator]
    shapes = _shapes(choices)
    for place, shape in enumerate(shapes):
        config = _planned(choices, shape)
        seconds = facts.seconds(config)
        enough = budget / seconds / config.optim.batch >= ENOUGH_STEPS
        if enough or place + 1 == len(shapes):
            break
    return _explained(choices, config, Timing(budget, seconds, enough))


@dataclass(frozen=True)
class Choices:
    """What `auto` goes by, and its reasons so far."""

    facts: Facts
    asked: dict[str, Any]
    reasons: list[Reason] = field(default_factory=list)

    def get(self, name: str, value: T) -> T:
        """The value that is asked for, or else `value`."""
        chosen: T = self.asked.get(name, value)
        return chosen

    def say(self, name: str, value: Any, why: str) -> None:
        """Notes the reason for a value that was not asked for."""
        if name not in self.asked:
            self.reasons.append(Reason(name, value, why))


class Shape(NamedTuple):
    """What a step costs most by."""

    resolution: int
    encoder: str
    width: float


class Timing(NamedTuple):
    """The time that a run may take, what an image takes of it, and whether that makes enough steps."""

    budget: float
    seconds: float
    enough: bool


def _shapes(choices: Choices) -> list[Shape]:
    """From the most detailed to the quickest, with what is asked for in each."""
    facts = choices.facts
    if facts.accelerator:
        side = max([side for side in (32, 64, 96, 128, 224) if side <= facts.side * 1.1], default=32)
        deep = choices.get("data.resolution", side) >= 128 and facts.images >= 20_000
        shapes = [Shape(side, "resnet50" if deep else "resnet18", 1.0)]
    else:
        shapes = [shape for shape in CPU_SHAPES if shape.resolution <= max(64, facts.side * 1.1)]
    fixed = [
        Shape(
            choices.get("data.resolution", shape.resolution),
            choices.get("network.encoder", shape.encoder),
            choices.get("network.width", shape.width),
        )
        for shape in shapes
    ]
    return list(dict.fromkeys(fixed))


def _planned(choices: Choices, shape: Shape) -> Config:
    """The config of a shape, but for its length."""
    facts, resolution = choices.facts, shape.resolution
    small = choices.get("network.small_images", resolution < 64)
    hidden = 4096 if facts.accelerator else 1024
    network = Network(
        encoder=shape.encoder,
        width=shape.width,
        small_images=small,
        projector_hidden=choices.get("network.projector_hidden", hidden),
        predictor_hidden=choices.get("network.predictor_hidden", hidden),
    )
    held = 2 * resolution if facts.side >= 3 * resolution else 0
    data = Data(resolution=resolution, shrink=choices.get("data.shrink", held))
    optim = Optim(weight_decay=1e-6, batch=choices.get("optim.batch", _auto_batch(facts, resolution)))
    views = small_views() if resolution <= 64 else Views()
    run = Runtime(device=choices.get("run.device", "auto"), precision=choices.get("run.precision", "auto"))
    config = fast(Config(data=data, views=views, network=network, optim=optim, run=run))
    if choices.get("objective.name", "info-nce") != "info-nce" or choices.get("objective.normalization", "l2") != "l2":
        config = replace(config, objective=Objective())
    if choices.get("optim.optimizer", "adamw") != "adamw":  # whose rates are others; those of cifar10-cpu
        config = replace(config, optim=replace(config.optim, lr=0.4, trust_coefficient=0.005, predictor_lr=10.0))
    return config


def _explained(choices: Choices, config: Config, timing: Timing) -> tuple[Config, list[Reason]]:
    """The config with its length, and every reason."""
    facts, resolution, batch = choices.facts, config.data.resolution, config.optim.batch
    config, timing = _precision(choices, config, timing)
    why = f"the images' short side is typically {facts.side} px"
    if not facts.accelerator and facts.side >= resolution * 1.5:
        why += f", and larger views leave fewer than {ENOUGH_STEPS:,} steps" if timing.enough else ", and time is short"
    if resolution > facts.side * 1.1:
        why += f"; enlarged to {resolution} px, the 7x7 stem takes half the time of a 3x3 stem"
    choices.say("data.resolution", resolution, why)
    if config.data.shrink:
        choices.say("data.shrink", config.data.shrink, "views are cut faster from images of twice their side")
    small = config.network.small_images
    why = f"{'a 3x3 stem keeps' if small else 'the 7x7 stem suits'} {resolution} px"
    choices.say("network.small_images", small, why)
    cores = f"{facts.cores} CPU core{'s' * (facts.cores > 1)}"
    why = f"{'one GPU' if facts.accelerator else cores}, {facts.images} images"
    choices.say("network.encoder", config.network.encoder, why)
    choices.say("network.width", config.network.width, why)
    why = f"at most {_most(facts)} in {facts.memory:.0f} GB, and at most half of the images"
    choices.say("optim.batch", batch, why)
    passes = min(MOST_PASSES, timing.budget / timing.seconds / facts.images)
    passes = max(float(f"{passes:.3g}"), FEWEST_STEPS * batch / facts.images)
    steps = passes * facts.images / batch
    step = f"{1000 * timing.seconds * batch:.3g} ms"
    why = f"about {steps:,.0f} steps of {step}, as timed here, in {timing.budget / 60:.3g} minutes"
    choices.say("optim.epochs", passes, f"{why}; at most {MOST_PASSES:,} passes over the images")
    epochs = choices.get("optim.epochs", passes)
    decay = min(0.996, max(0.97, 1 - 100 * batch / max(epochs * facts.images, 1e-9)))
    choices.say("optim.tau", round(decay, 4), "the target's memory is about a hundredth of the run")
    if config.objective.fade:
        why = "negatives keep the rank in the first steps and fade, so that the run ends as BYOL"
        choices.say("objective.fade", config.objective.fade, why)
    tau = choices.get("optim.tau", round(decay, 4))
    optim = replace(config.optim, epochs=epochs, warmup_epochs=epochs / 20, tau=tau)
    return replace(config, optim=optim), choices.reasons


def _precision(choices: Choices, config: Config, timing: Timing) -> tuple[Config, Timing]:
    """float32 where bf16, which the processor claims to be fast at, is the slower one."""
    if not choices.facts.bf16 or "run.precision" in choices.asked:
        return config, timing
    plain = replace(config, run=replace(config.run, precision="float32"))
    seconds = choices.facts.seconds(plain)
    if seconds >= timing.seconds:
        return config, timing
    choices.say("run.precision", "float32", f"{timing.seconds / seconds:.2g} times as fast here as bf16")
    return plain, timing._replace(seconds=seconds)


def _most(facts: Facts) -> int:
    return 256 if facts.accelerator else 128


def _auto_batch(facts: Facts, resolution: int) -> int:
    """A power of two: no more than memory holds (about 60 MB an image at 224 px) or half of the images."""
    fits = facts.memory * 0.5 * 1024 / (60 * (resolution / 224) ** 2)
    most = max(min(float(_most(facts)), fits, facts.images / 2), min(8, facts.images))
    return int(2 ** math.floor(math.log2(most)))


def seconds_of(budget: str, where: str = "run.budget") -> float:
    """`90s`, `15m` or `1.5h` in seconds."""
    factor = {"s": 1, "m": 60, "h": 3600}.get(budget[-1:])
    try:
        seconds = float(budget[:-1]) * factor if factor else float(budget)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= 1e9:
        raise UsageError(f"{where} should be a time such as 90s, 20m or 2h, not '{budget}'.")
    return seconds


def compose(
    preset: str,
    overrides: Mapping[str, Any],
    file_values: Mapping[str, Any],
    file: str = "",
    facts: Facts | None = None,
) -> tuple[Config, list[Reason]]:
    """Preset, then file, then flags; `auto` without facts is checked, and chooses nothing yet."""
    if preset != "auto" and preset not in PRESETS:
        raise UsageError(f"There is no preset '{preset}'. {nearest(preset, ['auto', *PRESETS])}")
    reasons: list[Reason] = []
    if preset != "auto":
        config = PRESETS[preset]()
    elif facts:
        given = flatten(apply(apply(Config(), file_values, file, check=False), overrides, "flags", check=False))
        config, reasons = auto(facts, {name: given[name] for name in (*file_values, *overrides)})
    else:
        config = Config(data=Data(resolution=32))  # the resolution at which scenes are rendered if none is asked for
    config = apply(apply(config, file_values, file, check=False), overrides, "flags")
    if config.run.budget:
        seconds_of(config.run.budget)
        if preset != "auto":
            raise UsageError(f"run.budget is for the preset auto; the length of {preset} is optim.epochs.")
    return config, reasons


CPU_SHAPES = (
    Shape(128, "resnet18", 0.5),
    Shape(96, "resnet18", 0.5),
    Shape(64, "resnet18", 0.5),
    Shape(64, "resnet18", 0.25),
)
ENOUGH_STEPS, FEWEST_STEPS = 5000, 10
MOST_PASSES = 1000
DEFAULT_SECONDS = {False: 30 * 60.0, True: 4 * 3600.0}  # without and with an accelerator

PRESETS: dict[str, Callable[[], Config]] = {
    "paper-1000": paper_1000,
    "paper-300": paper_300,
    "paper-100": paper_100,
    "paper-40": paper_40,
    "paper-512": paper_512,
    "simclr": simclr,
    "imagenette": imagenette,
    "cifar10": cifar10,
    "cifar10-cpu": cifar10_cpu,
}
