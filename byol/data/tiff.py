"""What the header of a TIFF file says of its channels, for files whose channels are sound but not read here."""

from __future__ import annotations

import struct

ORDERS = {b"II*\0": "<", b"MM\0*": ">"}
BIG = (b"II+\0", b"MM\0+")
MAGIC = (*ORDERS, *BIG)
BITS, COMPRESSION, SAMPLES, FORMAT = 258, 259, 277, 339  # tags
SIZES = {1: "B", 3: "H", 4: "I"}  # types of a number
NUMBERS = {1: "", 2: "signed ", 3: "floating-point "}  # values of the tag FORMAT
MOST_TAGS, MOST_CHANNELS, MOST_BITS = 1000, 4096, 64


def channels(data: bytes) -> str:
    """`4 channels of 16 bits` by the first directory of a TIFF, of which `data` is the beginning; empty where that
    directory is damaged, says what no file can be, or names channels that are read, so that something else is wrong."""
    order = ORDERS.get(data[:4])
    try:
        tags = _tags(data, order) if order else {}
    except struct.error:  # the data ends before the directory does
        return ""
    count, bits = tags.get(SAMPLES, [1])[0], tags.get(BITS, [1])
    if not tags or COMPRESSION not in tags or not 0 < count <= MOST_CHANNELS or not 0 < max(bits) <= MOST_BITS:
        return ""
    number = NUMBERS.get(tags.get(FORMAT, [1])[0], "")
    if not number and (count == 1 or (count == 3 and set(bits) <= {8, 16})):
        return ""
    sizes = " or ".join(map(str, sorted(set(bits))))
    return f"{count} {number}channel{'s' * (count > 1)} of {sizes} bits"


def _tags(data: bytes, order: str) -> dict[int, list[int]]:
    """The whole numbers of the first directory by their tags."""
    (place,) = struct.unpack_from(f"{order}I", data, 4)
    (count,) = struct.unpack_from(f"{order}H", data, place)
    found = {}
    for entry in range(min(count, MOST_TAGS)):
        here = place + 2 + 12 * entry
        tag, kind, length = struct.unpack_from(f"{order}HHI", data, here)
        if kind not in SIZES or not 0 < length <= MOST_CHANNELS or tag not in (BITS, COMPRESSION, SAMPLES, FORMAT):
            continue
        layout = f"{order}{length}{SIZES[kind]}"
        inside = struct.calcsize(layout) <= 4
        start = here + 8 if inside else struct.unpack_from(f"{order}I", data, here + 8)[0]
        found[tag] = list(struct.unpack_from(layout, data, start))
    return found
