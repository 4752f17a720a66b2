"""Named recipes: functions to a Config, whose docstrings say where they come from, what they cost and what they give.

`compose` puts preset, file and flags together; nothing here needs torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
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
    seconds: Callable[[Config], float]  # that training on an image takes
    source: str = "as timed here"  # of these seconds, in words
    bf16: bool = False  # whether the CPU claims to be fast at bf16
    weights: int = 0  # px at which the weights to go on from were trained; 0: there are none
    channels: int = 3
    kind: str = ""  # of the images, one of KINDS; empty for photographs
    kind_why: str = ""
    began: float | None = None  # by the monotonic clock, when the command did that has a budget


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
    """CIFAR-10 on two CPU cores, 45 epochs in about 45 minutes: ResNet-18 at half its width, 16 px, auto's recipe.

    68.3 % linear after 77 minutes of one core, and 71.2 % where the same encoder looks at 24 px (three seeds): crops
    show objects larger than whole images do. Views of 16 px through a 3x3 stem teach more in the same time than 32 px
    through a stem with strides (results/fast-recipes.json).
    """
    base = cifar10()
    network = replace(base.network, width=0.5, projector_hidden=1024, predictor_hidden=1024)
    optim = replace(base.optim, epochs=45, warmup_epochs=2, batch=128, tau=0.994)
    return fast(replace(base, data=Data(resolution=16), network=network, optim=optim))


def fast(config: Config) -> Config:
    """A config with the recipe that learned fastest where compute is small (results/fast-recipes.json).

    The run begins as SimCLR, whose negatives keep images apart in the first steps, in which BYOL alone loses the rank
    of its representation; over the first 70 % of the run the loss becomes BYOL's. Blocks begin as the identity. AdamW
    in place of LARS.
    """
    return replace(
        config,
        network=replace(config.network, zero_init_last=True),
        objective=Objective(name="simclr-to-byol", fade=0.7),
        optim=replace(config.optim, optimizer="adamw", lr=0.004, predictor_lr=1.0, trust_coefficient=1e-3),
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


def chooses(preset: str) -> bool:
    """Whether a preset chooses when it sees the images: `auto`, or `auto` for a kind of images."""
    return preset == "auto" or preset in KINDS


def compose(
    preset: str,
    overrides: Mapping[str, Any],
    file_values: Mapping[str, Any],
    file: str = "",
    facts: Facts | None = None,
    weights: Mapping[str, Any] | None = None,
) -> tuple[Config, list[Reason]]:
    """Preset, then what given weights settle, then file, then flags; `auto` without facts is checked, and chooses
    nothing yet. The presets of KINDS are `auto` for images of a kind."""
    if not chooses(preset) and preset not in PRESETS:
        raise UsageError(f"There is no preset '{preset}'. {nearest(preset, ['auto', *KINDS, *PRESETS])}")
    reasons: list[Reason] = []
    if not chooses(preset):
        config = PRESETS[preset]()
    elif facts:
        from byol.auto import chosen  # which chooses among the recipes above

        if preset in KINDS:
            facts = replace(facts, kind=preset, kind_why="as the preset says")
        given = flatten(apply(apply(Config(), file_values, file, check=False), overrides, "settings", check=False))
        asked = {**(weights or {}), **{name: given[name] for name in (*file_values, *overrides)}}
        config, reasons = chosen(facts, asked)
    else:
        config = Config(data=Data(resolution=32))  # the resolution at which scenes are rendered if none is asked for
    config = apply(config, weights or {}, "weights", check=False)
    config = apply(apply(config, file_values, file, check=False), overrides, "settings")
    if config.run.budget:
        seconds_of(config.run.budget)
        if not chooses(preset):
            raise UsageError(f"run.budget is for the preset auto; the length of {preset} is optim.epochs.")
    return config, reasons


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

# Presets that choose as `auto` does, with views for images of a kind; byol/kinds.py says what each switches.
KINDS: dict[str, str] = {
    "grey": "one channel: brightness and contrast change without colour operations",
    "bands": "channels that are no colours: each one's own brightness and contrast; up stays up",
    "microscopy": "no up, stains as channels: turns, each channel's brightness and contrast, a lost stain, noise",
    "satellite": "no up, bands as channels: turns, each band's brightness and contrast, lost bands; no negative",
    "medical": "sides kept: small rotations, mild brightness and contrast, noise, large crops, weak blur; no flip",
}
