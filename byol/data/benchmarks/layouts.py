"""How the evaluation data sets lie on disk: from the lists and folders of each to its parts, no image opened."""

from __future__ import annotations

import csv
import importlib.util
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from byol.data.benchmarks.table import VOC_CLASSES
from byol.data.decode import printable
from byol.data.folder import folder, joined, of_paths
from byol.data.parts import Part, held_out_fraction, held_out_per_class, whole
from byol.data.source import Source
from byol.errors import BadData, UsageError
from byol.run.files import regular_text

CALTECH_PER_CLASS = 30  # train and validation together


@dataclass(frozen=True)
class Listing:
    """What the lists of a data set say of one split."""

    files: list[str]
    labels: np.ndarray  # int64 (n,) into `classes`, or int8 (n, classes) of 1, -1 and 0 as in `Part`
    classes: tuple[str, ...]


@dataclass(frozen=True)
class Parts:
    """A data set as it is published; `validation` is None when it has none of its own."""

    classes: tuple[str, ...]
    train: Part
    validation: Part | None
    test: Callable[[], Part]
    remark: str = ""  # for the user


Lists = Callable[[Path, str], Listing]


def from_lists(lists: Lists, splits: tuple[str, str | None, str], root: Path, max_megapixels: float) -> Parts:
    """The parts that `lists(root, split)` gives for the splits (train, validation, test)."""
    train, validation, test = splits
    first = lists(root, train)
    rest = partial(_part_of_list, lists, root, first.classes, max_megapixels)
    return Parts(
        classes=first.classes,
        train=_part(f"{printable(root)} {train}", root, first, max_megapixels),
        validation=rest(validation) if validation else None,
        test=partial(rest, test),
    )


def _part_of_list(lists: Lists, root: Path, classes: tuple[str, ...], max_megapixels: float, split: str) -> Part:
    listing = lists(root, split)
    labels = _renumbered(listing.labels, listing.classes, classes)
    return _part(f"{printable(root)} {split}", root, Listing(listing.files, labels, classes), max_megapixels)


def _part(name: str, root: Path, listing: Listing, max_megapixels: float) -> Part:
    if not listing.files:
        raise ValueError("no images")
    start = os.fsencode(os.path.join(root, ""))
    paths = joined([os.fsencode(file).removeprefix(start) for file in listing.files], os.fsencode(root))
    labels = listing.labels if listing.labels.ndim == 1 else None
    source = of_paths(name, paths, max_megapixels, labels, listing.classes)
    return Part(source, np.arange(len(source)), listing.labels)


def _renumbered(labels: np.ndarray, names: tuple[str, ...], classes: tuple[str, ...]) -> np.ndarray:
    """Labels into `names` as labels into `classes`: the split of an incomplete copy may lack a class."""
    if names == classes:
        return labels
    number = {name: i for i, name in enumerate(classes)}
    new: np.ndarray = np.array([number.get(name, -1) for name in names], np.int64)[labels]
    if (new < 0).any():
        raise BadData(f"The class '{names[labels[new.argmin()]]}' has no training images.")
    return new


def flowers102(root: Path, split: str) -> Listing:
    _need_scipy("flowers102")
    return _published("Flowers102", root, split)


def cars(root: Path, split: str) -> Listing:
    _need_scipy("cars")
    return _published("StanfordCars", root, split)


def _published(kind: str, root: Path, split: str, **options: Any) -> Listing:
    """A split by torchvision's own reader of the data set's lists."""
    return _listing(_torchvision(kind, root, split=split, loader=str, **options))


def pets(root: Path, split: str) -> Listing:
    dataset = _torchvision("OxfordIIITPet", root, split=split)
    # torchvision names only the classes that are there but numbers them all.
    _, labels = np.unique(dataset._labels, return_inverse=True)
    return Listing([str(file) for file in dataset._images], labels.astype(np.int64), tuple(dataset.classes))


def places365(root: Path, split: str) -> Listing:
    dataset = _torchvision("Places365", root / "places365", split=split, small=True, loader=str)
    names = sorted(dataset.class_to_idx, key=dataset.class_to_idx.__getitem__)
    return _listing(dataset, tuple(name[len("/a/") :] for name in names))


def _torchvision(kind: str, root: Path, **options: Any) -> Any:
    from torchvision import datasets

    return getattr(datasets, kind)(root, download=False, **options)


def _listing(dataset: Any, classes: tuple[str, ...] = ()) -> Listing:
    """Of a data set whose images are loaded by `str`, so that each is its own path."""
    pairs = [dataset[index] for index in range(len(dataset))]
    labels = np.array([label for _, label in pairs], np.int64)
    return Listing([file for file, _ in pairs], labels, classes or tuple(dataset.classes))


def _need_scipy(name: str) -> None:
    if importlib.util.find_spec("scipy") is None:
        raise UsageError(f"{name} comes with .mat files, which need scipy: pip install 'byol[eval]'.")


def birdsnap(root: Path, split: str) -> Listing:
    """Of the images listed, those that are there: they were fetched one by one, and some are gone from the web."""
    base = root / "birdsnap"
    species = {row["id"]: row["common"] for row in _table(base / "species.txt")}
    number = {key: i for i, key in enumerate(species)}
    test = {row["path"] for row in _table(base / "test_images.txt")}
    rows = [row for row in _table(base / "images.txt") if (row["path"] in test) == (split == "test")]
    files = [str(base / "images" / row["path"]) for row in rows]
    there = [i for i, file in enumerate(files) if os.path.exists(file)]
    labels = np.array([number[rows[i]["species_id"]] for i in there], np.int64)
    return Listing([files[i] for i in there], labels, tuple(species.values()))


