"""HDF5 files of one array of images, with h5py; chunks are unpacked here, and no filter or plug-in runs."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
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
MOST_NAMES, DEEPEST = 1000, 4
MOST_CHUNKS = 10_000  # of one image
MOST_CHUNK = 1 << 28  # bytes
EMPTIEST = 2000  # the array may be so many times what is stored of it
MANY = "HDF5 file of several arrays"


class Found(NamedTuple):
    array: Any  # h5py's data set
    described: Described
    places: Layout
    kind: np.dtype


@guarded("HDF5")
def describe(file: BinaryIO, max_megapixels: float, reading: Reading = Reading()) -> Described:
    with _opened(file) as (opened, _):
        return _found(opened, max_megapixels, reading).described


@guarded("HDF5")
def read(file: BinaryIO, image: int, max_megapixels: float, reading: Reading = Reading()) -> np.ndarray:
    with _opened(file) as (opened, bounded):
        found = _found(opened, max_megapixels, reading)
        check_image(image, found.described.images)
        return stored(planes(_cut(bounded, found, image), found.places))


class _opened:
    """h5py's view of an opened file, which may not load plug-ins."""

    def __init__(self, file: BinaryIO) -> None:
        os.environ.setdefault("HDF5_PLUGIN_PRELOAD", "::")
        self.bounded = Bounded(file)
        self.bounded.seek(0)
        start = self.bounded.read(8)
        if not start:
            raise BadImage("empty file")
        if start != MAGIC:
            raise BadImage("not an HDF5 file", "no HDF5 file")

    def __enter__(self) -> tuple[Any, Bounded]:
        import h5py

        self.opened = h5py.File(cast(BinaryIO, self.bounded), "r", rdcc_nbytes=0)
        return self.opened, self.bounded

    def __exit__(self, *_: object) -> None:
        self.opened.close()


def _found(opened: Any, max_megapixels: float, reading: Reading) -> Found:
    """The array that is meant, looked at before anything of it is read."""
    array = _named(opened, reading.array) if reading.array else _only(opened)
    kind, shape = array.dtype, tuple(int(side) for side in array.shape)
    if kind.hasobject or kind.fields is not None or kind.subdtype is not None:
        raise BadImage(f"its values are of type {kind!s:.40}, which are no numbers of an image", "values not read")
    values = stored_type(kind)
    places = layout(shape, reading.axes, stack=True)
    images, channels, height, width = sizes(shape, places)
    check_size("HDF5", channels, height, width, kind.itemsize, max_megapixels)
    if not 0 < images <= MOST_IMAGES:
        raise BadImage(f"{images:,} images in one file", "no images" if images < 1 else "too many images")
    _check_storage(array, product(shape) * kind.itemsize)
    return Found(array, Described("HDF5", images, channels, height, width, values), places, kind)


def _check_storage(array: Any, amount: int) -> None:
    """Refuses an array that is not in the file, or is spread or packed in a way that takes far more to read."""
    if array.is_virtual or array.external:
        raise BadImage(
            "its array lies in other files, which are not opened: copy it into one", "an array in other files"
        )
    if amount > EMPTIEST * max(array.id.get_storage_size(), 1):
        raise BadImage(f"it claims {amount / 1e6:,.0f} MB, of which it holds next to nothing", "mostly empty")
    settings = array.id.get_create_plist()
    filters = [settings.get_filter(i)[0] for i in range(settings.get_nfilters())]
    if not set(filters) <= {DEFLATE, SHUFFLE, CHECKSUM}:
        raise BadImage(
            "compressed by a filter that is not read here: save it with gzip or without", "a filter not read"
        )
    if array.chunks and product(array.chunks) * array.dtype.itemsize > MOST_CHUNK:
        size = product(array.chunks) * array.dtype.itemsize / 1e6
        raise BadImage(f"chunks of {size:,.0f} MB: save it with chunks of one image", "too large chunks")


def _arrays(group: Any, depth: int = 0) -> Iterator[tuple[str, Any]]:
    """The data sets in a group and below it, by hard links alone: others may lead to another file."""
    import h5py

    for number, name in enumerate(group):
        if number >= MOST_NAMES:
            raise BadImage(f"an HDF5 file of more than {MOST_NAMES:,} arrays", "too many arrays")
        if not isinstance(group.get(name, getlink=True), h5py.HardLink):
            continue
        kind = group.get(name, getclass=True)
        if kind is h5py.Dataset:
            yield name, group[name]
        elif kind is h5py.Group and depth < DEEPEST:
            yield from ((f"{name}/{inner}", found) for inner, found in _arrays(group[name], depth + 1))


