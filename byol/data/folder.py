"""A folder of image files as a `Source`: found once in a fixed order, read and decoded one at a time."""

from __future__ import annotations

import difflib
import heapq
import logging
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path

import numpy as np
import torch

from byol.config import Data
from byol.data.address import Address, is_one_file
from byol.data.decode import open_image, printable
from byol.data.formats import FORMATS, format_of
from byol.data.source import BadImage, Source
from byol.data.stored import read_stored
from byol.errors import BadData, ByolError, UsageError, nearest
from byol.run.progress import say

EXTENSIONS = (
    *("jpg", "jpeg", "jpe", "png", "bmp", "gif", "webp", "tif", "tiff"),
    *("ppm", "pgm", "pbm", "pnm", "jp2", "avif", "npy"),
)
OPTIONAL = {"webp": "webp", "tif": "libtiff", "tiff": "libtiff", "jp2": "jpg_2000", "avif": "avif"}
# Kinds of pictures that cannot be read here: their presence is mentioned, that of any other file is not.
FOREIGN = {
    *("heic", "heif", "jxl", "dng", "cr2", "cr3", "nef", "arw", "orf", "rw2", "raf", "raw", "psd", "svg", "exr"),
    *("pdf", "mp4", "mov", "avi"),
}
SPLITS = {"train": ("train",), "val": ("val", "valid", "validation"), "test": ("test",)}
PICTURES = "pictures"
EXTRAS = {f"{format.name} files": format.extra for format in FORMATS.values()}
MANIFEST = "shards.json"  # tells a folder of shards from one of images
SMALLEST_CAP = 64_000_000  # bytes


@dataclass(frozen=True)
class Paths:
    """Relative paths in one buffer: a million str objects would be copied into every forked worker as it counts
    references to them."""

    root: bytes
    buffer: bytes
    ends: np.ndarray  # int64 (count,)

    def __getitem__(self, index: int) -> bytes:
        if not 0 <= index < len(self.ends):
            raise IndexError(f"image {index} of {len(self.ends)}")
        return self.buffer[int(self.ends[index - 1]) if index else 0 : int(self.ends[index])]


@dataclass
class Walk:
    """What a walk came across besides the images."""

    others: Counter[str] = field(default_factory=Counter)
    unreadable: list[str] = field(default_factory=list)
    lacking: Counter[str] = field(default_factory=Counter)  # files whose reader is not installed, by format


def open_source(address: Address, config: Data, split: str) -> Source:
    """The images in a folder or in its part; tar shards in it are opened as such."""
    root = choose_part(parts_of(Path(address.place)), address.place, split)
    if holds_shards(root):
        from byol.data.shards.reading import open_shards

        return open_shards(root, config)
    return _opened(Path(root), config)


def parts(address: Address) -> set[str]:
    return set(parts_of(Path(address.place)))


def choose_part(parts: Mapping[str, str], place: str, split: str) -> str:
    """Where a part lies; val stands in for a missing test, and without parts all images are for training."""
    if not parts and split != "train":
        raise UsageError(f"{place} has no {split} part: that would be a sub-folder beside one named train.")
    return parts.get(split) or parts.get("val") or place


def holds_shards(folder: str) -> bool:
    """Whether a folder here is one of shards: written by us, or with tar files and neither images nor folders."""
    if os.path.exists(os.path.join(folder, MANIFEST)):
        return True
    tars = False
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:  # a folder of a million images is left at the first
            name = entry.name.lower()
            if name.startswith("."):
                continue
            scan = format_of(name) is not None and not name.endswith((".npy", ".npz"))  # shards have an index beside
            if entry.is_dir() or name.rpartition(".")[2] in EXTENSIONS or scan:
                return False
            tars |= name.endswith(".tar")
    return tars


def folder(path: Path, max_megapixels: float = 64.0) -> Source:
    """All images below `path`; the first folder level is the class when every image has one and there are two."""
    return _opened(Path(path), Data(max_megapixels=max_megapixels))


def _opened(path: Path, config: Data) -> Source:
    if is_one_file(str(path)):
        from byol.data import samples

        paths = joined([os.fsencode(path.name)], os.fsencode(path.parent))
        return samples.source_of(printable(path), samples.of_folder(paths, config), None, ())
    paths, labels, classes = listed(path)
    if not config.pattern and config.pages == "auto" and not _holds_formats(paths):
        return of_paths(printable(path), paths, config.max_megapixels, labels, classes)
    from byol.data import samples

    return samples.source_of(printable(path), samples.of_folder(paths, config), labels, classes)


def _holds_formats(paths: Paths) -> bool:
    """Whether some of the files are more than pictures can be."""
    endings = tuple(f".{ending}".encode() for ending in FORMATS)
    return any(paths[i].lower().endswith(endings) for i in range(len(paths.ends)))


