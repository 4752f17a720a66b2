"""The preset that chooses: for these images, on this machine and for a time, with its reasons. Needs no torch."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

from byol.config import Config, Data, Network, Objective, Optim, Runtime, Views, apply
from byol.kinds import views as views_of_kind
from byol.presets import Facts, Reason, fast, seconds_of, small_views

T = TypeVar("T")


def chosen(facts: Facts, asked: Mapping[str, Any]) -> tuple[Config, list[Reason]]:
    """The config for these images on this machine, around the fields that are `asked` for, and the reasons.

    A run that goes on from given weights has a recipe of its own.
    """
    if not facts.weights:
        return auto(facts, asked)
    own = Choices(facts, dict(asked))
    start = _auto_init(own)
    config, others = auto(facts, {**asked, **start})
    alone = min(2.0, config.optim.epochs / 10)
    why = "fresh heads learn alone first: their first gradients would undo what the encoder knows"
    own.say("optim.head_epochs", alone, why)
    start["optim.head_epochs"] = own.get("optim.head_epochs", alone)
    return apply(config, start, "auto", check=False), [*own.reasons, *others]


def auto(facts: Facts, asked: Mapping[str, Any] | None = None) -> tuple[Config, list[Reason]]:
    """Chooses for a time: the most detailed shape of views and network whose steps, timed here, are enough in it."""
    choices = Choices(facts, dict(asked or {}))
    asked_for = choices.get("run.budget", "")
    budget = seconds_of(asked_for) if asked_for else DEFAULT_SECONDS[facts.accelerator]
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
        if facts.side < SMALL_SIDE:
            shapes = list(SMALL_SHAPES)
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
    small = choices.get("network.small_images", resolution < (64 if facts.accelerator else 32))
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
    views, _ = views_of_kind(facts.kind, small_views() if resolution <= 64 else Views(), facts.channels)
    run = Runtime(device=choices.get("run.device", "auto"), precision=choices.get("run.precision", "auto"))
    config = fast(Config(data=data, views=views, network=network, optim=optim, run=run))
    usual = config.objective.name
    if choices.get("objective.name", usual) != usual or choices.get("objective.normalization", "l2") != "l2":
        config = replace(config, objective=Objective())
    if choices.get("optim.optimizer", "adamw") != "adamw":  # whose rates are others
        config = replace(config, optim=replace(config.optim, lr=0.4, trust_coefficient=0.005, predictor_lr=10.0))
    return config


def _explained(choices: Choices, config: Config, timing: Timing) -> tuple[Config, list[Reason]]:
    """The config with its length, and every reason."""
    facts, resolution, batch = choices.facts, config.data.resolution, config.optim.batch
    _say_kind(choices, resolution)
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
    why += " where time is short" * (not small and resolution < 64)
    choices.say("network.small_images", small, why)
    cores = f"{facts.cores} CPU core{'s' * (facts.cores > 1)}"
    why = f"{'one GPU' if facts.accelerator else cores}, {facts.images} images"
    choices.say("network.encoder", config.network.encoder, why)
    choices.say("network.width", config.network.width, why)
    why = f"at most {_most(facts)} in {facts.memory:.0f} GB, and at most half of the images"
    choices.say("optim.batch", batch, why)
    passes = min(MOST_PASSES, _affordable(facts, timing) / facts.images)
    passes = max(float(f"{passes:.3g}"), FEWEST_STEPS * batch / facts.images)
    steps = passes * facts.images / batch
    each = timing.seconds * batch
    step = f"{1000 * each:.3g} ms" if each < 1 else f"{each:.3g} s"
    minutes = f"{timing.budget / 60:.3g} minute{'s' * (timing.budget != 60)}"
    why = f"about {steps:,.0f} steps of {step}, {facts.source}, in {minutes}"
    choices.say("optim.epochs", passes, f"{why}; at most {MOST_PASSES:,} passes over the images")
    epochs = choices.get("optim.epochs", passes)
    decay = min(0.996, max(0.97, 1 - 100 * batch / max(epochs * facts.images, 1e-9)))
    choices.say("optim.tau", round(decay, 4), "the target's memory is about a hundredth of the run")
    if config.objective.fade:
        why = "the run begins as SimCLR, whose negatives keep images apart at once, and ends as BYOL"
        choices.say("objective.fade", config.objective.fade, why)
    tau = choices.get("optim.tau", round(decay, 4))
    optim = replace(config.optim, epochs=epochs, warmup_epochs=epochs / 20, tau=tau)
    return replace(config, optim=optim), choices.reasons


def _affordable(facts: Facts, timing: Timing) -> float:
    """Images that the budget pays for, after what was spent on reading and timing, and with the monitor's looks."""
    spent = time.monotonic() - facts.began if facts.began is not None else 0.0
    whole = max(timing.budget - spent, LEAST * timing.budget) / timing.seconds
    return max(min((1 - LOOKS_SHARE) * whole, whole - LOOKS_IMAGES), LEAST * whole)


