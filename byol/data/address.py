"""What DATA means: the text of a command parsed once into a value. Nothing is opened, and torch is not loaded."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast
from urllib.parse import unquote

from byol.errors import UsageError, nearest

if TYPE_CHECKING:
    from byol.config import Data
    from byol.data.source import Source

# Of files that hold several images, each of which can be DATA by itself.
FILES = (".tif", ".tiff", ".dcm", ".dicom", ".nii", ".nii.gz", ".npy", ".npz", ".h5", ".hdf5")
SCHEMES = ("http", "https", "s3", "gs", "gcs", "az", "abfs", "hf")
# The colon of a URL is followed by slashes, that of a split by its name, such as train or train[:10%].
PLACE_AND_SPLIT = re.compile(r"(.+?):([A-Za-z_][\w.+-]*(?:\[[\w%:-]*\])?)")


@dataclass(frozen=True)
class Address:
    """Which images are meant: `kind` is a key of KINDS, `place` a name, path, pattern or URL without any prefix."""

    kind: str
    text: str  # as it was written
    place: str
    split: str = ""  # the part that the text itself names

    @property
    def folder(self) -> Path | None:
        """The folder on this machine that holds the data, where the text names one."""
        return Path(self.place) if self.kind == "folder" and Path(self.place).is_dir() else None

    def location(self, root: str | Path) -> str:
        """Where the data is, the same from every working directory: two data sets of one name differ in it."""
        if is_remote(self.place) or self.kind == "scenes" or (self.kind == "hf" and not os.path.exists(self.place)):
            return self.text
        if "\0" in self.place:  # no file has such a name, which is said when the data is opened
            return self.text
        if self.kind in ("folder", "shards", "hf"):
            return os.path.realpath(self.place) + f":{self.split}" * bool(self.split)
        return f"{self.text} in {os.path.realpath(root)}"

    def check(self) -> Address:
        """The address, unless it names a folder that is not there; other kinds say so when they are opened."""
        if self.kind != "folder" or self.folder or is_one_file(self.place):
            return self
        from byol.data.benchmarks.table import BENCHMARKS

        raise UsageError(
            f"There is no folder {self.text} and no such data set. {nearest(self.text, BENCHMARKS)} Also possible: "
            "a pattern or URL of shards, torchvision:NAME, hf:NAME-or-PATH, scenes."
        )


class Kind(Protocol):
    """What the module of a kind of data offers."""

    def open_source(self, address: Address, config: Data, split: str) -> Source:
        """The images of one part: "train" (all images, if there are no parts), "val" or "test"."""

    def parts(self, address: Address) -> set[str]:
        """Which of "train", "val" and "test" the data set has; empty when it is one piece."""


def parse(text: str, root: str | Path) -> Address:
    """`KIND:PLACE[:SPLIT]`, such as scenes:COUNT, torchvision:NAME:SPLIT or hf:NAME-or-PATH:SPLIT; without a kind the
    name of a benchmark, a pattern or URL of tar shards, or a folder of images or shards.

    A folder wins over a benchmark of the same name, unless it lies in `root`, where the benchmark itself is looked for.
    """
    from byol.data.benchmarks.table import BENCHMARKS  # only when a text is parsed: every command loads this module

    kind, colon, rest = text.partition(":")
    if text == "scenes" or (colon and kind in KINDS):
        match = PLACE_AND_SPLIT.fullmatch(rest)
        place, split = (match[1], match[2]) if match else (rest, "")
        return Address(kind, text, checked(local(place)), split)
    place = checked(local(text))
    if place in BENCHMARKS and (not Path(place).is_dir() or Path(place).resolve() == (Path(root) / place).resolve()):
        return Address("benchmark", text, place)
    return Address("shards" if names_shards(place) else "folder", text, place)


def local(place: str) -> str:
    """`file:///a/b` as /a/b; anything else as it is."""
    return unquote(place.removeprefix("file://")) if place.startswith("file://") else place


def checked(place: str) -> str:
    """The place, unless it is a URL of a kind that is not opened here: a URL of fsspec can start programs, unpack
    archives and lead on to other URLs."""
    scheme, _, rest = place.partition("://")
    if is_remote(place) and (scheme not in SCHEMES or "::" in place or is_remote(rest)):
        raise UsageError(
            f"The URL {place!r:.200} is not opened: it may begin with {', '.join(f'{s}://' for s in SCHEMES)} "
            "and lead to no other URL."
        )
    return place


def is_one_file(place: str) -> bool:
    """Whether this is a file of several images rather than a folder."""
    return place.lower().endswith(FILES) and os.path.isfile(place)


def is_remote(place: str) -> bool:
    return "://" in place


def is_pattern(place: str) -> bool:
    """Whether the text stands for several files: `{000..012}`, `{a,b}`, `*`, `?` or `[…]`."""
    return bool(re.search(r"[*?\[]|\{[^{}]*(\.\.|,)[^{}]*\}", place))


def names_shards(place: str) -> bool:
    """Whether the text can only mean tar shards: a URL, a pattern or a tar file."""
    return is_remote(place) or is_pattern(place) or place.endswith(".tar")


def kind_of(address: Address) -> Kind:
    """The module that opens this kind of data, loaded when it is first asked for."""
    return cast(Kind, import_module(KINDS[address.kind]))


# A kind of data is a line here and a module as `Kind` describes it.
KINDS = {
    "scenes": "byol.data.scenes",
    "torchvision": "byol.data.torchvision_sets",
    "hf": "byol.data.huggingface",
    "benchmark": "byol.data.benchmarks.sets",
    "shards": "byol.data.shards.reading",
    "folder": "byol.data.folder",
}
