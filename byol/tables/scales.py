"""The scales that a table is run at, as data: preset, overrides, settings of the evaluations, and which rows there are.

A small scale starts from the paper's ablations and names every field in which it departs from them, so that its cells
mean the same whatever becomes of the presets for small machines. Needs no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from byol.config import apply, flatten, resolve
from byol.presets import PRESETS

ScaleName = Literal["paper", "night", "cpu"]
Overrides = Mapping[str, Any]


class Times(NamedTuple):
    """A value given as a multiple of the base's, so that a row means the same at every scale."""

    factor: float

    def of(self, base: float) -> float:
        return max(1, round(base * self.factor)) if isinstance(base, int) else base * self.factor


class Share(NamedTuple):
    """Epochs given as a share of the run's: of warm-up, so that longer runs warm up for longer."""

    part: float


class Memory(NamedTuple):
    """A tau given as the share of the run that the moving average remembers: 1 / ((1 - tau) · steps)."""

    part: float

    def tau(self, steps: int) -> float:
        """At least 0: a run cannot remember less than its last step."""
        return max(0.0, round(1 - 1 / (self.part * steps), 10))


def memory_of(tau: float, steps: int) -> float:
    """The share of a run of so many steps that a moving average of this tau remembers; infinite at tau 1."""
    return 1 / ((1 - tau) * steps) if tau < 1 else float("inf")


IMAGENET = 1_281_167


def as_in_the_paper(tau: float) -> Memory:
    """What a tau of the paper's ablations remembers of their 300 epochs."""
    return Memory(memory_of(tau, int(300 * IMAGENET / 4096)))


@dataclass(frozen=True)
class Scale:
    """What a table's rows are run with. `minutes` are a cell's on one core, for a plan before anything was measured."""

    name: ScaleName
    what: str
    rows: tuple[ScaleName, ...]  # the rows whose least scale is one of these
    images: int  # of the data set that the scale is meant for, where the real one is not counted yet
    preset: str = ""  # the table's own when empty
    overrides: Overrides = field(default_factory=dict)
    spec: Overrides = field(default_factory=dict)  # of the evaluations
    minutes: float = 0.0

    @property
    def small(self) -> bool:
        """Whether rows are run on the images of --data instead of the paper's, beside a random encoder."""
        return bool(self.preset)


def filled(preset: str, common: Overrides, own: Overrides, images: int) -> dict[str, Any]:
    """`common` and then `own` overrides of a preset, as plain values: what is relative is computed here."""
    base = PRESETS[preset]()
    before = _plain(flatten(apply(base, _absolute(common), preset, check=False)), common)
    values = {**before, **_plain(flatten(apply(base, {**before, **_absolute(own)}, preset, check=False)), own)}
    if memories := {name: value for name, value in {**common, **own}.items() if isinstance(value, Memory)}:
        steps = resolve(apply(base, values, preset, check=False), images).steps
        values |= {name: value.tau(steps) for name, value in memories.items()}
    return values


def _absolute(values: Overrides) -> dict[str, Any]:
    return {name: value for name, value in values.items() if not isinstance(value, Times | Share | Memory)}


def _plain(base: Overrides, values: Overrides) -> dict[str, Any]:
    """All values but memories, which wait for the number of steps."""
    found = _absolute(values)
    for name, value in values.items():
        if isinstance(value, Times):
            found[name] = value.of(base[name])
        elif isinstance(value, Share):
            found[name] = value.part * base["optim.epochs"]
    return found


