"""Where every image of a set of shards lies: as `byol shard` wrote it down, or found from the tars' own headers."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from byol.data import places
from byol.data.address import is_remote
from byol.data.arrays import read_npz
from byol.data.decode import printable
from byol.data.folder import MANIFEST, Paths, joined, supported
from byol.data.shards import tars
from byol.errors import BadData, DiskError
from byol.run.files import read_regular, write_atomically
from byol.run.progress import bar

INDEX = "shards.npz"
FORMAT = "byol-shards-1"
READERS = 8  # shards that are indexed at a time over a network
LABELLED = 0.99  # of the images with a label, for the others to count as damaged
MOST_CLASSES = 1_000_000

Table = dict[str, Any]  # columns of one shard: offset, size, crc, place, and texts as a buffer and ends


@dataclass(frozen=True)
class Shard:
    """A finished shard, as the manifest lists it."""

    name: str
    bytes: int
    sha256: str
    images: int


@dataclass(frozen=True)
class Manifest:
    """shards.json: what the shards hold, of which the first are finished."""

    job: str  # tells these images, in this order and size of shard, from others
    images: int
    classes: tuple[str, ...]
    shards: tuple[Shard, ...] = ()
    index: str = ""  # SHA-256 of shards.npz; empty until every shard is finished


@dataclass(frozen=True)
class Index:
    """Where every image is, in the order of the source."""

    shard: np.ndarray  # int32 (count,)
    offset: np.ndarray  # int64 (count,)
    size: np.ndarray  # int64 (count,), -1: damaged
    crc: np.ndarray  # int64 (count,), of the image's bytes, -1: unknown
    names: Paths
    labels: np.ndarray | None
    classes: tuple[str, ...]


def read_manifest(folder: str) -> Manifest | None:
    """shards.json of a folder, checked: its names lead nowhere else."""
    place = f"{folder.rstrip('/')}/{MANIFEST}"
    content = places.whole(place)
    if content is None:
        return None
    try:
        fields = json.loads(content)
        if fields.pop("format") != FORMAT:
            raise BadData(f"{printable(place)} is of another format than {FORMAT}.")
        shards = tuple(Shard(**shard) for shard in fields.pop("shards"))
        manifest = Manifest(**{**fields, "classes": tuple(map(str, fields["classes"]))}, shards=shards)
        sound = _sound(manifest)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        sound = False
    if not sound:
        raise BadData(f"{printable(place)} is damaged or not ours.")
    return manifest


def _sound(manifest: Manifest) -> bool:
    """Types are right, names lead to no other folder, and finished shards hold all images."""
    shards = manifest.shards
    return (
        all(re.fullmatch(r"[^./][^/]*\.tar", shard.name) for shard in shards)
        and all(type(s.bytes) is type(s.images) is int and isinstance(s.sha256, str) for s in shards)
        and isinstance(manifest.job, str)
        and isinstance(manifest.index, str)
        and (not manifest.index or sum(shard.images for shard in shards) == manifest.images)
    )


def manifest_bytes(manifest: Manifest) -> bytes:
    return (json.dumps({"format": FORMAT, **asdict(manifest)}, indent=1, ensure_ascii=False) + "\n").encode()


def index_bytes(index: Index) -> bytes:
    """As a .npz file: plain arrays with a CRC each, nothing that could run."""
    columns = {"shard": index.shard, "offset": index.offset, "size": index.size, "crc": index.crc}
    labels = np.empty(0, np.int64) if index.labels is None else index.labels
    return _npz(columns | text_columns("names", index.names) | {"labels": labels})


def load_index(content: bytes, shards: int, count: int, classes: tuple[str, ...]) -> Index | None:
    """None when it is damaged or does not fit."""
    arrays = _arrays(content, ("shard", "offset", "size", "crc"), ("names",), ("labels",))
    if arrays is None or len(arrays["shard"]) != count:
        return None
    labels = arrays["labels"] if len(arrays["labels"]) else None
    shard, offset, size, crc = (arrays[name] for name in ("shard", "offset", "size", "crc"))
    index = Index(shard, offset, size, crc, _paths("names", arrays), labels, classes)
    fits = count == 0 or bool(index.shard.min() >= 0 and index.shard.max() < shards and index.offset.min() >= 0)
    if labels is not None:
        fits &= len(labels) == count and bool(labels.min() >= 0 and labels.max() < len(classes))
    return replace(index, shard=index.shard.astype(np.int32)) if fits else None


def indexed(paths: tuple[str, ...], cache: Path) -> tuple[tuple[int, ...], tuple[str, ...], Index]:
    """Bytes and stamps of the shards, and where their images are; each is looked through once and remembered."""
    workers = READERS if is_remote(paths[0]) else 1
    with ThreadPoolExecutor(workers) as pool:
        states = list(pool.map(places.status, paths))
        megabytes = sum(max(size >> 20, 1) for size, _ in states)
        with bar("Indexing", megabytes, "MB") as shown:
            advance = _together(shown.advance)
            sizes, stamps = zip(*states, strict=True)
            look = lambda place, size, stamp: _table(place, size, stamp, cache, advance)
            tables = list(pool.map(look, paths, sizes, stamps))
    return sizes, stamps, _merged(paths, tables)


def _together(advance: Callable[[int], None]) -> Callable[[int], None]:
    """The bar is one for all threads."""
    lock = threading.Lock()

    def locked(count: int) -> None:
        with lock:
            advance(count)

    return locked


def _table(place: str, size: int, stamp: str, cache: Path, advance: Callable[[int], None]) -> Table:
    """What one shard holds: from an earlier look at it, or from its headers."""
    where = place if is_remote(place) else os.path.abspath(place)
    path = cache / "index" / f"{hashlib.sha256(os.fsencode(f'{where} {stamp}')).hexdigest()[:24]}.npz"
    columns, texts = ("offset", "size", "crc", "place", "named"), ("names", "labels", "tops")
    with alone(path):
        content = b""
        with suppress(OSError):
            content = read_regular(path, places.MOST_INDEX_BYTES)
        table = _arrays(content, columns, texts, ())
        if table is None:
            table = table_of(place, size, advance=advance)
            keep(path, _npz(table))
        else:
            advance(max(size >> 20, 1))
    return table


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """The processes of a run open the same shards at once: one looks, the others wait and read what it kept."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path.with_suffix(".lock"))
        lock.acquire()
    except OSError:  # nothing can be kept there
        yield
        return
    try:
        yield
    finally:
        lock.release()


