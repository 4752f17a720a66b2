"""The augmented views of a batch: `draw` makes every random choice of a step from (seed, step); `make`, or its halves
`crop` and `finish_`, are pure functions of the pixels and those choices.

OPERATIONS at the bottom lists what happens to a crop. The arithmetic is by default that of the reference code (paper,
appendix B); torchvision's is a choice of the config.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from byol.config import View, Views
from byol.crops import Box, PerImage, Scale, crop_box, crop_box_torchvision, crop_resize, crop_resize_one, sent

ATTEMPTS = 10  # of torchvision's RandomResizedCrop before it falls back to a central crop
STRIPE = 32  # pixels of an image blurred at a time
CACHED = 2**20  # numbers of a batch changed at a time by a core: with fewer the calls take longer than the work
LARGE = 2**17  # numbers of an image that is changed alone, to stay in a core's cache: about 210 px
COLOURS = 3  # channels of images whose channels are colours
GREY = (0.2989, 0.5870, 0.1140)  # sums to 0.9999, as in the reference code and torchvision
# The first random stream of a step, and how many numbers an image takes from it for each choice. A choice that is not
# listed has a stream of its own, so that a new operation leaves all other choices, and with them stored runs, as they
# were. The order of these names is therefore fixed for good.
COLUMNS = {
    "area": ATTEMPTS, "ratio": ATTEMPTS, "x": 1, "y": 1, "flip": 1, "jitter": 1, "brightness": 1, "contrast": 1,
    "saturation": 1, "hue": 1, "grayscale": 1, "blur": 1, "sigma": 1, "solarize": 1, "order": 4,
}  # fmt: skip

Adjust = Callable[[Tensor, PerImage], Tensor]
# All random choices for one view of B images, by name and on the CPU:
# - of the crop, in float64: area, a fraction, and log_ratio, (B,), or (B, ATTEMPTS) for torchvision's crop; the bounds
#   of width / height for torchvision's fallback, ratio_range, (B, 2); the position x and y in [0, 1), (B,);
# - of each operation: under its own name whether it changes an image, bool (B,), and its strengths, float32 (B,);
# - the order of the four colour adjustments, int64 (B, 4).
Draw = Mapping[str, Tensor]


class Operation(NamedTuple):
    """A change of some images, picked with the probability that the field of `View` with the operation's name holds,
    or `plugin` for one that has no field."""

    # (images (B, C, S, S), choices, config) → changed images, which are clipped to [0, 1] afterwards. `choices(name)`
    # is what was drawn for these images, (B,). The images given may be overwritten.
    apply: Callable[[Tensor, Callable[[str], Tensor], Views], Tensor]
    # The lowest and the highest value of each strength, by the name under which it is drawn.
    strengths: Callable[[View, Views], dict[str, tuple[float, float]]] = lambda view, config: {}
    colours: bool = False  # whether it has a meaning for three colour channels only; left out for any other images


def draw(seed: int, step: int, batch: int, config: Views) -> tuple[Draw, Draw]:
    """The choices for both views of the global batch of a step; image i's do not depend on the batch's size."""
    # Every choice has its own numbers, used or not: changing one probability leaves all other choices as they were.
    first = _stream(f"byol views {seed} {step}", batch, sum(COLUMNS.values()))
    columns: dict[str, Tensor] = dict(zip(COLUMNS, first.split(list(COLUMNS.values()), 2), strict=True))

    def chosen(number: int, view: View) -> Draw:
        def uniform(name: str) -> Tensor:
            if name not in columns:
                columns[name] = _stream(f"byol views {seed} {step} {name}", batch, 1)
            return columns[name][:, number]

        return _choose(uniform, view, config)

    return chosen(0, config.t), chosen(1, config.t_prime)


def _stream(key: str, batch: int, columns: int) -> Tensor:
    """Uniform numbers in [0, 1) that depend on the key alone: float64 (B, 2 views, columns)."""
    digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest, "big") >> 1)
    return torch.rand(batch, 2, columns, dtype=torch.float64, generator=generator)


def _choose(uniform: Callable[[str], Tensor], view: View, config: Views) -> Draw:
    """Scale the uniform numbers (B, columns) of each choice to a view's ranges."""
    area, ratio = uniform("area"), uniform("ratio")
    if config.crop == "byol":
        area, ratio = area[:, 0], ratio[:, 0]
    chosen = {
        "area": _between(area, view.area_min, view.area_max),
        "log_ratio": _between(ratio, math.log(view.ratio_min), math.log(view.ratio_max)),
        "ratio_range": torch.tensor([view.ratio_min, view.ratio_max], dtype=torch.float64).expand(len(area), 2),
        "x": uniform("x")[:, 0],
        "y": uniform("y")[:, 0],
        "order": uniform("order").argsort(1),
    }
    for name, operation in OPERATIONS.items():
        probability = getattr(view, name, view.plugin)
        # An operation that never happens needs no stream of its own, which takes longer than all else.
        number = uniform if probability or name in COLUMNS else lambda name: torch.zeros(len(area), 1)
        chosen[name] = number(name)[:, 0] < probability
        for strength, (low, high) in operation.strengths(view, config).items():
            chosen[strength] = _between(number(strength)[:, 0], low, high).float()
    return chosen


