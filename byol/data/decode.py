"""From the bytes of one image file to RGB pixels as a viewer would show them, or a `BadImage` that says why not."""

from __future__ import annotations

import io
import logging
import math
import os
import re
import warnings
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, TypeVar, cast

import numpy as np
import torch

from byol.data.source import BadImage
from byol.run import files

if TYPE_CHECKING:
    from PIL import Image, ImageFile

T = TypeVar("T")

# Only these are tried: Pillow knows dozens more, some of which start other programs (EPS) or sniff loosely.
FORMATS = ("JPEG", "PNG", "BMP", "GIF", "WEBP", "TIFF", "PPM", "JPEG2000", "AVIF")
MAGIC = (b"\xff\xd8\xff", b"\x89PNG", b"BM", b"GIF8", b"RIFF", b"II*\0", b"MM\0*", b"\0\0\0\x0cjP")
ORIENTATION = 0x0112  # the EXIF tag
# Pillow passes over junk between JPEG markers one byte at a time (20 s for 200 MB of zeros) and takes all of a WebP or
# AVIF file for its header. Sound headers need some hundred reads.
HEADER_READS = 100_000
HEADER_BYTES = 64_000_000
PIXEL_READS = 300_000  # for the pixels; PNG is read chunk by chunk, and a sound chunk has thousands of bytes
# Every scan of a JPEG goes over all pixels; a progressive one has ten. Together they may go over so many pixels.
FEW_SCANS, MOST_SCANS, MOST_SCANNED = 32, 2000, 2e9
# Pillow reads numbers that are written as text, and the comments between them, in Python.
PLAIN_BYTES, PLAIN_COMMENTS = 4_000_000, 1000
PIECE = 1 << 20
STRAIGHT = (False, False, False)
# EXIF orientation -> (swap rows and columns, then flip rows, flip columns)
TURNS = {
    2: (False, False, True),
    3: (False, True, True),
    4: (False, True, False),
    5: (True, False, False),
    6: (True, False, True),
    7: (True, True, True),
    8: (True, True, False),
}
QUIET = ("ignore", None, Warning, re.compile(r"PIL\."), 0)


class Header:
    """A file that stops Pillow from reading on and on, for a header that never ends or for endless pieces."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.over = False
        self.reads, self.room = HEADER_READS, HEADER_BYTES

    def read(self, size: int = -1) -> bytes:
        self.reads -= 1
        if self.over:
            if self.reads < 0:
                raise BadImage("cut into too many pieces")
            return self.file.read(size)
        data = self.file.read(size if 0 <= size <= self.room else self.room + 1)
        self.room -= len(data)
        if self.reads < 0 or self.room < 0:
            raise BadImage("no end of the header")
        return data

    def pixels_follow(self) -> None:
        """The header was sound: from here on its limits do not count, but the number of reads does."""
        self.over, self.reads = True, PIXEL_READS

    def count(self, mark: bytes) -> int:
        """How often the whole file has these bytes."""
        place, number, end = self.file.tell(), 0, b""
        self.file.seek(0)
        while piece := self.file.read(PIECE):
            number += (end + piece).count(mark)
            end = piece[-len(mark) + 1 :] if len(mark) > 1 else b""
        self.file.seek(place)
        return number

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


def decode(data: bytes | BinaryIO, max_megapixels: float = 64.0) -> torch.Tensor:
    """Image file (its bytes, or opened) to uint8 (3, H, W) RGB: first frame, upright, transparency on white."""
    return looked(data, max_megapixels, pixels)


def decode_values(data: bytes | BinaryIO, max_megapixels: float = 64.0) -> np.ndarray:
    """A map of numbers as it is stored: (H, W) of grey levels, deep grey or palette numbers; (H, W, 3) of colours.

    It is not turned upright: a map numbers the pixels of the image as they are stored.
    """
    return looked(data, max_megapixels, _values)


def image_size(source: bytes | str | os.PathLike[str]) -> tuple[int, int]:
    """(height, width) of the upright image from its header alone; `source` is the file's bytes or its path."""
    if isinstance(source, bytes):
        return looked(source, None, _upright_size)
    with open_image(os.fsencode(source)) as file:
        return looked(file, None, _upright_size)


def looked(data: bytes | BinaryIO, max_megapixels: float | None, look: Callable[[ImageFile.ImageFile], T]) -> T:
    """What `look` makes of the opened image; whatever goes wrong is a `BadImage`."""
    try:
        with _open(data, max_megapixels) as image:
            return look(image)
    except BadImage:
        raise
    except Exception as error:
        bad = _bad(error, data, max_megapixels)
    # Raised outside the handler, so that it does not keep the half-decoded image alive.
    raise bad


def pixels(image: ImageFile.ImageFile) -> torch.Tensor:
    """An opened image as uint8 (3, H, W)."""
    load(image)
    return _planes(upright(_rgb(image), image))


