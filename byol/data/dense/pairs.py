"""Folders in which images stand beside maps of their pixels: which file belongs to which, and in which part."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from torch import Tensor

from byol.config import Data
from byol.data.decode import decode_values, open_image, printable
from byol.data.dense.images import read_image, suffixes
from byol.data.folder import SPLITS, check_root
from byol.data.formats import format_of
from byol.data.parts import Metric, Part, Sample, Sealed, Task, held_out_fraction, of_samples
from byol.data.source import BadImage
from byol.errors import BadData
from byol.run.progress import say

TEST_SHARE, VALIDATION_SHARE = 0.2, 0.1
ALIASES = {alias: split for split, names in SPLITS.items() for alias in names} | {
    "training": "train",
    "testing": "test",
}


class Pair(NamedTuple):
    """Paths relative to a root."""

    image: str
    target: str


@dataclass(frozen=True)
class Words:
    """What tells a map from an image by its path, as a whole word of it; `what` is for messages."""

    what: str
    target: str  # regular expressions
    image: str = "images?|imgs?|rgb|colou?r|jpegimages"

    def key(self, path: str) -> tuple[str, bool]:
        """What image and map have in common, and whether this is the map."""
        plain = re.sub(r"(?<=/)(train|val|test)(annot)(?=/)", r"\1.\2", "/" + os.path.splitext(path)[0])
        rest, count = self._without(self.target, plain)
        rest, _ = self._without(self.image, rest)
        return "/".join(part for part in (p.strip("._- ") for p in rest.split("/")) if part), count > 0

    @staticmethod
    def _without(words: str, text: str) -> tuple[str, int]:
        return re.subn(rf"(?<![a-z])(?:{words})(?![a-z])[._-]?", "", text, flags=re.IGNORECASE)


def find_pairs(root: Path, words: Words, config: Data) -> dict[str, list[Pair]]:
    """part ("" for none) → its pairs, sorted by name. The part is the first folder of the path that names one."""
    check_root(root)
    images, targets = dict[str, str](), dict[str, str]()
    for path in _files(root, suffixes(config)):
        key, is_target = words.key(path)
        found = targets if is_target else images
        if key in found:
            kind = words.what if is_target else "image"
            raise BadData(f"{found[key]} and {path} in {printable(root)} would both be the {kind} of {key}.")
        found[key] = path
    if not images or not targets:
        raise BadData(
            f"No pairs of image and {words.what} in {printable(root)}: {len(images)} images and {len(targets)} "
            f"{words.what}s. A {words.what} has the image's path, but for a folder or a word such as {_example(words)}."
        )
    alone = sorted(targets.keys() - images.keys())
    if alone:
        raise BadData(f"The {words.what} {printable(root / targets[alone[0]])} has no image ({len(alone)} such).")
    left = len(images.keys() - targets.keys())
    if left:
        say(f"{left} of {len(images)} images in {printable(root)} have no {words.what} and are left out.")
    parts: dict[str, list[Pair]] = {}
    for key in sorted(targets):
        parts.setdefault(_split(key), []).append(Pair(images[key], targets[key]))
    return parts


def _example(words: Words) -> str:
    return re.sub(r"\(.*|\?.*", "", words.target.split("|")[0])


def _files(root: Path, suffixes: tuple[str, ...]) -> list[str]:
    """Relative paths of all image files below the root."""
    found = []
    for where, folders, files in os.walk(root):
        folders[:] = [name for name in folders if not name.startswith(".") and name != "__MACOSX"]
        base = os.path.relpath(where, root)
        found += [
            os.path.normpath(os.path.join(base, name)).replace(os.sep, "/")
            for name in files
            if name.lower().endswith(suffixes) and not name.startswith(".")
        ]
    return sorted(found)


def _split(key: str) -> str:
    return next((ALIASES[folder] for folder in key.lower().split("/")[:-1] if folder in ALIASES), "")


def part_of(root: Path, pairs: list[Pair], read: Callable[[np.ndarray], Tensor], what: str, config: Data) -> Part:
    """The pairs as a part; `read` makes the target (H, W) of what the map's file holds, or raises `BadImage`."""
    return of_samples(
        printable(root),
        len(pairs),
        partial(_read, root, pairs, read, what, config),
        partial(_describe, pairs),
        partial(_stamp, root, pairs),
    )


def _read(
    root: Path, pairs: list[Pair], read: Callable[[np.ndarray], Tensor], what: str, config: Data, index: int
) -> Sample[Tensor]:
    pair = pairs[index]
    image = read_image(root / pair.image, config)
    try:
        target = read(read_values(root / pair.target, config))
    except BadImage as error:
        raise BadImage(f"{what} {pair.target}: {error}") from None
    if target.shape != image.shape[1:]:
        sides = [f"{shape[1]}×{shape[0]}" for shape in (target.shape, image.shape[1:])]
        raise BadImage(f"its {what} has {sides[0]} pixels, the image {sides[1]}")
    return Sample(image, target)


def read_values(path: Path, config: Data) -> np.ndarray:
    """(H, W) as they are stored, or (H, W, 3) of a map in colours."""
    kind = format_of(path.name)
    if kind and kind.name != "TIFF":
        stored = read_image(path, config).numpy()
        return stored[0] if len(stored) == 1 else stored.transpose(1, 2, 0)
    with open_image(os.fsencode(path)) as file:
        return decode_values(file, config.max_megapixels)


def _describe(pairs: list[Pair], index: int) -> str:
    return printable(pairs[index].image)


def _stamp(root: Path, pairs: list[Pair], index: int) -> bytes:
    stamps = []
    for path in pairs[index]:
        try:
            status = os.stat(root / path)
            stamps.append(b"%d %d" % (status.st_size, status.st_mtime_ns))
        except OSError:
            stamps.append(b"unreadable")
    return b" ".join(stamps)


def task_of(name: str, classes: tuple[str, ...], metric: Metric, parts: Mapping[str, Part]) -> Task:
    """Given parts are used as they are, but val is the test where there is none; what is missing is made."""
    if "train" not in parts:
        whole = parts.get("") or next(iter(parts.values()))
        if len(whole) < 3:
            raise BadData(f"{name} has {len(whole)} samples: training, choosing and testing need at least 3.")
        rest, test = held_out_fraction(whole, TEST_SHARE)
        return Task(name, classes, metric, *held_out_fraction(rest, VALIDATION_SHARE), Sealed(lambda: test))
    train, last = parts["train"], parts.get("test") or parts.get("val")
    if last is None:
        return task_of(name, classes, metric, {"": train})
    given = parts.get("val") if "test" in parts else None
    if given is None:
        if len(train) < 2:
            raise BadData(f"{name} has {len(train)} training samples: training and choosing need at least 2.")
        train, given = held_out_fraction(train, VALIDATION_SHARE)
    return Task(name, classes, metric, train, given, Sealed(lambda: last))
