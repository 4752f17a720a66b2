"""What a run is, as frozen data: every choice the paper makes is a field here, with the paper's value as default.

Values arrive as flags, a YAML file or Python overrides, always as `{"optim.lr": value}`; `apply` checks and merges
them. This module imports neither torch nor anything of ours but the errors, so that a wrong field answers at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, Literal, TypeVar, get_type_hints

from byol.errors import UsageError, nearest

T = TypeVar("T")
MOST_STEPS = 999_999_999  # the name of a checkpoint has nine digits for its step


def option(
    default: T, help: str, *, low: float = -math.inf, high: float = math.inf, on_resume: bool = False, auto: Any = None
) -> T:
    """A config field: its default, its help text, its range, whether a run may go on when it has changed, and the value
    that the word auto stands for."""
    told = {"help": help, "low": low, "high": high, "on_resume": on_resume}
    return field(default=default, metadata=told if auto is None else {**told, "auto": auto})


@dataclass(frozen=True)
class Data:
    resolution: int = option(224, "side of the square views, in pixels", low=8, high=2048)
    channels: int = option(
        0, "channels of an image; 0 or auto: as many as the images have, 3 for 8-bit pictures", low=0, high=4096, auto=0
    )
    range: str = option(
        "auto",
        "values that become 0 and 1: auto (by the images), 8-bit, dtype, percentiles, or LOW,HIGH, for each channel "
        "LOW,HIGH;LOW,HIGH;…",
    )
    bands: str = option(
        "", "channels drawn as red, green and blue, such as 4,3,2; principal components if empty", on_resume=True
    )
    pages: Literal["auto", "first", "images", "channels"] = option(
        "auto",
        "a file of several images: the first, all as images, or all as channels of one; auto: slices of volumes and "
        "entries of arrays are images, of a TIFF or DICOM file the first is",
    )
    pattern: str = option("", "where a band is a file: the files' names, such as {stem}_B{band}.tif")
    axes: str = option("auto", "of an array: N images, C channels, Y rows, X columns, such as NYXC; auto: by its shape")
    array: str = option("", "which array of a .npz or HDF5 file; the only one of images if empty")
    slices: Literal["axial", "coronal", "sagittal"] = option("axial", "how NIfTI volumes are cut into images")
    voi: str = option("file", "window of grey DICOM files: file, none (units of the modality) or CENTRE/WIDTH")
    holdout: float = option(0.02, "fraction of images (at most 1000) kept for monitoring only", low=0, high=0.5)
    shrink: int = option(0, "short side to which larger images are shrunk, smoothly, first; 0: none", low=0, high=2**16)
    in_memory: Literal["auto", "always", "never"] = option(
        "auto", "hold all images decoded in memory; auto: when they fill at most a quarter of it"
    )
    workers: int = option(-1, "loader processes for streamed images; -1: one a core", low=-1, high=1024, on_resume=True)
    prefetch: int = option(2, "batches each worker prepares ahead", low=1, high=1024, on_resume=True)
    max_bad: float = option(
        0.01,
        "unreadable images left out before the run stops: up to 1 a fraction (or 10), above 1 a number, 0 none",
        low=0,
        high=1e12,
    )
    max_megapixels: float = option(64.0, "refuse larger images, seen in the header before decoding", low=0, high=1e6)
    exclude: str = option("", "a list of images to leave out, as `byol doctor` writes it")
    root: str = option("datasets", "where torchvision data sets are looked for and downloaded to")
    shuffle: Literal["images", "shards"] = option(
        "images",
        "images: any order, the same as from a folder; shards: some shards at a time, for reading over a network",
    )
    window: int = option(16, "shards that data.shuffle=shards mixes at a time", low=1, high=1e6)
    cache: str = option("", "where indexes and copies of shards are kept; the user's cache if empty", on_resume=True)
    cache_gb: float = option(
        20.0, "most that copies of remote shards may take; those in use must fit", low=0, high=1e9, on_resume=True
    )
    image_column: str = option("", "of Parquet, Arrow and Hugging Face data; found by its type if empty")
    label_column: str = option("", "likewise; none: without labels")


@dataclass(frozen=True)
class View:
    """One distribution of augmentations; defaults are T of the paper's appendix B."""

    area_min: float = option(0.08, "smallest crop, as a fraction of the image's area", low=0.001, high=1)
    area_max: float = option(1.0, "largest crop, as a fraction of the image's area", low=0.001, high=1)
    ratio_min: float = option(3 / 4, "smallest crop width/height", low=0.01, high=100)
    ratio_max: float = option(4 / 3, "largest crop width/height", low=0.01, high=100)
    flip: float = option(0.5, "probability of a left-right flip", low=0, high=1)
    jitter: float = option(0.8, "probability of the four colour changes together", low=0, high=1)
    brightness: float = option(0.4, "largest brightness change", low=0, high=1)
    contrast: float = option(0.4, "largest contrast change", low=0, high=1)
    saturation: float = option(0.2, "largest saturation change", low=0, high=1)
    hue: float = option(0.1, "largest hue shift, in turns", low=0, high=0.5)
    grayscale: float = option(0.2, "probability of colour dropping", low=0, high=1)
    blur: float = option(1.0, "probability of a Gaussian blur", low=0, high=1)
    sigma_min: float = option(0.1, "smallest blur, in pixels", low=0.001, high=1000)
    sigma_max: float = option(2.0, "largest blur, in pixels", low=0.001, high=1000)
    plugin: float = option(0.0, "probability of each operation that a --plugin adds", low=0, high=1)
    solarize: float = option(0.0, "probability of solarization", low=0, high=1)
    # Beyond the paper, for images without an up and for channels that are not colours; off unless asked for.
    flip_vertical: float = option(0.0, "probability of an upside-down flip", low=0, high=1)
    quarter_turn: float = option(
        0.0, "probability of a turn by 0, 90, 180 or 270 degrees, each as likely", low=0, high=1
    )
    rotate: float = option(
        0.0, "probability of a rotation by any angle; the crop is mirrored at its border", low=0, high=1
    )
    angle: float = option(15.0, "largest rotation to either side, in degrees", low=0, high=180)
    channel_jitter: float = option(0.0, "probability that every channel changes on its own", low=0, high=1)
    channel_brightness: float = option(0.4, "largest brightness change of a channel", low=0, high=1)
    channel_contrast: float = option(0.4, "largest contrast change of a channel", low=0, high=1)
    channel_drop: float = option(0.0, "probability that some channels are blackened, but never all", low=0, high=1)
    drop_share: float = option(0.3, "largest share of the channels that is blackened; one at least", low=0, high=1)
    noise: float = option(0.0, "probability of Gaussian noise", low=0, high=1)
    deviation: float = option(0.1, "largest deviation of the noise, where white is 1", low=0, high=1)


