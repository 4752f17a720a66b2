"""HDF5 files of one array of images. pyfive, which is all Python, says where the numbers are; they are read here.

The library of the HDF Group, which h5py uses, is not used: a damaged file can make it overwrite the process's memory.
"""

from __future__ import annotations

import logging
import os
import warnings
import zlib
from collections.abc import Iterator, Mapping
from itertools import product as combinations
from typing import Any, BinaryIO, NamedTuple, cast

import numpy as np

from byol.data.formats.format import (
    MOST_IMAGES,
    Bounded,
    Described,
    Reading,
    check_image,
    check_size,
    guarded,
    product,
    stored,
    stored_type,
)
from byol.data.formats.layout import Layout, layout, planes, sizes
from byol.data.source import BadImage

MAGIC = b"\x89HDF\r\n\x1a\n"
DEFLATE, SHUFFLE, CHECKSUM = 1, 2, 3  # filters
CONTIGUOUS, CHUNKED = 1, 2  # kinds of storage
NOWHERE = 2**64 - 1  # the address of what was never written
READS = 50_000  # for all that is not numbers
MOST_NAMES, DEEPEST = 1000, 4
MOST_CHUNKS = 10_000  # of one image
MOST_CHUNK = 1 << 28  # bytes
EMPTIEST = 2000  # the array may be so many times what is stored of it
ELSEWHERE = "its array is not in the file: copy it from where it is, or write it, into one file"


class Array(NamedTuple):
    """Where the numbers of an array are."""

    shape: tuple[int, ...]
    kind: np.dtype
    offset: int  # of all numbers, or
    chunks: tuple[int, ...]  # the shape of a chunk, and
    where: Mapping[tuple[int, ...], tuple[int, int, int]]  # by its corner: offset, bytes and the filters left out
    filters: tuple[int, ...]
    fill: float


class Found(NamedTuple):
    array: Array
    described: Described
    places: Layout


# The last arrays that were looked at, by file: an index of many chunks takes long to build.
_LOOKED: dict[tuple[Any, ...], Found] = {}
REMEMBERED = 8


@guarded("HDF5")
def describe(file: BinaryIO, max_megapixels: float, reading: Reading = Reading()) -> Described:
    return _found(file, max_megapixels, reading).described


@guarded("HDF5")
def read(file: BinaryIO, image: int, max_megapixels: float, reading: Reading = Reading()) -> np.ndarray:
    found = _found(file, max_megapixels, reading)
    check_image(image, found.described.images)
    return stored(planes(_cut(Bounded(file), found, image), found.places))


def _found(file: BinaryIO, max_megapixels: float, reading: Reading) -> Found:
    """The array that is meant; that of a file on the disk is looked for once, as long as the file does not change."""
    key: tuple[Any, ...] = ()
    if hasattr(file, "fileno") and not hasattr(file, "getvalue"):
        status = os.fstat(file.fileno())
        key = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, max_megapixels, reading)
        if key in _LOOKED:
            return _LOOKED[key]
    found = _look(Bounded(file, READS), max_megapixels, reading)
    if key:
        while len(_LOOKED) >= REMEMBERED:
            _LOOKED.pop(next(iter(_LOOKED)))
        _LOOKED[key] = found
    return found


def _look(file: Bounded, max_megapixels: float, reading: Reading) -> Found:
    import pyfive

    logging.getLogger("pyfive").setLevel(logging.CRITICAL)
    file.seek(0)
    start = file.read(8)
    if not start:
        raise BadImage("empty file")
    if start != MAGIC:
        raise BadImage("not an HDF5 file", "no HDF5 file")
    file.seek(0)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            opened = pyfive.File(cast(BinaryIO, file))
            data_set = _named(opened, reading.array) if reading.array else _only(opened)
            array = _described_array(data_set, max_megapixels, reading)
    except Exception as error:
        if "layout class" in str(error):
            raise BadImage("chunks of a kind that is not read: save it without libver='latest'", "newer HDF5") from None
        if not isinstance(error, AssertionError | NotImplementedError):
            raise
        # pyfive's of what it does not know
        raise BadImage(
            "damaged, or of parts that are not read, such as links to other files", "HDF5 not read"
        ) from None
    images, channels, height, width = sizes(array.shape, layout(array.shape, reading.axes, stack=True))
    described = Described("HDF5", images, channels, height, width, stored_type(array.kind))
    return Found(array, described, layout(array.shape, reading.axes, stack=True))


