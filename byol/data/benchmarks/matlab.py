"""Numbers from .mat files of MATLAB 5 to 7, read without scipy, whose reader a damaged file can make crash."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

MOST_BYTES = 2**24  # of a file and of what it unpacks to
HEADER = 128
MATRIX, COMPRESSED = 14, 15
NUMBERS = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}


class Element(NamedTuple):
    """A number for its type, and its bytes."""

    kind: int
    content: bytes


def numbers(content: bytes, name: str) -> np.ndarray:
    """The values of a variable, column after column; a ValueError if they cannot be read."""
    if len(content) > MOST_BYTES or content[126:128] not in (b"IM", b"MI"):
        raise ValueError("this is no .mat file of MATLAB 5 to 7")
    order = "<" if content[126:128] == b"IM" else ">"
    for element in _elements(content[HEADER:], order):
        if element.kind == COMPRESSED:
            unpacked = zlib.decompressobj()
            try:
                inner = unpacked.decompress(element.content, MOST_BYTES)
            except zlib.error as error:
                raise ValueError(str(error)) from None
            element = next(_elements(inner, order), element)
        if element.kind != MATRIX:
            continue
        parts = list(_elements(element.content, order))  # flags, sizes, name, values
        if len(parts) > 3 and parts[2].content == name.encode() and parts[3].kind in NUMBERS:
            return np.frombuffer(parts[3].content, order + NUMBERS[parts[3].kind])
    raise ValueError(f"it has no numbers called {name}")


def _elements(content: bytes, order: str) -> Iterator[Element]:
    """One after the other; a small one has its size in the upper half of its kind, and its bytes where that was."""
    place = 0
    while place + 8 <= len(content):
        kind, size = struct.unpack_from(order + "II", content, place)
        start = place + 8
        if kind >> 16:
            kind, size, start = kind & 0xFFFF, kind >> 16, place + 4
        if start + size > len(content):
            raise ValueError("it is cut short")
        yield Element(kind, content[start : start + size])
        place = start + size if kind == COMPRESSED else -(-(start + size) // 8) * 8