def _only(opened: Any) -> Any:
    images = dict[str, Any]()
    for number, (name, array) in enumerate(_arrays(opened)):
        if number >= MOST_NAMES:
            raise BadImage(f"an HDF5 file of more than {MOST_NAMES:,} arrays", "too many arrays")
        if array.shape is not None and len(array.shape) > 2 and array.dtype.kind in "biuf":
            images[name] = array
    if len(images) != 1:
        some = ", ".join(f"{name:.20}" for name in list(images)[:3])
        listed = "".join(c if c.isprintable() else "?" for c in some) or "none"
        raise BadImage(f"{len(images)} arrays of images ({listed}): choose one with data.array", MANY)
    return next(iter(images.values()))


def _named(opened: Any, name: str) -> Any:
    import h5py

    found = opened
    for part in name.strip("/").split("/"):
        hard = isinstance(found, h5py.Group) and isinstance(found.get(part, getlink=True), h5py.HardLink)
        found = found[part] if hard else None
    if not isinstance(found, h5py.Dataset) or found.shape is None:
        raise BadImage(f"it has no array {name!r:.40}", "no such array")
    return found


def _cut(file: Bounded, found: Found, image: int) -> np.ndarray:
    """One image out of the array, whose axis of images is gone."""
    array, axis = found.array, found.places.images
    start = [0] * array.ndim
    shape = list(array.shape)
    if axis is not None:
        start[axis], shape[axis] = image, 1
    values = _contiguous(file, array, start, shape) if array.chunks is None else _chunked(array, start, shape)
    return values if axis is None else values.reshape([side for i, side in enumerate(shape) if i != axis])


def _contiguous(file: Bounded, array: Any, start: list[int], shape: list[int]) -> np.ndarray:
    place = array.id.get_offset()
    if place is None or (start != [0] * array.ndim and shape[1:] != list(array.shape[1:])):
        return np.asarray(array[tuple(slice(s, s + n) for s, n in zip(start, shape, strict=True))])
    one = product(tuple(shape)) * array.dtype.itemsize
    file.seek(place + start[0] * one)
    content = file.read(one)
    if len(content) < one:
        raise BadImage("truncated")
    return np.frombuffer(content, array.dtype).reshape(shape)


def _chunked(array: Any, start: list[int], shape: list[int]) -> np.ndarray:
    """Put together from the chunks that the image is in; one that was never written holds the array's fill value."""
    chunk, kind = array.chunks, array.dtype
    spans = [range(s // c, (s + n - 1) // c + 1) for s, n, c in zip(start, shape, chunk, strict=True)]
    if product(tuple(len(span) for span in spans)) > MOST_CHUNKS:
        raise BadImage("an image in too many chunks: save it with chunks of one image", "too many chunks")
    values = np.full(shape, array.fillvalue, kind)
    for numbers in combinations(*spans):
        corner = tuple(n * c for n, c in zip(numbers, chunk, strict=True))
        content = _chunk(array, corner)
        if content is None:
            continue
        inside, outside = [], []
        for s, n, c, at in zip(start, shape, chunk, corner, strict=True):
            low, high = max(s, at), min(s + n, at + c)
            inside.append(slice(low - at, high - at))
            outside.append(slice(low - s, high - s))
        values[tuple(outside)] = content[tuple(inside)]
    return values


def _chunk(array: Any, corner: tuple[int, ...]) -> np.ndarray | None:
    amount = product(array.chunks) * array.dtype.itemsize
    stored_chunk = array.id.get_chunk_info_by_coord(corner)
    if stored_chunk.byte_offset is None or not stored_chunk.size:
        return None
    if stored_chunk.size > 2 * amount + 100_000:
        raise BadImage(f"a chunk of {stored_chunk.size:,} bytes for {amount:,}", "damaged HDF5")
    mask, content = array.id.read_direct_chunk(corner)
    settings = array.id.get_create_plist()
    filters = [settings.get_filter(i)[0] for i in range(settings.get_nfilters())]
    for number in range(len(filters) - 1, -1, -1):
        if not mask >> number & 1:
            content = _unfiltered(bytes(content), filters[number], amount, array.dtype.itemsize)
    if len(content) != amount:
        raise BadImage("a chunk of another size than it should have", "damaged HDF5")
    return np.frombuffer(content, array.dtype).reshape(array.chunks)


def _unfiltered(content: bytes, filter: int, amount: int, itemsize: int) -> bytes:
    if filter == CHECKSUM:
        return content[:-4]
    if filter == DEFLATE:
        return zlib.decompressobj().decompress(content, amount + 5)
    whole = len(content) // itemsize * itemsize
    turned = np.frombuffer(content[:whole], np.uint8).reshape(itemsize, -1).T.tobytes()
    return turned + content[whole:]
