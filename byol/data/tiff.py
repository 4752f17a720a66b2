"""What the first directory of a TIFF file says: whether the file is a picture of 8-bit colours, which Pillow shows as
others do, or numbers that are read as they are stored."""

from __future__ import annotations

import struct
from typing import BinaryIO

ORDERS = {b"II*\0": "<", b"MM\0*": ">"}
BIG = (b"II+\0", b"MM\0+")
MAGIC = (*ORDERS, *BIG)
BITS, PHOTOMETRIC, SAMPLES, EXTRA, FORMAT = 258, 262, 277, 338, 339  # tags
SIZES = {1: "B", 3: "H", 4: "I"}  # types of a number
MOST_TAGS, MOST_NUMBERS = 1000, 4096
UNSIGNED = 1  # a value of the tag FORMAT
TRANSPARENCY = (1, 2)  # values of the tag EXTRA
INKS, COLOURS = 5, (0, 1, 2, 3, 6, 8)  # photometric interpretations: CMYK; grey, RGB, palette, YCbCr and Lab


def is_picture(file: BinaryIO) -> bool:
    """Whether a file is left to Pillow: grey, colours or a palette of up to 8 bits, perhaps with transparency. So is
    one that is damaged or no TIFF, of which Pillow says what is wrong. The file is left at its beginning."""
    try:
        tags = first_directory(file)
    except (struct.error, OSError, ValueError):
        return True
    finally:
        file.seek(0)
    if tags is None:
        return False
    bits, extra = tags.get(BITS, [1]), tags.get(EXTRA, [])
    count, photometric = tags.get(SAMPLES, [1])[0], tags.get(PHOTOMETRIC, [1])[0]
    colours = count - len(extra) if set(extra) <= set(TRANSPARENCY) else count
    plain = max(bits) <= 8 and set(tags.get(FORMAT, [UNSIGNED])) == {UNSIGNED}
    return plain and ((photometric in COLOURS and colours in (1, 3)) or (photometric == INKS and colours == 4))


def is_grey(file: BinaryIO) -> bool:
    """Whether it has one channel, of which Pillow keeps all bits."""
    try:
        tags = first_directory(file)
    except (struct.error, OSError, ValueError):
        return False
    finally:
        file.seek(0)
    return tags is not None and tags.get(SAMPLES, [1])[0] == 1


def first_directory(file: BinaryIO) -> dict[int, list[int]] | None:
    """The whole numbers of the first directory by their tags; none for what is no TIFF, None for a BigTIFF."""
    file.seek(0)
    start = file.read(8)
    if start[:4] in BIG:
        return None
    order = ORDERS.get(start[:4])
    if order is None:
        return {}
    (place,) = struct.unpack(f"{order}I", start[4:])
    file.seek(place)
    (count,) = struct.unpack(f"{order}H", file.read(2))
    content = file.read(12 * min(count, MOST_TAGS))
    found = {}
    for entry in range(min(count, MOST_TAGS)):
        tag, kind, length = struct.unpack_from(f"{order}HHI", content, 12 * entry)
        if (
            kind not in SIZES
            or not 0 < length <= MOST_NUMBERS
            or tag not in (BITS, PHOTOMETRIC, SAMPLES, EXTRA, FORMAT)
        ):
            continue
        layout = f"{order}{length}{SIZES[kind]}"
        size = struct.calcsize(layout)
        if size > 4:
            file.seek(struct.unpack_from(f"{order}I", content, 12 * entry + 8)[0])
        data = content[12 * entry + 8 : 12 * entry + 12] if size <= 4 else file.read(size)
        found[tag] = list(struct.unpack_from(layout, data))
    return found


def pages_of(file: BinaryIO) -> int:
    """One, or two where there are more; the file is left at its beginning."""
    try:
        file.seek(0)
        start = file.read(8)
        order = ORDERS.get(start[:4])
        if order is None:
            return 1
        file.seek(struct.unpack(f"{order}I", start[4:])[0])
        (count,) = struct.unpack(f"{order}H", file.read(2))
        file.seek(12 * count, 1)
        return 2 if struct.unpack(f"{order}I", file.read(4))[0] else 1
    except (struct.error, OSError, ValueError):
        return 1
    finally:
        file.seek(0)
