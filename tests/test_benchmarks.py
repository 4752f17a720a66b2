"""The paper's data sets: every row of the table opened from a miniature copy in the format it is published in.

Each image of a copy is of one grey level, its serial number, so that what was read tells which file it was.
"""

from __future__ import annotations

import csv
import hashlib
import json
import pickle
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import datasets

from byol.data.benchmarks import BENCHMARKS, held_out_by, open_benchmark
from byol.data.layouts import VOC_CLASSES
from byol.data.source import BadImage, Source
from byol.data.task import Part, Task
from byol.errors import BadData, UsageError

# Transcribed from the table of the paper's appendix D.1: classes, original train, train, validation, test, measure.
PAPER = """
ImageNet     1000  1281167  1271158  10009  50000  Top-1 accuracy
Food101       101    75750    68175   7575  25250  Top-1 accuracy
CIFAR-10       10    50000    45000   5000  10000  Top-1 accuracy
CIFAR-100     100    50000    44933   5067  10000  Top-1 accuracy
Birdsnap      500    47386    42405   4981   2443  Top-1 accuracy
Sun397        397    19850    15880   3970  19850  Top-1 accuracy
Cars          196     8144     6494   1650   8041  Top-1 accuracy
Aircraft      100     3334     3334   3333   3333  Mean per-class accuracy
VOC2007        20     5011     2501   2510   4952  11-point mAP
DTD            47     1880     1880   1880   1880  Top-1 accuracy
Pets           37     3680     2940    740   3669  Mean per-class accuracy
Caltech-101   101     3060     2550    510   6084  Mean per-class accuracy
Places365     365  1803460  1803460      -  36500  Top-1 accuracy
Flowers       102     1020     1020   1020   6149  Mean per-class accuracy
"""
MEASURES = {"Top-1 accuracy": "top1", "Mean per-class accuracy": "mean-per-class", "11-point mAP": "map11"}
OTHER_NAMES = {"flowers": "flowers102"}
OFFICIAL = {"aircraft", "voc2007", "dtd", "flowers102"}
EACH = 11  # training images of a class: a tenth is one image


@dataclass
class Copy:
    """A miniature on disk: the class of each grey level, part by part, and the files that hold the test images."""

    root: Path
    train: dict[int, Any] = field(default_factory=dict)
    validation: dict[int, Any] = field(default_factory=dict)
    test: dict[int, Any] = field(default_factory=dict)
    test_files: list[Path] = field(default_factory=list)
    serial: int = 0

    def image(self, path: str, split: str, label: Any) -> Path:
        """Write the next image of a part as a JPEG file."""
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (6, 4), (self.serial,) * 3).save(file, "JPEG", quality=100)
        getattr(self, split)[self.serial] = label
        if split == "test":
            self.test_files.append(file)
        self.serial += 1
        return file

    def text(self, path: str, lines: list[str]) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(f"{line}\n" for line in lines))


def checksum(file: Path) -> str:
    return hashlib.md5(file.read_bytes()).hexdigest()


def write_imagenet(copy: Copy, patch: pytest.MonkeyPatch) -> None:
    for wnid in ("n01440764", "n01443537", "n02123045"):
        for i in range(EACH):
            copy.image(f"imagenet/train/{wnid}/{wnid}_{i}.JPEG", "train", wnid)
        copy.image(f"imagenet/val/{wnid}/ILSVRC2012_val_{copy.serial:08d}.JPEG", "test", wnid)


def write_places365(copy: Copy, patch: pytest.MonkeyPatch) -> None:
    # Not in the order of the alphabet, so that a number is not confused with a place in it.
    names = {"/a/airfield": 0, "/z/zen_garden": 1, "/a/apartment_building/outdoor": 2}
    trained, tested = [], []
    for name, number in names.items():
        for i in range(EACH):
            copy.image(f"places365/data_256_standard{name}/{i:08d}.jpg", "train", name[3:])
            trained.append(f"{name}/{i:08d}.jpg {number}")
        file = copy.image(f"places365/val_256/Places365_val_{number:08d}.jpg", "test", name[3:])
        tested.append(f"{file.name} {number}")
    copy.text("places365/categories_places365.txt", [f"{name} {number}" for name, number in names.items()])
    copy.text("places365/places365_train_standard.txt", trained)
    copy.text("places365/places365_val.txt", tested)
    kind, base = datasets.Places365, copy.root / "places365"
    file = base / "categories_places365.txt"
    patch.setattr(kind, "_CATEGORIES_META", (file.name, checksum(file)))
    lists = {"train-standard": "places365_train_standard.txt", "val": "places365_val.txt"}
    patch.setattr(kind, "_FILE_LIST_META", {split: (name, checksum(base / name)) for split, name in lists.items()})