def _described_array(data_set: Any, max_megapixels: float, reading: Reading) -> Array:
    """Everything of an array but its numbers, looked at before more is read."""
    shape, kind = tuple(int(side) for side in data_set.shape), _kind(data_set)
    images, channels, height, width = sizes(shape, layout(shape, reading.axes, stack=True))
    check_size("HDF5", channels, height, width, kind.itemsize, max_megapixels)
    if not 0 < images <= MOST_IMAGES:
        raise BadImage(f"{images:,} images in one file", "no images" if images < 1 else "too many images")
    found = data_set.id
    filters = _filters(found)
    if found.layout_class == CONTIGUOUS and int(found.data_offset) != NOWHERE:
        return Array(shape, kind, int(found.data_offset), (), {}, (), 0)
    if found.layout_class != CHUNKED:
        raise BadImage(ELSEWHERE, "an array that is not in the file")
    chunks = tuple(int(side) for side in found.chunks)
    amount = product(chunks) * kind.itemsize
    if min(chunks) < 1 or amount > MOST_CHUNK:
        raise BadImage(f"chunks of {amount / 1e6:,.0f} MB: save it with chunks of one image", "too large chunks")
    index = {
        tuple(map(int, at)): (int(c.byte_offset), int(c.size), int(c.filter_mask)) for at, c in found.index.items()
    }
    held = sum(size for _, size, _ in index.values())
    if product(shape) * kind.itemsize > EMPTIEST * max(held, 1):
        size = f"{product(shape) * kind.itemsize / 1e6:,.0f} MB"
        raise BadImage(f"it claims {size}, of which it holds next to nothing", "mostly empty")
    fill = data_set.fillvalue
    return Array(shape, kind, 0, chunks, index, filters, 0 if fill is None else float(fill))


def _filters(found: Any) -> tuple[int, ...]:
    filters = tuple(int(each["filter_id"]) for each in found.filter_pipeline or ())
    if not set(filters) <= {DEFLATE, SHUFFLE, CHECKSUM}:
        raise BadImage("packed by a filter that is not read here: save it with gzip or without", "a filter not read")
    return filters


def _kind(data_set: Any) -> np.dtype:
    """Of numbers; truth values are kept as names of 0 and 1."""
    kind = np.dtype(data_set.dtype)
    if kind.hasobject or kind.fields is not None or kind.subdtype is not None:
        raise BadImage(f"its values are of type {kind!s:.40}, which are no numbers of an image", "values not read")
    stored_type(kind)
    return cast(np.dtype, kind)


def _arrays(group: Any, depth: int = 0) -> Iterator[tuple[str, Any]]:
    """The data sets in a group and below it, each by its own name and not by links to it."""
    import pyfive

    for number, name in enumerate(group):
        if number >= MOST_NAMES:
            raise BadImage(f"an HDF5 file of more than {MOST_NAMES:,} arrays", "too many arrays")
        found = group.get_lazy_view(name)
        if found is None or str(found.name).rpartition("/")[2] != name:
            continue
        if isinstance(found, pyfive.Dataset):
            yield name, found
        elif isinstance(found, pyfive.Group) and depth < DEEPEST:
            yield from ((f"{name}/{inner}", array) for inner, array in _arrays(found, depth + 1))