def _between(uniform: Tensor, low: float, high: float) -> Tensor:
    return low + (high - low) * uniform


def slice_draw(draw: Draw, start: int, stop: int) -> Draw:
    """The choices for images start to stop of the batch."""
    return {name: values[start:stop] for name, values in draw.items()}


def boxes(draw: Draw, height: PerImage, width: PerImage, config: Views) -> Box:
    """The drawn crops of images of one size, or of sizes (B,)."""
    geometry = draw["area"], draw["log_ratio"], draw["x"], draw["y"], height, width
    if config.crop == "byol":
        return crop_box(*geometry)
    return crop_box_torchvision(*geometry, draw["ratio_range"])


def make(images: Tensor | Sequence[Tensor], draw: Draw, config: Views, size: int, scale: Scale | None = None) -> Tensor:
    """From pixels and drawn choices to a view (B, C, size, size), float32 and normalized.

    Training does the same in two places: loader processes `crop`, and `finish_` runs where the network does.
    """
    return finish_(crop(images, draw, config, size, scale), draw, config)


def crop(images: Tensor | Sequence[Tensor], draw: Draw, config: Views, size: int, scale: Scale | None = None) -> Tensor:
    """The drawn crops (B, C, size, size) in [0, 1] of images, resized; without a scale, images are uint8.

    A tensor of images (B, C, H, W) is cropped at once; a list of images (C, H, W) of any sizes is cropped one by one,
    with the same bits for any number of threads.
    """
    if isinstance(images, Tensor):
        box = boxes(draw, images.shape[2], images.shape[3], config)
        return crop_resize(images, box, size, config.antialias, scale)
    heights, widths = torch.tensor([image.shape[1:] for image in images]).unbind(1)
    sides = torch.stack(boxes(draw, heights, widths, config), 1).tolist()
    pairs = zip(images, sides, strict=True)
    return torch.stack([crop_resize_one(image, box, size, config.antialias, scale) for image, box in pairs])


@torch.no_grad()
def finish_(crops: Tensor, draw: Draw, config: Views) -> Tensor:
    """Apply the drawn operations to crops (B, C, S, S) in [0, 1], then normalize them; in place."""
    for images, own in _in_cache(crops, draw):
        for name, operation in OPERATIONS.items():
            if not operation.colours or images.shape[1] == COLOURS:
                _change_(images, own, name, operation, config)
        _normalize_(images, config.mean, config.std)
    return crops


def left_out(config: Views, channels: int) -> list[str]:
    """The operations asked for that images of so many channels do not get, because their channels are no colours."""
    if channels == COLOURS:
        return []
    both = (config.t, config.t_prime)
    return [name for name, op in OPERATIONS.items() if op.colours and any(getattr(view, name, 0) for view in both)]


