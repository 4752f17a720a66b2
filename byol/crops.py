"""Where a view is cut from an image, and how the cut is resized: whole-pixel boxes, bicubic as TensorFlow 2 has it."""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

# One parameter an image: a tensor (B,), or one number for all.
PerImage = Tensor | float
MARGIN = 256 / 224  # how much larger than the central crop an image is made before an evaluation


class Box(NamedTuple):
    """Crops in whole pixels, int64."""

    top: Tensor
    left: Tensor
    height: Tensor
    width: Tensor


def crop_box(area: PerImage, log_ratio: PerImage, x: PerImage, y: PerImage, height: PerImage, width: PerImage) -> Box:
    """The reference code's crop: area as a fraction, clipped to the image and never rejected; all broadcast."""
    fraction, log_ratio, x, y, whole_height, whole_width = _broadcast(area, log_ratio, x, y, height, width)
    crop_height, crop_width = _sides(fraction * whole_height * whole_width, log_ratio)
    crop_height, crop_width = crop_height.minimum(whole_height), crop_width.minimum(whole_width)
    return _place(crop_height.clamp_min(1), crop_width.clamp_min(1), x, y, whole_height, whole_width)


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
    x, y, high, wide, _ = _broadcast(x, y, height, width, area[..., 0])
    heights, widths = _sides(area * (high * wide)[..., None], log_ratio)
    fits = (heights >= 1) & (heights <= high[..., None]) & (widths >= 1) & (widths <= wide[..., None])
    first = fits.int().argmax(-1, keepdim=True)
    box = _place(heights.gather(-1, first)[..., 0], widths.gather(-1, first)[..., 0], x, y, high, wide)

    low, up = torch.as_tensor(ratio_range, dtype=torch.float64).unbind(-1)
    # At least a pixel, which torchvision does not see to: ratios far from 1 round to none in a small image.
    central_height = high.minimum((wide / low).round()).clamp_min(1)
    central_width = wide.minimum((high * up).round()).clamp_min(1)
    top, left = ((high - central_height) / 2).floor(), ((wide - central_width) / 2).floor()
    central = (top.long(), left.long(), central_height.long(), central_width.long())
    return Box(*(torch.where(fits.any(-1), *pair) for pair in zip(box, central, strict=True)))


def _broadcast(*values: PerImage) -> tuple[Tensor, ...]:
    doubles = [torch.as_tensor(value, dtype=torch.float64) for value in values]
    return tuple(torch.broadcast_tensors(*doubles))


def _sides(area: Tensor, log_ratio: Tensor) -> tuple[Tensor, Tensor]:
    """Height and width of a crop of so many pixels; torch rounds half to even, as both samplers do."""
    ratio = log_ratio.exp()
    return (area / ratio).sqrt().round(), (area * ratio).sqrt().round()


def _place(crop_height: Tensor, crop_width: Tensor, x: Tensor, y: Tensor, height: Tensor, width: Tensor) -> Box:
    """Every whole-pixel position is equally likely."""
    top = (y * (height - crop_height + 1)).floor().minimum(height - crop_height)
    left = (x * (width - crop_width + 1)).floor().minimum(width - crop_width)
    return Box(top.long(), left.long(), crop_height.long(), crop_width.long())


class _Taps(NamedTuple):
    """Which source pixels make an output pixel: positions and weights, (taps, B or 1, outputs)."""

    position: Tensor
    weight: Tensor


def _taps(
    length: Tensor, outputs: int, antialias: bool, resized: Tensor | float | None = None, skip: Tensor | int = 0
) -> _Taps:
    """Bicubic taps to bring `length` (B, 1) pixels to `resized` ones, of which `outputs` are wanted from `skip` on.

    Keys' kernel with a = -0.5 and half-pixel centres; taps outside the source are dropped and the rest renormalised,
    as TensorFlow 2 does. Float64, because float32 positions are off by 1e-5 of a pixel in large images.
    """
    scale = length.double() / (outputs if resized is None else resized)
    stretch = scale.clamp_min(1) if antialias else torch.ones_like(scale)
    centre = (torch.arange(outputs, dtype=torch.float64) + 0.5 + skip) * scale - 0.5
    first = (centre - 2 * stretch).floor() + 1
    count = math.ceil(4 * stretch.max().item())
    position = first + torch.arange(count, dtype=torch.float64)[:, None, None]
    weight = _keys((position - centre).abs_().div_(stretch), antialias)
    inside = position.clamp_min(0).minimum(length.double() - 1)
    weight *= inside == position
    # A sum in a fixed order, so that the result is the same bits for any number of threads.
    weight /= functools.reduce(torch.add, weight.unbind())
    return _Taps(inside.long(), weight.float())


def _keys(d: Tensor, antialias: bool) -> Tensor:
    """Keys' kernel at the distances (taps, B, outputs)."""

    def near(d: Tensor) -> Tensor:
        return (1.5 * d - 2.5).mul_(d).mul_(d).add_(1)

    def far(d: Tensor) -> Tensor:
        return (2.5 - 0.5 * d).mul_(d).sub_(4).mul_(d).add_(2)

    if not antialias:  # of the four taps the outer two are 1 to 2 pixels away, the inner two nearer
        return torch.stack([far(d[0]), near(d[1]), near(d[2]), far(d[3])])
    return torch.where(d < 1, near(d), far(d)) * (d < 2)


