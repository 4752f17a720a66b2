"""Random scale, crop and flip of an image together with the map of its pixels, drawn from (seed, step)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from byol.data.loader import generator


class Draw(NamedTuple):
    """All random choices of geometry for a batch of B images."""

    scale: Tensor  # float64 (B,)
    x: Tensor  # float64 (B,) in [0, 1), place of the crop among the possible ones
    y: Tensor
    flip: Tensor  # bool (B,)


def draw(seed: int, step: int, batch: int, scales: tuple[float, float] = (1.0, 1.0), flip: float = 0.5) -> Draw:
    """The choices of a step; image i's do not depend on the batch's size."""
    uniform = torch.rand(batch, 4, dtype=torch.float64, generator=generator("geometry", seed, step))
    scale, x, y, turn = uniform.unbind(1)
    return Draw(scales[0] + (scales[1] - scales[0]) * scale, x, y, turn < flip)


def apply(image: Tensor, target: Tensor, drawn: Draw, place: int, crop: int, fill: Fill) -> tuple[Tensor, Tensor]:
    """Image (C, crop, crop) and target (crop, crop) for image `place` of a drawn batch; `fill` where there is none."""
    factor = float(drawn.scale[place])
    height, width = (max(1, round(side * factor)) for side in image.shape[1:])
    image, target = resize_image(image, (height, width)), resize_map(target, (height, width))
    y, x = float(drawn.y[place]), float(drawn.x[place])
    colour = [round(255 * v) for v in fill.colour] if image.dtype == torch.uint8 else fill.colour
    image, target = window(image, y, x, crop, colour), window(target[None], y, x, crop, [fill.target])[0]
    return (image.flip(-1), target.flip(-1)) if drawn.flip[place] else (image, target)


class Fill(NamedTuple):
    """What stands where the crop reaches beyond the image."""

    colour: Sequence[float]  # of the image, a value in [0, 1] a channel
    target: float


def unit(images: Tensor) -> Tensor:
    """8-bit values in [0, 1]; others are there already."""
    return images.float() / 255 if images.dtype == torch.uint8 else images


def window(pixels: Tensor, y: float, x: float, crop: int, fill: Sequence[float]) -> Tensor:
    """(C, crop, crop): a part of (C, H, W), or all of it at a random place among `fill`, each way by itself."""
    out = pixels.new_tensor(fill)[:, None, None].expand(-1, crop, crop).clone()
    spans = [_span(size, at, crop) for size, at in ((pixels.shape[1], y), (pixels.shape[2], x))]
    (rows, to_rows), (columns, to_columns) = spans
    out[:, to_rows, to_columns] = pixels[:, rows, columns]
    return out


def _span(size: int, at: float, crop: int) -> tuple[slice, slice]:
    """Where to read and where to write along one side; every whole-pixel place is equally likely."""
    offset = int(at * (abs(size - crop) + 1))
    length = min(size, crop)
    inside, whole = slice(offset, offset + length), slice(0, length)
    return (inside, whole) if size > crop else (whole, inside)


def central(pixels: Tensor, height: int, width: int) -> Tensor:
    """The middle of (…, H, W), or all of it each way that it does not fill."""
    top, left = max(0, pixels.shape[-2] - height) // 2, max(0, pixels.shape[-1] - width) // 2
    return pixels[..., top : top + height, left : left + width]


def shrunk(image: Tensor, target: Tensor, factor: float, height: int, width: int) -> tuple[Tensor, Tensor]:
    """The central crop of the image after its sides were multiplied, and the same part of the map as it is stored."""
    rows, columns = target.shape
    size = max(1, round(rows * factor)), max(1, round(columns * factor))
    image = central(resize_image(image, size), height, width)
    share = image.shape[1] / size[0], image.shape[2] / size[1]
    return image, central(target, max(1, round(rows * share[0])), max(1, round(columns * share[1])))


def resize_image(image: Tensor, size: tuple[int, int]) -> Tensor:
    """Bilinear with a low-pass where it shrinks; uint8 (3, H, W) stays uint8."""
    if tuple(image.shape[1:]) == size:
        return image
    return F.interpolate(image[None], size, mode="bilinear", align_corners=False, antialias=True)[0]


def resize_map(target: Tensor, size: tuple[int, int]) -> Tensor:
    """(H, W) by the nearest pixel: between two classes, or between a depth and no reading, nothing is invented."""
    if tuple(target.shape) == size:
        return target
    return F.interpolate(target[None, None], size, mode="nearest-exact")[0, 0]
