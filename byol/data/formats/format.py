"""What every reader of a file format gives and shares: a description from the header, one image as stored numbers."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import BinaryIO, Literal, NamedTuple, ParamSpec, Protocol, TypeVar

import numpy as np

from byol.data.source import BadImage
from byol.errors import UsageError

P = ParamSpec("P")
T = TypeVar("T")
# The numbers that an image may have. Others are widened: signed bytes to int16, all the rest to float32.
STORED = ("uint8", "uint16", "int16", "float32")
MOST_CHANNELS = 1024
MOST_IMAGES = 100_000_000  # in one file
PIXEL_BYTES = 8  # of one image, a pixel of the limit: 16-bit RGBA
READS = 300_000  # of one file for one image
MOST_UNPACKED = 1 << 30  # bytes of a compressed file, which is unpacked up to the image that is asked for


class Described(NamedTuple):
    """What the header of a file says of its images."""

    format: str
    images: int
    channels: int
    height: int
    width: int
    values: str  # numpy's name of the type of the numbers as they are read


class Reading(NamedTuple):
    """What a file leaves open; the fields of the same names in `config.Data`."""

    axes: str = "auto"  # of arrays: a letter an axis, N for images, C for channels, Y for rows and X for columns
    slices: Literal["axial", "coronal", "sagittal"] = "axial"  # of volumes
    voi: str = "file"  # of DICOM, its window: "file", "none" or CENTRE/WIDTH
    array: str = ""  # name of the array in a .npz or HDF5 file; empty: the only one


class Describe(Protocol):
    def __call__(self, file: BinaryIO, max_megapixels: float, reading: Reading = ...) -> Described: ...


class Read(Protocol):
    def __call__(self, file: BinaryIO, image: int, max_megapixels: float, reading: Reading = ...) -> np.ndarray: ...


class Format(NamedTuple):
    """`read` gives image number `image` of the file as (C, H, W) of one of the types STORED, or raises `BadImage`."""

    name: str
    extra: str  # of this package, which brings what the reader imports; empty: nothing is needed
    module: str  # which it imports
    describe: Describe
    read: Read

    def installed(self) -> bool:
        return not self.extra or _found(self.module)

    def check(self) -> None:
        """An error that says what to install, unless it is there."""
        if not self.installed():
            raise UsageError(f"Reading {self.name} files needs more packages: pip install 'byol[{self.extra}]'.")


@cache
def _found(module: str) -> bool:
    return find_spec(module) is not None


class Bounded:
    """A file that ends endless reading: each read is cut at the file's end before memory is taken for it, and a file
    made of too many pieces is given up."""

    def __init__(self, file: BinaryIO, reads: int = READS) -> None:
        self.file, self.reads = file, reads
        place = file.tell()
        self.size = file.seek(0, 2)
        file.seek(place)
        self.closed, self.name = False, ""

    def read(self, size: int | None = -1) -> bytes:
        self.reads -= 1
        if self.reads < 0:
            raise BadImage("cut into too many pieces")
        left = max(self.size - self.file.tell(), 0)
        return self.file.read(left if size is None or size < 0 else min(size, left))

    def readinto(self, buffer: bytearray | memoryview) -> int:
        data = self.read(len(memoryview(buffer).cast("B")))
        memoryview(buffer).cast("B")[: len(data)] = data
        return len(data)

    def seek(self, place: int, whence: int = 0) -> int:
        return self.file.seek(place, whence)

    def tell(self) -> int:
        return self.file.tell()

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


def guarded(what: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Whatever a library raises for a damaged file becomes a `BadImage`; so does a lack of memory."""

    def around(look: Callable[P, T]) -> Callable[P, T]:
        def guard(*args: P.args, **kwargs: P.kwargs) -> T:
            try:
                with np.errstate(all="ignore"):  # numbers that are not finite are filled, and not worth a warning
                    return look(*args, **kwargs)
            except (BadImage, UsageError):
                raise
            except MemoryError:
                bad = BadImage("not enough memory")
            except (EOFError, struct.error):  # of too few bytes
                bad = BadImage("truncated")
            except Exception as error:
                bad = damaged(what, error)
            raise bad  # outside the handler, so that it does not keep what was half read alive

        return guard

    return around


def damaged(what: str, error: Exception) -> BadImage:
    if isinstance(error, OSError) and error.errno is not None and error.strerror:
        return BadImage(error.strerror[:1].lower() + error.strerror[1:])
    if "truncated file" in str(error):  # HDF5's words
        return BadImage("truncated")
    text = "".join(c if c.isprintable() else " " for c in " ".join(str(error).split()))[:70]
    return BadImage(f"a damaged {what} file: {text or type(error).__name__}", f"damaged {what}")


def check_size(what: str, channels: int, height: int, width: int, itemsize: int, max_megapixels: float) -> None:
    """Refuses an image of no pixels or of too many, before memory is taken for it."""
    if min(channels, height, width) < 1:
        raise BadImage(
            f"a {what} file of {height} x {width} pixels in {channels} channels, which is nothing", "no pixels"
        )
    if height * width > max_megapixels * 1e6:
        size = f"{height * width / 1e6:.4g} megapixels"
        raise BadImage(f"{size}, over the limit of {max_megapixels:g}", "too large")
    if channels > MOST_CHANNELS:
        raise BadImage(f"{channels:,} channels, over the limit of {MOST_CHANNELS:,}", "too many channels")
    amount = channels * height * width * itemsize
    if amount > max_megapixels * 1e6 * PIXEL_BYTES:
        raise BadImage(
            f"{amount / 1e6:,.0f} MB in {channels} channels, too many for {max_megapixels:g} megapixels", "too large"
        )


def check_image(image: int, images: int) -> None:
    if not 0 <= image < images:
        raise BadImage(f"the file has {images} images and no number {image}", "fewer images than when it was listed")


def stored_type(kind: np.dtype) -> str:
    """The type that numbers of this kind are read as."""
    if kind.kind == "b":
        return "uint8"
    if kind.kind in "iu" and kind.itemsize <= 2:
        return "int16" if kind == np.int8 else f"{'u' * (kind.kind == 'u')}int{8 * kind.itemsize}"
    if kind.kind in "iuf":
        return "float32"
    raise BadImage(
        f"its values are of type {kind.name}, which are no numbers of an image", f"values of type {kind.name}"
    )


def stored(values: np.ndarray, invalid: np.ndarray | None = None) -> np.ndarray:
    """(C, H, W) numbers in the machine's order as one of the types STORED.

    Pixels that are not finite or that `invalid` marks take the mean of their channel's other pixels in this image (0 if
    there are none), which neither stretches the range nor shifts the mean.
    """
    found = np.ascontiguousarray(values, dtype=stored_type(values.dtype))
    if found.dtype == np.float32:
        infinite = ~np.isfinite(found)
        invalid = infinite if invalid is None else infinite | invalid
    if invalid is None or not invalid.any():
        return found
    found = found.copy() if np.shares_memory(found, values) else found
    for plane, holes in zip(found, invalid, strict=True):
        rest = plane[~holes]
        mean = float(rest.mean(dtype=np.float64)) if rest.size else 0.0
        plane[holes] = mean if found.dtype == np.float32 else round(mean)
    return found


def check_unpacked(amount: int, instead: str) -> None:
    if amount > MOST_UNPACKED:
        raise BadImage(
            f"it would unpack to {amount / 1e9:.3g} GB: unpack it to {instead} first", "too large when unpacked"
        )


def product(numbers: tuple[int, ...]) -> int:
    return math.prod(int(number) for number in numbers)
