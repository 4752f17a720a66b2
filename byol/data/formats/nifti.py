"""NIfTI volumes, .nii and .nii.gz, as their slices along an anatomical axis; nibabel reads the header alone."""

from __future__ import annotations

import gzip
import logging
from collections.abc import Callable
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from byol.data.formats.format import (
    MOST_IMAGES,
    Bounded,
    Described,
    Reading,
    check_image,
    check_size,
    check_unpacked,
    guarded,
    product,
    stored,
    stored_type,
)
from byol.data.source import BadImage

AXES = {"sagittal": 0, "coronal": 1, "axial": 2}  # of a volume whose axes lead right, forward and up
MODALITIES = 16  # a fourth axis up to this long holds channels; a longer one, such as time, further volumes
PIECE = 1 << 20


class Volume(NamedTuple):
    """A header that was looked at."""

    shape: tuple[int, int, int]
    volumes: int  # of the fourth axis
    channels: int  # of the fourth axis, or colours
    kind: np.dtype
    colours: bool
    offset: int
    slope: float
    intercept: float
    axis: int  # of the file, along which slices are cut
    turn: tuple[tuple[int, int], ...]  # for each of right, forward, up: the axis of the file and its direction

    @property
    def slices(self) -> int:
        return self.shape[self.axis]

    @property
    def total(self) -> int:
        """Bytes up to the end of the numbers."""
        return self.offset + product(self.shape) * self.volumes * self.channels_stored * self.kind.itemsize

    @property
    def channels_stored(self) -> int:
        return 1 if self.colours else self.channels


@guarded("NIfTI")
def describe(file: BinaryIO, max_megapixels: float, reading: Reading = Reading()) -> Described:
    return _described(_volume(Bounded(file).read, max_megapixels, reading), _length(file))


@guarded("NIfTI")
def read(file: BinaryIO, image: int, max_megapixels: float, reading: Reading = Reading()) -> np.ndarray:
    volume = _volume(Bounded(file).read, max_megapixels, reading)
    check_image(image, _described(volume, _length(file)).images)
    return _cut(file, volume, image)


@guarded("NIfTI")
def describe_gz(file: BinaryIO, max_megapixels: float, reading: Reading = Reading()) -> Described:
    with gzip.GzipFile(fileobj=file, mode="rb") as unpacked:
        volume = _volume(unpacked.read, max_megapixels, reading)
    return _described(volume, _most(volume))


@guarded("NIfTI")
def read_gz(file: BinaryIO, image: int, max_megapixels: float, reading: Reading = Reading()) -> np.ndarray:
    """Unpacked up to the end of the slice, in pieces of which none is kept that is not needed."""
    with gzip.GzipFile(fileobj=file, mode="rb") as unpacked:
        volume = _volume(unpacked.read, max_megapixels, reading)
        check_image(image, _described(volume, _most(volume)).images)
        return _cut(unpacked, volume, image)


def _length(file: BinaryIO) -> int:
    return file.seek(0, 2)


def _most(volume: Volume) -> int:
    check_unpacked(volume.total, ".nii")
    return volume.total


def _volume(take: Callable[[int], bytes], max_megapixels: float, reading: Reading) -> Volume:
    """What the first bytes say, unless no file can be so."""
    import nibabel

    logging.getLogger("nibabel.global").setLevel(logging.CRITICAL)
    start = take(540)
    if not start:
        raise BadImage("empty file")
    kinds: dict[bytes, Any] = {b"n+1\0": nibabel.Nifti1Header, b"n+2\0": nibabel.Nifti2Header}
    for place, magic in ((344, b"n+1\0"), (4, b"n+2\0")):
        if start[place : place + 4] == magic:
            break
    else:
        raise BadImage("not a NIfTI file of one piece", "no NIfTI file")
    header = kinds[magic](start[: kinds[magic].template_dtype.itemsize], check=False)
    shape = tuple(int(side) for side in header.get_data_shape())
    if not 2 <= len(shape) <= 5 or min(shape) < 1:
        raise BadImage(f"a NIfTI file of shape {shape!s:.60}", "damaged NIfTI")
    kind = header.get_data_dtype()
    colours = kind.fields is not None
    if colours and kind.names[:3] != ("R", "G", "B"):
        raise BadImage(f"values of type {kind!s:.40}", "values not read")
    offset = int(header.get_data_offset())
    if offset < 0:
        raise BadImage("numbers that begin before the file", "damaged NIfTI")
    return _placed(shape, kind, colours, offset, header, max_megapixels, reading)