@dataclass(frozen=True)
class Views:
    t: View = View()
    t_prime: View = View(blur=0.1, solarize=0.2)
    crop: Literal["byol", "torchvision"] = option(
        "byol", "crop sampler: byol clips to the image, torchvision rejects and retries"
    )
    colour: Literal["byol", "torchvision"] = option(
        "byol", "colour maths: byol is the reference code's (additive brightness, HSV), torchvision blends"
    )
    antialias: bool = option(False, "low-pass before shrinking; the reference code does not")
    border: Literal["zero", "reflect"] = option(
        "zero", "what the blur sees outside the image; the reference code: zero"
    )
    mean: tuple[float, ...] = option(
        (0.485, 0.456, 0.406),
        "each channel's mean, subtracted from the views (ImageNet's); auto, and images other than 8-bit colours unless "
        "it is given: measured",
        low=-1000,
        high=1000,
        auto=(),
    )
    std: tuple[float, ...] = option(
        (0.229, 0.224, 0.225), "deviation that views are divided by; likewise", low=1e-6, high=1000, auto=()
    )


@dataclass(frozen=True)
class Network:
    encoder: str = option("resnet50", "resnet18|34|50|101|152|200, or timm:NAME")
    channels: int = option(3, "channels of the encoder's input; follows data.channels and the images", low=1, high=4096)
    width: float = option(1.0, "multiplies every channel count of the ResNet", low=0.01, high=16)
    small_images: bool = option(False, "3x3 stem without stride or pooling, for images of 32-64 px")
    zero_init_last: bool = option(False, "start the last batch norm of each block at 0 (today's Haiku; the paper: 1)")
    padding: Literal["symmetric", "same"] = option("symmetric", "'same' reproduces TensorFlow/JAX weights exactly")
    projector_hidden: int = option(4096, "hidden units of the projector", low=1, high=65536)
    projector_depth: int = option(2, "linear layers of the projector", low=1, high=3)
    projection: int = option(256, "size of the projection and the prediction", low=1, high=65536)
    projection_norm: bool = option(False, "batch norm without offset after the projector (the original SimCLR's)")
    predictor: Literal["mlp", "none", "optimal-linear", "isotropic"] = option(
        "mlp",
        "none: unsupervised Mean Teacher; of each batch: optimal-linear (appendix I) or isotropic, behind which all "
        "directions are learned at one rate (IsoLoss)",
    )
    floor: float = option(0.01, "of isotropic: the share of every direction that it predicts", low=0, high=1e6)
    ridge: float = option(1e-6, "of optimal-linear: added to Z'Z, in mean eigenvalues", low=1e-12, high=1e6)
    predictor_hidden: int = option(4096, "hidden units of the predictor", low=1, high=65536)
    predictor_depth: int = option(2, "linear layers of the predictor", low=1, high=3)
    head_bias: bool = option(False, "bias in the last linear layer of projector and predictor (paper's pseudo-code)")
    target: Literal["moving-average", "stop-gradient", "online", "fixed"] = option(
        "moving-average",
        "what is predicted: a moving average of the online network, the online network itself with its gradient "
        "stopped or (online) flowing, or a fixed random network",
    )
    target_init: str = option(
        "independent",
        "start the target from its own random weights (reference code), from the online ones (same), or, for a fixed "
        "target, from weights: a run, an encoder or any file that `byol import` knows",
    )
    target_encoder: str = option("", "encoder of a fixed target; as online if empty. Its weights settle this")
    target_width: float = option(1.0, "width of target_encoder", low=0.01, high=16)
    target_small_images: bool = option(False, "stem of target_encoder")
    target_padding: Literal["symmetric", "same"] = option("symmetric", "padding of target_encoder")
    target_projector_hidden: int = option(
        0, "hidden units of a fixed target's projector; 0: as online", low=0, high=65536
    )
    init: str = option(
        "",
        "weights to go on from: a run, an encoder, any file that `byol import` knows, or timm:NAME for timm's own; "
        "they settle encoder, width, stem and padding",
    )
    init_scale: float = option(1.0, "multiplies the variance of all initial weights (section 5)", low=1e-6, high=1e6)
    norm_group: int = option(
        0,
        "processes that share their batch statistics; 0: all, as in the reference code; 1: each has its own",
        low=0,
        high=1e6,
    )


