"""Named recipes: functions to a Config, whose docstrings say where they come from, what they cost and what they give.

`compose` puts preset, file and flags together; nothing here needs torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from byol.config import Config, Data, Network, Objective, Optim, View, Views, apply, flatten
from byol.errors import UsageError, nearest


@dataclass(frozen=True)
class Facts:
    """What `auto` looks at: the images and the machine."""

    images: int
    side: int  # median short side, in pixels
    cores: int
    memory: float  # of the device that trains, in GB
    accelerator: bool


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


def vit() -> Config:
    """A ViT of timm at 224 px, 300 epochs: AdamW, clipped gradients and a fast predictor. Measured at 64 px only.

    Rates and decay lie between those of MoCo v3 and DINO, which train ViTs with two views and a moving average too.
    timm:vit_tiny_patch16_224 on 1,600 photographs of five flowers, steps of 64, tau 0.99, one seed, nearest neighbours
    right before and after: 37 → 41 % in 500 steps with AdamW at a rate of 1e-3, a clip of 1 and the predictor ten times
    as fast; in 250 steps 37 → 31 % without the fast predictor, 37 → 32 % under LARS at 2.0.
    """
    return Config(
        network=Network(encoder="timm:vit_small_patch16_224"),
        optim=Optim(
            optimizer="adamw",
            epochs=300,
            warmup_epochs=30,
            batch=1024,
            lr=5e-4,
            predictor_lr=10.0,
            weight_decay=0.05,
            clip=1.0,
            tau=0.99,
        ),
    )


def auto(facts: Facts, asked: Mapping[str, Any] | None = None) -> tuple[Config, list[Reason]]:
    """Chooses for these images on this machine, around the fields that are `asked` for, and says why."""
    choices = Choices(facts, dict(asked or {}))
    resolution = _auto_resolution(choices)
    network = _auto_network(choices, resolution)
    optim = _auto_optim(choices, resolution)
    views = small_views() if resolution <= 40 else Views()
    return Config(data=Data(resolution=resolution), views=views, network=network, optim=optim), choices.reasons


@dataclass(frozen=True)
class Choices:
    """What `auto` goes by, and its reasons so far."""

    facts: Facts
    asked: dict[str, Any]
    reasons: list[Reason] = field(default_factory=list)

    def choose(self, name: str, value: Any, why: str) -> Any:
        """The value that is asked for, or else `value`, with the reason noted."""
        if name in self.asked:
            return self.asked[name]
        self.reasons.append(Reason(name, value, why))
        return value


def _auto_resolution(choices: Choices) -> int:
    facts = choices.facts
    sides = [32, 64, 96, 128, 224] if facts.accelerator else [32, 64, 96, 128]
    side = max([side for side in sides if side <= facts.side * 1.1], default=32)
    why = f"the images' short side is typically {facts.side} px"
    if not facts.accelerator and facts.side >= 141:
        why += ", and without a GPU 128 px is what is affordable"
    resolution: int = choices.choose("data.resolution", side, why)
    return resolution


def _auto_network(choices: Choices, resolution: int) -> Network:
    facts, small = choices.facts, resolution <= 64
    why = f"{'a 3x3 stem keeps' if small else 'the 7x7 stem suits'} {resolution} px"
    small = choices.choose("network.small_images", small, why)
    encoder, width = _auto_encoder(facts, resolution)
    why = f"{'one GPU' if facts.accelerator else f'{facts.cores} CPU cores'}, {facts.images} images"
    encoder = choices.choose("network.encoder", encoder, why)
    width = choices.choose("network.width", width, why)
    hidden = 4096 if facts.accelerator else 1024
    return Network(encoder=encoder, width=width, small_images=small, projector_hidden=hidden, predictor_hidden=hidden)


def _auto_optim(choices: Choices, resolution: int) -> Optim:
    facts = choices.facts
    why = f"at most 256 in {facts.memory:.0f} GB, and several steps an epoch"
    batch = choices.choose("optim.batch", _auto_batch(facts, resolution), why)
    seen = 4e7 if facts.accelerator else 4e5 * facts.cores * (32 / resolution) ** 1.5
    passes = float(min(1000, max(10, round(seen / facts.images))))
    why = f"about {passes * facts.images / batch:,.0f} steps, between 10 and 1000 passes over the images"
    epochs = choices.choose("optim.epochs", passes, why)
    decay = min(0.996, max(0.97, 1 - 100 * batch / max(epochs * facts.images, 1e-9)))
    tau = choices.choose("optim.tau", round(decay, 4), "the target's memory is about a hundredth of the run")
    warmup = max(epochs / 20, min(0.5, epochs / 2))
    return Optim(epochs=epochs, warmup_epochs=warmup, lr=2.0, weight_decay=1e-6, tau=tau, batch=batch)


def _auto_encoder(facts: Facts, resolution: int) -> tuple[str, float]:
    if facts.accelerator:
        return ("resnet50", 1.0) if resolution >= 128 and facts.images >= 20_000 else ("resnet18", 1.0)
    return "resnet18", 0.25 if resolution <= 64 else 0.5


def _auto_batch(facts: Facts, resolution: int) -> int:
    """A power of two: no more than memory holds (about 60 MB an image at 224 px), at least 8 steps an epoch."""
    fits = facts.memory * 0.5 * 1024 / (60 * (resolution / 224) ** 2)
    most = max(min(256.0, fits, facts.images / 8), min(8, facts.images))
    return int(2 ** math.floor(math.log2(most)))


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
    config = apply(config, file_values, file, check=False)
    return apply(config, overrides, "flags"), reasons


PRESETS: dict[str, Callable[[], Config]] = {
    "paper-1000": paper_1000,
    "paper-300": paper_300,
    "paper-100": paper_100,
    "paper-40": paper_40,
    "paper-512": paper_512,
    "simclr": simclr,
    "vit": vit,
    "imagenette": imagenette,
    "cifar10": cifar10,
    "cifar10-cpu": cifar10_cpu,
}
