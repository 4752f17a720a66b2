"""Tar shards as a `Source`: an index says where in which shard each image lies, so any image is one read away."""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from byol.config import Data
from byol.data import places
from byol.data.address import Address, is_pattern, is_remote
from byol.data.decode import printable, visible
from byol.data.folder import Paths, check_size, choose_part, split_names
from byol.data.formats import Reading
from byol.data.samples import reading_of
from byol.data.shards.index import INDEX, Index, Manifest, indexed, keep, load_index, read_manifest
from byol.data.source import BadImage, Source
from byol.data.stored import read_stored
from byol.errors import BadData, UsageError
from byol.run.files import read_regular
from byol.run.progress import say


@dataclass(frozen=True)
class Opened:
    """The shards of a source and how to reach them."""

    places: tuple[str, ...]
    stamps: tuple[str, ...]  # of each, changing with its content
    index: Index
    copies: Path  # where local copies are looked for
    copy: bool  # and made
    limit: float


def open_source(address: Address, config: Data, split: str) -> Source:
    return open_shards(choose_part(_parts(address.place), address.place, split), config)


def parts(address: Address) -> set[str]:
    return set(_parts(address.place))


def _parts(place: str) -> dict[str, str]:
    """The parts of a folder at a URL; a folder here is looked through by `folder.open_source`."""
    if is_pattern(place) or place.endswith(".tar") or not is_remote(place):
        return {}
    if read_manifest(place):  # before its names are listed, which not every server does
        return {}
    return {split: f"{place.rstrip('/')}/{name}" for split, name in split_names(places.names(place)[1]).items()}


def open_shards(spec: str, config: Data) -> Source:
    """A folder of tars, a pattern such as `a-{000..099}.tar`, or one tar; here or at any fsspec URL."""
    cache = Path(config.cache) if config.cache else places.default_cache()
    single = is_pattern(spec) or spec.endswith(".tar")
    manifest = None if single else read_manifest(spec)
    if manifest:
        shards, sizes, stamps, index = _listed(spec, manifest, cache)
    else:
        shards = places.expand(spec) if single else places.matching(spec, "*.tar")
        if not shards or (shards == [spec] and not is_remote(spec) and not os.path.exists(spec)):
            raise UsageError(f"There are no tar files at {printable(spec)}.")
        sizes, stamps, index = indexed(tuple(shards), cache)
    remote = is_remote(spec)
    opened = Opened(tuple(shards), stamps, index, cache, remote and config.shuffle == "shards", config.cache_gb * 1e9)
    if remote:
        _advise(spec, opened, sizes, config)
    return _source(printable(spec), opened, config)


def _source(name: str, opened: Opened, config: Data) -> Source:
    index = opened.index
    return Source(
        name=name,
        count=len(index.shard),
        read=partial(_read, opened, config.max_megapixels, reading_of(config)),
        describe=partial(_describe, index.names),
        labels=index.labels,
        classes=index.classes,
        blocks=index.shard,
        stamp=partial(_stamp, opened),
    )


def _read(opened: Opened, max_megapixels: float, reading: Reading, number: int) -> torch.Tensor:
    index = opened.index
    if not 0 <= number < len(index.size):
        raise IndexError(f"image {number} of {len(index.size)}")
    size, crc = int(index.size[number]), int(index.crc[number])
    if size < 0:
        raise BadImage("damaged in its shard")
    check_size(size, max_megapixels)
    shard, offset = int(index.shard[number]), int(index.offset[number])
    data = _piece(opened, shard, offset, size)
    if is_remote(opened.places[shard]) and _flaw(data, size, crc):
        data = places.read(opened.places[shard], offset, size)  # the copy may be the damaged one
    flaw = _flaw(data, size, crc)
    if flaw:
        raise BadImage(flaw)
    return read_stored(data, max_megapixels, _describe(index.names, number), reading=reading)


def _flaw(data: bytes, size: int, crc: int) -> str:
    if len(data) < size:
        return "its shard ends before it"
    return "damaged in its shard: wrong checksum" if crc >= 0 and zlib.crc32(data) != crc else ""


def _piece(opened: Opened, shard: int, offset: int, size: int) -> bytes:
    place, stamp = opened.places[shard], opened.stamps[shard]
    if not is_remote(place):
        return places.read(place, offset, size)
    path = places.copy_path(place, stamp, opened.copies)
    if opened.copy:
        path = places.copied(place, stamp, opened.copies, opened.limit)
    if path.exists():
        with suppress(BadImage):  # it made room for another in this moment
            return places.read(str(path), offset, size)
    return places.read(place, offset, size)


def _describe(names: Paths, number: int) -> str:
    return visible(names[number].decode("utf-8", "backslashreplace"))


def _stamp(opened: Opened, number: int) -> bytes:
    index = opened.index
    if index.crc[number] >= 0:
        return b"%d %d" % (index.size[number], index.crc[number])
    return f"{opened.stamps[index.shard[number]]} {index.offset[number]}".encode()


def _advise(spec: str, opened: Opened, sizes: Sequence[int], config: Data) -> None:
    """Over a network the order of reading decides the speed."""
    if not opened.copy:
        say(f"{printable(spec)}: every image is a request of its own; --data.shuffle shards reads shard after shard.")
        return
    needed = sum(sorted(sizes)[-config.window - 1 :])
    if needed > opened.limit:
        raise UsageError(
            f"data.window {config.window} mixes {needed / 1e9:.3g} GB of shards, but data.cache_gb is "
            f"{config.cache_gb:g}. Lower the window or raise the cache."
        )


def _listed(folder: str, manifest: Manifest, cache: Path) -> tuple[list[str], tuple[int, ...], tuple[str, ...], Index]:
    """The shards of a manifest, by its index or, when that is damaged, by their own headers."""
    if not manifest.index:
        raise BadData(f"The shards in {printable(folder)} are not finished: the same `byol shard` goes on with them.")
    shards = [f"{folder.rstrip('/')}/{shard.name}" for shard in manifest.shards]
    if not is_remote(folder):
        _check_sizes(shards, manifest)
    index = load_index(_index_bytes(folder, manifest, cache), len(shards), manifest.images, manifest.classes)
    if index is None:
        say(f"{printable(folder)}/{INDEX} is damaged: the shards' own headers are used, without checksums.")
        return shards, *indexed(tuple(shards), cache)
    return shards, tuple(s.bytes for s in manifest.shards), tuple(s.sha256 for s in manifest.shards), index


def _check_sizes(shards: Sequence[str], manifest: Manifest) -> None:
    for place, shard in zip(shards, manifest.shards, strict=True):
        try:
            size = os.stat(place).st_size
        except OSError as error:
            raise BadData(f"Cannot read the shard {printable(place)}: {error.strerror}.") from None
        if size != shard.bytes:
            say(f"{printable(place)} has {size:,} bytes, not {shard.bytes:,}: what is missing will be left out.")


def _index_bytes(folder: str, manifest: Manifest, cache: Path) -> bytes:
    """shards.npz, of a remote folder kept here under its digest; empty when it is not what the manifest says."""
    place = f"{folder.rstrip('/')}/{INDEX}"
    kept = cache / "index" / f"{manifest.index}.npz"
    remote = is_remote(folder)
    if remote:
        with suppress(OSError):
            content = read_regular(kept, places.MOST_INDEX_BYTES)
            if hashlib.sha256(content).hexdigest() == manifest.index:
                return content
    content = places.whole(place) or b""
    if hashlib.sha256(content).hexdigest() != manifest.index:
        return b""
    if remote:
        keep(kept, content)
    return content
