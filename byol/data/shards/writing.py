"""`byol shard`: images into tars that WebDataset reads, with an index and checksums; a kill costs one shard at most."""

from __future__ import annotations

import hashlib
import json
import os
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from byol.config import Data
from byol.data.decode import open_image, printable
from byol.data.folder import MANIFEST, Paths, joined, listed, parts_of
from byol.data.formats import format_of
from byol.data.samples import of_folder
from byol.data.shards.index import (
    INDEX,
    Index,
    Manifest,
    Shard,
    Table,
    index_bytes,
    manifest_bytes,
    read_manifest,
    table_of,
    text_columns,
    texts,
)
from byol.data.shards.tars import packed
from byol.data.source import BadImage
from byol.errors import Interrupted, OutputBusy, UsageError
from byol.run import files, signals
from byol.run.files import disk_error, only_writer, replacing, require_space, write_atomically
from byol.run.progress import bar, say

LARGEST = 512_000_000  # bytes of a file that could be an image
OVERHEAD = 3584  # bytes of headers, class and origin that an image is stored with, at most
END = bytes(1024)  # of a tar
SEED = 0  # of the order in which the images are stored


@dataclass(frozen=True)
class Job:
    """What goes into the shards of one folder."""

    name: str
    paths: Paths  # in the order that a reader will see
    size: int  # bytes of all images, about
    labels: np.ndarray | None
    classes: tuple[str, ...]
    identity: str  # changes when the images do
    shard_bytes: int
    shuffle: bool

    @property
    def count(self) -> int:
        return len(self.paths.ends)

    @property
    def key(self) -> str:
        asked = f"{self.identity} {self.count} {self.shard_bytes} {self.shuffle}"
        return hashlib.sha256(asked.encode()).hexdigest()[:16]

    def order(self) -> np.ndarray:
        """Shuffled once and for all, so that whoever reads on and on meets all classes; the index undoes it."""
        return np.random.default_rng([SEED, 12]).permutation(self.count) if self.shuffle else np.arange(self.count)


def shard(folder: Path, out: Path, shard_bytes: int, shuffle: bool = True, overwrite: bool = False) -> None:
    """The images below a folder, or of each of its parts train, val and test, as shards in `out`."""
    if out.exists() and not out.is_dir():
        raise UsageError(f"{printable(out)} is not a folder.")
    if out.absolute() == folder.absolute():
        raise UsageError("The shards need another folder than the images.")
    parts = parts_of(folder) or {"": str(folder)}
    with only_writer(out):
        for part, root in parts.items():
            job = _folder_job(Path(root), shard_bytes, shuffle)
            write(job, out / part if part else out, overwrite)


def _folder_job(root: Path, shard_bytes: int, shuffle: bool) -> Job:
    paths, labels, classes = listed(root)
    _refuse_several(root, paths)
    count, total, digest = len(paths.ends), 0, hashlib.sha256(repr(classes).encode())
    with bar(f"Looking at {printable(root)}", count, "files") as shown:
        for i in range(count):
            size, stamp = 0, b"unreadable"
            with suppress(OSError):
                status = os.stat(os.path.join(paths.root, paths[i]))
                size, stamp = status.st_size, b"%d %d" % (status.st_size, status.st_mtime_ns)
            total += size
            digest.update(paths[i] + b"\0" + stamp + b"\0")
            shown.advance()
    return Job(printable(root), paths, total, labels, classes, digest.hexdigest(), shard_bytes, shuffle)


def _refuse_several(root: Path, paths: Paths) -> None:
    """A shard stores files, each of which is one image."""
    samples = of_folder(paths, Data())
    for number in range(len(paths.ends)):
        kind = format_of(paths[number])
        if samples.ends is not None or (kind and kind.name not in ("TIFF", "DICOM", "NumPy")):
            raise UsageError(f"{printable(root)} has files of several images, which are not sharded: train on them.")


def _file(paths: Paths, place: int) -> bytes:
    """A file's bytes; one that cannot be read is kept as an empty image, so that the others keep their places."""
    name = paths[place]
    try:
        with open_image(os.path.join(paths.root, name)) as file:
            if os.fstat(file.fileno()).st_size > LARGEST:
                raise BadImage("too large for an image")
            return file.read(LARGEST)
    except (BadImage, OSError) as error:
        say(f"Cannot read {printable(name)} ({error}); it is kept as an empty image.")
        return b""


