"""Images with boxes around their objects in the layout of Pascal VOC: from its lists and XML files to three parts."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers import expat

import numpy as np
import torch

from byol.config import Data
from byol.data.decode import open_image, printable
from byol.data.dense.images import read_image, size_of, suffixes
from byol.data.dense.rendered import rendered
from byol.data.folder import Paths, of_paths
from byol.data.parts import Boxes, Part, Sample, Sealed, Task, of_samples, split
from byol.data.source import BadImage, Source
from byol.errors import BadData, UsageError
from byol.run.files import regular_text
from byol.run.progress import bar, say

EXPECTED = "JPEGImages/<image>.jpg, Annotations/<image>.xml and, if they exist, ImageSets/Main/{train,val,test}.txt"
BELOW = ("", "VOCdevkit/VOC2007", "VOC2007")  # where the folders may lie below what was named
LISTS = ("train", "val", "trainval", "test")
TEST_SHARE, VALIDATION_SHARE = 0.2, 0.1
MOST_BYTES, MOST_DEPTH = 2_000_000, 20  # of an XML file; those of VOC have some thousand bytes, four levels
OVERHANG = 1.0  # pixels outside that are not worth a word: many tools count from 0, VOC from 1


@dataclass(frozen=True)
class Tree:
    """A folder in VOC's layout."""

    name: str  # for messages
    root: Path
    files: Mapping[str, str]  # image without its extension → file name
    config: Data

    def annotation(self, image: str) -> Path:
        return self.root / "Annotations" / f"{image}.xml"

    def image(self, image: str) -> Path:
        return self.root / "JPEGImages" / self.files[image]


class Object(NamedTuple):
    """As annotated: pixels counted from 1, the last one included."""

    name: str
    corners: tuple[float, float, float, float]  # xmin ymin xmax ymax
    difficult: bool


@dataclass
class Mended:
    """What was done to annotations so that they can be used."""

    cut: int = 0
    empty: int = 0
    unknown: Counter[str] = field(default_factory=Counter)

    def words(self) -> list[str]:
        found = []
        if self.cut:
            found.append(f"boxes that reach out of their image and were cut to it: {self.cut:,}")
        if self.empty:
            found.append(f"boxes left out because they are empty, inverted or outside: {self.empty:,}")
        if self.unknown:
            names = ", ".join(f"'{printable(name)}'" for name, _ in self.unknown.most_common(3))
            found.append(
                f"objects left out because no training image has their class ({names}): {self.unknown.total():,}"
            )
        return found


def open_boxes(spec: str, config: Data) -> Task:
    """`scenes[:COUNT]`, `voc2007` below the root of data sets, or a folder in VOC's layout."""
    if spec == "scenes" or spec.startswith("scenes:"):
        return rendered("boxes", spec, config)
    if spec == "voc2007" and not Path(spec).is_dir():
        return voc(Path(config.root).expanduser() / "VOCdevkit" / "VOC2007", config, spec)
    if not Path(spec).is_dir():
        raise UsageError(f"There is no folder '{spec}'. Detection needs one with {EXPECTED}; or voc2007, or scenes.")
    return voc(Path(spec), config)


def voc(path: Path, config: Data, name: str = "") -> Task:
    """Train, val and test as the lists say; what has no list is held out of the training images, always the same.

    Without a test list the val images are the test, as in the paper.
    """
    root = _root(Path(path))
    if root is None:
        raise UsageError(f"{printable(path)} has no annotated images; expected there: {EXPECTED}.")
    # Absolute, because the paths are used long after by workers that may run elsewhere.
    tree = Tree(name or printable(path), root.absolute(), _files(root, suffixes(config)), config)
    listed = {split: images for split in LISTS if (images := _list(tree, split))}
    if not listed:
        listed = {"train": [image for image in tree.files if os.path.exists(tree.annotation(image))]}
    train, validation, test = _parts(tree.name, listed)
    for image in [*train, *validation, *test]:
        _check(tree, image)
    objects = _annotations(tree, [*train, *validation])
    classes = tuple(sorted({thing.name for each in objects for thing in each}))
    if not classes:
        raise BadData(f"{tree.name}: the annotations of the training images name no object.")
    # Read already now, and forgotten: a damaged file is better found before the training than after it.
    _annotations(tree, test)
    return Task(
        tree.name,
        classes,
        "AP50",
        _part(tree, classes, train, objects[: len(train)]),
        _part(tree, classes, validation, objects[len(train) :]),
        Sealed(lambda: _part(tree, classes, test, _annotations(tree, test))),
    )