def listed(path: Path) -> tuple[Paths, np.ndarray | None, tuple[str, ...]]:
    """The images below `path` in order, their class numbers and the names of the classes."""
    check_root(path)
    root, walk = os.fsencode(path), Walk()
    paths = _of_one_kind(path, sorted(_images(root, walk)))
    if not paths:
        raise _nothing_found(path, walk)
    if walk.unreadable:
        logging.getLogger(__name__).warning(_left_out(path, walk))
    _warn_of_foreign(path, walk)
    return joined(paths, root), *_labels(paths)


def _of_one_kind(path: Path, paths: list[bytes]) -> list[bytes]:
    """The files of the kind that most are of: pictures, or one of the other formats. An array beside photographs is
    hardly one of them, and a screenshot beside scans is none."""
    kinds = [_kind_of(name) for name in paths]
    counts = Counter(kinds)
    if len(counts) < 2:
        return paths
    chosen = max(counts, key=lambda kind: (counts[kind], kind == PICTURES))
    others = ", ".join(f"{count} {kind}" for kind, count in counts.most_common() if kind != chosen)
    say(f"Taken from {printable(path)}: {counts[chosen]} {chosen}. Passed over, as they are of another kind: {others}.")
    return [name for name, kind in zip(paths, kinds, strict=True) if kind == chosen]


def _kind_of(name: bytes) -> str:
    format = format_of(name)
    return PICTURES if format is None or format.name == "TIFF" else f"{format.name} files"


def _warn_of_foreign(path: Path, walk: Walk) -> None:
    """Says so when photographs of a phone, raw files or scans of a hospital were passed over."""
    known = FOREIGN.union(OPTIONAL)
    kinds = ", ".join(f"{count} {kind}" for kind, count in walk.others.most_common() if kind.lstrip(".") in known)
    if kinds:
        say(f"Passed over in {printable(path)}: {kinds}. Such files cannot be read here; convert them to JPEG or PNG.")
    for kind, count in walk.lacking.most_common():
        say(f"Passed over in {printable(path)}: {count} {kind}. To read them: pip install 'byol[{EXTRAS[kind]}]'.")


def joined(texts: Sequence[bytes], root: bytes = b"") -> Paths:
    """Many short texts in one buffer."""
    return Paths(root, b"".join(texts), np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts))))


def of_paths(
    name: str, paths: Paths, max_megapixels: float, labels: np.ndarray | None, classes: tuple[str, ...]
) -> Source:
    """The files at these paths, each read when it is asked for."""
    return Source(
        name=name,
        count=len(paths.ends),
        read=partial(_read, paths, max_megapixels),
        describe=partial(_describe, paths),
        labels=labels,
        classes=classes,
        stamp=partial(_stamp, paths),
        path=partial(_path, paths),
    )


def parts_of(path: Path) -> dict[str, str]:
    """The parts "train", "val" and "test" of a data set that comes in such folders; {} when it does not."""
    try:
        with os.scandir(path) as entries:
            names = [entry.name for entry in sorted(entries, key=_name) if entry.is_dir()]
    except OSError:
        return {}
    return {split: str(path / name) for split, name in split_names(names).items()}


def split_names(names: Sequence[str]) -> dict[str, str]:
    """Which folders are the parts; {} unless there are train and another."""
    lower = {name.lower(): name for name in names}
    parts = {split: next((lower[a] for a in aliases if a in lower), "") for split, aliases in SPLITS.items()}
    parts = {split: name for split, name in parts.items() if name}
    return parts if "train" in parts and len(parts) > 1 else {}


def _name(entry: os.DirEntry[str]) -> bytes:
    return os.fsencode(entry.name)


@cache
def supported() -> tuple[str, ...]:
    """File name extensions that this Pillow can decode."""
    from PIL import features

    return tuple(e for e in EXTENSIONS if e not in OPTIONAL or features.check(OPTIONAL[e]))


def _images(root: bytes, walk: Walk) -> Iterator[bytes]:
    """Relative paths of the images below `root`, in no particular order."""
    suffixes = frozenset(b"." + e.encode() for e in supported())
    # Links wait until every real folder was seen, so that a folder keeps its own name and a loop ends.
    real, links, seen = [b""], list[bytes](), set[tuple[int, int]]()
    while real or links:
        prefix = real.pop() if real else heapq.heappop(links)
        for entry in _entries(root, prefix, seen, walk):
            kind, suffix = _kind(entry), os.path.splitext(entry.name)[1].lower()
            if kind == "folder" and entry.is_symlink():
                heapq.heappush(links, prefix + entry.name + b"/")
            elif kind == "folder":
                real.append(prefix + entry.name + b"/")
            elif kind == "file" and suffix in suffixes:
                yield prefix + entry.name
            elif kind == "file" and (format := format_of(entry.name)):
                if format.installed():
                    yield prefix + entry.name
                else:
                    walk.lacking[f"{format.name} files"] += 1
            else:
                walk.others[printable(suffix) if kind == "file" else kind] += 1


