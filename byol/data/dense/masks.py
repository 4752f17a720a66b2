"""Semantic segmentation data sets: a VOC2012 tree, CamVid, any folder of images and masks, or the scenes."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from byol.config import Data
from byol.data.benchmarks.table import VOC_CLASSES
from byol.data.decode import printable
from byol.data.dense.pairs import Pair, Words, find_pairs, part_of, read_values, task_of
from byol.data.dense.rendered import rendered
from byol.data.parts import VOID, Sealed, Task, held_out, held_out_fraction
from byol.data.source import BadImage
from byol.errors import BadData, UsageError
from byol.run.files import regular_text
from byol.run.progress import bar, say

WORDS = Words("mask", "masks?|annot(?:ations?)?|labels?|gt|segmentation(?:class)?(?:aug)?")
CAMVID = (*("sky", "building", "pole", "road", "pavement", "tree", "sign", "fence", "car", "pedestrian", "bicyclist"),)
VOC_VALIDATION = 2119  # images the paper holds out of train_aug
MOST = 0.25  # a copy with fewer images gives up a tenth instead
NO_CLASS = ("void", "unlabelled", "unlabeled", "ignore")
Colours = dict[tuple[int, int, int], int]


def open_masks(on: str, config: Data, void: int = VOID, colours: str = "") -> Task:
    """`scenes[:COUNT]`, `voc2012` below the root, a VOC tree, or a folder of images and masks."""
    if on == "scenes" or on.startswith("scenes:"):
        return rendered("masks", on, config)
    root = Path(config.root) / "VOCdevkit" / "VOC2012" if on == "voc2012" and not Path(on).is_dir() else Path(on)
    for tree in (root, root / "VOC2012", root / "VOCdevkit" / "VOC2012"):
        if (tree / "ImageSets" / "Segmentation").is_dir():
            return _voc(on, tree, config)
    if on == "voc2012" and root != Path(on):
        raise UsageError(f"voc2012 needs {printable(root)} with JPEGImages, SegmentationClass and ImageSets.")
    return _folder(on, root, config, void, colours)


def _voc(name: str, tree: Path, config: Data) -> Task:
    """train_aug where its masks are there, else train; val is the test."""
    lists = tree / "ImageSets" / "Segmentation"
    test = _listed(lists / "val.txt")
    train, folder = _listed(lists / "train.txt"), "SegmentationClass"
    if (tree / "SegmentationClassAug").is_dir():
        folder = "SegmentationClassAug"
        known = next((lists / f"{n}.txt" for n in ("train_aug", "trainaug") if (lists / f"{n}.txt").exists()), None)
        every = sorted(path.stem for path in (tree / folder).glob("*.png"))
        train = _listed(known) if known else sorted(set(every) - set(test))
    read = partial(_numbers, len(VOC_CLASSES) + 1, VOID, {})

    def samples(names: list[str], masks: str) -> list[Pair]:
        return [Pair(f"JPEGImages/{n}.jpg", f"{masks}/{n}.png") for n in names]

    part = part_of(tree, samples(train, folder), read, "mask", config)
    last = part_of(tree, samples(test, "SegmentationClass"), read, "mask", config)
    if len(part) < 2 or not len(last):
        raise BadData(f"{printable(lists)} names {len(part)} training and {len(last)} test images.")
    enough = MOST * len(part) >= VOC_VALIDATION
    held = held_out(part, VOC_VALIDATION) if enough else held_out_fraction(part, 0.1)
    return Task(name, ("background", *VOC_CLASSES), "mIoU", *held, Sealed(lambda: last))


def _listed(path: Path) -> list[str]:
    """One name a line, or a path whose last part is the name (train_aug.txt comes in both ways)."""
    try:
        lines = regular_text(path).split("\n")
    except OSError as error:
        raise UsageError(f"Cannot read the list {printable(path)}: {error.strerror}.") from None
    return [Path(line.split()[0]).stem for line in lines if line.strip()]


def _folder(name: str, root: Path, config: Data, void: int, colours: str) -> Task:
    parts = find_pairs(root, WORDS, config)
    if colours:
        classes, table = read_colours(Path(colours))
    else:
        table = {}
        first = parts.get("train") or next(iter(parts.values()))
        classes, void = _classes(root, first, config, void)
    read = partial(_numbers, len(classes), void, table)
    sets = {part: part_of(root, pairs, read, "mask", config) for part, pairs in parts.items()}
    return task_of(name, classes, "mIoU", sets)


def _classes(root: Path, pairs: list[Pair], config: Data, void: int) -> tuple[tuple[str, ...], int]:
    """Their names and the number of what does not count: classes.txt, CamVid's, or the numbers in the masks."""
    listing = root / "classes.txt"
    if listing.exists():
        try:
            lines = regular_text(listing).split("\n")
        except OSError as error:
            raise BadData(f"Cannot read {printable(listing)}: {error.strerror}.") from None
        return tuple(line.strip() for line in lines if line.strip()), void
    found = _numbers_used(root, pairs, config)
    camvid = all((root / f"{part}annot").is_dir() for part in ("train", "val", "test"))
    if camvid and void == VOID and max(found, default=0) == len(CAMVID):
        say(f"{printable(root)} looks like CamVid: 11 classes, and {len(CAMVID)} does not count.")
        return CAMVID, len(CAMVID)
    used = sorted(found - {void, VOID})
    if len(used) < 2:
        raise BadData(
            f"The masks in {printable(root)} hold {len(used)} class{'es' * (len(used) != 1)}: segmentation needs two."
        )
    return tuple(str(number) for number in range(used[-1] + 1)), void