def _table(path: Path) -> list[dict[str, str]]:
    """Rows of a file of columns between tabs, named by its first line."""
    return list(csv.DictReader(_lines(path), delimiter="\t", quoting=csv.QUOTE_NONE))


def _lines(path: Path) -> list[str]:
    text = regular_text(path, errors="surrogateescape")
    return [line.rstrip() for line in text.split("\n") if line.strip()]


def sun397(root: Path, split: str) -> Listing:
    """Lines such as /a/abbey/sun_aaa.jpg, of classes such as /a/abbey and /b/bakery/shop."""
    base = root / "SUN397"
    names = _lines(base / "ClassName.txt")
    number = {name: i for i, name in enumerate(names)}
    images = _lines(base / f"{split}_01.txt")
    labels = np.array([number[image.rpartition("/")[0]] for image in images], np.int64)
    return Listing([f"{base}{image}" for image in images], labels, tuple(name[len("/a/") :] for name in names))


def voc2007(root: Path, split: str) -> Listing:
    """1 has the class, -1 does not, 0 only objects that are marked difficult."""
    base = root / "VOCdevkit" / "VOC2007"
    columns = [
        [line.split() for line in _lines(base / "ImageSets" / "Main" / f"{name}_{split}.txt")] for name in VOC_CLASSES
    ]
    images = [image for image, _ in columns[0]]
    if any([image for image, _ in column] != images for column in columns):
        raise ValueError(f"the lists {VOC_CLASSES[0]}_{split}.txt and others name different images")
    labels = np.array([[int(value) for _, value in column] for column in columns], np.int8).T
    return Listing([str(base / "JPEGImages" / f"{image}.jpg") for image in images], labels, VOC_CLASSES)


def imagenet(root: Path, max_megapixels: float) -> Parts:
    train = _classes_of(root / "imagenet" / "train", max_megapixels)
    classes = train.source.classes

    def test() -> Part:
        part = _classes_of(root / "imagenet" / "val", max_megapixels)
        return Part(part.source, part.indices, _renumbered(part.targets, part.source.classes, classes))

    return Parts(classes, train, None, test)


def _classes_of(path: Path, max_megapixels: float) -> Part:
    source = folder(path, max_megapixels)
    if source.labels is None:
        raise ValueError(f"no class folders in {printable(path)}")
    return whole(source)


def caltech101(root: Path, max_megapixels: float) -> Parts:
    """30 images of each class for training and validation, the others for the test."""
    images = _classes_of(root / "caltech101" / "101_ObjectCategories", max_megapixels)
    _, sizes = np.unique(images.targets, return_counts=True)
    if sizes.min() > CALTECH_PER_CLASS:
        test, train = held_out_per_class(images, CALTECH_PER_CLASS)
        return Parts(images.source.classes, train, None, lambda: test)
    train, test = held_out_fraction(images, 0.5)
    remark = f"half of each class is for the test, since one has only {sizes.min()} images"
    return Parts(images.source.classes, train, None, lambda: test, remark)


def cifar(kind: str, root: Path, max_megapixels: float) -> Parts:
    """CIFAR10 or CIFAR100 in its files for Python, which torchvision reads only when their checksums are right."""
    train = whole(_batches(kind, root, "train"))
    return Parts(train.source.classes, train, None, lambda: whole(_batches(kind, root, "test")))


def _batches(kind: str, root: Path, split: str) -> Source:
    from torchvision import datasets

    # Only the files of this split, since torchvision takes the checksum of both.
    other = "test_list" if split == "train" else "train_list"
    one: Any = type(kind, (getattr(datasets, kind),), {other: []})
    dataset = one(root, train=split == "train", download=False)
    name = f"{kind} {split}"
    return Source(
        name=name,
        count=len(dataset.data),
        read=partial(_read_array, dataset.data),
        describe=f"{name} image {{}}".format,
        labels=np.array(dataset.targets, np.int64),
        classes=tuple(dataset.classes),
    )


def _read_array(images: np.ndarray, index: int) -> torch.Tensor:
    """`images` are uint8 (n, H, W, 3)."""
    if not 0 <= index < len(images):
        raise IndexError(f"image {index} of {len(images)}")
    return torch.from_numpy(images[index].transpose(2, 0, 1).copy())


VALIDATED = ("train", "val", "test")
READERS: dict[str, Callable[[Path, float], Parts]] = {
    "imagenet": imagenet,
    "places365": partial(from_lists, places365, ("train-standard", None, "val")),
    "food101": partial(from_lists, partial(_published, "Food101"), ("train", None, "test")),
    "cifar10": partial(cifar, "CIFAR10"),
    "cifar100": partial(cifar, "CIFAR100"),
    "birdsnap": partial(from_lists, birdsnap, ("train", None, "test")),
    "sun397": partial(from_lists, sun397, ("Training", None, "Testing")),
    "cars": partial(from_lists, cars, ("train", None, "test")),
    "aircraft": partial(from_lists, partial(_published, "FGVCAircraft"), VALIDATED),
    "voc2007": partial(from_lists, voc2007, VALIDATED),
    "dtd": partial(from_lists, partial(_published, "DTD", partition=1), VALIDATED),
    "pets": partial(from_lists, pets, ("trainval", None, "test")),
    "caltech101": caltech101,
    "flowers102": partial(from_lists, flowers102, VALIDATED),
}
