"""Where a view is cut from an image, and how the cut is resized: whole-pixel boxes, bicubic as TensorFlow 2 has it.

Boxes and bicubic weights are computed with numpy, which takes a third of torch's time for one image's few numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from byol.config import Data

# One parameter an image: a tensor (B,), or one number for all.
PerImage = Tensor | float
Numbers = np.ndarray[Any, np.dtype[np.float64]]
MARGIN = 256 / 224  # an evaluated image's short side, once resized, over the side of the central crop


class Scale(NamedTuple):
    """The stored values that become 0 and 1 in a view, one for all channels or one for each; what is beyond is cut."""

    low: tuple[float, ...]
    high: tuple[float, ...]


def scale_of(data: Data) -> Scale | None:
    """As a config whose range is settled has it; None: 8-bit values, of which 255 becomes 1."""
    return _scale(data.range)


@lru_cache(maxsize=16)
def _scale(text: str) -> Scale | None:
    from byol.config_values import bounds  # with the other rules of fields, which a loop that runs does not need

    pairs = bounds(text)
    return Scale(*zip(*pairs, strict=True)) if pairs else None


@lru_cache(maxsize=16)
def _ends(scale: Scale) -> tuple[Tensor, Tensor]:
    """What is subtracted, and what is divided by then: float32 (C or 1, 1, 1) each."""
    low, high = (np.array(values)[:, None, None] for values in scale)
    return torch.from_numpy(low.astype(np.float32)), torch.from_numpy((high - low).astype(np.float32))


def scaled(image: Tensor, scale: Scale) -> Tensor:
    """Stored values (C, H, W) of any type as float32 in [0, 1]; what is not a number becomes 0."""
    low, span = _ends(scale)
    values = image.to(torch.float32, copy=True).sub_(low).div_(span)
    if image.is_floating_point():
        values.nan_to_num_(0.0)
    return values.clamp_(0, 1)


def _eight_bits(image: Tensor, scale: Scale | None) -> bool:
    """Whether an image has the values that 8-bit files have; they are divided after resizing, where there are fewer."""
    return scale is None or (image.dtype == torch.uint8 and set(scale.low) == {0.0} and set(scale.high) == {255.0})


class Box(NamedTuple):
    """Crops in whole pixels, int64."""

    top: Tensor
    left: Tensor
    height: Tensor
    width: Tensor


def sent(values: Tensor, device: torch.device) -> Tensor:
    """The values on a device, without waiting for it: a GPU fetches them from pinned memory when it gets to them."""
    if device.type != "cuda" or values.device.type != "cpu":
        return values.to(device)
    return values.pin_memory().to(device, non_blocking=True)


def crop_box(area: PerImage, log_ratio: PerImage, x: PerImage, y: PerImage, height: PerImage, width: PerImage) -> Box:
    """The reference code's crop of `area`, a fraction of the image: clipped to the image, never rejected.

    All arguments broadcast against each other.
    """
    fraction, logs, across, down, high, wide = _doubles(area, log_ratio, x, y, height, width)
    crop_height, crop_width = _sides(fraction * high * wide, logs)
    crop_height, crop_width = np.minimum(crop_height, high), np.minimum(crop_width, wide)
    return _box(_place(np.maximum(crop_height, 1), np.maximum(crop_width, 1), across, down, high, wide))


def crop_box_torchvision(
    area: Tensor,
    log_ratio: Tensor,
    x: PerImage,
    y: PerImage,
    height: PerImage,
    width: PerImage,
    ratio_range: Tensor | tuple[float, float] = (3 / 4, 4 / 3),
) -> Box:
    """torchvision's RandomResizedCrop: the first of the attempts (B, n) that fits, else the largest central crop."""
    across, down, high, wide, _ = _doubles(x, y, height, width, area[..., 0])
    heights, widths = _sides(area.numpy() * (high * wide)[..., None], log_ratio.numpy())
    fits = (heights >= 1) & (heights <= high[..., None]) & (widths >= 1) & (widths <= wide[..., None])
    first = fits.argmax(-1)[..., None]
    crop_height, crop_width = (np.take_along_axis(tried, first, -1)[..., 0] for tried in (heights, widths))
    box = _place(crop_height, crop_width, across, down, high, wide)

    low, up = np.moveaxis(np.asarray(ratio_range, np.float64), -1, 0)
    # At least one pixel: in a small image a ratio far from 1 rounds to a side of 0, which torchvision lets through.
    central_height = np.maximum(np.minimum(high, np.rint(wide / low)), 1)
    central_width = np.maximum(np.minimum(wide, np.rint(high * up)), 1)
    top, left = np.floor((high - central_height) / 2), np.floor((wide - central_width) / 2)
    central = (top, left, central_height, central_width)
    return _box([np.where(fits.any(-1), *pair) for pair in zip(box, central, strict=True)])


