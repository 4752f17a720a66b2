"""What an image of a folder is made of: a file, one image of a file, all of them as channels, or a file a band."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from byol.config import Data
from byol.data.decode import open_image, printable
from byol.data.folder import Paths, joined
from byol.data.formats import Described, Reading, format_of
from byol.data.formats.format import MOST_CHANNELS, stored
from byol.data.source import BadImage, Source
from byol.data.stored import read_stored
from byol.data.tiff import is_picture, pages_of
from byol.errors import BadData
from byol.run.progress import bar, say

# Of these a file is made to hold many images; of TIFF and DICOM, one file is mostly one image.
VOLUMES = ("NIfTI", "HDF5", "NumPy")
PLACES = re.compile(r"\{(stem|band)(?::([^{}]+))?\}")
WORTH_A_BAR = 500  # files to be counted


@dataclass(frozen=True)
class Samples:
    """Numbered images, each of one file (or, `bands`, of one a channel)."""

    paths: Paths
    config: Data
    ends: np.ndarray | None = None  # int64 (files,): the images of the files up to each; None: one a file
    together: bool = False  # all images of a file are the channels of one
    bands: np.ndarray | None = None  # int32 (count, bands): numbers of files, -1 for one that is missing
    names: tuple[str, ...] = ()  # of the bands
    titles: Paths | None = None  # of the images, where a file's name is none

    @property
    def count(self) -> int:
        if self.bands is not None:
            return len(self.bands)
        return len(self.paths.ends) if self.ends is None else int(self.ends[-1])

    def place(self, index: int) -> tuple[int, int]:
        """The file of an image, and its number there."""
        if self.ends is None:
            return index, 0
        if not 0 <= index < self.count:
            raise IndexError(f"image {index} of {self.count}")
        file = int(np.searchsorted(self.ends, index, side="right"))
        return file, index - (int(self.ends[file - 1]) if file else 0)


def reading_of(config: Data) -> Reading:
    return Reading(config.axes, config.slices, config.voi, config.array)


def of_folder(paths: Paths, config: Data) -> Samples:
    """How the files of a folder become images, by the config and by the formats."""
    if config.pattern:
        return _banded(paths, config)
    if config.pages in ("first", "channels"):
        return Samples(paths, config, together=config.pages == "channels")
    formats = [format_of(paths[i]) for i in range(len(paths.ends))]
    counted = [format is not None and (config.pages == "images" or format.name in VOLUMES) for format in formats]
    if not any(counted):
        return Samples(paths, config)
    ends = np.cumsum(np.fromiter(_counts(paths, counted, config), np.int64, len(counted)))
    return Samples(paths, config, None if int(ends[-1]) == len(ends) else ends)


def _counts(paths: Paths, counted: Sequence[bool], config: Data) -> Iterator[int]:
    """The images in each file; one that cannot be described is kept as an image, and said to be bad when it is read."""
    if sum(counted) < WORTH_A_BAR:
        yield from (_images_in(paths, i, config) if counts else 1 for i, counts in enumerate(counted))
        return
    with bar("Counting images", sum(counted), "files") as shown:
        for i, counts in enumerate(counted):
            yield _images_in(paths, i, config) if counts else 1
            shown.advance(int(counts))


def _images_in(paths: Paths, number: int, config: Data) -> int:
    try:
        found = described(paths, number, config)
    except BadImage:
        return 1
    return found.images if found else 1


def described(paths: Paths, number: int, config: Data) -> Described | None:
    """What the header of a file says; None of a picture of one page that Pillow reads."""
    format = format_of(paths[number])
    if format is None:
        return None
    with open_image(os.path.join(paths.root, paths[number])) as file:
        if format.name == "TIFF" and is_picture(file) and pages_of(file) == 1:
            return None
        format.check()
        file.seek(0)
        return format.describe(file, config.max_megapixels, reading_of(config))


def source_of(name: str, samples: Samples, labels: np.ndarray | None, classes: tuple[str, ...]) -> Source:
    """Labels are those of the files."""
    alone = samples.ends is None and samples.bands is None
    return Source(
        name=name,
        count=samples.count,
        read=partial(read, samples),
        describe=partial(title, samples),
        labels=labels if labels is None or alone else labels[_files(samples)],
        classes=classes,
        stamp=partial(stamp, samples),
        path=partial(_path, samples) if alone else None,
        header=partial(header, samples),
    )


def _files(samples: Samples) -> np.ndarray:
    """The file of each image (the first that is there, if it has several)."""
    if samples.bands is not None:
        return np.array([next(file for file in row if file >= 0) for row in samples.bands], np.int64)
    assert samples.ends is not None
    return np.repeat(np.arange(len(samples.ends)), np.diff(samples.ends, prepend=0))


def title(samples: Samples, index: int) -> str:
    """`scan.nii#12` of a file with several images, counted from 0."""
    if samples.titles is not None:
        return printable(samples.titles[index])
    file, image = samples.place(index)
    name = printable(samples.paths[file])
    if samples.ends is None:
        return name
    several = int(samples.ends[file]) - (int(samples.ends[file - 1]) if file else 0) > 1
    return f"{name}#{image}" if several else name


def _path(samples: Samples, index: int) -> bytes:
    return os.path.join(samples.paths.root, samples.paths[index])


def stamp(samples: Samples, index: int) -> bytes:
    files = samples.bands[index].tolist() if samples.bands is not None else [samples.place(index)[0]]
    try:
        found = [os.stat(_path(samples, file)) for file in files if file >= 0]
    except OSError:
        return b"unreadable"
    return b" ".join(b"%d %d" % (status.st_size, status.st_mtime_ns) for status in found)


def header(samples: Samples, index: int) -> tuple[Described | None, int]:
    """What the file of an image says of itself, and its bytes for each of its images."""
    file = samples.place(index)[0] if samples.bands is None else int(_files(samples)[index])
    found = described(samples.paths, file, samples.config)
    size = os.stat(_path(samples, file)).st_size
    if samples.bands is not None:
        return found._replace(channels=len(samples.names)) if found else None, size * len(samples.names)
    return found, size // (found.images if found and samples.ends is not None else 1)


def read(samples: Samples, index: int) -> torch.Tensor:
    if samples.bands is not None:
        return torch.from_numpy(_stacked(samples, index))
    file, image = samples.place(index)
    if not samples.together:
        return _read(samples, file, image)
    found = described(samples.paths, file, samples.config)
    if found is None or found.images == 1:
        return _read(samples, file, 0)
    return torch.from_numpy(_joined([_plain(_read(samples, file, page)) for page in range(found.images)], "pages"))


def _plain(image: torch.Tensor) -> np.ndarray:
    """A grey picture of 8 bits, which is read as colours, as its one channel; anything else as it is."""
    values = image.numpy()
    return values[:1] if len(values) == 3 and values.dtype == np.uint8 and (values == values[:1]).all() else values


def _read(samples: Samples, file: int, image: int) -> torch.Tensor:
    name = samples.paths[file]
    with open_image(os.path.join(samples.paths.root, name)) as opened:
        return read_stored(opened, samples.config.max_megapixels, name, image, reading_of(samples.config))


def _stacked(samples: Samples, index: int) -> np.ndarray:
    """One channel a file; those of a coarser grid, as satellites have them, are repeated up to the finest."""
    assert samples.bands is not None
    planes = []
    for name, file in zip(samples.names, samples.bands[index].tolist(), strict=True):
        if file < 0:
            raise BadImage(f"band {printable(name)} is missing", "a band is missing")
        plane = _plain(_read(samples, file, 0))
        if len(plane) != 1:
            raise BadImage(f"band {printable(name)} has {len(plane)} channels, not one", "a band of several channels")
        planes.append(plane)
    height, width = (max(plane.shape[axis] for plane in planes) for axis in (1, 2))
    return _joined([_enlarged(plane, height, width) for plane in planes], "bands")


def _enlarged(plane: np.ndarray, height: int, width: int) -> np.ndarray:
    rows, columns = height // plane.shape[1], width // plane.shape[2]
    if (plane.shape[1] * rows, plane.shape[2] * columns) != (height, width):
        return plane  # which is said of all of them
    return plane.repeat(rows, 1).repeat(columns, 2)


def _joined(planes: Sequence[np.ndarray], what: str) -> np.ndarray:
    shapes = {plane.shape[1:] for plane in planes}
    if len(shapes) > 1:
        first, second = sorted(shapes)[:2]
        raise BadImage(f"{what} of different sizes, such as {first} and {second}", f"{what} of different sizes")
    if sum(map(len, planes)) > MOST_CHANNELS:
        raise BadImage(f"{len(planes):,} {what}, more than {MOST_CHANNELS:,} channels", "too many channels")
    return stored(np.concatenate(planes))


def _banded(paths: Paths, config: Data) -> Samples:
    """Files of the same stem are the channels of an image, in the order of the bands that the pattern lists, or else of
    the numbers in their names."""
    matches, chosen = _pattern(config.pattern)
    found: dict[bytes, dict[str, int]] = {}
    for number in range(len(paths.ends)):
        folder, _, name = paths[number].rpartition(b"/")
        match = matches(os.fsdecode(name))
        if match:
            stem, band = match
            whole = (folder + b"/" if folder else b"") + os.fsencode(stem)
            found.setdefault(whole, {})[band] = number
    names = chosen or tuple(sorted({band for bands in found.values() for band in bands}, key=_natural))
    if not found or not names:
        raise BadData(
            f"No file of {printable(paths.root)} fits data.pattern {config.pattern!r}; they are like "
            f"{printable(paths[0].rpartition(b'/')[2])}."
        )
    found = {stem: bands for stem, bands in found.items() if any(name in bands for name in names)}
    stems = sorted(found)
    table = np.array([[found[stem].get(name, -1) for name in names] for stem in stems], np.int32)
    say(f"{len(stems):,} images of {len(names)} bands: {', '.join(printable(name) for name in names[:20])}.")
    return Samples(paths, config, bands=table, names=names, titles=joined(stems))


def _natural(text: str) -> tuple[tuple[int, int, str], ...]:
    """B2 before B10, and B8 before B8A."""
    pieces = re.findall(r"\d+|\D+", text)
    return tuple((0, int(piece), "") if piece.isdecimal() else (1, 0, piece) for piece in pieces)


def _pattern(text: str) -> tuple[Callable[[str], tuple[str, str] | None], tuple[str, ...]]:
    """Stem and band of a file's name, and the bands that the pattern lists: `{stem}_B{band:2,3,4,8A}.tif`."""
    expression, chosen, last = "", "", 0
    for place in PLACES.finditer(text):
        chosen = chosen or place[2] or ""
        expression += re.escape(text[last : place.start()]) + (
            "(?P<stem>.+)" if place[1] == "stem" else "(?P<band>[^_]+)"
        )
        last = place.end()
    compiled = re.compile(expression + re.escape(text[last:]), re.IGNORECASE)

    def matches(name: str) -> tuple[str, str] | None:
        match = compiled.fullmatch(name)
        return (match["stem"], match["band"]) if match else None

    return matches, tuple(name.strip() for name in chosen.split(",")) if chosen else ()
