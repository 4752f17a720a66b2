"""What a tar file holds and where, from its headers alone; damage costs what it hits, and nothing is ever unpacked."""

from __future__ import annotations

import json
import os
import re
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import suppress
from typing import BinaryIO, NamedTuple

from byol.data.decode import printable

BLOCK = 512
CHUNK = 1 << 20
NOTHING = bytes(BLOCK)
MOST = 1 << 62  # that an array of sizes can hold
LONGEST = 1 << 20  # of a name in a header of its own
SMALL = {"cls": 256, "json": 1 << 16}  # members that are read on the way, and the most that they may hold
NO_DATA = b"123456"  # links, devices, folders and pipes


class Member(NamedTuple):
    """A file in a tar; of what a damaged header hides only the place is known, and `name` is empty."""

    name: bytes
    offset: int  # of its first byte
    size: int


class Sample(NamedTuple):
    """An image with what its neighbours of the same key say of it; size -1: it is damaged."""

    name: str
    offset: int
    size: int
    top: str = ""  # the first folder in its key
    crc: int = -1  # CRC-32 of its bytes, -1: not computed
    label: str = ""
    place: int = -1  # in the order of the folder that it came from
    named: bool = False  # `name` is the one it had in that folder


def members(file: BinaryIO, size: int) -> Iterator[Member]:
    """Every regular file of a tar of `size` bytes; after a damaged header the next sound one is looked for."""
    offset, extra = 0, dict[str, bytes]()
    while offset + BLOCK <= size:
        block = _at(file, offset, BLOCK)
        header = _header(block)
        if header is None:
            found, clean = _next_header(file, offset, size)
            if not clean:
                yield Member(b"", offset, found - offset)
            offset, extra = found, {}
            continue
        name, length, kind = header
        start = offset + BLOCK
        if kind in (b"L", b"x", b"K", b"g"):
            if length <= LONGEST and kind in b"Lx":
                extra |= _extension(_at(file, start, length), kind)
        else:
            with suppress(ValueError):
                length = int(extra.get("size", length))
            if kind in b"07\0" and kind:
                yield Member(extra.get("path", name), start, min(max(length, 0), MOST))
            extra = {}
        length = 0 if kind in NO_DATA else max(length, 0)
        offset = start + (length + BLOCK - 1) // BLOCK * BLOCK


def samples(file: BinaryIO, size: int, extensions: frozenset[str], checksums: bool = False) -> Iterator[Sample]:
    """Members grouped as WebDataset does: neighbours with the same name up to the first dot are one sample."""
    key, group = b"", dict[str, Member]()
    for member in members(file, size):
        if not member.name:
            yield Sample(f"bytes from {member.offset}", member.offset, -1)
            continue
        folder, base = os.path.split(re.sub(rb"^(\./)+", b"", member.name))
        stem, _, extension = base.partition(b".")
        own = os.path.join(folder, stem)
        if not stem:  # hidden, such as the ._files of a Mac
            continue
        if own != key:
            yield from _sample(file, key, group, extensions, checksums)
            key, group = own, {}
        group.setdefault(printable(extension).lower(), member)
    yield from _sample(file, key, group, extensions, checksums)


def _sample(
    file: BinaryIO, key: bytes, group: dict[str, Member], extensions: frozenset[str], checksums: bool
) -> Iterator[Sample]:
    images = [e for e in group if e.rpartition(".")[2] in extensions]
    if not images:
        return
    image = group[min(images, key=len)]  # jpg before left.jpg
    top, slash, _ = key.partition(b"/")
    told = {e: _at(file, group[e].offset, group[e].size) for e in SMALL if e in group and group[e].size <= SMALL[e]}
    facts: dict[str, object] = {}
    with suppress(ValueError, RecursionError):
        loaded = json.loads(told.get("json", b"{}"))
        facts = loaded if isinstance(loaded, dict) else {}
    name, label, place = facts.get("name"), facts.get("class"), facts.get("place")
    yield Sample(
        name=_clean(name) if isinstance(name, str) else printable(image.name),
        offset=image.offset,
        size=image.size,
        top=printable(top) if slash else "",
        crc=_checksum(file, image) if checksums else -1,
        label=_clean(label) if isinstance(label, str) else printable(told.get("cls", b"").strip()),
        place=place if type(place) is int and 0 <= place < MOST else -1,
        named=isinstance(name, str),
    )


def _clean(text: str) -> str:
    return printable(text.encode("utf-8", "backslashreplace"))


def _checksum(file: BinaryIO, member: Member) -> int:
    crc, place, left = 0, member.offset, member.size
    while left > 0:
        data = _at(file, place, min(left, CHUNK))
        if not data:
            return -1
        crc, place, left = zlib.crc32(data, crc), place + len(data), left - len(data)
    return crc


def _at(file: BinaryIO, offset: int, size: int) -> bytes:
    file.seek(offset)
    return file.read(size)


def _header(block: bytes) -> tuple[bytes, int, bytes] | None:
    """(name, size, type) of a header block whose checksum is right."""
    if len(block) < BLOCK or block == NOTHING:
        return None
    try:
        size, stored = _number(block[124:136]), _number(block[148:156])
    except ValueError:
        return None
    if stored != sum(block[:148]) + 256 + sum(block[156:]) or size < 0:
        return None
    name, prefix = _text(block[:100]), _text(block[345:500])
    # GNU's own format keeps times where the prefix would be, and marks itself by a blank after "ustar".
    if prefix and block[257:263] == b"ustar\0":
        name = prefix + b"/" + name
    return name, size, block[156:157]


def _number(field: bytes) -> int:
    if field[0] & 0x80:  # binary, for what eleven octal digits cannot hold
        return int.from_bytes(field[1:], "big")
    return int(_text(field).strip() or b"0", 8)


def _text(field: bytes) -> bytes:
    return field.partition(b"\0")[0]


def _extension(data: bytes, kind: bytes) -> dict[str, bytes]:
    """What a header before the header says: a long name, or records such as `12 path=a`."""
    if kind == b"L":
        return {"path": _text(data)}
    found = {}
    while match := re.match(rb"(\d{1,7}) (path|size|[^=\n]*)=", data):
        end = int(match[1])
        if end <= match.end():
            break
        if match[2] in (b"path", b"size"):
            found[match[2].decode()] = data[match.end() : end - 1]
        data = data[end:]
    return found


def _next_header(file: BinaryIO, offset: int, size: int) -> tuple[int, bool]:
    """Where the next sound header is (or the end), and whether all before it is zeros, as at the end of a tar."""
    clean = True
    while offset + BLOCK <= size:
        chunk = _at(file, offset, CHUNK)
        if not chunk:
            break
        if chunk.count(0) == len(chunk):
            offset += len(chunk)
            continue
        for start in range(0, len(chunk), BLOCK):
            block = chunk[start : start + BLOCK]
            if block[257:262] == b"ustar" and _header(block):
                return offset + start, clean
            clean = clean and block.count(0) == len(block)
        offset += len(chunk)
    return size, clean


def packed(name: str, data: bytes) -> list[bytes]:
    """A member as it stands in a tar: its header, its bytes, and zeros up to a whole block."""
    info = tarfile.TarInfo(name)
    info.size = len(data)
    return [info.tobuf(tarfile.USTAR_FORMAT), data, bytes(-len(data) % BLOCK)]