@dataclass(frozen=True)
class Objective:
    """What is minimized; defaults are the paper's loss (section 3.1), its relatives are in appendix F."""

    name: str = option("byol", "byol (regression of the target), info-nce (with negatives), simclr-to-byol (in turn)")
    normalization: Literal["l2", "layer", "batch", "none"] = option(
        "l2", "of predictions and targets before they are compared (appendix F.6); l2 where there are negatives"
    )
    temperature: float = option(0.1, "alpha of info-nce and simclr-to-byol", low=1e-3, high=1000)
    beta: float = option(1.0, "weight of negative examples: 1 is SimCLR's, 0 BYOL's", low=0, high=1)
    fade: float = option(0.0, "share of the run in which beta falls to 0; 0: it stays", low=0, high=1)
    scale: float = option(1.0, "of the loss; under lars only biases and norms notice (F.5)", low=1e-6, high=1e40)

    @property
    def contrasts(self) -> bool:
        """Whether the loss has negative examples, of weight beta."""
        return self.name in ("info-nce", "simclr-to-byol")


@dataclass(frozen=True)
class Optim:
    optimizer: Literal["lars", "sgd", "adamw"] = option("lars", "lars is the paper's")
    epochs: float = option(1000.0, "passes over the images", low=0, high=1e9, on_resume=True)
    batch: int = option(4096, "images an optimizer step, over all processes (the effective batch)", low=1, high=2**20)
    accumulate: int = option(
        1,
        "split the batch into this many passes, each with its own statistics and negatives; one step a batch",
        low=1,
        high=2**20,
    )
    lr: float = option(0.2, "base learning rate, for 256 images a step; scaled with the batch", low=0, high=1e6)
    predictor_lr: float = option(
        1.0, "multiplies the predictor's learning rate (lambda of appendix I)", low=0, high=1e6
    )
    projector_lr: float = option(1.0, "multiplies the projector's learning rate (mu of appendix I)", low=0, high=1e6)
    encoder_lr: float = option(1.0, "multiplies the encoder's learning rate", low=0, high=1e6)
    layer_decay: float = option(
        1.0, "multiplies the encoder's rate once more for every block between a weight and the output", low=0, high=1
    )
    head_epochs: float = option(0.0, "epochs at the start in which the heads learn alone", low=0, high=1e9)
    norm_only: bool = option(False, "of the encoder, train the scales and offsets of its normalization alone")
    warmup_epochs: float = option(10.0, "epochs of linear warm-up", low=0, high=1e9)
    weight_decay: float = option(1.5e-6, "not applied to biases and normalization", low=0, high=1e6)
    momentum: float = option(0.9, "of lars and sgd", low=0, high=1)
    trust_coefficient: float = option(1e-3, "of lars", low=0, high=1e6)
    clip: float = option(0.0, "largest norm of the gradient, beyond which it is scaled down; 0: any", low=0, high=1e12)
    tau: float = option(0.996, "decay of the moving average at the start; rises to 1 along a cosine", low=0, high=1)
    tau_schedule: Literal["cosine", "constant"] = option("cosine", "constant keeps tau where it starts")
    probe: bool = option(True, "train the stop-gradient linear classifier on the side when labels exist")


