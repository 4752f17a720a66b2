"""The two augmented views of a batch: `draw` makes every random choice of a step from (seed, step), the rest of the
module applies those choices as pure functions of the pixels: crop and resize, colour, blur, solarize, normalize.

The reference code's arithmetic is the default (paper, appendix B); torchvision's is a choice of the config.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from byol.config import View, Views

ATTEMPTS = 10  # of torchvision's RandomResizedCrop before it falls back to a central crop
OPS = 4  # brightness, contrast, saturation, hue: the ids in `ViewDraw.order` and the order of each entry of COLOUR
GREY = (0.2989, 0.5870, 0.1140)  # sums to 0.9999, as in the reference code and torchvision

# One parameter an image: a tensor (B,), or one number for all.
PerImage = Tensor | float


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


class Box(NamedTuple):
    """Crops in whole pixels, int64."""

    top: Tensor
    left: Tensor
    height: Tensor
    width: Tensor


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


def draw_to(draw: ViewDraw, device: torch.device | str) -> ViewDraw:
    """The choices on a device, but for the crop's: boxes are found in float64 on the CPU, which mps does not have."""
    return ViewDraw(*(field if field.dtype == torch.float64 else field.to(device) for field in draw))


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
    central_height, central_width = high.minimum((wide / low).round()), wide.minimum((high * up).round())
    top, left = ((high - central_height) / 2).floor(), ((wide - central_width) / 2).floor()
    central = (top.long(), left.long(), central_height.long(), central_width.long())
    return Box(*(torch.where(fits.any(-1), *pair) for pair in zip(box, central, strict=True)))


def _broadcast(*values: PerImage) -> tuple[Tensor, ...]:
    doubles = [torch.as_tensor(value, dtype=torch.float64) for value in values]
    return tuple(torch.broadcast_tensors(*doubles))  # type: ignore[no-untyped-call]


def _sides(area: Tensor, log_ratio: Tensor) -> tuple[Tensor, Tensor]:
    """Height and width of a crop of so many pixels; torch rounds half to even, as both samplers do."""
    ratio = log_ratio.exp()
    return (area / ratio).sqrt().round(), (area * ratio).sqrt().round()


def _place(crop_height: Tensor, crop_width: Tensor, x: Tensor, y: Tensor, height: Tensor, width: Tensor) -> Box:
    """Every whole-pixel position is equally likely."""
    top = (y * (height - crop_height + 1)).floor().minimum(height - crop_height)
    left = (x * (width - crop_width + 1)).floor().minimum(width - crop_width)
    return Box(top.long(), left.long(), crop_height.long(), crop_width.long())


def boxes(draw: ViewDraw, height: PerImage, width: PerImage, config: Views) -> Box:
    """The drawn crops of images of one size, or of sizes (B,)."""
    if config.crop == "byol":
        return crop_box(draw.area, draw.log_ratio, draw.x, draw.y, height, width)
    return crop_box_torchvision(draw.area, draw.log_ratio, draw.x, draw.y, height, width, draw.ratio_range)


class _Taps(NamedTuple):
    """Which source pixels make an output pixel: positions and weights, (taps, B or 1, outputs)."""

    position: Tensor
    weight: Tensor


def _taps(length: Tensor, outputs: int, antialias: bool, resized: float | None = None, skip: int = 0) -> _Taps:
    """Bicubic taps to bring `length` (B, 1) pixels to `resized` ones, of which `outputs` are wanted from `skip` on.

    Keys' kernel with a = -0.5 and half-pixel centres; taps outside the source are dropped and the rest renormalised,
    as TensorFlow 2 does. Float64, because float32 positions are off by 1e-5 of a pixel in large images.
    """
    scale = length.double() / (resized or outputs)
    stretch = scale.clamp_min(1) if antialias else torch.ones_like(scale)
    centre = (torch.arange(outputs, dtype=torch.float64) + 0.5 + skip) * scale - 0.5
    first = (centre - 2 * stretch).floor() + 1
    count = math.ceil(4 * stretch.max().item())
    position = first + torch.arange(count, dtype=torch.float64)[:, None, None]
    d = (position - centre).abs_().div_(stretch)
    near = (1.5 * d - 2.5) * d * d + 1
    far = ((2.5 - 0.5 * d) * d - 4) * d + 2
    inside = (position >= 0) & (position < length)
    weight = torch.where(d < 1, near, far) * ((d < 2) & inside)
    # A sum in a fixed order, so that the result is the same bits for any number of threads.
    weight /= functools.reduce(torch.add, weight.unbind())
    return _Taps(position.long().clamp_min_(0).minimum(length - 1), weight.float())