def _say_kind(choices: Choices, resolution: int) -> None:
    """What the kind of the images switches in both views, and why."""
    facts = choices.facts
    if facts.kind:
        choices.say("views", f"of {facts.kind} images", facts.kind_why)
        base = small_views() if resolution <= 64 else Views()
        for switch in views_of_kind(facts.kind, base, facts.channels)[1]:
            choices.say("views", str(switch), switch.why)


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


def _auto_init(choices: Choices) -> dict[str, Any]:
    """What `auto` chooses for a run that goes on from given weights: enough to adapt, too little to forget."""
    facts = choices.facts
    sides = [side for side in (32, 64, 96, 128, 224) if side <= facts.side * 1.1 or side == 32]
    side = min(max(sides), facts.weights, 224 if facts.accelerator else 128)
    resolution = choices.get("data.resolution", side)
    seen = 1e6 if facts.accelerator else 1e5 * facts.cores * (32 / resolution) ** 1.5
    passes = float(min(100, max(5, round(seen / facts.images))))
    trained = f"the weights were trained at {facts.weights} px, and the images' short side is typically {facts.side} px"
    adapt = "given weights adapt in a fraction of the steps that random ones need, and lose more with every pass"
    chosen: dict[str, tuple[Any, str]] = {
        "data.resolution": (side, trained),
        "optim.epochs": (passes, adapt),
        "objective.name": ("byol", "given weights keep images apart, which is what negatives are for at first"),
        "optim.optimizer": ("lars", "as others go on from weights (HPT)"),
        "optim.lr": (0.4, "a fifth of the rate from scratch"),
        "optim.trust_coefficient": (0.005, "heads move as from scratch"),
        "optim.encoder_lr": (0.3, "the encoder is near its goal, the heads are not"),
        "optim.tau": (0.99, "as others go on from weights (HPT)"),
    }
    if "run.budget" in choices.asked:
        del chosen["optim.epochs"]  # as many as the time allows
    for name, (value, why) in chosen.items():
        choices.say(name, value, why)
    return {name: choices.get(name, value) for name, (value, _) in chosen.items()}


CPU_SHAPES = (
    Shape(128, "resnet18", 0.5),
    Shape(96, "resnet18", 0.5),
    Shape(64, "resnet18", 0.5),
    Shape(64, "resnet18", 0.25),
)
# Of images below SMALL_SIDE px. At 32 px the 7x7 stem leaves an eighth of the places of a 3x3 stem, and in 2 minutes of
# one core 5,000 images of CIFAR-10 taught it more: kNN 44 %, against 41 % enlarged to 64 px and 43 % by 3x3 at 16 px
# (results/auto-shapes.json).
SMALL_SIDE = 48
SMALL_SHAPES = (Shape(64, "resnet18", 0.5), Shape(32, "resnet18", 0.5), Shape(32, "resnet18", 0.25))
ENOUGH_STEPS, FEWEST_STEPS = 5000, 10
MOST_PASSES = 1000
# Looks take this share of a run, and no less time than so many images; at least LEAST of what is left is trained.
LOOKS_SHARE, LOOKS_IMAGES, LEAST = 0.06, 3200, 0.25
DEFAULT_SECONDS = {False: 30 * 60.0, True: 4 * 3600.0}  # without and with an accelerator