def write_food101(copy: Copy, patch: pytest.MonkeyPatch) -> None:
    # The real json is not sorted, and a class may be missing from one list of an incomplete copy.
    counts = {"train": {"waffles": EACH, "apple_pie": EACH, "sushi": EACH}, "test": {"waffles": 2, "sushi": 3}}
    for split, classes in counts.items():
        lists = {name: [f"{name}/{split}{i}" for i in range(count)] for name, count in classes.items()}
        for name, images in lists.items():
            for image in images:
                copy.image(f"food-101/images/{image}.jpg", split, name)
        copy.text(f"food-101/meta/{split}.json", [json.dumps(lists)])


def write_cifar(copy: Copy, patch: pytest.MonkeyPatch, kind: Any, names: list[str], key: str) -> None:
    base = copy.root / kind.base_folder
    base.mkdir(parents=True)
    (base / kind.meta["filename"]).write_bytes(pickle.dumps({kind.meta["key"]: names}, protocol=2))
    for split, files in (("train", kind.train_list), ("test", kind.test_list)):
        each = EACH * len(names) // len(files) if split == "train" else 4
        for name, _ in files:
            labels = [(i * 7) % len(names) for i in range(each)]
            greys = range(copy.serial, copy.serial + each)
            data = np.repeat(np.array(greys, np.uint8)[:, None], 3072, axis=1)
            (base / name).write_bytes(pickle.dumps({"data": data, key: labels, "batch_label": name}, protocol=2))
            getattr(copy, split).update({g: names[label] for g, label in zip(greys, labels, strict=True)})
            copy.serial += each
        renewed = [[name, checksum(base / name)] for name, _ in files]
        patch.setattr(kind, f"{split}_list", renewed)
        copy.test_files = [base / name for name, _ in files]
    patch.setattr(kind, "meta", {**kind.meta, "md5": checksum(base / kind.meta["filename"])})


def write_cifar10(copy: Copy, patch: pytest.MonkeyPatch) -> None:
    names = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
    write_cifar(copy, patch, datasets.CIFAR10, names, "labels")


def write_cifar100(copy: Copy, patch: pytest.MonkeyPatch) -> None:
    write_cifar(copy, patch, datasets.CIFAR100, ["apple", "aquarium_fish", "baby", "bear"], "fine_labels")


def write_birdsnap(copy: Copy, patch: pytest.MonkeyPatch) -> None:
    species = [("1", "Cooper's Hawk", "Coopers_Hawk"), ("2", "Mallard", "Mallard"), ("3", 'A "Quoted" Owl', "Owl")]
    rows, tested = [], ["path"]
    for key, common, folder in species:
        for i in range(EACH + 3):
            split = "test" if i % 5 == 0 else "train"
            path = f"{folder}/{copy.serial:04d}.jpg"
            copy.image(f"birdsnap/images/{path}", split, common)
            # Without coordinates the columns at the end are empty.
            rows.append("\t".join(["address", "0" * 32, path, key, "1", "2", "3", "4", "", ""]))
            tested += [path] * (split == "test")
        rows.append("\t".join(["address", "0" * 32, f"{folder}/gone.jpg", key, "1", "2", "3", "4", "", ""]))
    columns = ["url", "md5", "path", "species_id", "bb_x1", "bb_y1", "bb_x2", "bb_y2", "back_x", "back_y"]
    copy.text("birdsnap/images.txt", ["\t".join(columns), *rows])
    copy.text("birdsnap/test_images.txt", tested)
    scientific = "Genus species"
    lines = ["\t".join((key, common, scientific, folder)) for key, common, folder in species]
    copy.text("birdsnap/species.txt", ["\t".join(("id", "common", "scientific", "dir")), *lines])


def write_sun397(copy: Copy, patch: pytest.MonkeyPatch) -> None:
    classes = ["/a/abbey", "/a/apartment_building/outdoor", "/z/zoo"]
    copy.text("SUN397/ClassName.txt", classes)
    for split, listed, count in (("train", "Training", EACH), ("test", "Testing", 2)):
        lines = [f"{name}/sun_{split}{i}.jpg" for i in range(count) for name in classes]
        for line in lines:
            copy.image(f"SUN397{line}", split, line[3:].rpartition("/")[0])
        copy.text(f"SUN397/{listed}_01.txt", lines)


