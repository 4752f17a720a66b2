"""Images as their files store them, and as a config wants them: any number of channels, 8 to 32 bits, or 8-bit colours.

A source reads what is stored; `fit` puts the channels and the depth of the config on top of that.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
import torch
from torch import Tensor

from byol.config import Data
from byol.config_values import bounds
from byol.data import decode, tiff
from byol.data.formats import FORMATS, Format, Reading, format_of
from byol.data.source import BadImage, Source
from byol.errors import BadData

if TYPE_CHECKING:
    from PIL import ImageFile

PLAIN = Reading()
# Pillow keeps 8 bits of 16-bit colours: the high ones, or the low ones if the two bytes are said to be swapped.
DEEP_COLOURS = ("RGB;16B", "RGB;16L")
LUMA = (19595, 38470, 7471)  # of 65536: the weights with which Pillow makes colours grey
LOOKED_AT = 4  # images that tell whether a data set has the channels that are wanted
COLOURS = (1, 3, 4)  # channels of an 8-bit picture: grey, colours, colours with transparency


def read_stored(
    data: bytes | BinaryIO, max_megapixels: float, name: str | bytes = "", which: int = 0, reading: Reading = PLAIN
) -> Tensor:
    """Image `which` of a file: an 8-bit picture as uint8 (3, H, W), anything else (C, H, W) in its own type."""
    file = io.BytesIO(data) if isinstance(data, bytes) else data
    kind = format_of(name) or (FORMATS["tif"] if _is_tiff(file) else None)
    if kind is None or (kind.name == "TIFF" and _left_to_pillow(file, kind)):
        return _looked(file, max_megapixels, which)
    kind.check()
    file.seek(0)
    values = kind.read(file, which, max_megapixels, reading)
    return torch.from_numpy(values if values.flags.writeable else values.copy())


def _left_to_pillow(file: BinaryIO, kind: Format) -> bool:
    """A TIFF of 8-bit colours; and one of deep grey where nothing else is installed that reads it."""
    return tiff.is_picture(file) or (not kind.installed() and tiff.is_grey(file))


def _is_tiff(file: BinaryIO) -> bool:
    start = file.read(4)
    file.seek(0)
    return start in tiff.MAGIC


def _looked(file: BinaryIO, max_megapixels: float, which: int = 0) -> Tensor:
    """By Pillow."""
    if _is_deep_png(file):
        high, low = (_bytes_of(file, max_megapixels, raw) for raw in DEEP_COLOURS)
        return torch.from_numpy((high.astype(np.uint16) << 8 | low).transpose(2, 0, 1).copy())
    return decode.looked(file, max_megapixels, partial(_page, which) if which else _pixels)


def _is_deep_png(file: BinaryIO) -> bool:
    """Whether a file is a PNG of 16-bit colours, by its first bytes."""
    start = file.read(26)
    file.seek(0)
    return start[:8] == b"\x89PNG\r\n\x1a\n" and start[24:] == b"\x10\x02"  # bits, and colours without transparency


def _bytes_of(file: BinaryIO, max_megapixels: float, raw: str) -> np.ndarray:
    """(H, W, 3), upright: of every 16-bit value the one byte that Pillow keeps when it takes it for `raw`."""

    def look(image: ImageFile.ImageFile) -> np.ndarray:
        image.tile = [tile._replace(args=raw) for tile in image.tile]
        decode.load(image)
        return decode.upright(np.asarray(image), image)

    file.seek(0)
    return decode.looked(file, max_megapixels, look)


def _page(which: int, image: ImageFile.ImageFile) -> Tensor:
    image.seek(which)
    return _pixels(image)


def _pixels(image: ImageFile.ImageFile) -> Tensor:
    """Deep grey in its own depth, upright; anything else as 8-bit colours."""
    if image.mode[0] not in "IF":
        return decode.pixels(image)
    decode.load(image)
    values = np.asarray(image)
    if decode.is_sixteen(image):
        values = values.clip(0, 65535).astype(np.uint16)
    else:
        values = values.astype(np.float32 if image.mode == "F" else np.int32)
    return torch.from_numpy(decode.upright(values, image)[None].copy())


def eight_bits(image: Tensor) -> Tensor:
    """Deep values (C, H, W) as the 8 bits that a viewer would show."""
    if image.dtype == torch.uint8:
        return image
    values = image.numpy()
    return torch.from_numpy(decode.eight_bits(values, image.dtype == torch.uint16, image.is_floating_point()))


def grey(image: Tensor) -> Tensor:
    """uint8 colours (3, H, W) as Pillow makes them grey: (1, H, W)."""
    weights = torch.tensor(LUMA, dtype=torch.int32)[:, None, None]
    return ((image.int() * weights).sum(0, keepdim=True, dtype=torch.int32).add_(32768) >> 16).to(torch.uint8)


def fit(image: Tensor, channels: int, eight: bool) -> Tensor:
    """What is stored with so many channels, and with 8 bits if `eight`; a `BadImage` where that makes no sense."""
    if eight:
        image = eight_bits(image)
    if len(image) == channels:
        return image
    if len(image) == 1 and channels == 3:
        return image.expand(3, -1, -1).contiguous()
    if len(image) == 3 and channels == 1 and image.dtype == torch.uint8:
        return grey(image)
    raise BadImage(f"{len(image)} channels, where {channels} are wanted", "another number of channels")


def is_eight_bit(data: Data) -> bool:
    """Whether a config whose range is settled reads 8-bit values."""
    return not bounds(data.range)


def fitted(source: Source, data: Data) -> Source:
    """The source with the channels and the depth of a settled config: what auto means there is 8-bit colours."""
    return with_channels(source, data.channels or 3, is_eight_bit(data))


def with_channels(source: Source, channels: int, eight: bool) -> Source:
    """The source with so many channels, in 8 bits or in its own depth."""
    return replace(source, read=partial(_fitted, source.read, channels, eight))


def _fitted(read: Callable[[int], Tensor], channels: int, eight: bool, index: int) -> Tensor:
    return fit(read(index), channels, eight)


def require_channels(source: Source, data: Data) -> None:
    """One sentence where the images of a source have another number of channels than a config was settled for."""
    if not data.channels:
        return
    found = set[int]()
    for index in np.linspace(0, len(source) - 1, LOOKED_AT).astype(int).tolist():
        try:
            image = source.read(index)
        except BadImage:
            continue
        found.add(len(image))
        try:
            fit(image, data.channels, is_eight_bit(data))
            return
        except BadImage:
            continue
    if found:
        have = " or ".join(map(str, sorted(found)))
        raise BadData(
            f"The images of {source.name} have {have} channel{'s' * (have != '1')}, and {data.channels} "
            f"{'are' if data.channels > 1 else 'is'} wanted (data.channels): images and encoder must have the same."
        )


def read_as(data: bytes | BinaryIO, config: Data, name: str | bytes = "") -> Tensor:
    """One image outside a source, as a settled config wants it."""
    from byol.data.samples import reading_of  # which reads whole folders by what is here

    stored = read_stored(data, config.max_megapixels, name, reading=reading_of(config))
    return fit(stored, config.channels or 3, is_eight_bit(config))