def _root(path: Path) -> Path | None:
    """The folder itself, or where VOC's archives put theirs, or the only folder in it."""
    try:
        inside = [entry.name for entry in os.scandir(path) if entry.is_dir()]
    except OSError:
        return None
    for below in (*BELOW, *inside[: len(inside) == 1]):
        if all((path / below / name).is_dir() for name in ("JPEGImages", "Annotations")):
            return path / below
    return None


def _files(root: Path, suffixes: tuple[str, ...]) -> dict[str, str]:
    """Image without its extension → file name; only what lies there, so that no list can lead elsewhere."""
    names = sorted(entry.name for entry in os.scandir(root / "JPEGImages"))
    return {Path(name).stem: name for name in names if name.lower().endswith(suffixes) and not name.startswith(".")}


def _list(tree: Tree, split: str) -> list[str]:
    """The images of a split, [] without a list of it; after the name a line may say more."""
    path = tree.root / "ImageSets" / "Main" / f"{split}.txt"
    if not path.exists():
        return []
    try:
        text = regular_text(path, errors="surrogateescape")
    except OSError as error:
        raise BadData(f"Cannot read {printable(path)}: {error.strerror}.") from None
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    return list(dict.fromkeys(line if line in tree.files else line.split()[0] for line in lines))


def _parts(name: str, listed: Mapping[str, list[str]]) -> tuple[list[str], list[str], list[str]]:
    """(train, validation, test) of the images listed; an image in two of them would be a leak."""
    train, validation, test = (listed.get(split, []) for split in ("train", "val", "test"))
    if not train or not (validation or test):
        train, validation = listed.get("trainval") or train, []
    if not test:
        test, validation = validation, []
    if len(train) < 3:
        raise BadData(f"{name}: {len(train)} training images are too few to hold some out.")
    if not test:
        train, test = _without(train, TEST_SHARE)
    if not validation:
        train, validation = _without(train, VALIDATION_SHARE)
    twice = [image for image, count in Counter([*train, *validation, *test]).items() if count > 1]
    if twice:
        raise BadData(f"{name}: the lists name {printable(twice[0])} for more than one of train, val and test.")
    return train, validation, test


def _without(names: list[str], share: float) -> tuple[list[str], list[str]]:
    """(rest, a share of the names chosen at random, at least one)."""
    rest, chosen = split(len(names), max(1, round(len(names) * share)))
    return [names[position] for position in rest], [names[position] for position in chosen]


def _check(tree: Tree, image: str) -> None:
    if image not in tree.files:
        raise BadData(f"{tree.name}: a list names {printable(image)}, but JPEGImages has no such image.")
    if not os.path.exists(tree.annotation(image)):
        raise BadData(f"{tree.name}: {printable(tree.files[image])} has no Annotations/{printable(image)}.xml.")


def _annotations(tree: Tree, images: Sequence[str]) -> list[list[Object]]:
    found = []
    with bar("Reading annotations", len(images), "files") as shown:
        for image in images:
            found.append(read_annotation(tree.annotation(image)))
            shown.advance()
    return found


def read_annotation(path: Path) -> list[Object]:
    """The objects of one XML file, or one sentence that says what is wrong with it."""
    try:
        with open_image(os.fsencode(path)) as file:
            data = file.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise ValueError(f"larger than {MOST_BYTES / 1e6:g} MB")
        return [_object(element) for element in _parse(data).findall("object")]
    except (BadImage, ValueError, expat.ExpatError) as error:
        raise BadData(f"{printable(path)} is no annotation that can be used: {error}.") from None