def write_cars(copy: Copy, patch: pytest.MonkeyPatch) -> None:
    savemat = pytest.importorskip("scipy.io", reason="the lists of the cars are .mat files: needs scipy").savemat
    names = ["AM General Hummer SUV 2000", "Acura RL Sedan 2012", "Acura TL Sedan 2012"]
    base = copy.root / "stanford_cars"
    (base / "devkit").mkdir(parents=True)
    savemat(base / "devkit" / "cars_meta.mat", {"class_names": np.array([names], dtype=object)})
    places = {"train": ("devkit/cars_train_annos.mat", EACH), "test": ("cars_test_annos_withlabels.mat", 2)}
    for split, (place, count) in places.items():
        kinds = [("bbox_x1", "O"), ("class", "O"), ("fname", "O")]
        rows = np.zeros((1, count * len(names)), dtype=kinds)
        for i in range(rows.size):
            file = copy.image(f"stanford_cars/cars_{split}/{i + 1:05d}.jpg", split, names[i % len(names)])
            rows[0, i] = (np.uint8(3), np.uint8(i % len(names) + 1), file.name)
        savemat(base / place, {"annotations": rows})


def write_aircraft(copy: Copy, patch: pytest.MonkeyPatch) -> None:
    base, variants = "fgvc-aircraft-2013b/data", ["707-320", "A300B4", "Boeing 717"]
    copy.text(f"{base}/variants.txt", variants)
    for split, short, count in (("train", "train", 3), ("validation", "val", 2), ("test", "test", 2)):
        lines = []
        for i in range(count * len(variants)):
            variant = variants[i % len(variants)]
            file = copy.image(f"{base}/images/{1000000 + copy.serial}.jpg", split, variant)
            lines.append(f"{file.stem} {variant}")
        copy.text(f"{base}/images_variant_{short}.txt", lines)


def write_voc2007(copy: Copy, patch: pytest.MonkeyPatch) -> None:
    base = "VOCdevkit/VOC2007"
    for split, short, count in (("train", "train", 6), ("validation", "val", 5), ("test", "test", 4)):
        rows = []
        for i in range(count):
            # Each image has one class, one that is only there as a difficult object, and no other.
            values = dict.fromkeys(VOC_CLASSES, -1) | {VOC_CLASSES[i]: 1, VOC_CLASSES[i + 9]: 0}
            file = copy.image(f"{base}/JPEGImages/{copy.serial + 5:06d}.jpg", split, values)
            rows.append((file.stem, values))
        for name in VOC_CLASSES:
            lines = [f"{image} {values[name]:2d}" for image, values in rows]
            copy.text(f"{base}/ImageSets/Main/{name}_{short}.txt", lines)


def write_dtd(copy: Copy, patch: pytest.MonkeyPatch) -> None:
    for split, short, names in (
        ("train", "train", ("banded", "blotchy", "zigzagged")),
        ("validation", "val", ("banded", "zigzagged")),
        ("test", "test", ("blotchy", "zigzagged")),
    ):
        lines = [f"{name}/{name}_{short}{i}.jpg" for name in names for i in range(3)]
        for line in lines:
            copy.image(f"dtd/dtd/images/{line}", split, line.partition("/")[0])
        copy.text(f"dtd/dtd/labels/{short}1.txt", lines)
        copy.text(f"dtd/dtd/labels/{short}2.txt", lines[:1])


def write_pets(copy: Copy, patch: pytest.MonkeyPatch) -> None:
    # Breeds 2 and 4 of the 37 are not in this copy.
    breeds = {"Abyssinian": 1, "Basset_Hound": 3, "yorkshire_terrier": 5}
    for split, listed, count in (("train", "trainval", EACH), ("test", "test", 2)):
        lines = []
        for breed, number in breeds.items():
            for i in range(count):
                file = copy.image(
                    f"oxford-iiit-pet/images/{breed}_{split}{i}.jpg", split, breed.replace("_", " ").title()
                )
                lines.append(f"{file.stem} {number} 1 1")
        copy.text(f"oxford-iiit-pet/annotations/{listed}.txt", lines)