def unnormalized(config: Views) -> Views:
    """The same views left in [0, 1], to be looked at."""
    return replace(config, mean=(0.0,) * len(config.mean), std=(1.0,) * len(config.std))


def _in_cache(images: Tensor, draw: Draw) -> Iterator[tuple[Tensor, Draw]]:
    """A few images at a time with their choices, so that a CPU finds them in its cache through all operations."""
    each = images.shape[1:].numel()
    room = torch.get_num_threads() * (each if each > LARGE else CACHED)
    few = max(1, room // each if images.device.type == "cpu" else len(images))
    for start in range(0, len(images), few):
        yield images[start : start + few], slice_draw(draw, start, start + few)


def _change_(images: Tensor, draw: Draw, name: str, operation: Operation, config: Views) -> None:
    """Apply an operation to the images it was drawn for; choices stay on the CPU, so a GPU is not waited for."""
    chosen = draw[name].nonzero()[:, 0]
    if len(chosen) == len(images):
        torch.clamp(operation.apply(images, draw.__getitem__, config), 0, 1, out=images)
    elif len(chosen):
        index = sent(chosen, images.device)
        changed = operation.apply(images.index_select(0, index), lambda choice: draw[choice][chosen], config)
        images.index_copy_(0, index, changed.clamp_(0, 1))


def _jitter(images: Tensor, choices: Callable[[str], Tensor], config: Views) -> Tensor:
    """Every image's four colour adjustments in its own order.

    In each turn the images are sorted by the adjustment that is next for them, so that all images with the same one are
    neighbours: that costs less than picking them out and putting them back.
    """
    adjustments = COLOUR[config.colour]
    strengths = np.stack([choices(name) for name in adjustments])
    order = choices("order").numpy()
    place = np.arange(len(images))  # place[i] is the image that stands at i now
    for turn in range(len(adjustments)):
        by = order[place, turn].argsort(kind="stable")
        place = place[by]
        if len(images) > 1:
            images = images.index_select(0, sent(torch.from_numpy(by), images.device))
        ends = order[place, turn].searchsorted(range(1, len(adjustments) + 1)).tolist()
        for number, (adjust, start, end) in enumerate(zip(adjustments.values(), [0, *ends], ends, strict=False)):
            if start < end:
                alike = images[start:end]
                strength = torch.from_numpy(strengths[number, place[start:end]])
                torch.clamp(adjust(alike, strength), 0, 1, out=alike)
    return images.index_select(0, sent(torch.from_numpy(place.argsort()), images.device)) if len(images) > 1 else images


def _per_image(value: PerImage, images: Tensor) -> Tensor:
    return sent(torch.as_tensor(value, dtype=images.dtype), images.device).reshape(-1, 1, 1, 1)


def adjust_brightness(images: Tensor, delta: PerImage) -> Tensor:
    """Add delta. Like all adjust functions: images (B, 3, H, W) in [0, 1], a new tensor, not clipped."""
    return images + _per_image(delta, images)


def adjust_contrast(images: Tensor, factor: PerImage) -> Tensor:
    """Scale the distance to each channel's mean."""
    return _blend(images, images.mean((2, 3), keepdim=True), factor)


def adjust_saturation(images: Tensor, factor: PerImage) -> Tensor:
    """Multiply S of HSV and clip it to [0, 1].

    S = (V - min) / V, and a channel is V - S·V·(…), so scaling S scales the distance to V; S reaches 1 at V/(V - min).
    """
    value, chroma = _value_and_chroma(images)
    limit = value / chroma.clamp_min(torch.finfo(images.dtype).tiny)
    return (images - value).mul_(limit.minimum(_per_image(factor, images))).add_(value)


def adjust_hue(images: Tensor, delta: PerImage) -> Tensor:
    """Turn H of HSV by delta, in turns."""
    red, green, blue = images.chunk(3, 1)
    value, chroma = _value_and_chroma(images)
    # Masks as 0.0 and 1.0 mixed by lerp, exact at both ends: `where` is ten times slower on unpredictable masks.
    is_red = torch.eq(red, value, out=torch.empty_like(value))
    is_green = torch.eq(green, value, out=torch.empty_like(value))
    divisor = chroma.clamp_min(torch.finfo(images.dtype).tiny)  # a grey has no hue: 0 / tiny = 0
    sixths = (red - green).div_(divisor).add_(4)
    sixths.lerp_((blue - red).div_(divisor).add_(2), is_green)
    sixths.lerp_((green - blue).div_(divisor), is_red)
    sixths.add_(6 * _per_image(delta, images))
    sixths.sub_((sixths / 6).floor_().mul_(6))
    # Each channel's share of the chroma is a trapezoid over the hue circle: |h - 3| - 1, 2 - |h - 2|, 2 - |h - 4|.
    trapezoids = torch.tensor([[3, 2, 4], [1, -1, -1], [-1, 2, 2]], dtype=images.dtype)
    peak, sign, offset = sent(trapezoids, images.device)[..., None, None].unbind()
    share = (sixths - peak).abs_().mul_(sign).add_(offset).clamp_(0, 1)
    return share.mul_(chroma).add_(value - chroma)


def _value_and_chroma(images: Tensor) -> tuple[Tensor, Tensor]:
    """V of HSV and V - min, (B, 1, H, W)."""
    value = images.amax(1, keepdim=True)
    return value, value - images.amin(1, keepdim=True)


def _blend(images: Tensor, other: Tensor, factor: PerImage) -> Tensor:
    factor = _per_image(factor, images)
    return (images * factor).add_(other * (1 - factor))


def _luminance(images: Tensor) -> Tensor:
    red, green, blue = images.chunk(3, 1)
    return (red * GREY[0]).add_(green, alpha=GREY[1]).add_(blue, alpha=GREY[2])


def to_grayscale(images: Tensor) -> Tensor:
    """Luminance in all three channels."""
    return _luminance(images).expand_as(images).contiguous()


def blur_taps(height: int) -> int:
    """Length of the blur's kernel for images of a height: about a tenth, odd."""
    return 2 * int((height / 10) / 2) + 1


def gaussian_blur(
    images: Tensor, sigma: PerImage, taps: int | None = None, border: Literal["zero", "reflect"] = "zero"
) -> Tensor:
    """Gaussian of sigma pixels, cut to `taps` (odd; None: by the height) and normalised to sum 1."""
    radius = (blur_taps(images.shape[2]) if taps is None else taps) // 2
    if radius == 0:
        return images.clone()
    offset = torch.arange(-radius, radius + 1, dtype=images.dtype, device=images.device)
    kernel = torch.exp(-(offset**2) / (2 * _per_image(sigma, images)[..., 0, 0] ** 2))  # (B or 1, taps)
    kernel /= kernel.sum(-1, keepdim=True)
    # Products with small bands, each for a stripe of the image: a third of the work of a band as large as the image.
    height, width = images.shape[2:]
    (tall, below), (wide, beside) = (_stripes(length) for length in (height, width))
    around = F.pad(images, (radius,) * 4, mode="constant" if border == "zero" else border)
    around = F.pad(around, (0, beside, 0, below))
    rows, columns = (_band(kernel, stripe)[:, None, None] for stripe in (tall, wide))
    blurred = (rows @ around.unfold(2, rows.shape[-1], tall).mT).flatten(2, 3)
    blurred = blurred.unfold(3, columns.shape[-1], wide).movedim(3, 2) @ columns.mT
    return blurred.movedim(2, 3).flatten(3)[..., :height, :width]


def _stripes(length: int) -> tuple[int, int]:
    """How many pixels to take at a time, evenly, and how many pixels the last stripe lacks."""
    count = math.ceil(length / STRIPE)
    stripe = math.ceil(length / count)
    return stripe, count * stripe - length


def _band(kernel: Tensor, length: int) -> Tensor:
    """The convolution with kernels (B, taps) that makes `length` pixels, as matrices (B, length, length + taps - 1)."""
    span = length + kernel.shape[1] - 1
    # Rows one shorter than their content, so that each begins one place later than the one before.
    return F.pad(kernel, (0, length)).repeat(1, length)[:, : length * span].view(-1, length, span)


def solarize(images: Tensor, threshold: float = 0.5) -> Tensor:
    """Invert what is at or above the threshold, in images in [0, 1]: |1 - x| there, |0 - x| elsewhere."""
    return (images >= threshold).to(images.dtype).sub_(images).abs_()


def normalize(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Subtract each channel's mean and divide by its deviation."""
    return _normalize_(images.clone(), mean, std)


def _normalize_(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    both = torch.tensor([list(mean), list(std)], dtype=images.dtype)
    means, deviations = sent(both, images.device)[..., None, None].unbind()
    return images.sub_(means).div_(deviations)


COLOUR: dict[str, dict[str, Adjust]] = {
    "byol": {
        "brightness": adjust_brightness,
        "contrast": adjust_contrast,
        "saturation": adjust_saturation,
        "hue": adjust_hue,
    },
    # torchvision multiplies, and blends with the mean grey or the grey image; its hue is turned in the same HSV.
    "torchvision": {
        "brightness": lambda images, factor: images * _per_image(factor, images),
        "contrast": lambda images, factor: _blend(images, _luminance(images).mean((2, 3), keepdim=True), factor),
        "saturation": lambda images, factor: _blend(images, _luminance(images), factor),
        "hue": adjust_hue,
    },
}


def _colour_strengths(view: View, config: Views) -> dict[str, tuple[float, float]]:
    """Brightness is added, or a factor as torchvision has it; contrast and saturation are factors, hue is in turns."""
    middles = {"brightness": float(config.colour == "torchvision"), "contrast": 1.0, "saturation": 1.0, "hue": 0.0}
    return {name: (middle - getattr(view, name), middle + getattr(view, name)) for name, middle in middles.items()}


def _beyond(name: str, **ranges: Callable[[View], tuple[float, float]]) -> Operation:
    """An operation that the paper does not have, with the range of each of its strengths."""

    def apply(images: Tensor, choices: Callable[[str], Tensor], config: Views) -> Tensor:
        from byol.operations import APPLY  # which the paper's views never load

        return APPLY[name](images, choices)

    return Operation(apply, lambda view, config: {strength: bounds(view) for strength, bounds in ranges.items()})


def _keys(view: View) -> tuple[float, float]:
    """A number for each image, whole in float32, from which an operation makes all the numbers that it needs."""
    return 0.0, 2.0**24


# In the order in which they are applied. A new one is a line here and the field of `View` for its probability.
OPERATIONS: dict[str, Operation] = {
    "flip": Operation(lambda images, choices, config: images.flip(-1)),
    "flip_vertical": _beyond("flip_vertical"),
    "quarter_turn": _beyond("quarter_turn", quarters=lambda view: (0.0, 4.0)),
    "rotate": _beyond("rotate", rotation=lambda view: (-view.angle, view.angle)),
    "jitter": Operation(_jitter, _colour_strengths, colours=True),
    "grayscale": Operation(lambda images, choices, config: to_grayscale(images), colours=True),
    "channel_jitter": _beyond(
        "channel_jitter",
        channel_key=_keys,
        brightened=lambda view: (0.0, view.channel_brightness),
        contrasted=lambda view: (0.0, view.channel_contrast),
    ),
    "blur": Operation(
        lambda images, choices, config: gaussian_blur(images, choices("sigma"), border=config.border),
        lambda view, config: {"sigma": (view.sigma_min, view.sigma_max)},
    ),
    "solarize": Operation(lambda images, choices, config: solarize(images)),
    "noise": _beyond("noise", noise_key=_keys, noise_deviation=lambda view: (0.0, view.deviation)),
    "channel_drop": _beyond("channel_drop", drop_key=_keys, dropped=lambda view: (0.0, view.drop_share)),
}