def _placed(
    shape: tuple[int, ...], kind: np.dtype, colours: bool, offset: int, header: Any, most: float, reading: Reading
) -> Volume:
    from nibabel.orientations import io_orientation

    further = product(shape[3:]) if len(shape) > 3 else 1
    modalities = further if not colours and 1 < further <= MODALITIES else 1
    channels = len(kind.names[:3]) if colours and kind.names else modalities
    slope, intercept = header.get_slope_inter()
    sides = (*shape[:3], 1)[:3]
    orientation = np.asarray(io_orientation(header.get_best_affine()))
    if not np.isfinite(orientation).all() or sorted(orientation[:, 0]) != [0, 1, 2]:
        orientation = np.array([[0, 1], [1, 1], [2, 1]])
    turn = tuple(
        (int(np.argmax(orientation[:, 0] == axis)), int(orientation[orientation[:, 0] == axis, 1][0]))
        for axis in range(3)
    )
    axis = turn[AXES[reading.slices]][0] if len(shape) > 2 else 2
    rest = [sides[i] for i in range(3) if i != axis]
    check_size("NIfTI", channels, rest[0], rest[1], 1 if colours else kind.itemsize, most)
    if not colours:
        stored_type(kind)
    return Volume(
        (sides[0], sides[1], sides[2]),
        further // modalities,
        channels,
        kind,
        colours,
        offset,
        float(slope if slope is not None else 1),
        float(intercept if intercept is not None else 0),
        axis,
        turn,
    )


def _described(volume: Volume, length: int) -> Described:
    images = volume.slices * volume.volumes
    if images > MOST_IMAGES or volume.total > length:
        raise BadImage("truncated")
    height, width = _sides(volume)
    values = "uint8" if volume.colours else "float32" if _scaled(volume) else stored_type(volume.kind)
    return Described("NIfTI", images, volume.channels, height, width, values)


def _scaled(volume: Volume) -> bool:
    return not (volume.slope == 1 and volume.intercept == 0)


def _across(volume: Volume) -> tuple[tuple[int, int], tuple[int, int]]:
    """The axes of the file, and their directions, for the rows and the columns of a slice."""
    columns, rows = (pair for pair in volume.turn if pair[0] != volume.axis)
    return rows, columns


def _sides(volume: Volume) -> tuple[int, int]:
    (rows, _), (columns, _) = _across(volume)
    return volume.shape[rows], volume.shape[columns]


def _cut(file: BinaryIO | gzip.GzipFile, volume: Volume, image: int) -> np.ndarray:
    """Slice number image, counted from left to right, back to front or below to above; up is up in it."""
    number, index = divmod(image, volume.slices)
    direction = dict(volume.turn)[volume.axis]
    index = index if direction > 0 else volume.slices - 1 - index
    planes = []
    for channel in range(volume.channels_stored):
        place = volume.offset + (number + channel * volume.volumes) * product(volume.shape) * volume.kind.itemsize
        planes.append(_slice(file, place, volume, index))
    values = np.stack(planes)
    if volume.colours:
        values = np.stack([values[0][name] for name in "RGB"])
    (rows, up), (columns, right) = _across(volume)
    if rows > columns:
        values = values.transpose(0, 2, 1)
    values = values[:, :: -1 if up > 0 else 1, :: 1 if right > 0 else -1]
    if _scaled(volume) and not volume.colours:
        values = values.astype(np.float64) * volume.slope + volume.intercept
    return stored(values)


def _slice(file: BinaryIO | gzip.GzipFile, start: int, volume: Volume, index: int) -> np.ndarray:
    """One slice of a volume at `start`, whose first axis runs fastest, with the other two axes in the file's order."""
    shape, axis, size = volume.shape, volume.axis, volume.kind.itemsize
    plane = shape[0] * shape[1] * size
    if axis == 2:
        return _numbers(file, start + index * plane, volume, shape[:2])
    if axis == 1:
        rows = [_numbers(file, start + k * plane + index * shape[0] * size, volume, shape[:1]) for k in range(shape[2])]
        return np.stack(rows, axis=1)
    return np.stack([_numbers(file, start + k * plane, volume, shape[:2])[index] for k in range(shape[2])], axis=1)


def _numbers(file: BinaryIO | gzip.GzipFile, start: int, volume: Volume, shape: tuple[int, ...]) -> np.ndarray:
    file.seek(start)
    amount = product(shape) * volume.kind.itemsize
    pieces, left = [], amount
    while left and (piece := file.read(min(left, PIECE))):
        pieces.append(piece)
        left -= len(piece)
    if left:
        raise BadImage("truncated")
    return np.frombuffer(b"".join(pieces), volume.kind).reshape(shape, order="F")