@dataclass(frozen=True)
class Runtime:
    seed: int = option(0, "of every random choice", low=0, high=2**63 - 1)
    device: Literal["auto", "cpu", "cuda", "mps"] = option("auto", "where to train")
    precision: Literal["auto", "bf16", "float32", "float64"] = option(
        "auto", "auto: bf16 autocast where the hardware is fast at it, else float32"
    )
    channels_last: bool = option(True, "memory layout of images and convolutions")
    threads: int = option(
        0, "CPU threads; 0: all or one, by what is faster at the start; kept on resume", low=0, high=4096
    )
    checkpoint_seconds: float = option(300.0, "seconds between checkpoints", low=0, high=1e9, on_resume=True)
    checkpoint_steps: int = option(0, "also save every so many steps; 0: by time only", low=0, high=1e9, on_resume=True)
    keep: int = option(2, "checkpoints kept", low=1, high=1e6, on_resume=True)
    log_every: int = option(10, "steps between lines of metrics.jsonl", low=1, high=1e9, on_resume=True)
    monitor_epochs: float = option(0.0, "epochs between looks at the network; 0: twenty a run", low=0, high=1e9)
    monitor_images: int = option(1000, "images the monitor looks at", low=16, high=1e6)
    on_collapse: Literal["warn", "stop"] = option("warn", "what to do when the monitor calls a run collapsing")
    on_nan: Literal["stop", "skip"] = option(
        "stop", "at a loss or gradient that is not finite; skip: leave that step out, at most run.max_skips times"
    )
    max_skips: int = option(3, "steps that run.on_nan=skip may leave out of a run", low=0, high=1e9)
    deterministic: bool = option(
        False, "on a GPU, only algorithms that give the same bits every time; the CPU's always do"
    )
    recompute: bool = option(
        False, "run forward passes again for gradients: same bits, less memory, a third more time", on_resume=True
    )
    shard: bool = option(
        False, "each process keeps a part of every weight (FSDP2), where one device is too small", on_resume=True
    )
    passes: Literal["auto", "in-turn", "together", "side-by-side"] = option(
        "auto",
        "how the views pass the networks, equal up to rounding: together as one batch, or on a CPU side by side in a "
        "thread each, both with twice the activations; auto: on a CPU what is clearly fastest at first, else in-turn",
        on_resume=True,
    )
    compile: bool = option(False, "torch.compile the encoder: minutes of compiling, then perhaps faster steps")
    budget: str = option("", "time for which the preset auto plans the run, such as 90s, 15m or 2h")
    timeout: float = option(60.0, "seconds that a process may not answer", low=1, high=1e6, on_resume=True)
    log: str = option("", "loggers to tell as well, joined by commas: tensorboard, wandb, mlflow", on_resume=True)


