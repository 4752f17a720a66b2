"""Parts of a labelled data set: disjoint, fixed, joined without loss, and a test part that is opened once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from byol.config import Data
from byol.data import open_task, parts
from byol.data.source import Source
from byol.errors import BadData, UsageError
from tests.conftest import write_images


def numbered(count: int, classes: int) -> Source:
    """Image i is one pixel of value i."""
    return Source(
        "numbers",
        count,
        lambda i: torch.full((3, 1, 1), i, dtype=torch.uint8),
        lambda i: f"image {i}",
        np.arange(count) % classes,
        tuple(map(str, range(classes))),
    )


def test_parts_are_disjoint_and_complete() -> None:
    """Breaks if an image is in two parts or in none, or a rule holds out another number."""
    whole = parts.whole(numbered(103, 5))
    for rest, held in (
        parts.held_out(whole, 20),
        parts.held_out_per_class(whole, 4),
        parts.held_out_fraction(whole, 0.2),
    ):
        assert sorted([*rest.indices, *held.indices]) == list(range(103))
        assert (held.targets == held.indices % 5).all()
    assert len(parts.held_out(whole, 20)[1]) == 20
    assert np.bincount(parts.held_out_per_class(whole, 4)[1].targets).tolist() == [4] * 5
    assert np.bincount(parts.held_out_fraction(whole, 0.2)[1].targets).tolist() == [4] * 5


def test_a_seed_fixes_the_choice() -> None:
    """Breaks if the choice depends on anything but the seed."""
    whole = parts.whole(numbered(60, 3))
    first, again, other = (parts.held_out(whole, 10, seed)[1].indices.tolist() for seed in (1, 1, 2))
    assert first == again != other


def test_joined_parts_keep_image_and_target_together() -> None:
    """Breaks if targets are reordered without their images, within one source or across two."""
    whole = parts.whole(numbered(50, 7))
    rest, held = parts.held_out(whole, 15)
    both = parts.as_source(parts.joined(rest, held))
    assert [int(both.read(i)[0]) for i in range(50)] == list(range(50))
    assert both.labels is not None
    assert both.labels.tolist() == [i % 7 for i in range(50)]
    other = parts.whole(numbered(4, 2))
    apart = parts.joined(held, other)
    assert [int(apart.source.read(i)[0]) for i in (14, 15, 18)] == [int(held.indices[14]), 0, 3]
    assert apart.targets[15:].tolist() == [0, 1, 0, 1]


def test_the_test_part_is_opened_once() -> None:
    """Breaks if a protocol may look a second time."""
    sealed = parts.Sealed(lambda: parts.whole(numbered(4, 2)))
    sealed.open()
    with pytest.raises(AssertionError, match="twice"):
        sealed.open()
    assert len(sealed.again().open()) == 4


def test_a_folder_without_parts_gets_them(tmp_path: Path) -> None:
    """Breaks if the test images depend on chance, or overlap with the others."""
    folder = write_images(tmp_path / "images", 60, classes=3)
    first, second = open_task(str(folder), Data()), open_task(str(folder), Data())
    test = first.test.open()
    assert test.indices.tolist() == second.test.open().indices.tolist()
    assert len(test) == 12
    assert not set(test.indices) & ({*first.train.indices} | {*first.validation.indices})
    assert len(first.train) + len(first.validation) == 48
    assert len(first.validation) in (3, 6)


def test_given_parts_are_used_as_they_are(tmp_path: Path) -> None:
    """Breaks if val is mixed into train, or test is taken from train although it is given."""
    for name, count in (("train", 20), ("val", 8), ("test", 12)):
        write_images(tmp_path / "set" / name, count)
    opened = open_task(str(tmp_path / "set"), Data())
    assert (len(opened.train), len(opened.validation), len(opened.test.open())) == (20, 8, 12)
    assert opened.name == str(tmp_path / "set")


def test_val_alone_is_the_test(tmp_path: Path) -> None:
    """Breaks if choices are made on the part that is reported (paper, appendix D: val becomes test)."""
    for name, count in (("train", 20), ("val", 8)):
        write_images(tmp_path / "set" / name, count)
    opened = open_task(str(tmp_path / "set"), Data())
    test = opened.test.open()
    assert len(test) == 8
    assert test.source.name.endswith("val")
    assert opened.validation.source is opened.train.source
    assert len(opened.train) + len(opened.validation) == 20


def test_classes_go_by_name(tmp_path: Path) -> None:
    """Breaks if the numbers of the test folders are taken as they come: a class that has no test image shifts them."""
    write_images(tmp_path / "set" / "train", 30, classes=3)
    write_images(tmp_path / "all", 12, classes=3)
    (tmp_path / "set" / "test").mkdir()
    for name in ("class1", "class2"):
        (tmp_path / "all" / name).rename(tmp_path / "set" / "test" / name)
    assert set(open_task(str(tmp_path / "set"), Data()).test.open().targets) == {1, 2}


def test_what_cannot_be_evaluated_on(tmp_path: Path) -> None:
    """Breaks if missing labels, unknown classes or a typing mistake are a traceback."""
    write_images(tmp_path / "one", 6, classes=1)
    with pytest.raises(BadData, match="no labels"):
        open_task(str(tmp_path / "one"), Data())
    write_images(tmp_path / "set" / "train", 8, classes=2)
    write_images(tmp_path / "set" / "test", 9, classes=3)
    with pytest.raises(BadData, match="class2"):
        open_task(str(tmp_path / "set"), Data()).test.open()
    with pytest.raises(UsageError, match="flowers102"):
        open_task("flower102", Data())