def upright(values: np.ndarray, image: ImageFile.ImageFile) -> np.ndarray:
    """(H, W) or (H, W, C) of an image that was loaded, as its orientation turns it."""
    # Read after loading, because a TIFF turns itself then and drops the tag.
    return _turn(values, _orientation(image, type(image).getexif))


def _values(image: ImageFile.ImageFile) -> np.ndarray:
    load(image)
    plain = image.mode in ("1", "L", "P", "F") or image.mode.startswith("I")
    return np.array(image if plain else image.convert("RGB"))


def load(image: ImageFile.ImageFile) -> None:
    """Decodes the pixels, unless the file is made so that this would take many times the work of its size."""
    from PIL.JpegImagePlugin import JpegImageFile

    file, pixels = cast(Header, image.fp), image.width * image.height
    if isinstance(image, JpegImageFile):
        scans = file.count(b"\xff\xda")
        if scans > MOST_SCANS or (scans > FEW_SCANS and scans * pixels > MOST_SCANNED):
            raise BadImage(f"a JPEG of {scans:,} scans", "too many scans")
    elif image.tile and image.tile[0][0] == "ppm_plain":
        size = file.file.seek(0, os.SEEK_END)
        if size > PLAIN_BYTES or file.count(b"#") > PLAIN_COMMENTS:
            raise BadImage(f"{size / 1e6:.1f} MB of plain text, too slow to read", "too slow to read")
    image.load()


def _upright_size(image: ImageFile.ImageFile) -> tuple[int, int]:
    width, height = image.size
    # A TIFF already reports its upright size.
    turned = image.format != "TIFF" and TURNS.get(_header_orientation(image), STRAIGHT)[0]
    return (width, height) if turned else (height, width)


class Facts(NamedTuple):
    """What a file's header says of its image."""

    format: str
    mode: str
    height: int  # upright
    width: int
    rotated: bool  # an EXIF tag turns it
    animated: bool  # or of several pages
    deep: bool  # more than 8 bits a channel
    fourth: bool  # a channel beside the colours, which is taken for transparency or left out


def facts(file: BinaryIO, max_megapixels: float = 64.0) -> Facts:
    """From the header of an opened file, which is left at any place."""
    return looked(file, max_megapixels, _facts)


def _facts(image: ImageFile.ImageFile) -> Facts:
    height, width = _upright_size(image)
    raw = " ".join(str(tile[3]) for tile in image.tile)
    deep = image.mode[0] in "IF" or ";16" in raw
    animated = bool(getattr(image, "is_animated", False))
    turned, fourth = _header_orientation(image) in TURNS, image.mode[-1] in "Aa" or "X" in raw
    return Facts(str(image.format), image.mode, height, width, turned, animated, deep, fourth)


def from_pil(image: Image.Image) -> torch.Tensor:
    """A Pillow image of any mode to uint8 (3, H, W) RGB, with the same rules as `decode`."""
    return _planes(_rgb(image))


def open_image(path: bytes) -> BinaryIO:
    """An image file opened for reading; a pipe or a device that bears an image's name is a bad image."""
    try:
        return files.open_regular(path)
    except OSError as error:
        raise BadImage("not a regular file" if isinstance(error, IsADirectoryError) else _strerror(error)) from None


@cache
def _formats() -> tuple[str, ...]:
    from PIL import Image

    Image.init()
    # Without any handler, Python would print Pillow's complaints about a damaged TIFF to stderr.
    logging.getLogger("PIL").addHandler(logging.NullHandler())
    return tuple(name for name in FORMATS if name in Image.OPEN)


def _open(data: bytes | BinaryIO, max_megapixels: float | None) -> ImageFile.ImageFile:
    """Header only; None leaves the limit to Pillow."""
    from PIL import Image

    if isinstance(data, bytes) and not data:
        raise BadImage("empty file")
    formats = _formats()
    # A filter that stays, not `catch_warnings`: that is unsafe in threads and makes once-only warnings repeat.
    if QUIET not in warnings.filters:
        warnings.filterwarnings("ignore", module=QUIET[3].pattern)
    limit = math.inf if max_megapixels is None else max_megapixels * 1e6
    # Whoever allows more than Pillow does has said so on purpose.
    if max_megapixels is not None and Image.MAX_IMAGE_PIXELS is not None and limit > Image.MAX_IMAGE_PIXELS:
        Image.MAX_IMAGE_PIXELS = int(min(limit, 2.0**62))
    header = Header(io.BytesIO(data) if isinstance(data, bytes) else data)
    image = Image.open(cast(BinaryIO, header), formats=formats)
    header.pixels_follow()
    width, height = image.size
    if width < 1 or height < 1:
        raise BadImage("no pixels")
    if width * height > limit:
        raise _too_large(width * height, max_megapixels)
    return image


def _too_large(pixels: int, max_megapixels: float | None) -> BadImage:
    limit = "" if max_megapixels is None else f" of {max_megapixels:g}"
    return BadImage(f"{pixels / 1e6:.4g} megapixels, over the limit{limit}", "too large")