def _matrix(taps: _Taps, start: Tensor | int, length: int) -> Tensor:
    """Taps that count from `start` (B, 1), as matrices (B, outputs, length)."""
    index = (taps.position + start).movedim(0, -1)
    # Dropped taps were moved onto a pixel inside and add 0 there.
    return torch.zeros(*index.shape[:-1], length).scatter_add_(-1, index, taps.weight.movedim(0, -1))


def _separable(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """rows (B or 1, h, H) times images (B, 3, H, W) times columns (B or 1, w, W) transposed, for every channel."""
    batch, channels, height, width = images.shape
    columns = columns.expand(batch, -1, -1).transpose(1, 2)
    wide = torch.bmm(images.reshape(batch, channels * height, width), columns)
    return torch.matmul(rows.unsqueeze(1), wide.view(batch, channels, height, -1))


def _resample(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    floats = images.float().div_(255) if images.dtype == torch.uint8 else images
    rows, columns = (matrix.to(floats.device, floats.dtype) for matrix in (rows, columns))
    return _separable(floats, rows, columns).clamp_(0, 1)


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
    rows, columns = (_taps(torch.tensor([[side]]), size, antialias) for side in (height, width))
    return _gather(image[:, top : top + height, left : left + width], rows, columns)


def _gather(image: Tensor, rows: _Taps, columns: _Taps) -> Tensor:
    """Weighted sums of whole rows, twice: only elementwise work, in a fixed order."""
    for taps in (rows, columns):
        # Rows (dim 1) are contiguous and copied as blocks, hence the transposition between the two passes.
        parts = (image.index_select(1, i[0]).float().mul_(w.view(-1, 1)) for i, w in zip(*taps, strict=True))
        image = functools.reduce(Tensor.add_, parts).transpose(1, 2).contiguous()
    return image.div_(255).clamp_(0, 1)


def resize(images: Tensor, height: int, width: int, antialias: bool = False) -> Tensor:
    """Whole images (B, 3, H, W), uint8 or float in [0, 1], as float (B, 3, height, width) in [0, 1]."""
    sides = zip(images.shape[2:], (height, width), strict=True)
    rows, columns = (_matrix(_taps(torch.tensor([[old]]), new, antialias), 0, old) for old, new in sides)
    return _resample(images, rows, columns)


def center_crop(image: Tensor, size: int, antialias: bool = False) -> Tensor:
    """The paper's evaluation view (appendix C) of one uint8 image (3, H, W): float32 (3, size, size) in [0, 1].

    Short side to 256/224 of the size, central square of it, in one pass. An image of that very size is kept whole.
    """
    if image.shape[-2:] == (size, size):
        return image.float().div_(255)
    return _gather(image, *_center_taps(image, size, antialias))


def center_crops(images: Tensor, size: int, antialias: bool = False) -> Tensor:
    """`center_crop` of uint8 images (B, 3, H, W) of one size."""
    if images.shape[-2:] == (size, size):
        return images.float().div_(255)
    taps = zip(_center_taps(images, size, antialias), images.shape[2:], strict=True)
    return _resample(images, *(_matrix(side, 0, length) for side, length in taps))


def _center_taps(image: Tensor, size: int, antialias: bool) -> list[_Taps]:
    """For rows and columns."""
    sides = image.shape[-2:]
    resized = [round(side * round(size * 256 / 224) / min(sides)) for side in sides]
    return [
        _taps(torch.tensor([[side]]), size, antialias, resized=whole, skip=(whole - size) // 2)
        for side, whole in zip(sides, resized, strict=True)
    ]


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
    kernel = torch.exp(-(offset**2) / (2 * _per_image(sigma, images)[..., 0] ** 2))  # (B or 1, 1, taps)
    kernel /= kernel.sum(-1, keepdim=True)
    rows, columns = (_band(kernel, length, border) for length in images.shape[2:])
    return _separable(images, rows, columns)


def _band(kernel: Tensor, length: int, border: str) -> Tensor:
    """The convolution with kernels (B, 1, taps) over `length` pixels, as matrices (B, length, length)."""
    radius = kernel.shape[-1] // 2
    index = torch.arange(length)[:, None] + torch.arange(-radius, radius + 1)
    if border == "reflect":
        assert radius < length, "a reflected border cannot be wider than the image"
        index = (length - 1) - ((length - 1) - index.abs()).abs()
    weight = kernel * ((index >= 0) & (index < length)).to(kernel.device)
    index = index.clamp(0, length - 1).to(kernel.device).expand(weight.shape)
    return kernel.new_zeros(len(kernel), length, length).scatter_add_(-1, index, weight)


def solarize(images: Tensor, threshold: float = 0.5) -> Tensor:
    """Invert what is at or above the threshold."""
    return torch.where(images < threshold, images, 1 - images)


def normalize(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Subtract each channel's mean and divide by its deviation."""
    return (images - images.new_tensor(mean).view(3, 1, 1)).div_(images.new_tensor(std).view(3, 1, 1))


@torch.no_grad()
def augment(images: Tensor, draw: ViewDraw, config: Views) -> Tensor:
    """The drawn flip, colour changes, blur and solarization of crops (B, 3, S, S) in [0, 1], in the paper's order."""
    return _augment_(images.clone(), draw, config)


def _augment_(images: Tensor, draw: ViewDraw, config: Views) -> Tensor:
    def change(gate: Tensor, operation: Callable[..., Tensor], *parameters: Tensor) -> None:
        """Only the images behind the gate are worked on; the index is made on the CPU, so a GPU is not waited for."""
        chosen = gate.cpu().nonzero()[:, 0]
        if len(chosen):
            values = [parameter[chosen.to(parameter.device)] for parameter in parameters]
            index = chosen.to(images.device)
            images.index_copy_(0, index, operation(images.index_select(0, index), *values).clamp_(0, 1))

    change(draw.flip, lambda chosen: chosen.flip(-1))
    strengths = (draw.brightness, draw.contrast, draw.saturation, draw.hue)
    for turn in range(OPS):
        for op, (adjust, strength) in enumerate(zip(COLOUR[config.colour], strengths, strict=True)):
            change(draw.jitter & (draw.order[:, turn] == op), adjust, strength)
    change(draw.grayscale, to_grayscale)
    if blur_taps(images.shape[2]) > 1:
        change(draw.blur, lambda chosen, sigma: gaussian_blur(chosen, sigma, border=config.border), draw.sigma)
    change(draw.solarize, solarize)
    return images.clamp_(0, 1)


def finish(crops: Tensor, draw: ViewDraw, config: Views) -> Tensor:
    """Augment and normalize crops (B, 3, S, S) in [0, 1] that loader workers have made."""
    return normalize(augment(crops, draw, config), config.mean, config.std)


@torch.no_grad()
def views(images: Tensor, draws: tuple[ViewDraw, ViewDraw], config: Views, size: int) -> tuple[Tensor, Tensor]:
    """Both views (B, 3, size, size), float32 and normalized, of uint8 images (B, 3, H, W) held in memory."""

    def make(draw: ViewDraw) -> Tensor:
        box = boxes(draw, images.shape[2], images.shape[3], config)
        crops = crop_resize(images, box, size, config.antialias)
        return normalize(_augment_(crops, draw, config), config.mean, config.std)

    return make(draws[0]), make(draws[1])


Adjust = Callable[[Tensor, PerImage], Tensor]
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
