"""Images of any channels, and their views, as the red, green and blue of a picture; in words what these colours are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from byol import views
from byol.config import Config, Data
from byol.crops import Scale, scale_of, scaled
from byol.data.loader import sample
from byol.data.source import Source
from byol.errors import UsageError

TAILS = (0.01, 0.99)  # quantiles of a sample that become black and full colour
PIXELS = 2**12  # of an image that the colours are chosen by, spread over it


@dataclass(frozen=True)
class Painter:
    """The colours are sums of channels, `basis` (3, C), stretched from `low` (3,) to `high`."""

    words: str = ""  # what red, green and blue are; nothing for 8-bit pictures, which are shown as they are
    scale: Scale | None = None
    basis: Tensor | None = None
    low: Tensor | None = None
    high: Tensor | None = None

    def stored(self, image: Tensor) -> Tensor:
        """A stored image (C, H, W) as uint8 (3, H, W)."""
        if self.basis is None:
            return image
        return self.unit(_unit(image, self.scale))

    def unit(self, image: Tensor) -> Tensor:
        """An image (C, H, W) in [0, 1], such as a view, as uint8 (3, H, W)."""
        if self.basis is not None:
            assert self.low is not None
            assert self.high is not None
            mixed = torch.einsum("kc,chw->khw", self.basis, image.float())
            image = (mixed - self.low[:, None, None]) / (self.high - self.low)[:, None, None]
        return (image.clamp(0, 1) * 255).round().to(torch.uint8)


AS_IT_IS = Painter()


def painter(source: Source, data: Data) -> Painter:
    """How the images of a source, opened with a settled config, are shown: by data.bands, or as they suggest."""
    scale, channels = scale_of(data), data.channels or 3
    if scale is None and channels == 3 and not data.bands:
        return AS_IT_IS
    bands = chosen_bands(data.bands, channels)
    pixels = [some_pixels(_unit(image, scale)) for image in sample(source)]
    if not pixels:
        return AS_IT_IS
    return painted(torch.cat(pixels, 1), scale, bands)


def chosen_bands(text: str, channels: int) -> tuple[int, ...]:
    """The channels of data.bands, counted from 0; none if the field is empty."""
    if not text:
        return ()
    numbers = [int(number) if number.strip().isdecimal() else 0 for number in text.split(",")]
    if len(numbers) not in (1, 3) or not all(1 <= number <= channels for number in numbers):
        raise UsageError(
            f"data.bands must be one channel, or three for red, green and blue, such as 1,2,3, of the {channels} that "
            f"the images have, not {text[:40]!r}."
        )
    return tuple(number - 1 for number in numbers)


def painted(pixels: Tensor, scale: Scale | None, bands: Sequence[int] = ()) -> Painter:
    """By pixels (C, n) in [0, 1]: the channels that are asked for, one channel as grey, two or three as colours, and of
    more the first three principal components."""
    channels = len(pixels)
    if not bands and channels <= 3:
        bands = range(channels)
    if bands:
        basis = torch.zeros(3, channels)
        for colour in range(3):
            if len(bands) == 1 or colour < len(bands):
                basis[colour, bands[0] if len(bands) == 1 else bands[colour]] = 1.0
        named = [f"channel {bands[0] + 1} is grey"] if len(bands) == 1 else _named(bands)
        words = ", ".join(named)
    else:
        basis, shares = components(pixels)
        words = f"the first three principal components of {channels} channels are red, green and blue " + "({})".format(
            ", ".join(f"{share:.0%}" for share in shares)
        )
    mixed = basis @ pixels.float()
    low, high = (torch.quantile(mixed, tail, dim=1) for tail in TAILS)
    high = torch.where(high > low, high, low + 1)
    words += f"; stretched from percentile {TAILS[0]:.0%} to {TAILS[1]:.0%}".replace("%", "")
    return Painter(words, scale, basis, low, high)


def _named(bands: Sequence[int]) -> list[str]:
    return [f"channel {band + 1} is {colour}" for band, colour in zip(bands, ("red", "green", "blue"), strict=False)]


def components(pixels: Tensor) -> tuple[Tensor, list[float]]:
    """The first three principal axes (3, C) of pixels (C, n), and their shares of the variance.

    The sign of each is the one in which brighter channels make it brighter, so that the same images look the same.
    """
    rows = pixels.double()
    values, vectors = torch.linalg.eigh(torch.cov(rows))
    axes = vectors.T.flip(0)[:3]
    axes = axes * torch.where(axes.sum(1) < 0, -1.0, 1.0)[:, None]
    shares = values.flip(0)[:3] / values.sum().clamp(min=1e-30)
    return axes.float(), shares.tolist()


def view_rows(images: list[Tensor], config: Config, pairs: int = 4, paint: Painter = AS_IT_IS) -> list[list[Tensor]]:
    """For each image: itself, then T and T′ of steps 0, 1, … before normalization, as they are painted."""
    visible = views.unnormalized(config.views)
    draws = [draw for step in range(pairs) for draw in views.draw(config.run.seed, step, len(images), visible)]
    columns = [views.make(images, draw, visible, config.data.resolution, scale_of(config.data)) for draw in draws]
    shown = [list(map(paint.unit, column)) if paint.words else list(column) for column in columns]
    return [[paint.stored(image), *row] for image, *row in zip(images, *shown, strict=True)]


def _unit(image: Tensor, scale: Scale | None) -> Tensor:
    return image.float() / 255 if scale is None else scaled(image, scale)


def some_pixels(unit: Tensor) -> Tensor:
    """Up to PIXELS pixels (C, n) on a grid over an image."""
    step = max(1, round((unit[0].numel() / PIXELS) ** 0.5))
    return unit[:, ::step, ::step].flatten(1)