def write_caltech101(copy: Copy, patch: pytest.MonkeyPatch) -> None:
    # Which images are for the test is not said on disk.
    for name in ("BACKGROUND_Google", "Faces_easy", "accordion"):
        for i in range(2 * EACH):
            file = copy.image(f"caltech101/101_ObjectCategories/{name}/image_{i + 1:04d}.jpg", "train", name)
            copy.test_files.append(file)
    (copy.root / "caltech101/101_ObjectCategories/BACKGROUND_Google/tmp").write_text("not an image")


def write_flowers102(copy: Copy, patch: pytest.MonkeyPatch) -> None:
    savemat = pytest.importorskip("scipy.io", reason="the lists of the flowers are .mat files: needs scipy").savemat
    base, names = copy.root / "flowers-102", {1: "pink primrose", 77: "passion flower", 102: "blackberry lily"}
    order = np.random.default_rng(0).permutation(24)
    labels = np.array([list(names)[i % 3] for i in range(24)], np.uint8)
    splits = {"trnid": ("train", order[:9]), "valid": ("validation", order[9:15]), "tstid": ("test", order[15:])}
    for split, places in splits.values():
        for place in places:
            copy.image(f"flowers-102/jpg/image_{place + 1:05d}.jpg", split, names[int(labels[place])])
    savemat(base / "imagelabels.mat", {"labels": labels[None]})
    savemat(base / "setid.mat", {key: places[None] + 1 for key, (_, places) in splits.items()})
    files = {"label": "imagelabels.mat", "setid": "setid.mat"}
    renewed = {key: (name, checksum(base / name)) for key, name in files.items()}
    patch.setattr(datasets.Flowers102, "_file_dict", {**datasets.Flowers102._file_dict, **renewed})


MINIATURES: dict[str, Callable[[Copy, pytest.MonkeyPatch], None]] = {
    name.removeprefix("write_"): value for name, value in list(globals().items()) if name.startswith("write_")
}
# By the table and not by the miniatures, so that a row without one fails.
every_row = pytest.mark.parametrize("name", BENCHMARKS)