@dataclass(frozen=True)
class Config:
    data: Data = Data()
    views: Views = Views()
    network: Network = Network()
    objective: Objective = Objective()
    optim: Optim = Optim()
    run: Runtime = Runtime()

    def _repr_html_(self) -> str:
        from byol.config_values import fields_html

        return fields_html(flatten(self), flatten(Config()))


def flatten(config: Any, prefix: str = "") -> dict[str, Any]:
    """`{"optim.lr": 0.2, …}` for every field of a config."""
    flat: dict[str, Any] = {}
    for item in fields(config):
        value = getattr(config, item.name)
        if is_dataclass(value):
            flat |= flatten(value, f"{prefix}{item.name}.")
        else:
            flat[prefix + item.name] = value
    return flat


def declared(kind: type = Config, prefix: str = "") -> Iterator[tuple[str, Any, Mapping[str, Any]]]:
    """Every field as (dotted name, type, metadata)."""
    hints = get_type_hints(kind)
    for item in fields(kind):
        if is_dataclass(hints[item.name]):
            yield from declared(hints[item.name], f"{prefix}{item.name}.")
        else:
            yield prefix + item.name, hints[item.name], item.metadata


def apply(config: T, overrides: Mapping[str, Any], origin: str = "overrides", check: bool = True) -> T:
    """The config with some fields replaced; a wrong name, type or range is a `UsageError` that says where.

    `check` is for the last layer of several: it compares fields with each other.
    """
    from byol.config_values import check_together, convert  # the rules of types and ranges, a file of their own

    known = {name: (kind, metadata) for name, kind, metadata in declared(type(config))}
    for name, value in overrides.items():
        if name not in known:
            shown = f"'{name}'" if str(name).isprintable() else repr(name)
            raise UsageError(f"{origin}: there is no field {shown}. {nearest(str(name), known)}")
        kind, metadata = known[name]
        if hasattr(value, "item") and getattr(value, "shape", None) == ():
            value = value.item()  # a number of numpy or torch
        config = _replace(config, name.split("."), convert(value, kind, metadata, f"{origin}: {name}"))
    if check and isinstance(config, Config):
        check_together(config, origin)
    return config


def _replace(config: Any, path: list[str], value: Any) -> Any:
    head, *rest = path
    return replace(config, **{head: _replace(getattr(config, head), rest, value) if rest else value})


@dataclass(frozen=True)
class Plan:
    """Every number that follows from the config and the images; schedules are pure functions of these."""

    images: int
    held_out: int
    steps: int
    warmup_steps: int
    batch: int
    accumulate: int
    micro_batch: int
    peak_lr: float
    tau: float
    steps_per_epoch: float
    monitor_steps: int
    head_steps: int = 0  # in which the heads learn alone


def resolve(config: Config, images: int, held_out: int = 0, steps: int = 0) -> Plan:
    """Steps and warm-up round down as in the reference code: floor(epochs · images / batch), unless steps are given."""
    optim = config.optim
    steps = steps or int(optim.epochs * images / optim.batch)
    if steps < 1:
        raise UsageError(
            f"{optim.epochs:g} epochs of {images} images give no step of {optim.batch} images. "
            "Lower optim.batch or raise optim.epochs."
        )
    if steps > MOST_STEPS:
        raise UsageError(f"{optim.epochs:g} epochs of {images} images are more than {MOST_STEPS:,} steps: lower them.")
    every = config.run.monitor_epochs * images / optim.batch or steps / 20
    return Plan(
        images=images,
        held_out=held_out,
        steps=steps,
        warmup_steps=min(int(optim.warmup_epochs * images / optim.batch), steps // 2),  # for runs of a few epochs
        batch=optim.batch,
        accumulate=optim.accumulate,
        micro_batch=optim.batch // optim.accumulate,
        peak_lr=optim.lr * optim.batch / 256,
        tau=optim.tau,
        steps_per_epoch=images / optim.batch,
        monitor_steps=max(1, round(every)),
        head_steps=min(int(optim.head_epochs * images / optim.batch), steps),
    )