def _doubles(*values: PerImage) -> Sequence[Numbers]:
    """The values as float64, broadcast to one shape."""
    return np.broadcast_arrays(*(np.asarray(value, np.float64) for value in values))


def _sides(area: Numbers, log_ratio: Numbers) -> tuple[Numbers, Numbers]:
    """Height and width of a crop of `area` pixels; numpy rounds half to even, as both samplers do."""
    ratio = np.exp(log_ratio)
    return np.rint(np.sqrt(area / ratio)), np.rint(np.sqrt(area * ratio))


def _place(
    crop_height: Numbers, crop_width: Numbers, x: Numbers, y: Numbers, height: Numbers, width: Numbers
) -> Sequence[Numbers]:
    """Top, left, height and width of a crop: x and y in [0, 1) make every whole-pixel position equally likely."""
    top = np.minimum(np.floor(y * (height - crop_height + 1)), height - crop_height)
    left = np.minimum(np.floor(x * (width - crop_width + 1)), width - crop_width)
    return top, left, crop_height, crop_width


def _box(sides: Sequence[Numbers]) -> Box:
    return Box(*(torch.from_numpy(np.array(side, np.int64)) for side in sides))


class _Taps(NamedTuple):
    """Which source pixels make an output pixel: positions and weights, (taps, B or 1, outputs)."""

    position: Tensor
    weight: Tensor


def _taps(
    length: np.ndarray | Tensor,
    outputs: int,
    antialias: bool,
    resized: np.ndarray | None = None,
    skip: np.ndarray | int = 0,
) -> _Taps:
    """Bicubic taps that resize `length` (B, 1) pixels to `resized` pixels and keep `outputs` of them, from `skip` on.

    Keys' kernel with a = -0.5 and half-pixel centres; taps outside the source are dropped and the rest renormalised,
    as TensorFlow 2 does. Float64, because float32 positions are off by 1e-5 of a pixel in large images.
    """
    length = np.asarray(length, np.float64)
    scale = length / (outputs if resized is None else resized)
    stretch = np.maximum(scale, 1) if antialias else np.ones_like(scale)
    centre = (np.arange(outputs) + (0.5 + skip)) * scale - 0.5
    first = np.floor(centre - 2 * stretch) + 1
    position = first + np.arange(math.ceil(4 * stretch.max()))[:, None, None]
    weight = _keys(np.abs(position - centre) / stretch, antialias)
    inside = np.minimum(np.maximum(position, 0), length - 1)
    weight *= inside == position
    weight /= weight.sum(0)
    return _Taps(torch.from_numpy(inside.astype(np.int64)), torch.from_numpy(weight.astype(np.float32)))


def _keys(d: Numbers, antialias: bool) -> Numbers:
    """Keys' kernel at the distances (taps, B, outputs)."""

    def near(d: Numbers) -> Numbers:
        return np.add((1.5 * d - 2.5) * d * d, 1)

    def far(d: Numbers) -> Numbers:
        return np.add(((2.5 - 0.5 * d) * d - 4) * d, 2)

    if not antialias:  # four taps: the outer two are 1 to 2 pixels away, the inner two at most 1
        weight = np.empty_like(d)
        weight[::3], weight[1:3] = far(d[::3]), near(d[1:3])
        return weight
    return np.where(d < 1, near(d), far(d)) * (d < 2)


def _matrix(taps: _Taps, start: Tensor | int, length: int) -> Tensor:
    """Taps whose positions count from `start` (B, 1), as matrices (B, outputs, length)."""
    index = (taps.position + start).movedim(0, -1)
    # Taps outside the source were moved onto a pixel inside it with weight 0, and so add nothing there.
    return torch.zeros(*index.shape[:-1], length).scatter_add_(-1, index, taps.weight.movedim(0, -1))