def write(job: Job, out: Path, overwrite: bool = False) -> None:
    """All shards of a job with their index; those that an earlier call finished are checked and kept."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise disk_error(out, error, 0) from None
    manifest = _begun(job, out, overwrite)
    order = job.order()
    needed = job.size + OVERHEAD * job.count - sum(s.bytes for s in manifest.shards)
    require_space(out, needed, "the shards")
    with bar(f"Sharding {job.name}", job.count, "images") as shown, signals.deferred():
        tables = list(_kept(manifest, out, order, shown.advance))
        manifest = replace(manifest, shards=manifest.shards[: len(tables)])
        done = sum(s.images for s in manifest.shards)
        while done < job.count:
            finished, table = _write_shard(job, out, len(tables), order[done:], shown.advance)
            tables.append(table)
            done += finished.images
            manifest = replace(manifest, shards=(*manifest.shards, finished), index="")
            write_atomically(out / MANIFEST, manifest_bytes(manifest))
    content = index_bytes(_index(job, tables))
    digest = hashlib.sha256(content).hexdigest()
    if digest != manifest.index or _digest(out / INDEX) != digest:
        write_atomically(out / INDEX, content)
        write_atomically(out / MANIFEST, manifest_bytes(replace(manifest, index=digest)))
    megabytes = sum(s.bytes for s in manifest.shards) / 1e6
    say(f"{printable(out)}: {job.count:,} images in {len(tables):,} shards, {megabytes:,.1f} MB, checked.")


def _begun(job: Job, out: Path, overwrite: bool) -> Manifest:
    """What an earlier call finished; a folder that holds something else is refused."""
    if overwrite and (out / MANIFEST).exists():
        ours = [p for p in out.iterdir() if re.fullmatch(r"shard-\d{6,}\.tar", p.name)]
        for path in (out / MANIFEST, out / INDEX, *ours):
            path.unlink(missing_ok=True)
    earlier = read_manifest(str(out))
    if earlier and earlier.job == job.key and earlier.images == job.count:
        return earlier
    others = sorted(p.name for p in out.iterdir() if not p.name.startswith("."))
    if others:
        what, remedy = f"other files, such as {printable(others[0])}", "Choose another folder."
        if earlier:
            what, remedy = "shards of other images, or of another size", "Choose another folder, or --overwrite it."
        raise OutputBusy(f"{printable(out)} holds {what}. {remedy}")
    fresh = Manifest(job.key, job.count, job.classes)
    write_atomically(out / MANIFEST, manifest_bytes(fresh))
    return fresh


def _shard_name(number: int) -> str:
    return f"shard-{number:06d}.tar"


def _kept(manifest: Manifest, out: Path, order: np.ndarray, advance: Callable[[int], None]) -> Iterator[Table]:
    """The finished shards up to the first that is not as it was written; that one and those after it are redone."""
    done = 0
    for number, shard in enumerate(manifest.shards):
        _stop_if_asked(number)
        path = out / shard.name
        sound = shard.name == _shard_name(number) and _digest(path) == shard.sha256
        table = table_of(str(path), shard.bytes, checksums=True) if sound else None
        if table is None or not np.array_equal(table["place"], order[done : done + shard.images]):
            say(f"{printable(path)} is not as it was written: it is written again.")
            return
        yield table
        done += shard.images
        advance(shard.images)


def _digest(path: Path) -> str:
    try:
        with files.open_regular(path) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return ""


def _write_shard(
    job: Job, out: Path, number: int, order: np.ndarray, advance: Callable[[int], None]
) -> tuple[Shard, Table]:
    """One shard, written beside and renamed when it is whole and on the disk."""
    path = out / _shard_name(number)
    rows, names = list[tuple[int, int, int, int]](), list[bytes]()
    digest, size = hashlib.sha256(), 0
    with replacing(path, job.shard_bytes) as file:
        for place in map(int, order):
            _stop_if_asked(number)
            content = _file(job.paths, place)
            pieces = _members(job, place, content)
            length = sum(map(len, pieces))
            if rows and size + length + len(END) > job.shard_bytes:
                break
            rows.append((place, size + len(pieces[0]), len(content), zlib.crc32(content)))
            names.append(printable(job.paths[place]).encode())
            for piece in pieces:
                file.write(piece)
                digest.update(piece)
            size += length
            advance(1)
        file.write(END)
        digest.update(END)
    columns = dict(zip(("place", "offset", "size", "crc"), np.array(rows, np.int64).T, strict=True))
    table = columns | text_columns("names", joined(names))
    return Shard(path.name, size + len(END), digest.hexdigest(), len(rows)), table


def _members(job: Job, place: int, content: bytes) -> list[bytes]:
    """The image first, then its class and where it came from, under one key."""
    key, name = f"{place:09d}", printable(job.paths[place])
    ending = os.path.splitext(name)[1][1:].lower()
    facts: dict[str, object] = {"name": name, "place": place}
    members = packed(f"{key}.{ending if re.fullmatch('[a-z0-9]{1,8}', ending) else 'jpg'}", content)
    if job.labels is not None:
        label = int(job.labels[place])
        facts["class"] = job.classes[label]
        members += packed(f"{key}.cls", str(label).encode())
    return members + packed(f"{key}.json", json.dumps(facts, ensure_ascii=False).encode())


def _index(job: Job, tables: list[Table]) -> Index:
    """In the order that a reader will see, whatever the order of storage."""
    shard = np.repeat(np.arange(len(tables), dtype=np.int32), [len(t["place"]) for t in tables])
    place, offset, size, crc = (np.concatenate([t[n] for t in tables]) for n in ("place", "offset", "size", "crc"))
    back = np.argsort(place)
    assert np.array_equal(place[back], np.arange(job.count))
    stored = [name.encode() for t in tables for name in texts(t, "names")]
    names = joined([stored[i] for i in back])
    return Index(shard[back], offset[back], size[back], crc[back], names, job.labels, job.classes)


def _stop_if_asked(number: int) -> None:
    if signals.requested():
        raise Interrupted(f"Interrupted after {number} finished shards; the same command goes on after them.")
