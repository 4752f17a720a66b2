"""One image examined: what its file says, whether it can be read, and fingerprints that find its duplicates."""

from __future__ import annotations

import hashlib
import os
from typing import BinaryIO, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from byol.data.decode import facts, open_image
from byol.data.source import BadImage, Source

CHUNK = 32
SIDE = 8  # of the fingerprint: (SIDE + 1)² cells, whose SIDE² differences to the right and below are its bits
BITS = 2 * SIDE * SIDE
SAMPLES = 64  # pixels a side that decide whether an image is grey
LARGEST = 512  # pixels of the short side that a fingerprint looks at
GREY_STEPS = 6  # of 255, which JPEG may put between the channels of a grey image


class Look(NamedTuple):
    """What was seen of image `number`; `reason` says why it cannot be read, and then the rest is empty."""

    number: int
    reason: str
    size: int = 0  # bytes of the file
    format: str = ""
    mode: str = ""
    height: int = 0
    width: int = 0
    marks: tuple[str, ...] = ()
    kind: str = ""  # of the reason, without figures and details: "truncated", "too large"
    digest: bytes = b""
    bits: np.ndarray | None = None  # bool (BITS,)
    colours: np.ndarray | None = None  # uint8 (SIDE, SIDE, 3), to tell duplicates from other images with the same bits
    channels: int = 3
    values: str = "uint8"  # the type of its numbers
    low: float = 0.0  # its smallest and its largest number
    high: float = 255.0
    pages: int = 1  # images in its file, of which it is the only one that is used


def examine(source: Source, index: int, max_megapixels: float) -> Look:
    """Header, pixels and fingerprints of one image as it is stored."""
    told = Told()
    try:
        told = _told(source, index, max_megapixels)
        pixels = source.read(index)
    except BadImage as error:
        return Look(index, str(error), told.size, kind=error.kind)
    marks = [*told.marks, *["CMYK"] * (told.mode == "CMYK"), *["grey"] * is_grey(pixels)]
    digest = told.digest or hashlib.blake2b(pixels.numpy().tobytes(), digest_size=16).digest()
    bits, colours = fingerprint(picture(pixels))
    height, width = pixels.shape[1:]
    seen = Look(index, "", told.size, told.format, told.mode, height, width, tuple(marks), "", digest, bits, colours)
    values = pixels.numpy()
    low, high = float(values.min()), float(values.max())
    return seen._replace(channels=len(values), values=values.dtype.name, low=low, high=high, pages=told.pages)


class Told(NamedTuple):
    """What a file says of its image, as far as it has one of its own."""

    size: int = 0
    format: str = ""
    mode: str = ""
    marks: tuple[str, ...] = ()
    digest: bytes = b""
    pages: int = 1


def _told(source: Source, index: int, max_megapixels: float) -> Told:
    header, size = source.header(index) if source.header else (None, 0)
    if header is not None:
        mode, deep = f"{header.channels} x {header.values}", header.values != "uint8"
        alone = header.images if source.path else 1
        return Told(size, header.format, mode, ("deep",) * deep, b"", alone)
    if not source.path:
        return Told(size)
    with open_image(source.path(index)) as file:
        size = os.fstat(file.fileno()).st_size
        seen = facts(file, max_megapixels)
        marks = [name for name in ("rotated", "animated", "deep", "fourth") if getattr(seen, name)]
        return Told(size, seen.format, seen.mode, tuple(marks), _digest(file))


def picture(pixels: Tensor) -> Tensor:
    """Any image (C, H, W) as uint8 (3, H, W): its first, middle and last channel, from its smallest to its largest."""
    if pixels.dtype == torch.uint8 and len(pixels) == 3:
        return pixels
    step = max(1, min(pixels.shape[1:]) // LARGEST)
    some = pixels[[0, len(pixels) // 2, len(pixels) - 1]][:, ::step, ::step].float()
    low, high = some.min(), some.max()
    return ((some - low) * (255 / (high - low).clamp(min=1e-12))).round().to(torch.uint8)


def _digest(file: BinaryIO) -> bytes:
    file.seek(0)
    digest = hashlib.blake2b(digest_size=16)
    while block := file.read(1 << 20):
        digest.update(block)
    return digest.digest()


def is_grey(pixels: Tensor) -> bool:
    """Whether all channels agree at nearly all of up to 64 × 64 pixels spread over an image of 8-bit colours; an image
    of one channel is grey, one of other channels is not."""
    if len(pixels) != 3 or pixels.dtype != torch.uint8:
        return len(pixels) == 1
    steps = [max(1, side // SAMPLES) for side in pixels.shape[1:]]
    some = pixels[:, :: steps[0], :: steps[1]].int()
    return float(((some.amax(0) - some.amin(0)) <= GREY_STEPS).float().mean()) >= 0.995


def fingerprint(pixels: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Whether each cell of a coarse grid is brighter than its neighbours (bool), and the cells' colours (uint8).

    The first hardly changes when an image is compressed again, resized or made brighter.
    """
    step = max(1, min(pixels.shape[1:]) // LARGEST)  # enough for cells, and not gigabytes of a large image
    image = pixels[:, ::step, ::step].float()[None]
    cells = F.adaptive_avg_pool2d(image.mean(1, keepdim=True), SIDE + 1)[0, 0]
    bits = torch.cat([(cells[:-1, 1:] > cells[:-1, :-1]).flatten(), (cells[1:, :-1] > cells[:-1, :-1]).flatten()])
    colours = F.adaptive_avg_pool2d(image, SIDE)[0].permute(1, 2, 0).round().to(torch.uint8)
    return bits.numpy(), colours.numpy()


class Looks(torch.utils.data.Dataset[list[Look]]):
    """Item i is the i-th chunk of images, looked at; for loader workers."""

    def __init__(self, source: Source, max_megapixels: float) -> None:
        self.source, self.max_megapixels = source, max_megapixels

    def __getitem__(self, chunk: int) -> list[Look]:
        last = min((chunk + 1) * CHUNK, len(self.source))
        return [examine(self.source, i, self.max_megapixels) for i in range(chunk * CHUNK, last)]

    def __len__(self) -> int:
        return (len(self.source) + CHUNK - 1) // CHUNK
