"""The two augmented views of a batch: `draw` makes every random choice of a step from (seed, step), the rest of the
module applies those choices as pure functions of the pixels: crop (see `crops`), colour, blur, solarize, normalize.

The reference code's arithmetic is the default (paper, appendix B); torchvision's is a choice of the config.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from byol.config import View, Views
from byol.crops import Box, PerImage, crop_box, crop_box_torchvision, crop_resize, crop_resize_one

ATTEMPTS = 10  # of torchvision's RandomResizedCrop before it falls back to a central crop
OPS = 4  # brightness, contrast, saturation, hue: the ids in `ViewDraw.order` and the order of each entry of COLOUR
STRIPE = 32  # pixels of an image blurred at a time
SOME = 2**20  # numbers of a batch changed at a time by a core: with fewer the calls take longer than the work
LARGE = 2**17  # numbers of an image that is changed alone, to stay in a core's cache: about 210 px
Adjust = Callable[[Tensor, PerImage], Tensor]
GREY = (0.2989, 0.5870, 0.1140)  # sums to 0.9999, as in the reference code and torchvision


class ViewDraw(NamedTuple):
    """All random choices for one view of a batch of B images, on the CPU."""

    area: Tensor  # float64 (B,), fraction of the image; (B, ATTEMPTS) for torchvision's crop
    log_ratio: Tensor  # float64, log(width / height), shaped as area
    ratio_range: Tensor  # float64 (B, 2), where torchvision's fallback needs the bounds of width / height
    x: Tensor  # float64 (B,) in [0, 1), position of the crop among the possible ones
    y: Tensor
    flip: Tensor  # bool (B,), as are all gates below
    jitter: Tensor
    order: Tensor  # int64 (B, OPS), the colour operations in the order they are applied
    brightness: Tensor  # float32 (B,), added; a factor for torchvision's colour
    contrast: Tensor  # float32 (B,), factor
    saturation: Tensor  # float32 (B,), factor
    hue: Tensor  # float32 (B,), turns
    grayscale: Tensor
    blur: Tensor
    sigma: Tensor  # float32 (B,), pixels
    solarize: Tensor


def draw(seed: int, step: int, batch: int, config: Views) -> tuple[ViewDraw, ViewDraw]:
    """The choices for both views of the global batch of a step; image i's do not depend on the batch's size."""
    digest = hashlib.blake2b(f"byol views {seed} {step}".encode(), digest_size=8).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest, "big") >> 1)
    # Every choice has its own column, used or not: changing one probability leaves all other choices as they were.
    uniform = torch.rand(batch, 2, 2 * ATTEMPTS + 16, dtype=torch.float64, generator=generator)
    return _choose(uniform[:, 0], config.t, config), _choose(uniform[:, 1], config.t_prime, config)


def _choose(uniform: Tensor, view: View, config: Views) -> ViewDraw:
    """Scale uniform numbers (B, columns) in [0, 1) to a view's ranges."""
    attempts, columns = uniform[:, : 2 * ATTEMPTS], uniform[:, 2 * ATTEMPTS :].unbind(1)
    area, ratio = attempts.chunk(2, dim=1)
    if config.crop == "byol":
        area, ratio = area[:, 0], ratio[:, 0]

    def between(low: float, high: float, column: int) -> Tensor:
        return (low + (high - low) * columns[column]).float()

    multiplies = config.colour == "torchvision"
    log_low, log_high = math.log(view.ratio_min), math.log(view.ratio_max)
    bounds = torch.tensor([view.ratio_min, view.ratio_max], dtype=torch.float64)
    return ViewDraw(
        area=view.area_min + (view.area_max - view.area_min) * area,
        log_ratio=log_low + (log_high - log_low) * ratio,
        ratio_range=bounds.expand(len(uniform), 2),
        x=columns[0],
        y=columns[1],
        flip=columns[2] < view.flip,
        jitter=columns[3] < view.jitter,
        brightness=between(multiplies - view.brightness, multiplies + view.brightness, 4),
        contrast=between(1 - view.contrast, 1 + view.contrast, 5),
        saturation=between(1 - view.saturation, 1 + view.saturation, 6),
        hue=between(-view.hue, view.hue, 7),
        grayscale=columns[8] < view.grayscale,
        blur=columns[9] < view.blur,
        sigma=between(view.sigma_min, view.sigma_max, 10),
        solarize=columns[11] < view.solarize,
        order=torch.stack(columns[12:], 1).argsort(1),
    )


def slice_draw(draw: ViewDraw, start: int, stop: int) -> ViewDraw:
    """The choices for images start to stop of the batch."""
    return ViewDraw(*(field[start:stop] for field in draw))


def boxes(draw: ViewDraw, height: PerImage, width: PerImage, config: Views) -> Box:
    """The drawn crops of images of one size, or of sizes (B,)."""
    if config.crop == "byol":
        return crop_box(draw.area, draw.log_ratio, draw.x, draw.y, height, width)
    return crop_box_torchvision(draw.area, draw.log_ratio, draw.x, draw.y, height, width, draw.ratio_range)


