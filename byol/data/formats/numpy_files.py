"""Arrays of numpy: .npy and .npz, in which pickled objects are refused unread."""

from __future__ import annotations

import ast
import struct
import zipfile
from typing import IO, BinaryIO, NamedTuple

import numpy as np

from byol.data.formats.format import (
    MOST_IMAGES,
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
from byol.data.formats.layout import Layout, layout, planes, sizes
from byol.data.source import BadImage

LENGTHS = {1: "<H", 2: "<I", 3: "<I"}  # of the header, by the file's version
MOST_HEADER = 10_000
MOST_MEMBERS = 1000
PIECE = 1 << 20


class Header(NamedTuple):
    shape: tuple[int, ...]
    fortran: bool
    kind: np.dtype
    start: int  # of the numbers in the file


def _header(file: IO[bytes]) -> Header:
    """Of an array; the file is left at its first number."""
    start = file.read(8)
    if not start:
        raise BadImage("empty file")
    if start[:6] != b"\x93NUMPY" or len(start) < 8 or start[6] not in LENGTHS:
        raise BadImage("not a .npy file", "no .npy file")
    form = LENGTHS[start[6]]
    (length,) = struct.unpack(form, file.read(struct.calcsize(form)))
    if length > MOST_HEADER:
        raise BadImage(f"a .npy header of {length:,} bytes", "damaged NumPy")
    text = file.read(length)
    if len(text) < length:
        raise BadImage("truncated")
    told = ast.literal_eval(text.decode("utf-8" if start[6] == 3 else "latin1").strip())
    kind, shape = np.dtype(told["descr"]), told["shape"]
    if kind.hasobject:
        raise BadImage("an array of Python objects, which could run something: save numbers", "Python objects")
    if not isinstance(shape, tuple) or not all(type(side) is int and side >= 0 for side in shape):
        raise BadImage("a .npy header without a shape", "damaged NumPy")
    stored_type(kind)
    return Header(shape, bool(told["fortran_order"]), kind, 8 + struct.calcsize(form) + length)


def _described(
    header: Header, room: int, max_megapixels: float, reading: Reading, name: str
) -> tuple[Described, Layout]:
    """What a header says, unless `room` bytes do not hold it."""
    places = layout(header.shape, reading.axes)
    images, channels, height, width = sizes(header.shape, places)
    check_size(name, channels, height, width, header.kind.itemsize, max_megapixels)
    if not 0 < images <= MOST_IMAGES:
        raise BadImage(f"{images:,} images in one file", "no images" if images < 1 else "too many images")
    if product(header.shape) * header.kind.itemsize > room:
        raise BadImage("truncated")
    return Described(name, images, channels, height, width, stored_type(header.kind)), places


@guarded("NumPy")
def describe_npy(file: BinaryIO, max_megapixels: float, reading: Reading = Reading()) -> Described:
    header = _header(file)
    return _described(header, _size(file) - header.start, max_megapixels, reading, "NumPy")[0]


@guarded("NumPy")
def read_npy(file: BinaryIO, image: int, max_megapixels: float, reading: Reading = Reading()) -> np.ndarray:
    header = _header(file)
    found, places = _described(header, _size(file) - header.start, max_megapixels, reading, "NumPy")
    check_image(image, found.images)
    return stored(planes(_cut(file, header, places, image), places))


def _size(file: BinaryIO) -> int:
    place = file.tell()
    size = file.seek(0, 2)
    file.seek(place)
    return size


def _cut(file: BinaryIO, header: Header, places: Layout, image: int) -> np.ndarray:
    """The numbers of one image, of which only those are read that lie together."""
    shape, kind = header.shape, header.kind
    if places.images is None:
        return _numbers(file, header.start, shape, kind, header.fortran)
    outermost = len(shape) - 1 if header.fortran else 0
    if places.images == outermost:
        rest = shape[:outermost] + shape[outermost + 1 :]
        amount = product(rest) * kind.itemsize
        return _numbers(file, header.start + image * amount, rest, kind, header.fortran)
    raise BadImage(
        "its images do not lie one after the other: save the array with images first, in C order", "order of axes"
    )


def _numbers(file: BinaryIO, start: int, shape: tuple[int, ...], kind: np.dtype, fortran: bool) -> np.ndarray:
    file.seek(start)
    amount = product(shape) * kind.itemsize
    content = file.read(amount)
    if len(content) < amount:
        raise BadImage("truncated")
    return np.frombuffer(content, kind).reshape(shape, order="F" if fortran else "C")


@guarded("NumPy")
def describe_npz(file: BinaryIO, max_megapixels: float, reading: Reading = Reading()) -> Described:
    with zipfile.ZipFile(file) as archive:
        member = _member(archive, reading.array)
        with archive.open(member) as opened:
            header = _header(opened)
        check_unpacked(product(header.shape) * header.kind.itemsize, ".npy")
        return _described(header, member.file_size - header.start, max_megapixels, reading, "NumPy")[0]


@guarded("NumPy")
def read_npz(file: BinaryIO, image: int, max_megapixels: float, reading: Reading = Reading()) -> np.ndarray:
    """The archive is unpacked up to the image and no further, whatever it claims to hold."""
    with zipfile.ZipFile(file) as archive:
        member = _member(archive, reading.array)
        with archive.open(member) as opened:
            header = _header(opened)
            check_unpacked(product(header.shape) * header.kind.itemsize, ".npy")
            found, places = _described(header, member.file_size - header.start, max_megapixels, reading, "NumPy")
            check_image(image, found.images)
            return stored(planes(_cut(Forward(opened, header.start), header, places, image), places))  # type: ignore[arg-type]


class Forward:
    """A stream that can be read on from a later place."""

    def __init__(self, stream: IO[bytes], place: int) -> None:
        self.stream, self.place = stream, place

    def seek(self, place: int) -> None:
        while self.place < place:
            passed = len(self.stream.read(min(PIECE, place - self.place)))
            if not passed:
                raise BadImage("truncated")
            self.place += passed

    def read(self, amount: int) -> bytes:
        pieces = []
        while amount and (piece := self.stream.read(min(PIECE, amount))):
            pieces.append(piece)
            amount -= len(piece)
            self.place += len(piece)
        return b"".join(pieces)


def _member(archive: zipfile.ZipFile, name: str) -> zipfile.ZipInfo:
    """The array of that name, or the only one of at least two dimensions."""
    members = archive.infolist()
    if len(members) > MOST_MEMBERS:
        raise BadImage(f"a .npz file of {len(members):,} arrays", "too many arrays")
    if not {member.compress_type for member in members} <= {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
        raise BadImage("a .npz file compressed otherwise than numpy does", "damaged NumPy")
    found = {member.filename.removesuffix(".npy"): member for member in members}
    if name:
        if name not in found:
            raise BadImage(f"it has no array {name!r:.30}, only {_listed(found)}", "no such array")
        return found[name]
    flat = {}
    for key, member in found.items():
        with archive.open(member) as opened:
            if len(_header(opened).shape) > 1:
                flat[key] = member
    if len(flat) != 1:
        raise BadImage(f"{len(flat)} arrays of images ({_listed(flat)}): choose one with data.array", "several arrays")
    return next(iter(flat.values()))


def _listed(names: dict[str, zipfile.ZipInfo]) -> str:
    some = ", ".join(f"{name:.20}" for name in list(names)[:3])
    return "".join(c if c.isprintable() else "?" for c in some) or "none"