def _matrix(taps: _Taps, start: Tensor | int, length: int) -> Tensor:
    """Taps that count from `start` (B, 1), as matrices (B, outputs, length)."""
    index = (taps.position + start).movedim(0, -1)
    # Dropped taps were moved onto a pixel inside and add 0 there.
    return torch.zeros(*index.shape[:-1], length).scatter_add_(-1, index, taps.weight.movedim(0, -1))


def _resample(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """rows (B or 1, h, H) times images (B, 3, H, W) times columns (B or 1, w, W) transposed, in [0, 1]."""
    batch, channels, height, width = images.shape
    # The channels of a line side by side, so that one product does for all three.
    lines = images.transpose(1, 2).contiguous()
    lines = lines / 255 if images.dtype == torch.uint8 else lines
    rows, columns = (matrix.to(lines.device, lines.dtype).expand(batch, -1, -1) for matrix in (rows, columns))
    lines = torch.bmm(rows, lines.view(batch, height, channels * width)).view(batch, -1, width)
    lines = torch.bmm(lines, columns.transpose(1, 2)).view(batch, rows.shape[1], channels, -1).transpose(1, 2)
    return torch.clamp(lines, 0, 1, out=torch.empty_like(lines, memory_format=torch.contiguous_format))


def crop_resize(images: Tensor, box: Box, size: int, antialias: bool = False) -> Tensor:
    """Boxes (B,) of images (B, 3, H, W), uint8 or float in [0, 1], as float (B, 3, size, size) in [0, 1].

    The crop comes first, so what lies outside it counts as outside the image.
    """
    top, left, height, width = (side.cpu()[:, None] for side in box)
    rows = _matrix(_taps(height, size, antialias), top, images.shape[2])
    return _resample(images, rows, _matrix(_taps(width, size, antialias), left, images.shape[3]))


def crop_resize_one(image: Tensor, box: Box | tuple[int, int, int, int], size: int, antialias: bool = False) -> Tensor:
    """One box of one uint8 image (3, H, W) of any size, as float32 (3, size, size); the same bits for any threads."""
    top, left, height, width = (int(side) for side in box)
    taps = _taps(torch.tensor([[height], [width]]), size, antialias)
    return _gather(image[:, top : top + height, left : left + width], taps)


def _gather(image: Tensor, taps: _Taps) -> Tensor:
    """Weighted sums of whole rows of one image, then of its columns, each in a fixed order; taps (taps, 2, outputs)."""
    lines = image.transpose(0, 1).float()
    for position, weight in zip(taps.position.unbind(1), taps.weight.unbind(1), strict=True):
        # What makes a line is a bag of lines. The other side's pixels come first then, for the second pass.
        sums = F.embedding_bag(position.T.contiguous(), lines.flatten(1), mode="sum", per_sample_weights=weight.T)
        lines = sums.unflatten(1, (3, -1)).transpose(0, 2).contiguous()
    return lines.transpose(0, 1).contiguous().div_(255).clamp_(0, 1)


def resize(images: Tensor, height: int, width: int, antialias: bool = False) -> Tensor:
    """Whole images (B, 3, H, W), uint8 or float in [0, 1], as float (B, 3, height, width) in [0, 1]."""
    sides = zip(images.shape[2:], (height, width), strict=True)
    rows, columns = (_matrix(_taps(torch.tensor([[old]]), new, antialias), 0, old) for old, new in sides)
    return _resample(images, rows, columns)


def center_crop(image: Tensor, size: int, antialias: bool = False, margin: float = MARGIN) -> Tensor:
    """The paper's evaluation view (appendix C) of one uint8 image (3, H, W): float32 (3, size, size) in [0, 1].

    Short side to `margin` times the size, central square of it, in one pass. An image of that very size is kept whole.
    """
    if image.shape[-2:] == (size, size):
        return image.float().div_(255)
    return _gather(image, _center_taps(image, size, antialias, margin))


def center_crops(images: Tensor, size: int, antialias: bool = False) -> Tensor:
    """`center_crop` of uint8 images (B, 3, H, W) of one size."""
    if images.shape[-2:] == (size, size):
        return images.float().div_(255)
    taps = _center_taps(images, size, antialias, MARGIN)
    sides = (_Taps(*(field[:, side : side + 1] for field in taps)) for side in (0, 1))
    matrices = (_matrix(side, 0, length) for side, length in zip(sides, images.shape[2:], strict=True))
    return _resample(images, *matrices)


def _center_taps(image: Tensor, size: int, antialias: bool, margin: float) -> _Taps:
    """For rows and columns."""
    sides = image.shape[-2:]
    resized = torch.tensor([[round(side * round(size * margin) / min(sides))] for side in sides])
    return _taps(torch.tensor(sides)[:, None], size, antialias, resized=resized, skip=(resized - size) // 2)