def _orientation(image: Image.Image, getexif: Callable[[Any], Image.Exif]) -> int:
    # A broken EXIF block does not stop a viewer, so it does not stop us.
    try:
        value = getexif(image).get(ORIENTATION, 1)
    except Exception:
        return 1
    return value if isinstance(value, int) else 1


def _header_orientation(image: Image.Image) -> int:
    from PIL import Image

    # The getexif of the base class does not decode a PNG to find the tag.
    return _orientation(image, Image.Image.getexif)


def _turn(pixels: np.ndarray, orientation: int) -> np.ndarray:
    swap, rows, columns = TURNS.get(orientation, STRAIGHT)
    if swap:
        pixels = pixels.swapaxes(0, 1)
    return pixels[:: -1 if rows else 1, :: -1 if columns else 1]


def _planes(pixels: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(pixels.transpose(2, 0, 1).copy())


def _rgb(image: Image.Image) -> np.ndarray:
    """Any mode to uint8 (H, W, 3)."""
    from PIL import Image

    if image.mode[0] in "IF":
        grey = eight_bits(np.asarray(image), is_sixteen(image), image.mode == "F")
        return np.broadcast_to(grey[..., None], (*grey.shape, 3))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        white = Image.new("RGB", image.size, "white")
        white.paste(image, mask=image.getchannel("A"))
        image = white
    return np.asarray(image if image.mode == "RGB" else image.convert("RGB"))


def is_sixteen(image: Image.Image) -> bool:
    """Whether deep grey has 16 bits; these formats deliver it as mode I in some versions of Pillow."""
    return image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PNG", "PPM", "JPEG2000"))


def eight_bits(values: np.ndarray, sixteen: bool, real: bool) -> np.ndarray:
    """Deep values to uint8: 16 bits without a sign, other whole numbers, or `real` ones. Pillow's own conversion clips
    deep grey to white."""
    if sixteen:
        return ((values.clip(0, 65535).astype(np.uint32) + 128) // 257).astype(np.uint8)
    # 32-bit values have no agreed white. Floats within 0..1 are taken as fractions of it and values within 0..255 as
    # they are; anything else is stretched from its own minimum to its own maximum.
    finite = np.isfinite(values)
    if not finite.any():
        return np.zeros(values.shape, np.uint8)
    low, high = float(values[finite].min()), float(values[finite].max())
    scaled = np.where(finite, values, low).astype(np.float64)
    if real and low >= 0 and high <= 1:
        scaled *= 255
    elif low < 0 or high > 255:
        scaled = (scaled - low) * (255 / (high - low) if high > low else 0)
    return scaled.round().astype(np.uint8)


def _bad(error: Exception, data: bytes | BinaryIO, max_megapixels: float | None) -> BadImage:
    from PIL import Image, UnidentifiedImageError

    text = " ".join(str(error).split())[:100]
    if isinstance(error, UnidentifiedImageError):
        return _not_an_image(data)
    if isinstance(error, Image.DecompressionBombError):
        pixels = re.search(r"\((\d+) pixels", text)
        return _too_large(int(pixels[1]), max_megapixels) if pixels else BadImage("too many pixels", "too large")
    if isinstance(error, EOFError) or re.search("truncat|not enough|unexpected end", text, re.IGNORECASE):
        return BadImage("truncated")
    if isinstance(error, MemoryError):
        return BadImage("not enough memory")
    if isinstance(error, OSError) and error.strerror:
        return BadImage(_strerror(error))
    return BadImage(f"cannot be decoded: {text or type(error).__name__}", "cannot be decoded")


def _strerror(error: OSError) -> str:
    text = error.strerror or str(error)
    return text[:1].lower() + text[1:]


def _not_an_image(data: bytes | BinaryIO) -> BadImage:
    """Why Pillow does not know a file: it is no image, it is damaged, or it is a TIFF of channels that Pillow lacks."""
    from byol.data import tiff

    try:
        start = data[:PIECE] if isinstance(data, bytes) else _start(data)
    except (OSError, ValueError):
        return BadImage("cannot be read")
    if not start:
        return BadImage("empty file")
    if start.startswith(tiff.MAGIC) and not tiff.is_picture(io.BytesIO(data) if isinstance(data, bytes) else data):
        return BadImage("a TIFF that is no picture of 8-bit colours, which are all that is read here", "no 8-bit TIFF")
    return BadImage("damaged or unfinished header" if start.startswith(MAGIC) else "not an image")


def _start(file: BinaryIO) -> bytes:
    file.seek(0)
    return file.read(PIECE)


def printable(path: bytes | str | os.PathLike[str]) -> str:
    """A file name for messages and lists. Bytes that are no UTF-8, line breaks and invisible characters are escaped,
    and so is the backslash: two files never have the same text."""
    return visible(os.fsencode(path).replace(b"\\", b"\\\\").decode("utf-8", "backslashreplace"))


def visible(text: str) -> str:
    """A text that somebody else wrote, with invisible characters escaped; what `printable` gave stays as it is."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
