"""Which images a step sees and what its crops are: the same for any workers, any start, any bad file."""

from __future__ import annotations

import multiprocessing
import os
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from byol import data
from byol.config import Config, apply, resolve
from byol.crops import shrink
from byol.data import loader
from byol.data.source import BadImage, Source
from byol.errors import BadData
from tests.conftest import write_images

CPU = torch.device("cpu")


def prepared(folder: Path, tiny: dict[str, object], **changes: object) -> tuple[loader.Images, Config]:
    config = apply(Config(), {**tiny, **{name.replace("__", "."): value for name, value in changes.items()}})
    return loader.prepare(data.open_source(str(folder), config.data), config), config


def collect(images: loader.Images, config: Config, first: int = 0) -> list[loader.Crops]:
    return list(loader.batches(images, config, resolve(config, len(images.train)), first, CPU))


def same(one: list[loader.Crops], other: list[loader.Crops]) -> bool:
    return len(one) == len(other) and all(
        torch.equal(a.crops[v], b.crops[v]) and torch.equal(a.labels, b.labels)
        for a, b in zip(one, other, strict=True)
        for v in (0, 1)
    )


@pytest.mark.parametrize("batch", [3, 8, 10, 64])
def test_every_epoch_sees_every_image_once(batch: int) -> None:
    """Breaks if a remainder is dropped or an epoch is not a permutation."""
    count, epochs = 20, 16
    steps = count * epochs // batch
    seen = np.concatenate([loader.batch_positions(5, step, batch, count) for step in range(steps)])
    for epoch in range(len(seen) // count):
        assert sorted(seen[epoch * count : (epoch + 1) * count]) == list(range(count))
    assert not np.array_equal(seen[:count], seen[count : 2 * count])
    assert not np.array_equal(seen[:count], loader.batch_positions(6, 0, count, count))


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_batches_do_not_depend_on_the_workers(folder: Path, tiny: dict[str, object], workers: int) -> None:
    """Breaks if anything random is drawn inside a worker (G6)."""
    images, config = prepared(folder, tiny, data__in_memory="never", data__workers=0, optim__accumulate=2)
    alone = collect(images, config)
    many = collect(images, replace(config, data=replace(config.data, workers=workers, prefetch=3)))
    assert len(alone) == 12
    assert same(alone, many)


def test_workers_leave_signals_to_the_main_process(folder: Path, tiny: dict[str, object]) -> None:
    """Breaks if a worker dies of the signal that a cluster sends to every process, before the step is saved; or if it
    lives on when the batches are no longer wanted."""
    images, config = prepared(folder, tiny, data__in_memory="never", data__workers=1, data__prefetch=1)
    batches = loader.batches(images, config, resolve(config, len(images.train)), 0, CPU)
    next(batches)
    (worker,) = multiprocessing.active_children()
    assert worker.pid
    for number in (signal.SIGTERM, signal.SIGUSR2, signal.SIGINT):
        os.kill(worker.pid, number)
    assert len(list(batches)) == 5
    batches = loader.batches(images, config, resolve(config, len(images.train)), 0, CPU)
    next(batches)
    (worker,) = multiprocessing.active_children()
    batches.close()
    worker.join(5)
    assert not worker.is_alive()


def test_a_start_in_the_middle_gives_the_same_batches(folder: Path, tiny: dict[str, object]) -> None:
    """Breaks if a batch depends on the ones before it."""
    images, config = prepared(folder, tiny, data__in_memory="never", data__workers=2, optim__accumulate=2)
    assert same(collect(images, config)[6:], collect(images, config, first=3))


def test_in_memory_and_streamed_crops_agree(tmp_path: Path, tiny: dict[str, object]) -> None:
    """Breaks if the batched and the single-image bicubic part ways."""
    from tests.conftest import write_images

    folder = write_images(tmp_path / "square", 16, sides=(40,))
    held, config = prepared(folder, tiny)
    streamed, never = prepared(folder, tiny, data__in_memory="never", data__workers=0)
    assert held.pixels is not None
    assert streamed.pixels is None
    for a, b in zip(collect(held, config), collect(streamed, never), strict=True):
        torch.testing.assert_close(a.crops[0], b.crops[0], atol=2e-6, rtol=0)
        assert torch.equal(a.labels, b.labels)


def test_small_images_are_held_the_same_whoever_reads_them(tmp_path: Path, tiny: dict[str, object]) -> None:
    """Breaks if an image is lost, doubled or moved between the processes that read, or a bad one is not named."""
    folder = write_images(tmp_path / "images", 150)
    (folder / "class0" / "bad.jpg").write_bytes(b"no image")
    held = []
    for workers in (0, 2):
        config = apply(Config(), {**tiny, "data.in_memory": "always", "data.workers": workers})
        held.append(loader.prepare(data.open_source(str(folder), config.data), config))
    assert len(held[0].train) == 150 > loader.PIECE * 2
    assert [bad.name for bad in held[1].bad] == ["class0/bad.jpg"]
    assert held[0].bad == held[1].bad
    for one, other in zip(*(images.read(images.train) for images in held), strict=True):
        assert torch.equal(one, other)


def test_images_of_mixed_size_are_held_decoded(folder: Path, tiny: dict[str, object]) -> None:
    """Breaks if a small set of mixed sizes is decoded again at every visit."""
    images, _ = prepared(folder, tiny)
    assert images.pixels is None
    assert images.source.read(3) is images.source.read(3)


def faulty(count: int, bad: set[int]) -> Source:
    def read(index: int) -> torch.Tensor:
        if index in bad:
            raise BadImage("truncated")
        return torch.full((3, 40, 40), index, dtype=torch.uint8)

    return Source("faulty", count, read, lambda i: f"image{i}", np.arange(count) % 2, ("a", "b"))


@pytest.mark.parametrize("in_memory", ["always", "never"])
def test_bad_images_are_left_out_named_and_replaced(tiny: dict[str, object], in_memory: str) -> None:
    """Breaks if a bad image stops the run, is served, or moves the label of another."""
    config = apply(Config(), {**tiny, "data.in_memory": in_memory, "data.workers": 0, "views.t.jitter": 0.0})
    images = loader.prepare(faulty(40, {3, 17}), config)
    seen: list[loader.Bad] = list(images.bad)
    for batch in collect(images, config):
        seen += batch.bad
        values = (batch.crops[0][:, 0].mean((1, 2)) * 255).round().long()
        assert not {3, 17} & set(values.tolist())
        assert torch.equal(values % 2, batch.labels)
    assert {b.name for b in seen} == {"image3", "image17"}
    assert {b.reason for b in seen} == {"truncated"}


@pytest.mark.parametrize(
    ("count", "bad", "stops"), [(2000, 25, True), (2000, 15, False), (100, 10, False), (5, 5, True)]
)
def test_too_many_bad_images_stop_the_run(tiny: dict[str, object], count: int, bad: int, stops: bool) -> None:
    """Breaks if the limit of data.max_bad (1 %, and over 10 files) moves."""
    config = apply(Config(), tiny)
    known = [loader.Bad(f"image{i}", "truncated") for i in range(bad)]
    if stops:
        with pytest.raises(BadData, match=rf"{bad} of {count} images cannot be read.*image0: truncated"):
            loader.BadList(known, count, config, lambda _: None)
    else:
        assert len(loader.BadList(known, count, config, lambda _: None).seen) == bad


def test_bad_list_reports_each_once(tiny: dict[str, object]) -> None:
    """Breaks if a file met again in the next epoch is counted twice."""
    reports: list[int] = []
    bad = loader.BadList([], 100, apply(Config(), tiny), lambda every: reports.append(len(every)))
    for _ in range(3):
        bad.add([loader.Bad("a", "empty"), loader.Bad("b", "empty")])
    assert reports == [2]


def test_held_out_images_are_never_trained_on(folder: Path, tiny: dict[str, object]) -> None:
    """Breaks if the two parts overlap or lose an image."""
    images, _ = prepared(folder, tiny, data__holdout=0.25)
    assert len(images.held_out) == 6
    assert sorted([*images.train, *images.held_out]) == list(range(24))


def test_fingerprint_changes_with_names_and_labels(folder: Path, tiny: dict[str, object]) -> None:
    """Breaks if a renamed or moved file goes unnoticed on resume."""
    before, _ = prepared(folder, tiny)
    again, _ = prepared(folder, tiny)
    assert before.fingerprint == again.fingerprint
    moved = next((folder / "class0").iterdir())
    moved.rename(folder / "class1" / moved.name)
    after, _ = prepared(folder, tiny)
    assert after.fingerprint != before.fingerprint


@pytest.mark.parametrize("held", ["always", "never"])
def test_larger_images_are_shrunk_before_they_are_cut(folder: Path, tiny: dict[str, object], held: str) -> None:
    """Breaks if only images in memory are shrunk, or the views are cut from the images as they were."""
    images, config = prepared(folder, tiny, data__shrink=16, data__in_memory=held, data__workers=0)
    plain = data.open_source(str(folder), config.data)
    for index in range(4):
        found = images.source.read(index)
        assert min(found.shape[1:]) == 16
        assert torch.equal(found, shrink(plain.read(index), 16))
    whole = prepared(folder, tiny, data__in_memory=held, data__workers=0)[0]
    assert not same(collect(images, config)[:1], collect(whole, config)[:1])