def _entries(root: bytes, prefix: bytes, seen: set[tuple[int, int]], walk: Walk) -> list[os.DirEntry[bytes]]:
    """What lies in a folder and is not hidden; nothing if the folder was seen before or cannot be read."""
    place = os.path.join(root, prefix)
    try:
        status = os.stat(place)
        if (status.st_dev, status.st_ino) in seen:
            return []
        seen.add((status.st_dev, status.st_ino))
        with os.scandir(place) as scan:
            return [entry for entry in scan if not entry.name.startswith(b".") and entry.name != b"__MACOSX"]
    except OSError as error:
        if not prefix:
            raise BadData(f"Cannot read the folder {printable(root)}: {error.strerror}.") from None
        walk.unreadable.append(printable(prefix))
        return []


def _kind(entry: os.DirEntry[bytes]) -> str:
    with suppress(OSError):
        if entry.is_file():
            return "file"
        if entry.is_dir():
            return "folder"
    return "special or broken"


def _labels(paths: list[bytes]) -> tuple[np.ndarray | None, tuple[str, ...]]:
    """int64 class of each path and the class names, from the first folder level."""
    names = sorted({path.partition(b"/")[0] for path in paths})
    if len(names) < 2 or not all(b"/" in path for path in paths):
        return None, ()
    number = {name: i for i, name in enumerate(names)}
    labels = np.fromiter((number[path.partition(b"/")[0]] for path in paths), np.int64, len(paths))
    return labels, tuple(map(printable, names))


def _read(paths: Paths, max_megapixels: float, index: int) -> torch.Tensor:
    with open_image(os.path.join(paths.root, paths[index])) as file:
        check_size(os.fstat(file.fileno()).st_size, max_megapixels)
        return read_stored(file, max_megapixels, paths[index])


def _path(paths: Paths, index: int) -> bytes:
    return os.path.join(paths.root, paths[index])


def check_size(size: int, max_megapixels: float) -> None:
    # 8 bytes hold a pixel of 16-bit RGBA, uncompressed: a larger file is no image that we would accept.
    if size > max(SMALLEST_CAP, max_megapixels * 8e6):
        raise BadImage(f"file of {size / 1e6:.0f} MB, too large for an image of {max_megapixels:g} megapixels")


def _describe(paths: Paths, index: int) -> str:
    return printable(paths[index])


def _stamp(paths: Paths, index: int) -> bytes:
    try:
        status = os.stat(os.path.join(paths.root, paths[index]))
    except OSError:
        return b"unreadable"
    return b"%d %d" % (status.st_size, status.st_mtime_ns)


def check_root(path: Path) -> None:
    if os.path.isdir(path):
        return
    if os.path.exists(path):
        raise UsageError(f"{printable(path)} is not a folder; give the one that holds the images, unpacked.")
    # The first part that is missing is where the typing mistake is.
    missing = path.absolute()
    while not os.path.isdir(missing.parent) and missing.parent != missing:
        missing = missing.parent
    try:
        siblings = sorted(entry.name for entry in os.scandir(missing.parent) if entry.is_dir())
    except OSError:
        siblings = []
    close = difflib.get_close_matches(missing.name, siblings, n=3)
    offer = f" {nearest(missing.name, close)}" if close else ""
    raise UsageError(f"There is no folder {printable(path)}.{offer}")


def _nothing_found(path: Path, walk: Walk) -> ByolError:
    for kind, count in walk.lacking.most_common(1):
        return UsageError(f"{printable(path)} holds {count} {kind}: to read them, pip install 'byol[{EXTRAS[kind]}]'.")
    total = walk.others.total()
    kinds = ", ".join(kind or "without extension" for kind, _ in walk.others.most_common(5))
    more = ", …" if len(walk.others) > 5 else ""
    files = f"it holds {total} other file{'s' * (total != 1)} ({kinds}{more})" if total else "it holds no files"
    hidden = f", and {_left_out(path, walk)}" if walk.unreadable else ""
    supports = ", ".join([*supported(), *(ending for ending in FORMATS if ending not in EXTENSIONS)])
    return BadData(f"No images found in {printable(path)}: {files}{hidden}. Supported: {supports}.")


def _left_out(path: Path, walk: Walk) -> str:
    count, first = len(walk.unreadable), sorted(walk.unreadable)[0]
    return f"{count} folder{'s' * (count != 1)} in {printable(path)} could not be read, such as {first}"