# Everything in which a small scale departs from paper-300; the rest, such as tau 0.99, the weight decay of 1e-6, a
# predictor at the common rate and a loss without negatives, is that of the paper's ablations.
SMALL: Overrides = {
    "data.resolution": 16,  # a quarter of the work, and what a view of a 32 px image shows is mostly there
    "data.holdout": 0.02,  # for the monitor
    # 8 % of such an image would be 9 px wide, too little to recognize; and no blur, as is usual there.
    **{f"views.{view}.area_min": 0.2 for view in ("t", "t_prime")},
    **{f"views.{view}.blur": 0.0 for view in ("t", "t_prime")},
    "network.encoder": "resnet18",
    "network.width": 0.25,
    "network.small_images": True,
    # Blocks that begin as the identity: so short a run learns at once instead of losing what random features know.
    "network.zero_init_last": True,
    "network.projector_hidden": 1024,
    "network.predictor_hidden": 1024,
    "optim.batch": 64,
    "optim.lr": 0.8,
    # Weights move about as far as at a larger rate; biases and batch norm, which see the rate itself, move less.
    "optim.trust_coefficient": 0.005,
    "run.checkpoint_seconds": 60.0,
}
# A night has six times the epochs at the same cost a cell: seen at 24 px through the paper's 7x7 stem, an image takes a
# sixth of the operations, and steps of 128 images are less of an overhead. SGD with weight decay keeps more of the
# representation's rank than LARS (53 against 36 in 2.5 minutes, kNN 39 against 35 %: results/fast-recipes.json), and so
# short a run needs a target that follows to its end and remembers no larger share of the run than the paper's.
NIGHT: Overrides = {
    **SMALL,
    "data.resolution": 24,
    "network.small_images": False,
    "network.projector_hidden": 512,
    "network.predictor_hidden": 512,
    "optim.optimizer": "sgd",
    "optim.lr": 0.12,
    "optim.weight_decay": 5e-4,
    "optim.tau": as_in_the_paper(0.99),
    "optim.tau_schedule": "constant",
    "optim.batch": 128,
    "optim.epochs": 12.0,
    "optim.warmup_epochs": Share(1 / 30),  # as in the paper's ablations
    "run.passes": "together",  # a quarter faster on one thread
}
# Evaluations that take minutes beside such a run: fewer settings to choose from, fewer epochs or steps.
SMALL_SPEC: Overrides = {
    "transfer.penalties": [1e-6, 1e-4, 1e-2, 1.0, 1e2],  # 45 would take as long as the training
    "linear.epochs": 2.0,
    "linear.batch": 256,
    "semi_supervised.epochs": (10.0,),
    "semi_supervised.lrs": (0.05, 0.1),
    "semi_supervised.batch": 128,
    **{"segmentation.steps": 600, "segmentation.batch": 8, "segmentation.lrs": (0.01, 0.05)},
    **{"segmentation.crop": 32, "segmentation.test_crop": 32, "segmentation.channels": 64},
    **{"detection.steps": 600, "detection.batch": 4, "detection.lrs": (0.001, 0.005), "detection.longest": (48, 96)},
    **{"detection.test_longest": 64, "detection.proposals": (100, 50), "detection.rois": 32, "detection.roi_size": 7},
    **{"depth.steps": 300, "depth.batch": 16, "depth.lrs": (0.16, 0.64), "depth.shrink": 1.0, "depth.crop": (32, 32)},
    "depth.filters": (128, 64, 32, 16),
}
DENSE_DATA = "scenes:1000"  # what masks, boxes and depths a small scale has: rendered ones
CIFAR10 = 50_000

SCALES: dict[str, Scale] = {
    "paper": Scale("paper", "as in the paper, on its data sets below --data.root", ("cpu", "night", "paper"), IMAGENET),
    "night": Scale(
        "night",
        "12 epochs at 24 px on the images of --data",
        ("cpu", "night"),
        CIFAR10,
        "paper-300",
        NIGHT,
        {**SMALL_SPEC, "supervised.epochs": 12.0, "supervised.warmup_epochs": 0.4},
        minutes=4.5,
    ),
    "cpu": Scale(
        "cpu",
        "2 epochs at 16 px on the images of --data",
        ("cpu",),
        CIFAR10,
        "paper-300",
        {**SMALL, "optim.epochs": 2.0, "optim.warmup_epochs": Share(1 / 8)},
        {**SMALL_SPEC, "supervised.epochs": 2.0, "supervised.warmup_epochs": 0.25},
        minutes=4.0,
    ),
}