def _resample(images: Tensor, rows: Tensor, columns: Tensor, scale: Scale | None) -> Tensor:
    """rows (B or 1, h, H) times images (B, C, H, W) times columns (B or 1, w, W) transposed, in [0, 1]."""
    batch, channels, height, width = images.shape
    # A line's channels stand side by side, so that one matrix product serves them all.
    lines = images.transpose(1, 2).contiguous()
    if not _eight_bits(images, scale):
        assert scale
        low, span = (sent(end, lines.device).movedim(0, 1) for end in _ends(scale))  # (1, C or 1, 1)
        lines = lines.to(torch.float32).sub_(low).div_(span)
        lines = (lines.nan_to_num_(0.0) if images.is_floating_point() else lines).clamp_(0, 1)
    elif images.dtype == torch.uint8:
        lines = lines / 255
    rows, columns = (sent(m.to(lines.dtype), lines.device).expand(batch, -1, -1) for m in (rows, columns))
    lines = torch.bmm(rows, lines.view(batch, height, channels * width)).view(batch, -1, width)
    lines = torch.bmm(lines, columns.transpose(1, 2)).view(batch, rows.shape[1], channels, -1).transpose(1, 2)
    return torch.clamp(lines, 0, 1, out=torch.empty_like(lines, memory_format=torch.contiguous_format))


def crop_resize(images: Tensor, box: Box, size: int, antialias: bool = False, scale: Scale | None = None) -> Tensor:
    """Boxes (B,) of images (B, C, H, W) as float (B, C, size, size) in [0, 1]. Without a scale, images are uint8 or
    float in [0, 1].

    The image is cropped first and resized then: pixels outside the box do not reach into the result.
    """
    top, left, height, width = (side.cpu()[:, None] for side in box)
    rows = _matrix(_taps(height, size, antialias), top, images.shape[2])
    return _resample(images, rows, _matrix(_taps(width, size, antialias), left, images.shape[3]), scale)


def crop_resize_one(
    image: Tensor, box: Sequence[int], size: int, antialias: bool = False, scale: Scale | None = None
) -> Tensor:
    """One box (top, left, height, width) of an image (C, H, W), as float32 (C, size, size) in [0, 1]; without a scale,
    the image is uint8.

    The sums are taken in a fixed order, so that any number of threads gives the same bits.
    """
    top, left, height, width = box
    taps = _taps(np.array([[height], [width]]), size, antialias)
    return _gather(image[:, top : top + height, left : left + width], taps, scale)


def _gather(image: Tensor, taps: _Taps, scale: Scale | None) -> Tensor:
    """Resize one image (C, H, W) by `taps` (taps, 2, outputs): first its rows, then its columns."""
    eight = _eight_bits(image, scale)
    lines = image.float() if eight or scale is None else scaled(image, scale)
    for position, weight in zip(taps.position.unbind(1), taps.weight.unbind(1), strict=True):
        lines = _lines(lines, position, weight)
    return (lines.div_(255) if eight else lines).clamp_(0, 1)


def _lines(image: Tensor, position: Tensor, weight: Tensor) -> Tensor:
    """The rows of an image (C, H, W) resized by taps (taps, outputs), transposed: (C, W, outputs).

    Each output is a weighted sum taken in a fixed order, an embedding bag over source lines; the transpose makes rows
    of columns for the second pass.
    """
    channels, height = image.shape[:2]
    bags = (position.T + height * torch.arange(channels)[:, None, None]).flatten(0, 1)
    weights = weight.T.repeat(channels, 1)
    sums = F.embedding_bag(bags, image.flatten(0, 1), mode="sum", per_sample_weights=weights)
    return sums.view(channels, len(position.T), -1).transpose(1, 2).contiguous()


def shrink(image: Tensor, side: int) -> Tensor:
    """An image (C, H, W), low-passed and resized so that its short side is `side`, in its own type of values; a smaller
    one as it is."""
    short = min(image.shape[1:])
    if not 0 < side < short:
        return image
    lines = image.float().nan_to_num(0.0) if image.is_floating_point() else image.float()
    for length in image.shape[1:]:
        taps = _taps(np.array([[length]]), max(1, round(length * side / short)), antialias=True)
        lines = _lines(lines, taps.position[:, 0], taps.weight[:, 0])
    if image.is_floating_point():
        return lines
    ends = torch.iinfo(image.dtype)
    return lines.round_().clamp_(ends.min, ends.max).to(image.dtype)


def center_crop(
    image: Tensor, size: int, antialias: bool = False, margin: float = MARGIN, scale: Scale | None = None
) -> Tensor:
    """The paper's evaluation view (appendix C) of one image (C, H, W): float32 (C, size, size) in [0, 1]; without a
    scale, the image is uint8.

    In one pass, the short side is resized to `margin` times `size` and the central square is cut out. An image that
    already is `size` by `size` is kept whole.
    """
    sides = image.shape[-2:]
    if sides == (size, size):
        return image.float().div_(255) if scale is None or _eight_bits(image, scale) else scaled(image, scale)
    resized = np.array([[round(side * round(size * margin) / min(sides))] for side in sides])
    taps = _taps(np.array(sides)[:, None], size, antialias, resized=resized, skip=(resized - size) // 2)
    return _gather(image, taps, scale)
