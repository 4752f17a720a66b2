"""The evaluation protocols: what each of them lets one choose, with the paper's values as defaults, and its module.

This file needs no torch, so that a wrong flag of `byol evaluate` answers at once. A new protocol is a module with
`evaluate(encoder, task, spec, session) -> Result`, and here its options and its line in `Specs`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Literal, TypeVar

from byol.config import option
from byol.errors import UsageError, nearest

T = TypeVar("T")


def log_spaced(low: float, high: float, count: int) -> tuple[float, ...]:
    """`count` values from low to high, each the same multiple of the one before."""
    return tuple(low * (high / low) ** (i / (count - 1)) for i in range(count))


@dataclass(frozen=True)
class Knn:
    """Weighted nearest neighbours."""

    k: int = option(20, "neighbours that vote", low=1)
    temperature: float = option(0.07, "a neighbour votes with weight exp(cosine / temperature)", low=1e-6)


@dataclass(frozen=True)
class Linear:
    """Paper, appendix C.1: linear evaluation on ImageNet; its variant by `views`, `tclip` and `logit_penalty`."""

    epochs: float = option(80.0, "passes over the training images", low=0)
    batch: int = option(1024, "images a step", low=1)
    lrs: tuple[float, ...] = option(
        (0.4, 0.3, 0.2, 0.1, 0.05), "learning rates to choose from, for 256 images a step; scaled with the batch", low=0
    )
    views: Literal["spatial", "pretraining"] = option("spatial", "crops and flips; the variant: pretraining's T and T'")
    tclip: float = option(0.0, "alpha of the clipped logits; the variant has 20, 0 is off", low=0)
    logit_penalty: float = option(0.0, "beta of the penalty on squared logits; the variant has 0.01", low=0)


@dataclass(frozen=True)
class Transfer:
    """Paper, appendix D.2: logistic regression on frozen features."""

    penalties: tuple[float, ...] = option(
        log_spaced(1e-6, 1e5, 45), "l2 penalties to choose from, beside the sum of losses", low=0
    )
    max_iterations: int = option(500, "of L-BFGS, each penalty", low=1)


@dataclass(frozen=True)
class SemiSupervised:
    """Paper, appendix C.1: fine-tuning with a fraction of the labels."""

    fractions: tuple[float, ...] = option((0.01, 0.1), "fractions of the labels, balanced over classes", low=0, high=1)
    labels: str = option("", "a file that names the labelled images, one a line, instead of fractions")
    lrs: tuple[float, ...] = option(
        (0.01, 0.02, 0.05, 0.1, 0.005), "learning rates to choose from, for 256 images a step", low=0
    )
    epochs: tuple[float, ...] = option((30.0, 50.0), "numbers of epochs to choose from", low=0)
    batch: int = option(1024, "images a step; fewer where an epoch would have less than 8 steps", low=1)
    scratch: bool = option(True, "also train the same network from scratch on the same labels")


@dataclass(frozen=True)
class Finetune:
    """Paper, appendix D.3: fine-tuning on another data set."""

    steps: int = option(20_000, "optimizer steps", low=1)
    batch: int = option(256, "images a step", low=1)
    lrs: tuple[float, ...] = option(log_spaced(1e-4, 1e-1, 7), "learning rates to choose from", low=0)
    weight_decays: tuple[float, ...] = option(
        (0.0, *log_spaced(1e-6, 1e-3, 7)), "weight decays to choose from, divided by the learning rate", low=0
    )


@dataclass(frozen=True)
class Supervised:
    """Paper, appendix C.2: the same encoder from scratch with all labels. It names no rate and no batch."""

    epochs: float = option(200.0, "passes over the training images", low=0)
    batch: int = option(256, "images a step", low=1)
    lrs: tuple[float, ...] = option((0.1,), "learning rates to choose from, for 256 images a step", low=0)
    warmup_epochs: float = option(5.0, "epochs of linear warm-up", low=0)
    weight_decay: float = option(1e-4, "not applied to biases and normalization", low=0)
    label_smoothing: float = option(0.1, "probability given to the other classes", low=0, high=1)
    augment_ops: int = option(2, "operations of RandAugment an image; 0: crops and flips alone", low=0)
    augment_magnitude: int = option(9, "strength of RandAugment, of 30", low=0, high=30)


@dataclass(frozen=True)
class Segmentation:
    """Paper, appendix D.4: a fully convolutional network on a dilated encoder."""

    steps: int = option(30_000, "optimizer steps", low=1)
    batch: int = option(16, "images a step", low=1)
    lrs: tuple[float, ...] = option(log_spaced(1e-3, 1e-1, 5), "learning rates to choose from", low=0)
    weight_decay: float = option(1e-4, "not applied to biases and normalization", low=0)
    drops: tuple[float, ...] = option((0.7, 0.9), "fractions of the steps at which the rate falls to a tenth", low=0)
    shrink: float = option(1.0, "what the images' sides are multiplied by first, for machines that are small", low=0.01)
    crop: int = option(513, "side of the random crops to train on, in pixels", low=8)
    test_crop: int = option(513, "side of the central crop that is predicted and scored, in pixels", low=8)
    scales: tuple[float, float] = option((0.5, 2.0), "smallest and largest random scale", low=0.01)
    channels: int = option(256, "of the two extra convolutions", low=1)
    dilation: int = option(6, "of the two extra convolutions", low=1)
    void: int = option(255, "the masks' number for pixels that do not count; 255 never counts", low=0, high=255)
    colours: str = option("", "a file that names the masks' colours, a line a class: red green blue name")


@dataclass(frozen=True)
class Detection:
    """Paper, section 4 and appendix D.5: Faster R-CNN, conv1 to conv4 as features and conv5 as the box head.

    What the paper does not name is as in the setup that it reproduces (MoCo's, on Detectron).
    """

    steps: int = option(1_500_000, "optimizer steps; the learning rate's drops scale with them", low=1)
    batch: int = option(1, "images a step: each of the paper's asynchronous workers takes steps of its own", low=1)
    lrs: tuple[float, ...] = option(
        (1e-3,), "learning rates to choose from, for one image a step; scaled with the batch", low=0
    )
    drops: tuple[float, ...] = option(
        (2 / 3, 0.8), "fractions of the steps after which the learning rate is a tenth of what it was", low=0, high=1
    )
    warmup_steps: int = option(100, "steps of linear warm-up, at most a tenth of all; the paper names none", low=0)
    weight_decay: float = option(1e-4, "not applied to biases; the paper names none", low=0)
    frozen: Literal["nothing", "backbone", "encoder"] = option(
        "nothing", "nothing: fine-tuned (main text); backbone: conv1 to conv4 stay (appendix); encoder: conv5 too"
    )
    longest: tuple[int, int] = option((480, 1024), "a training image's longest edge is drawn between these", low=8)
    test_longest: int = option(1024, "longest edge of a test image; the paper names none", low=8)
    anchors: tuple[float, ...] = option((2.0, 4.0, 8.0, 16.0, 32.0), "sides of anchors, in strides of conv4", low=0.1)
    ratios: tuple[float, ...] = option((0.5, 1.0, 2.0), "height over width of anchors", low=0.01)
    proposals: tuple[int, int] = option((2000, 1000), "regions proposed for a training and for a test image", low=1)
    rois: int = option(512, "regions of a training image that conv5 sees", low=1)
    roi_size: int = option(14, "places of conv4 that a region is pooled to, each way", low=2)


@dataclass(frozen=True)
class Depth:
    """Paper, appendix D.6: four fast up-projections on conv5, reverse Huber loss. It names no schedule."""

    steps: int = option(7_500, "optimizer steps", low=1)
    batch: int = option(256, "images a step", low=1)
    lrs: tuple[float, ...] = option(
        (0.16,), "learning rates to choose from, for 256 images; scaled with the batch", low=0
    )
    weight_decay: float = option(5e-4, "not applied to biases and normalization", low=0)
    drops: tuple[float, ...] = option((0.7, 0.9), "fractions of the steps at which the rate falls to a tenth", low=0)
    filters: tuple[int, ...] = option((512, 256, 128, 64), "of the up-projections, one after the other", low=1)
    shrink: float = option(0.5, "what the images' sides are multiplied by, before the crop", low=0.01)
    crop: tuple[int, int] = option((304, 228), "width and height of the central crop of a shrunk image", low=8)
    grayscale: float = option(0.3, "probability of colour dropping", low=0, high=1)
    brightness: float = option(0.1255, "largest brightness change", low=0, high=1)
    saturation: float = option(0.5, "largest change of the saturation factor", low=0, high=1)
    hue: float = option(0.2, "largest hue shift, in turns", low=0, high=0.5)
    unit: float = option(1e-3, "metres that 1 means in a depth image (millimetres: 0.001)", low=1e-9)


def protocol(name: str, module: str, options: T) -> T:
    """The line of a protocol in `Specs`: its name, the module whose `evaluate` runs it, and its default options.

    The module is named and not imported, because it needs torch. A protocol in `byol.evals.dense` has an `open_data` of
    its own; all others share one task of classification.
    """
    return field(default=options, metadata={"protocol": name, "module": module})


@dataclass(frozen=True)
class Specs:
    """Every protocol with its options, in the order of their cost; each option is a flag such as --linear.epochs."""

    knn: Knn = protocol("knn", "byol.evals.knn", Knn())
    transfer: Transfer = protocol("transfer-linear", "byol.evals.transfer", Transfer())
    linear: Linear = protocol("linear", "byol.evals.linear", Linear())
    semi_supervised: SemiSupervised = protocol("semi-supervised", "byol.evals.semi_supervised", SemiSupervised())
    finetune: Finetune = protocol("finetune", "byol.evals.finetune", Finetune())
    supervised: Supervised = protocol("supervised", "byol.evals.supervised", Supervised())
    segmentation: Segmentation = protocol("segmentation", "byol.evals.dense.segmentation", Segmentation())
    detection: Detection = protocol("detection", "byol.evals.dense.detection", Detection())
    depth: Depth = protocol("depth", "byol.evals.dense.depth", Depth())


PROTOCOLS = {item.metadata["protocol"]: item.name for item in fields(Specs)}  # protocol → field of Specs
MODULES: dict[str, str] = {item.metadata["protocol"]: item.metadata["module"] for item in fields(Specs)}
DENSE = [name for name, module in MODULES.items() if ".dense." in module]
CLASSIFICATION = [name for name in MODULES if name not in DENSE]


def chosen_protocols(asked: Sequence[str]) -> list[str]:
    """The names as given, or all of classification (a data set rarely has masks too); in the order of their cost."""
    for name in asked:
        if name != "all" and name not in PROTOCOLS:
            raise UsageError(f"There is no protocol '{name}'. {nearest(name, [*PROTOCOLS, 'all'])}")
    return [name for name in PROTOCOLS if name in asked or ("all" in asked and name in CLASSIFICATION)]