def keep(path: Path, content: bytes) -> None:
    """Writes to a cache."""
    with suppress(DiskError, OSError):  # a cache that cannot be written costs time, not the run
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content)


def table_of(place: str, size: int, checksums: bool = False, advance: Callable[[int], None] = lambda _: None) -> Table:
    """The images of a shard as arrays, from its headers (and bytes, for their checksums)."""
    rows, done = [], 0
    with places.opened(place) as file:
        head = file.read(6)
        if head.startswith((b"\x1f\x8b", b"BZh", b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfd")):
            raise BadData(f"{printable(place)} is compressed: decompress it, so that single images can be read.")
        for row in tars.samples(file, size, frozenset(supported()), checksums):
            rows.append(row)
            if row.offset >> 20 > done:
                advance((row.offset >> 20) - done)
                done = row.offset >> 20
    advance(max(size >> 20, 1) - done)
    columns = {
        name: np.array([getattr(r, name) for r in rows], np.int64) for name in ("offset", "size", "crc", "place")
    }
    columns["named"] = np.array([r.named for r in rows], np.int64)
    for name, values in (("names", "name"), ("labels", "label"), ("tops", "top")):
        columns |= text_columns(name, joined([getattr(r, values).encode("utf-8", "surrogateescape") for r in rows]))
    return columns


def _merged(paths: Sequence[str], tables: Sequence[Table]) -> Index:
    """All shards as one, in their order or, of shards that came from a folder, in that folder's."""

    def column(name: str) -> np.ndarray:
        return np.concatenate([table[name] for table in tables])

    def words(name: str) -> list[str]:
        return [text for table in tables for text in texts(table, name)]

    offset, size, crc, place, named = map(column, ("offset", "size", "crc", "place", "named"))
    if not np.any(size >= 0):
        raise BadData(f"No images found in {len(paths)} tar files such as {printable(paths[0])}.")
    shard = np.repeat(np.arange(len(tables), dtype=np.int32), [len(t["place"]) for t in tables])
    names, labels, tops = map(words, ("names", "labels", "tops"))
    # The name of a member may come back in the next shard, that of a file in a folder does not.
    files = [os.path.basename(path) for path in paths]
    names = [n if own else f"{files[s]}/{n}" for n, own, s in zip(names, named, shard, strict=True)]
    numbers, classes = _numbers(labels, size >= 0) if any(labels) else _folders(tops, size >= 0)
    if numbers is not None:
        size, numbers = np.where(numbers < 0, -1, size), np.maximum(numbers, 0)
    known = len(np.unique(place)) == len(place) and place.min() >= 0
    order = np.argsort(place) if known else np.arange(len(place))
    return Index(
        *(shard[order], offset[order], size[order], crc[order]),
        joined([names[i].encode("utf-8", "surrogateescape") for i in order]),
        None if numbers is None else numbers[order],
        classes,
    )


def _folders(tops: Sequence[str], sound: np.ndarray) -> tuple[np.ndarray | None, tuple[str, ...]]:
    """Classes by the first folder in the names of members, where there are two such folders."""
    numbers, classes = _numbers(tops, sound)
    return (numbers, classes) if len(classes) > 1 else (None, ())


def _numbers(labels: Sequence[str], sound: np.ndarray) -> tuple[np.ndarray | None, tuple[str, ...]]:
    """Class numbers (-1 where one is missing) and names; None when too many are missing for that to be damage."""
    known = {label for label in labels if label}
    there = sum(bool(label) for label in labels)
    if not known or there < LABELLED * int(sound.sum()):
        return None, ()
    if all(label.isdecimal() and len(label) < 8 for label in known):
        classes = tuple(map(str, range(max(map(int, known)) + 1)))
        if len(classes) > MOST_CLASSES:
            return None, ()
        return np.array([int(label) if label else -1 for label in labels]), classes
    classes = tuple(sorted(known, key=lambda label: label.encode("utf-8", "surrogateescape")))
    number = {name: i for i, name in enumerate(classes)} | {"": -1}
    return np.array([number[label] for label in labels]), classes


def _npz(columns: Table) -> bytes:
    content = io.BytesIO()
    np.savez(content, **columns)
    return content.getvalue()


def _arrays(content: bytes, columns: Sequence[str], texts: Sequence[str], free: Sequence[str]) -> Table | None:
    """The arrays of a .npz file when it is sound: as many rows in each column, texts that end where they should."""
    try:
        arrays = read_npz(io.BytesIO(content), len(content))
        count = len(arrays[columns[0]])
        for name in (*columns, *free, *(f"{t}_ends" for t in texts)):
            column = arrays[name]
            if column.ndim != 1 or column.dtype.kind != "i" or (name not in free and len(column) != count):
                return None
        for text in texts:
            ends, buffer = arrays[f"{text}_ends"], arrays[text]
            if buffer.dtype != np.uint8 or buffer.ndim != 1 or np.any(np.diff(ends, prepend=0) < 0):
                return None
            if count and ends[-1] != len(buffer):
                return None
    except (ValueError, OSError, KeyError, TypeError, MemoryError):
        return None
    return arrays


def text_columns(name: str, texts: Paths) -> dict[str, np.ndarray]:
    return {name: np.frombuffer(texts.buffer, np.uint8), f"{name}_ends": texts.ends}


def _paths(name: str, arrays: Table) -> Paths:
    return Paths(b"", arrays[name].tobytes(), arrays[f"{name}_ends"])


def texts(arrays: Table, name: str) -> Iterator[str]:
    texts = _paths(name, arrays)
    for i in range(len(texts.ends)):
        yield texts[i].decode("utf-8", "surrogateescape")