def _numbers_used(root: Path, pairs: list[Pair], config: Data) -> set[int]:
    found: set[int] = set()
    with bar("Looking for classes", len(pairs), "masks") as shown:
        for pair in pairs:
            try:
                values = _plain(read_values(root / pair.target, config))
            except BadImage as error:
                say(f"{printable(pair.target)}: {error}")
                continue
            found |= set(np.unique(values).tolist())
            shown.advance()
    return found


def _plain(values: np.ndarray) -> np.ndarray:
    """Class numbers (H, W); a colour image will do if it is grey."""
    if values.ndim == 3:
        if (values != values[..., :1]).any():
            raise BadImage("a mask in colours; name them by --segmentation.colours FILE")
        values = values[..., 0]
    if values.dtype == bool:
        return values.astype(np.uint8)
    if values.dtype.kind == "f" or values.min() < 0 or values.max() > VOID:
        raise BadImage(f"no class numbers from 0 to {VOID}")
    return values.astype(np.uint8)


def _numbers(classes: int, void: int, colours: Colours, values: np.ndarray) -> Tensor:
    """The mask uint8 (H, W) of what its file holds."""
    numbers = _by_colour(values, colours) if colours else _plain(values)
    mask = np.where(numbers == void, VOID, numbers).astype(np.uint8)
    highest = int(mask[mask != VOID].max(initial=0))
    if highest >= classes:
        raise BadImage(f"has class {highest}, the training masks have {classes} classes (0 to {classes - 1})")
    return torch.from_numpy(mask)


def _by_colour(values: np.ndarray, colours: Colours) -> np.ndarray:
    """Colours that the file does not name do not count."""
    if values.ndim == 2:
        raise BadImage("no mask in colours, though --segmentation.colours is given")
    packed = values.astype(np.int64) @ np.array([1 << 16, 1 << 8, 1])
    out = np.full(packed.shape, VOID, np.uint8)
    for (red, green, blue), number in colours.items():
        out[packed == (red << 16 | green << 8 | blue)] = number
    return out


def read_colours(path: Path) -> tuple[tuple[str, ...], Colours]:
    """Lines `red green blue name`, as CamVid's label_colors.txt; a name such as Void is no class."""
    try:
        lines = [line.split() for line in regular_text(path).split("\n") if line.strip()]
    except OSError as error:
        raise UsageError(f"Cannot read the colours {printable(path)}: {error.strerror}.") from None
    names: list[str] = []
    colours: Colours = {}
    for number, words in enumerate(lines, 1):
        if len(words) < 4 or not all(w.isdecimal() and int(w) <= 255 for w in words[:3]):
            raise UsageError(f"{printable(path)}, line {number}, should be: red green blue name.")
        red, green, blue = (int(word) for word in words[:3])
        name = " ".join(words[3:])
        if name.lower() in NO_CLASS:
            continue
        if name not in names:
            names.append(name)
        colours[red, green, blue] = names.index(name)
    if len(names) < 2:
        raise UsageError(f"{printable(path)} names {len(names)} classes: segmentation needs two.")
    return tuple(names), colours
