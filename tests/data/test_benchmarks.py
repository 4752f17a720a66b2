"""The paper's data sets: every row of the table opened from a miniature copy in the format it is published in.

Each image of a copy is of one grey level, its serial number, so that what was read tells which file it was.
"""

from __future__ import annotations

import csv
import json
import pickle
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchvision import datasets

from byol.data.benchmarks.sets import held_out_by, open_benchmark
from byol.data.benchmarks.table import BENCHMARKS
from byol.data.parts import Part, Task
from byol.data.source import BadImage, Source
from byol.errors import BadData, UsageError
from tests.chaos import copies
from tests.chaos.copies import (
    Copy,
    checksum,
    write_birdsnap,
    write_cifar100,
    write_imagenet,
    write_places365,
    write_sun397,
    write_voc2007,
)

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
MINIATURES: dict[str, Callable[[Copy, pytest.MonkeyPatch], None]] = {
    name.removeprefix("write_"): value for name, value in vars(copies).items() if name.startswith("write_")
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
