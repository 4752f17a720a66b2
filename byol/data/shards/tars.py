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

from byol.data.decode import printable, visible

BLOCK = 512
CHUNK = 1 << 20
MOST_ZEROS = 1 << 28  # bytes in a row after which a tar has ended: a file of holes could have any number of them
MOST = 1 << 62  # that an array of sizes can hold
LONGEST = 1 << 20  # of a name in a header of its own
SMALL = {"cls": 256, "json": 1 << 16}  # members that are read on the way, and the most that they may hold
NO_DATA = b"123456"  # links, devices, folders and pipes
ARRAYS = ("npy", "dcm", "dicom")  # one image each, where a sample has no picture
EXTENSIONS = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)


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
    """Every regular file of a tar of `size` bytes; after a damaged header the next sound one is looked for.

    tarfile reads each header, but the walk is ours: `TarFile` ends at a damaged header, takes a long name of any size
    into memory and follows maps of sparse files.
    """
    offset, extra = 0, dict[str, bytes]()
    while offset + BLOCK <= size:
        header = _header(_at(file, offset, BLOCK))
        if header is None:
            sound, zeros = _next_header(file, offset, size)
            if not zeros:
                yield Member(b"", offset, sound - offset)
            offset, extra = sound, {}
            continue
        start, length = offset + BLOCK, header.size
        if header.type in EXTENSIONS:
            if length <= LONGEST and header.type in (tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME):
                extra |= _extension(_at(file, start, length), header.type)
        else:
            with suppress(ValueError):
                length = max(int(extra.get("size", length)), 0)
            if header.type in tarfile.REGULAR_TYPES and header.type != tarfile.GNUTYPE_SPARSE:
                yield Member(extra.get("path", os.fsencode(header.name)), start, min(length, MOST))
            extra = {}
        offset = start + (0 if header.type in NO_DATA else -(-length // BLOCK) * BLOCK)


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
    endings = {e: e.rpartition(".")[2] for e in group}
    images = [e for e in group if endings[e] in extensions] or [e for e in group if endings[e] in ARRAYS]
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
        name=visible(name) if isinstance(name, str) else printable(image.name),
        offset=image.offset,
        size=image.size,
        top=printable(top) if slash else "",
        crc=_checksum(file, image) if checksums else -1,
        label=visible(label) if isinstance(label, str) else printable(told.get("cls", b"").strip()),
        place=place if type(place) is int and 0 <= place < MOST else -1,
        named=isinstance(name, str),
    )


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


def _header(block: bytes) -> tarfile.TarInfo | None:
    """A header block whose checksum is right."""
    try:
        header = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except tarfile.TarError:
        return None
    return header if header.size >= 0 else None


def _extension(data: bytes, kind: bytes) -> dict[str, bytes]:
    """What a header before the header says: a long name, or records such as `12 path=a`."""
    if kind == tarfile.GNUTYPE_LONGNAME:
        return {"path": data.partition(b"\0")[0]}
    records = {}
    while match := re.match(rb"(\d{1,7}) (path|size|[^=\n]*)=", data):
        end = int(match[1])
        if end <= match.end():
            break
        if match[2] in (b"path", b"size"):
            records[match[2].decode()] = data[match.end() : end - 1]
        data = data[end:]
    return records


def _next_header(file: BinaryIO, offset: int, size: int) -> tuple[int, bool]:
    """Where the next sound header is (or the end), and whether all before it is zeros, as at the end of a tar."""
    clean, zeros = True, 0
    while offset + BLOCK <= size and zeros < MOST_ZEROS:
        chunk = _at(file, offset, CHUNK)
        if not chunk:
            break
        if chunk.count(0) == len(chunk):
            offset, zeros = offset + len(chunk), zeros + len(chunk)
            continue
        zeros = 0
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