@pytest.fixture
def copy(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Copy:
    made = Copy(tmp_path / "data sets")
    MINIATURES[name](made, monkeypatch)
    return made


def greys(part: Part) -> list[int]:
    """The serial number of each image, from its pixels."""
    images = [part.source.read(int(index)) for index in part.indices]
    assert all(image.dtype == torch.uint8 and image.shape[0] == 3 for image in images)
    assert all((image == image[0, 0, 0]).all() for image in images)
    return [int(image[0, 0, 0]) for image in images]


def said(task: Task, part: Part) -> dict[int, Any]:
    """What the part says of each image, by names."""
    if part.multi_label:
        rows = [dict(zip(task.classes, map(int, row), strict=True)) for row in part.targets]
        return dict(zip(greys(part), rows, strict=True))
    return dict(zip(greys(part), [task.classes[label] for label in part.targets], strict=True))


def table() -> dict[str, tuple[int, int, int, int, int, str]]:
    rows = {}
    for line in PAPER.strip().splitlines():
        title, *numbers = line.split(maxsplit=6)
        classes, original, train, validation, test = (int(n.replace("-", "0")) for n in numbers[:5])
        name = title.lower().replace("-", "")
        rows[OTHER_NAMES.get(name, name)] = (classes, original, train, validation, test, MEASURES[numbers[5]])
    return rows


def test_the_rows_are_those_of_the_paper() -> None:
    """Breaks if a size, a class count or a measure in the table is edited, or a row is left out."""
    declared = {
        name: (row.classes, *row.sizes, row.metric) for name, row in BENCHMARKS.items() if row.title and row.expected
    }
    assert declared == {name: (c, t, v, s, m) for name, (c, _, t, v, s, m) in table().items()}


@every_row
def test_parts_are_those_on_disk(name: str, copy: Copy) -> None:
    """Breaks if a reader mixes up splits, shifts a label, numbers classes part by part, or lets parts overlap."""
    task = open_benchmark(name, copy.root)
    train, validation, test = said(task, task.train), said(task, task.validation), said(task, task.test.open())
    assert len(train) == len(task.train)
    assert len(validation) == len(task.validation)
    assert not train.keys() & validation.keys()
    assert not test.keys() & (train.keys() | validation.keys())
    if name == "caltech101":
        assert train | validation | test == copy.train
    elif name in OFFICIAL:
        assert (train, validation, test) == (copy.train, copy.validation, copy.test)
    else:
        assert train | validation == copy.train
        assert test == copy.test
    assert task.name == name
    assert task.metric == BENCHMARKS[name].metric


@every_row
def test_a_tenth_of_each_class_when_the_rule_asks_for_too_much(name: str, copy: Copy) -> None:
    """Breaks if a miniature gives up most of its images, or a class all of them, to validation."""
    task = open_benchmark(name, copy.root)
    if name in OFFICIAL:
        assert (len(task.train), len(task.validation)) == (len(copy.train), len(copy.validation))
        return
    for label in np.unique(task.train.targets):
        held = int((task.validation.targets == label).sum())
        size = held + int((task.train.targets == label).sum())
        assert held == max(1, round(size / 10)), task.classes[label]


@every_row
def test_the_same_split_every_time(name: str, copy: Copy) -> None:
    """Breaks if a split depends on a global seed or on the order in which a disk lists its files."""
    splits = []
    for seed in (0, 1):
        np.random.seed(seed)
        task = open_benchmark(name, copy.root)
        splits.append([said(task, task.train), said(task, task.validation), said(task, task.test.open())])
        assert [list(part) for part in splits[0]] == [list(part) for part in splits[-1]]
    assert splits[0] == splits[1]


@every_row
def test_test_images_are_not_looked_at_before(name: str, copy: Copy) -> None:
    """Breaks if test images are read, or a checksum of them taken, before the seal is opened."""
    task = open_benchmark(name, copy.root)
    before = greys(task.train) + greys(task.validation)
    files = copy.test_files
    if name == "caltech101":
        files = [file for grey, file in enumerate(files) if grey not in before]
    assert files
    for file in files:
        file.write_bytes(b"damaged")
    task = open_benchmark(name, copy.root)
    assert greys(task.train) + greys(task.validation) == before
    for file in files:
        file.unlink()
    assert greys(task.train) + greys(task.validation) == before
    assert not task.test.opened
    with pytest.raises((BadImage, BadData, UsageError)):
        greys(task.test.open())


@every_row
def test_reading_survives_the_way_to_a_worker(name: str, copy: Copy) -> None:
    """Breaks if a source holds a closure, which a worker that is spawned cannot get."""
    source = open_benchmark(name, copy.root).train.source
    there = pickle.loads(pickle.dumps(source))  # noqa: S301
    assert torch.equal(there.read(3), source.read(3))
    assert there.describe(3) == source.describe(3)
    assert source.describe(3) != source.describe(4)
    with pytest.raises(IndexError):
        source.read(len(source))


@every_row
def test_a_missing_set_is_one_sentence(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks if a set that is not there is downloaded, or the message does not say where it should be."""
    monkeypatch.setattr("urllib.request.urlopen", lambda *_: pytest.fail("went to the network"))
    with pytest.raises(UsageError) as caught:
        open_benchmark(name, tmp_path)
    message = str(caught.value)
    assert str(tmp_path) in message
    assert BENCHMARKS[name].needs[0] in message
    assert BENCHMARKS[name].expected in message
    assert message.endswith(".")
    assert "\n" not in message
    assert not list(tmp_path.iterdir())


@every_row
def test_every_needed_file_is_missed_at_the_start(name: str, copy: Copy) -> None:
    """Breaks if a missing list of the test part shows only after hours of training."""
    for need in BENCHMARKS[name].needs[:6]:
        hidden = (copy.root / need).rename(copy.root / "hidden")
        with pytest.raises(UsageError, match=re.escape(f"{name} needs {need} in ")):
            open_benchmark(name, copy.root)
        hidden.rename(copy.root / need)
    assert open_benchmark(name, copy.root).classes


@every_row
def test_other_sizes_are_told_not_refused(name: str, copy: Copy, capsys: pytest.CaptureFixture[str]) -> None:
    """Breaks if the line about sizes is lost, is more than one, or counts the test part before it is opened."""
    task = open_benchmark(name, copy.root)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith(f"{name}: ")
    _, original, train, validation, test, _ = table()[name]
    if name in OFFICIAL:
        assert f"{len(task.train)} training images, the paper has {train:,};" in lines[0]
        assert f"{len(task.validation)} validation images, the paper has {validation:,}." in lines[0]
    else:
        assert f"{len(task.train) + len(task.validation)} training images, the paper has {original:,}" in lines[0]
    part = task.test.open()
    assert capsys.readouterr().err == f"{name}: {len(part)} test images, the paper has {test:,}.\n"


@pytest.mark.parametrize("name", sorted(set(BENCHMARKS) - OFFICIAL - {"places365"}))
def test_the_rules_give_the_sizes_of_the_paper(name: str) -> None:
    """Breaks if a rule's amount is edited, or the guard for miniatures strikes at a whole data set."""
    classes, original, train, validation, _, _ = table()[name]
    classes += name == "caltech101"  # 30 of each are 3,060 only with the folder of backgrounds
    source = Source("made up", original, lambda i: torch.zeros(3, 1, 1), str)
    whole = Part(source, np.arange(original), np.arange(original) % classes)
    rest, held, remark = held_out_by(BENCHMARKS[name].rule, whole)
    assert (len(rest), len(held), remark) == (train, validation, "")
    assert (np.sort(np.concatenate([rest.indices, held.indices])) == whole.indices).all()
    each = np.bincount(held.targets, minlength=classes)
    if name in ("food101", "sun397", "pets", "caltech101"):
        assert set(each) == {validation // classes}
    else:
        # Far above what chance does to a class.
        assert each.max() < 2 * validation / classes + 20


def test_imagenet_validation_is_of_all_classes() -> None:
    """Breaks if the last images of a sorted folder are taken, which are of eight classes."""
    targets = np.repeat(np.arange(1000), 1281)
    part = Part(Source("made up", len(targets), lambda i: torch.zeros(3, 1, 1), str), np.arange(len(targets)), targets)
    _, held, _ = held_out_by(BENCHMARKS["imagenet"].rule, part)
    assert len(held) == 10_009
    assert len(np.unique(held.targets)) > 990


def test_ten_images_fewer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Breaks if a nearly whole set is refused, scaled or not mentioned; the images need not be there to be listed."""
    copy = Copy(tmp_path)
    lists = {f"food{c:03d}": [f"food{c:03d}/{i}" for i in range(750)] for c in range(101)}
    lists["food007"] = lists["food007"][:740]
    copy.text("food-101/meta/train.json", [json.dumps(lists)])
    copy.text("food-101/meta/test.json", [json.dumps({"food000": []})])
    (tmp_path / "food-101" / "images").mkdir()
    task = open_benchmark("food101", tmp_path)
    assert capsys.readouterr().err == "food101: 75,740 training images, the paper has 75,750.\n"
    assert np.bincount(task.validation.targets).tolist() == [75] * 101
    with pytest.raises(BadImage, match="no such file"):
        task.train.source.read(0)
    with pytest.raises(UsageError, match=r"damaged or incomplete \(no images\)"):
        task.test.open()


def test_caltech_takes_30_of_each_class(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Breaks if the folder of backgrounds is dropped, or a class gives other than 25, 5 and the rest."""
    sizes = {"BACKGROUND_Google": 40, "accordion": 55, "inline_skate": 31}
    for name, size in sizes.items():
        (tmp_path / "caltech101" / "101_ObjectCategories" / name).mkdir(parents=True)
        for i in range(size):
            (tmp_path / "caltech101" / "101_ObjectCategories" / name / f"image_{i + 1:04d}.jpg").touch()
    task = open_benchmark("caltech101", tmp_path)
    test = task.test.open()
    assert task.classes == tuple(sizes)
    assert np.bincount(task.train.targets).tolist() == [25, 25, 25]
    assert np.bincount(task.validation.targets).tolist() == [5, 5, 5]
    assert np.bincount(test.targets).tolist() == [10, 25, 1]
    everything = np.concatenate([task.train.indices, task.validation.indices, test.indices])
    assert sorted(everything) == list(range(126))
    assert "half" not in capsys.readouterr().err


def test_official_numbers_of_classes_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks if classes are numbered by the alphabet where the data set has numbers of its own."""
    places = Copy(tmp_path)
    write_places365(places, monkeypatch)
    assert open_benchmark("places365", tmp_path).classes == ("airfield", "zen_garden", "apartment_building/outdoor")
    write_birdsnap(Copy(tmp_path), monkeypatch)
    assert open_benchmark("birdsnap", tmp_path).classes == ("Cooper's Hawk", "Mallard", 'A "Quoted" Owl')


def test_birds_that_were_not_fetched_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks if an image that is listed but was gone from the web counts as one of the set."""
    copy = Copy(tmp_path)
    write_birdsnap(copy, monkeypatch)
    task = open_benchmark("birdsnap", tmp_path)
    with (tmp_path / "birdsnap" / "images.txt").open() as file:
        listed = len(list(csv.DictReader(file, delimiter="\t")))
    assert len(task.train) + len(task.validation) == listed - 3 - len(copy.test)
    for file in copy.test_files[1:]:
        file.unlink()
    assert greys(task.test.open()) == list(copy.test)[:1]


def test_cifar_pixels_are_where_they_belong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks if rows and columns, or pixels and colours, are taken for one another; the files hold plane by plane."""
    write_cifar100(Copy(tmp_path), monkeypatch)
    pixels = np.random.default_rng(0).integers(0, 256, (40, 3072), dtype=np.uint8)
    file = tmp_path / "cifar-100-python" / "train"
    file.write_bytes(pickle.dumps({"data": pixels, "fine_labels": [0, 1] * 20}, protocol=2))
    monkeypatch.setattr(datasets.CIFAR100, "train_list", [["train", checksum(file)]])
    image = open_benchmark("cifar100", tmp_path).train.source.read(7)
    for colour, row, column in ((0, 0, 5), (2, 3, 31), (1, 30, 2)):
        assert image[colour, row, column] == pixels[7, colour * 1024 + row * 32 + column]


def test_damaged_lists_are_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks if what a list gets wrong reaches the user as a traceback, or as advice to download."""
    copy = Copy(tmp_path)
    write_sun397(copy, monkeypatch)
    copy.text("SUN397/Training_01.txt", ["/q/quarry/sun_x.jpg"])
    with pytest.raises(UsageError, match=r"sun397 in .* is damaged or incomplete \(unknown '/q/quarry'\)"):
        open_benchmark("sun397", tmp_path)
    write_voc2007(copy, monkeypatch)
    copy.text("VOCdevkit/VOC2007/ImageSets/Main/cow_train.txt", ["000001  1"])
    with pytest.raises(UsageError, match="name different images"):
        open_benchmark("voc2007", tmp_path)
    write_cifar100(copy, monkeypatch)
    with (tmp_path / "cifar-100-python" / "train").open("ab") as file:
        file.write(b"one byte more")
    with pytest.raises(UsageError, match=r"not found or corrupted\); expected: cifar-100-python with train"):
        open_benchmark("cifar100", tmp_path)


def test_a_class_without_training_images_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks if a folder of the test part that has no match is given another class's number."""
    copy = Copy(tmp_path)
    write_imagenet(copy, monkeypatch)
    copy.image("imagenet/val/n99999999/image.JPEG", "test", "n99999999")
    task = open_benchmark("imagenet", tmp_path)
    with pytest.raises(BadData, match="'n99999999' has no training images"):
        task.test.open()


@pytest.mark.parametrize("name", ["cars", "flowers102"])
def test_without_scipy(name: str, copy: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks if the missing package is reported as missing data."""
    monkeypatch.setitem(sys.modules, "scipy", None)
    with pytest.raises(UsageError, match="need scipy"):
        open_benchmark(name, copy.root)


@pytest.mark.parametrize(("typed", "meant"), [("foood101", "food101"), ("CIFAR10", "cifar10"), ("sun", "sun397")])
def test_unknown_names(typed: str, meant: str, tmp_path: Path) -> None:
    """Breaks if a misspelt name is not answered with the nearest ones."""
    with pytest.raises(UsageError, match=rf"no evaluation data set '{typed}'. .*\b{meant}\b"):
        open_benchmark(typed, tmp_path)


@pytest.mark.parametrize("name", ["pets"])
def test_a_bad_image_is_only_itself(name: str, copy: Copy) -> None:
    """Breaks if a damaged file raises something other than `BadImage`, or the size limit is not handed on."""
    task = open_benchmark(name, copy.root, max_megapixels=20e-6)
    with pytest.raises(BadImage, match="megapixels"):
        task.train.source.read(0)
    task = open_benchmark(name, copy.root)
    file = copy.root / task.train.source.describe(0)
    file.write_bytes(file.read_bytes()[:40])
    with pytest.raises(BadImage):
        task.train.source.read(0)
    assert task.train.source.read(1).shape == (3, 4, 6)