def _only(opened: Any) -> Any:
    images = dict[str, Any]()
    for number, (name, array) in enumerate(_arrays(opened)):
        if number >= MOST_NAMES:
            raise BadImage(f"an HDF5 file of more than {MOST_NAMES:,} arrays", "too many arrays")
        if array.shape is not None and len(array.shape) > 2:
            images[name] = array
    if len(images) != 1:
        some = ", ".join(f"{name:.20}" for name in list(images)[:3])
        listed = "".join(c if c.isprintable() else "?" for c in some) or "none"
        raise BadImage(f"{len(images)} arrays of images ({listed}): choose one with data.array", "several arrays")
    return next(iter(images.values()))


def _named(opened: Any, name: str) -> Any:
    import pyfive

    try:
        found = opened.get_lazy_view(name)
    except KeyError:
        found = None
    if not isinstance(found, pyfive.Dataset) or found.shape is None:
        raise BadImage(f"it has no array {name!r:.40}", "no such array")
    return found


def _cut(file: Bounded, found: Found, image: int) -> np.ndarray:
    """One image out of the array, whose axis of images is gone."""
    array, axis = found.array, found.places.images
    start, shape = [0] * len(array.shape), list(array.shape)
    if axis is not None:
        start[axis], shape[axis] = image, 1
    values = _chunked(file, array, start, shape) if array.chunks else _contiguous(file, array, axis, image, shape)
    return values if axis is None else values.reshape([side for i, side in enumerate(shape) if i != axis])


def _contiguous(file: Bounded, array: Array, axis: int | None, image: int, shape: list[int]) -> np.ndarray:
    if axis:
        raise BadImage("its images do not lie one after the other: save the array with images first", "order of axes")
    amount = product(tuple(shape)) * array.kind.itemsize
    file.seek(array.offset + image * amount if axis == 0 else array.offset)
    content = file.read(amount)
    if len(content) < amount:
        raise BadImage("truncated")
    return np.frombuffer(content, array.kind).reshape(shape)


def _chunked(file: Bounded, array: Array, start: list[int], shape: list[int]) -> np.ndarray:
    """Put together from the chunks that the image is in; one that was never written holds the array's fill value."""
    spans = [range(s // c, (s + n - 1) // c + 1) for s, n, c in zip(start, shape, array.chunks, strict=True)]
    if product(tuple(len(span) for span in spans)) > MOST_CHUNKS:
        raise BadImage("an image in too many chunks: save it with chunks of one image", "too many chunks")
    values = np.full(shape, array.fill).astype(array.kind)
    for numbers in combinations(*spans):
        corner = tuple(n * c for n, c in zip(numbers, array.chunks, strict=True))
        if corner not in array.where:
            continue
        content = _chunk(file, array, *array.where[corner])
        inside, outside = [], []
        for s, n, c, at in zip(start, shape, array.chunks, corner, strict=True):
            low, high = max(s, at), min(s + n, at + c)
            inside.append(slice(low - at, high - at))
            outside.append(slice(low - s, high - s))
        values[tuple(outside)] = content[tuple(inside)]
    return values


def _chunk(file: Bounded, array: Array, offset: int, size: int, left_out: int) -> np.ndarray:
    amount = product(array.chunks) * array.kind.itemsize
    if size > 2 * amount + 100_000:
        raise BadImage(f"a chunk of {size:,} bytes for {amount:,}", "damaged HDF5")
    file.seek(offset)
    content = file.read(size)
    if len(content) < size:
        raise BadImage("truncated")
    for number in range(len(array.filters) - 1, -1, -1):
        if not left_out >> number & 1:
            content = _unfiltered(content, array.filters[number], amount, array.kind.itemsize)
    if len(content) != amount:
        raise BadImage("a chunk of another size than it should have", "damaged HDF5")
    return np.frombuffer(content, array.kind).reshape(array.chunks)


def _unfiltered(content: bytes, filter: int, amount: int, itemsize: int) -> bytes:
    if filter == CHECKSUM:
        return content[:-4]
    if filter == DEFLATE:
        return zlib.decompressobj().decompress(content, amount + 5)
    whole = len(content) // itemsize * itemsize
    turned = np.frombuffer(content[:whole], np.uint8).reshape(itemsize, -1).T.tobytes()
    return turned + content[whole:]