def crop_one(image: Tensor, draw: ViewDraw, place: int, config: Views, size: int) -> Tensor:
    """The crop that image `place` of a drawn batch gets, for one uint8 image (3, H, W) of any size."""
    box = boxes(slice_draw(draw, place, place + 1), image.shape[1], image.shape[2], config)
    return crop_resize_one(image, box, size, config.antialias)


def _per_image(value: PerImage, images: Tensor) -> Tensor:
    return torch.as_tensor(value, dtype=images.dtype, device=images.device).reshape(-1, 1, 1, 1)


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
    peak, sign, offset = images.new_tensor([[3, 2, 4], [1, -1, -1], [-1, 2, 2]])[..., None, None].unbind()
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
    return images.sub_(images.new_tensor(mean).view(3, 1, 1)).div_(images.new_tensor(std).view(3, 1, 1))


@torch.no_grad()
def augment(images: Tensor, draw: ViewDraw, config: Views) -> Tensor:
    """The drawn flip, colour changes, blur and solarization of crops (B, 3, S, S) in [0, 1], in the paper's order."""
    images = images.clone()
    for few, own in _in_cache(images, draw):
        _augment_(few, own, config)
    return images


def _in_cache(images: Tensor, draw: ViewDraw) -> Iterator[tuple[Tensor, ViewDraw]]:
    """A few images at a time with their choices, so that a CPU finds them in its cache through all operations."""
    each = images.shape[1:].numel()
    room = torch.get_num_threads() * (each if each > LARGE else SOME) if images.device.type == "cpu" else images.numel()
    few = max(1, room // each)
    for start in range(0, len(images), few):
        yield images[start : start + few], slice_draw(draw, start, start + few)


def _augment_(images: Tensor, draw: ViewDraw, config: Views) -> None:
    def change(gate: Tensor, operation: Callable[..., Tensor], *parameters: Tensor) -> None:
        """Only the images behind the gate are worked on; choices stay on the CPU, so a GPU is not waited for."""
        chosen = gate.nonzero()[:, 0]
        if not len(chosen):
            return
        values = [parameter[chosen].to(images.device) for parameter in parameters]
        if len(chosen) == len(images):
            torch.clamp(operation(images, *values), 0, 1, out=images)
        else:
            index = chosen.to(images.device)
            images.index_copy_(0, index, operation(images.index_select(0, index), *values).clamp_(0, 1))

    change(draw.flip, lambda chosen: chosen.flip(-1))
    if draw.jitter.any():
        _jitter_(images, draw, COLOUR[config.colour])
    change(draw.grayscale, to_grayscale)
    if blur_taps(images.shape[2]) > 1:
        change(draw.blur, lambda chosen, sigma: gaussian_blur(chosen, sigma, border=config.border), draw.sigma)
    change(draw.solarize, solarize)


def _jitter_(images: Tensor, draw: ViewDraw, adjust: Sequence[Adjust]) -> None:
    """Every image's colour operations in its own order: in each turn images move so that equal operations are
    neighbours, which costs less than to pick them out and to put them back."""
    strengths = np.stack([draw.brightness, draw.contrast, draw.saturation, draw.hue])
    operations = np.where(draw.jitter[:, None], draw.order, OPS)  # OPS: none
    moved, place = images, np.arange(len(images))  # `place` says which image stands where
    for turn in range(OPS):
        by = operations[place, turn].argsort(kind="stable")
        place = place[by]
        if len(images) > 1:
            moved = moved.index_select(0, torch.from_numpy(by).to(images.device))
        ends = operations[place, turn].searchsorted(range(1, OPS + 1)).tolist()
        for op, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
            if start < end:
                alike = moved[start:end]
                strength = torch.from_numpy(strengths[op, place[start:end]]).to(images.device)
                torch.clamp(adjust[op](alike, strength), 0, 1, out=alike)
    if len(images) > 1:
        torch.index_select(moved, 0, torch.from_numpy(place.argsort()).to(images.device), out=images)


@torch.no_grad()
def finish_(images: Tensor, draw: ViewDraw, config: Views) -> Tensor:
    """Augment and normalize crops (B, 3, S, S) in [0, 1] that loader workers have made, in place."""
    for few, own in _in_cache(images, draw):
        _augment_(few, own, config)
        _normalize_(few, config.mean, config.std)
    return images


@torch.no_grad()
def views(images: Tensor, draws: tuple[ViewDraw, ViewDraw], config: Views, size: int) -> tuple[Tensor, Tensor]:
    """Both views (B, 3, size, size), float32 and normalized, of uint8 images (B, 3, H, W) held in memory."""

    def make(draw: ViewDraw) -> Tensor:
        box = boxes(draw, images.shape[2], images.shape[3], config)
        return finish_(crop_resize(images, box, size, config.antialias), draw, config)

    return make(draws[0]), make(draws[1])


COLOUR: dict[str, tuple[Adjust, Adjust, Adjust, Adjust]] = {
    "byol": (adjust_brightness, adjust_contrast, adjust_saturation, adjust_hue),
    # torchvision multiplies, and blends with the mean grey or the grey image; its hue is turned in the same HSV.
    "torchvision": (
        lambda images, factor: images * _per_image(factor, images),
        lambda images, factor: _blend(images, _luminance(images).mean((2, 3), keepdim=True), factor),
        lambda images, factor: _blend(images, _luminance(images), factor),
        adjust_hue,
    ),
}