def _parse(data: bytes) -> Element:
    """A document without a type declaration, and so without entities that could grow or read other files."""
    builder, parser = TreeBuilder(), expat.ParserCreate()
    depth = 0

    def start(name: str, attributes: dict[str, str]) -> None:
        nonlocal depth
        depth += 1
        if depth > MOST_DEPTH:
            raise ValueError("too deeply nested")
        builder.start(name, attributes)

    def end(name: str) -> None:
        nonlocal depth
        depth -= 1
        builder.end(name)

    def refuse(*_: object) -> None:
        raise ValueError("it declares a document type, which could define entities")

    parser.StartElementHandler, parser.EndElementHandler = start, end
    parser.CharacterDataHandler, parser.StartDoctypeDeclHandler = builder.data, refuse
    parser.Parse(data, True)
    return builder.close()


def _object(element: Element) -> Object:
    """The box of the object itself; those of its parts lie deeper."""
    name, box = (element.findtext("name") or "").strip(), element.find("bndbox")
    if not name:
        raise ValueError("an object has no name")
    if box is None:
        raise ValueError(f"the object '{printable(name)}' has no bndbox")
    x0, y0, x1, y1 = (_number(box, corner) for corner in ("xmin", "ymin", "xmax", "ymax"))
    difficult = element.find("difficult") is not None and _number(element, "difficult") != 0
    return Object(name, (x0, y0, x1, y1), difficult)


def _number(element: Element, name: str) -> float:
    text = (element.findtext(name) or "").strip()
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not abs(value) < 1e9:
        raise ValueError(f"{name} is '{printable(text[:40])}', not a number")
    return value


def _part(tree: Tree, classes: tuple[str, ...], images: Sequence[str], objects: Sequence[Sequence[Object]]) -> Part:
    names = [os.fsencode(tree.files[image]) for image in images]
    ends = np.cumsum([len(name) for name in names])
    paths = Paths(os.fsencode(tree.root / "JPEGImages"), b"".join(names), ends)
    source = of_paths(tree.name, paths, tree.config.max_megapixels, None, ())
    mended, number = Mended(), {name: place for place, name in enumerate(classes)}
    targets = [_boxes(tree, i, each, number, mended) for i, each in zip(images, objects, strict=True)]
    if mended.words():
        say(f"{tree.name}: {'; '.join(mended.words())}.")
    read, stamp = partial(_read, tree, list(images), targets), partial(_stamp, source, targets)
    return of_samples(tree.name, len(images), read, source.describe, stamp)


def _boxes(tree: Tree, image: str, objects: Sequence[Object], number: Mapping[str, int], mended: Mended) -> Boxes:
    """Cut to the image; edges between pixels, so that the first one of an annotation moves by 1."""
    known = [thing for thing in objects if thing.name in number]
    mended.unknown.update(thing.name for thing in objects if thing.name not in number)
    boxes = np.array([thing.corners for thing in known], np.float64).reshape(-1, 4)
    boxes[:, :2] -= 1
    inside = boxes
    with suppress(BadImage):  # which is said when the image itself is wanted
        height, width = size_of(tree.image(image), tree.config)
        inside = boxes.clip(0, [width, height, width, height])
    kept = np.flatnonzero((inside[:, 2:] > inside[:, :2]).all(1))
    mended.empty += len(boxes) - len(kept)
    mended.cut += int((np.abs(boxes - inside)[kept] > OVERHANG).any(1).sum())
    return Boxes(
        torch.from_numpy(inside[kept].astype(np.float32)),
        torch.tensor([number[known[place].name] for place in kept], dtype=torch.int64),
        torch.tensor([known[place].difficult for place in kept], dtype=torch.bool),
    )


def _read(tree: Tree, images: Sequence[str], targets: Sequence[Boxes], index: int) -> Sample[Boxes]:
    return Sample(read_image(tree.image(images[index]), tree.config), targets[index])


def _stamp(source: Source, targets: Sequence[Boxes], index: int) -> bytes:
    """Of the image file, and the target itself."""
    assert source.stamp is not None
    return source.stamp(index) + b"".join(value.numpy().tobytes() for value in targets[index])
