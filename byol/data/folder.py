"""A folder of image files as a `Source`: found once in a fixed order, read and decoded one at a time."""

from __future__ import annotations

import difflib
import heapq
import logging
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path

import numpy as np
import torch

from byol.data.decode import decode, open_regular, printable
from byol.data.source import BadImage, Source
from byol.errors import BadData, UsageError, nearest
from byol.progress import say

EXTENSIONS = (
    *("jpg", "jpeg", "jpe", "png", "bmp", "gif", "webp", "tif", "tiff"),
    *("ppm", "pgm", "pbm", "pnm", "jp2", "avif"),
)
OPTIONAL = {"webp": "webp", "tif": "libtiff", "tiff": "libtiff", "jp2": "jpg_2000", "avif": "avif"}
# Pictures of other kinds, which people believe to have given; what else lies in a folder is passed over in silence.
FOREIGN = {
    *("heic", "heif", "jxl", "dng", "cr2", "cr3", "nef", "arw", "orf", "rw2", "raf", "raw", "psd", "svg", "exr"),
    *("dcm", "nii", "pdf", "mp4", "mov", "avi"),
}
SPLITS = {"train": ("train",), "val": ("val", "valid", "validation"), "test": ("test",)}
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


def folder(path: Path, max_megapixels: float = 64.0) -> Source:
    """All images below `path`; the first folder level is the class when every image has one and there are two."""
    paths, labels, classes = listed(Path(path))
    return of_paths(printable(path), paths, max_megapixels, labels, classes)


def listed(path: Path) -> tuple[Paths, np.ndarray | None, tuple[str, ...]]:
    """The images below `path` in order, their classes and the names of these."""
    check_root(path)
    root, walk = os.fsencode(path), Walk()
    found = sorted(_images(root, walk))
    if not found:
        raise BadData(_nothing_found(path, walk))
    if walk.unreadable:
        logging.getLogger(__name__).warning(_left_out(path, walk))
    _warn_of_foreign(path, walk)
    return joined(found, root), *_labels(found)


def _warn_of_foreign(path: Path, walk: Walk) -> None:
    """Says so when photographs of a phone, raw files or scans of a hospital were passed over."""
    known = FOREIGN.union(OPTIONAL)
    found = {kind: count for kind, count in walk.others.most_common() if kind.lstrip(".") in known}
    if found:
        kinds = ", ".join(f"{count} {kind}" for kind, count in found.items())
        say(f"Passed over in {printable(path)}: {kinds}. Such files cannot be read here; convert them to JPEG or PNG.")


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


def split_roots(path: Path) -> dict[str, Path]:
    """The parts "train", "val" and "test" of a data set that comes in such folders; {} when it does not."""
    try:
        with os.scandir(path) as entries:
            names = [entry.name for entry in sorted(entries, key=_name) if entry.is_dir()]
    except OSError:
        return {}
    return {split: Path(path) / name for split, name in split_names(names).items()}


def split_names(names: Sequence[str]) -> dict[str, str]:
    """Which folders are the parts; {} unless there are train and another."""
    lower = {name.lower(): name for name in names}
    found = {split: [lower[a] for a in aliases if a in lower] for split, aliases in SPLITS.items()}
    parts = {split: matches[0] for split, matches in found.items() if matches}
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
        where = os.path.join(root, prefix)
        try:
            status = os.stat(where)
            if (status.st_dev, status.st_ino) in seen:
                continue
            seen.add((status.st_dev, status.st_ino))
            with os.scandir(where) as scan:
                entries = list(scan)
        except OSError as error:
            if not prefix:
                raise BadData(f"Cannot read the folder {printable(root)}: {error.strerror}.") from None
            walk.unreadable.append(printable(prefix))
            continue
        for entry in entries:
            name = entry.name
            if name.startswith(b".") or name == b"__MACOSX":
                continue
            kind = _kind(entry)
            suffix = os.path.splitext(name)[1].lower()
            if kind == "folder" and entry.is_symlink():
                heapq.heappush(links, prefix + name + b"/")
            elif kind == "folder":
                real.append(prefix + name + b"/")
            elif kind == "file" and suffix in suffixes:
                yield prefix + name
            else:
                walk.others[printable(suffix) if kind == "file" else kind] += 1


def _kind(entry: os.DirEntry[bytes]) -> str:
    try:
        if entry.is_file():
            return "file"
        return "folder" if entry.is_dir() else "special or broken"
    except OSError:
        return "special or broken"


def _labels(found: list[bytes]) -> tuple[np.ndarray | None, tuple[str, ...]]:
    """int64 class of each path and the class names, from the first folder level."""
    if not all(b"/" in path for path in found):
        return None, ()
    names = sorted({path.partition(b"/")[0] for path in found})
    if len(names) < 2:
        return None, ()
    number = {name: i for i, name in enumerate(names)}
    labels = np.fromiter((number[path.partition(b"/")[0]] for path in found), np.int64, len(found))
    return labels, tuple(map(printable, names))


def _read(paths: Paths, max_megapixels: float, index: int) -> torch.Tensor:
    with open_regular(os.path.join(paths.root, paths[index])) as file:
        size = os.fstat(file.fileno()).st_size
        check_size(size, max_megapixels)
        return decode(file, max_megapixels)


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


def _nothing_found(path: Path, walk: Walk) -> str:
    total = walk.others.total()
    kinds = ", ".join(kind or "without extension" for kind, _ in walk.others.most_common(5))
    more = ", …" if len(walk.others) > 5 else ""
    files = f"it holds {total} other file{'s' * (total != 1)} ({kinds}{more})" if total else "it holds no files"
    hidden = f", and {_left_out(path, walk)}" if walk.unreadable else ""
    return f"No images found in {printable(path)}: {files}{hidden}. Supported: {', '.join(supported())}."


def _left_out(path: Path, walk: Walk) -> str:
    count, first = len(walk.unreadable), sorted(walk.unreadable)[0]
    return f"{count} folder{'s' * (count != 1)} in {printable(path)} could not be read, such as {first}"
