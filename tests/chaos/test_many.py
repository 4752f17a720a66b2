"""Very many images, odd names, long runs: bounded memory and time."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import byol
from byol import checkpoint, data, pretraining
from byol.config import Config, apply, resolve
from byol.data import loader
from byol.data.folder import joined
from byol.data.source import Source
from tests.chaos.scale import LONG
from tests.conftest import write_images
from tests.test_pretraining import children
from tests.zygote import Zygote

pytestmark = pytest.mark.timeout(3600)


def test_a_start_in_the_middle_of_a_million(tiny: dict[str, Any]) -> None:
    """Breaks if going on replays earlier batches, or looks at every file again for the first of them (G7)."""
    image = torch.zeros(3, 40, 40, dtype=torch.uint8)
    read: list[int] = []
    source = Source("many", 1_000_000, lambda i: read.append(i) or image, "{:07d}.jpg".format)  # type: ignore[func-returns-value]
    config = apply(Config(), {**tiny, "data.in_memory": "never", "data.workers": 0, "optim.epochs": 3})
    images = loader.Images(source, np.arange(1_000_000), np.arange(0), None, [], "")
    plan = resolve(config, 1_000_000)
    began = time.process_time()
    batch = next(loader.batches(images, config, plan, plan.steps // 2, torch.device("cpu")))
    seconds = time.process_time() - began
    assert len(read) == len(batch.crops[0]) == 8
    assert seconds < 2
    print(f"first batch after {plan.steps // 2} steps: {seconds:.2f} s")


LISTING = """
import sys, time
from pathlib import Path
from byol.data.folder import listed
def kilobytes(name):
    return int(next(line.split()[1] for line in open("/proc/self/status") if line.startswith(name)))
open("/proc/self/clear_refs", "w").write("5")  # the peak starts anew
before, began = kilobytes("VmRSS"), time.process_time()
paths, labels, classes = listed(Path(sys.argv[1]))
print(len(paths.ends), len(classes), time.process_time() - began, kilobytes("VmHWM") - before, len(paths.buffer))
"""


def test_a_folder_of_very_many_files(tmp_path: Path) -> None:
    """Breaks if listing needs more than some hundred bytes an image, or a minute for a million."""
    count, classes = (1_000_000, 1000) if LONG else (20_000, 20)
    place = Path("/dev/shm") if LONG and os.access("/dev/shm", os.W_OK) else tmp_path
    root = place / f"byol-many-{os.getpid()}"
    try:
        for number in range(classes):
            (root / f"class {number:04d}").mkdir(parents=True)
            for image in range(count // classes):
                os.close(os.open(root / f"class {number:04d}" / f"{image:06d}.jpg", os.O_CREAT | os.O_WRONLY))
        told = subprocess.run([sys.executable, "-c", LISTING, str(root)], capture_output=True, text=True)
        found, kinds, seconds, kilobytes, buffer = map(float, told.stdout.split())
    finally:
        shutil.rmtree(root, ignore_errors=True)
    assert (found, kinds) == (count, classes)
    assert buffer == count * len("class 0000/000000.jpg")
    assert seconds < 60 * count / 1e6 + 1
    assert kilobytes * 1024 < 300 * count + 2e7
    print(f"{count} files listed in {seconds:.1f} s of computing, {kilobytes / 1024:.0f} MB")


LEGAL = [
    "new\nline",
    "tab\t",
    "quote'\"",
    "back\\slash",
    "*?[x]",
    " spaces ",
    "-rf",
    "$(id)",
    "#;&|<>",
    "日本 ü",
    "%s{}",
]


def test_names_of_every_legal_character(tmp_path: Path, tiny: dict[str, Any]) -> None:
    """Breaks if an odd name is lost, split or refused anywhere between the folder and the files of a run."""
    every = bytes(b for b in range(1, 256) if b != ord("/"))
    odd = [every[i : i + 20] for i in range(0, len(every), 20)] + [name.encode() for name in LEGAL]
    root = os.fsencode(tmp_path / "odd")
    os.mkdir(root)
    for number, name in enumerate(odd):
        Image.new("RGB", (8, 8), (number % 256, 0, 0)).save(tmp_path / "one.png")
        shutil.copy(tmp_path / "one.png", os.path.join(root, b"a" + name + b".png"))
    run = byol.pretrain(
        tmp_path / "odd", tmp_path / "run", "cifar10-cpu", tiny | {"optim.batch": 16, "optim.epochs": 1}
    )
    assert run.plan.images == len(odd)
    features, names = byol.embed(run.out, tmp_path / "odd")
    assert len(set(names)) == len(features) == len(odd)
    neighbours = json.loads((run.out / "neighbours.json").read_text())
    assert len(neighbours["names"]) == len(odd)


def test_odd_settings_of_the_loader_give_the_same_batches(folder: Path, tiny: dict[str, Any]) -> None:
    """Breaks if how far workers read ahead changes what they read (G6)."""
    config = apply(Config(), {**tiny, "data.in_memory": "never", "data.workers": 0, "optim.epochs": 1})
    images = loader.prepare(data.open_source(str(folder), config.data), config)
    plan = resolve(config, len(images.train))
    every = lambda config: list(loader.batches(images, config, plan, 0, torch.device("cpu")))
    alone = every(config)
    for workers, prefetch in ((1, 1), (2, 1), (2, 4), (4, 2)) if LONG else ((2, 1), (1, 4)):
        found = every(replace(config, data=replace(config.data, workers=workers, prefetch=prefetch)))
        assert all(torch.equal(a.crops[v], b.crops[v]) for a, b in zip(alone, found, strict=True) for v in (0, 1))


def handles() -> tuple[int, int]:
    """Open files and child processes of this process."""
    return len(os.listdir("/proc/self/fd")), len(children(os.getpid()))


def resident() -> float:
    """MB in memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs /proc")
def test_a_long_run_stays_as_it_is(tmp_path: Path, tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks if steps, looks or saves keep memory, files or processes (G20)."""
    steps, saves, looks = (10_000, 200, 50) if LONG else (120, 40, 10)
    images = write_images(tmp_path / "square", 8, sides=(40,))
    seen: list[tuple[float, tuple[int, int]]] = []
    real = pretraining.save

    def save(*arguments: Any) -> None:
        real(*arguments)
        seen.append((resident(), handles()))

    monkeypatch.setattr(pretraining, "save", save)
    overrides = tiny | {"optim.epochs": steps, "run.checkpoint_steps": steps // saves, "run.log_every": 10}
    run = byol.pretrain(images, tmp_path / "run", "cifar10-cpu", overrides | {"run.monitor_epochs": steps / looks})
    assert run.plan.steps == steps
    assert len([m for m in run.metrics if "spread" in m]) >= looks
    warm = seen[len(seen) // 4 :]
    growth = warm[-1][0] - warm[0][0]
    assert len({found for _, found in warm}) == 1, warm
    assert growth < min(0.02 * warm[0][0], steps / 1000) if LONG else growth < max(0.02 * warm[0][0], 4.0)
    print(f"{steps} steps, {len(seen)} saves: {growth:+.1f} MB of {warm[0][0]:.0f} MB, {warm[-1][1]} files, children")


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs /proc")
def test_workers_share_the_names(tiny: dict[str, Any]) -> None:
    """Breaks if a loader process gets its own copy of the names as it looks at them (G20)."""
    count, epochs = (1_000_000, 20) if LONG else (800_000, 1)
    images, batch, at_once = 4000, 8, count * epochs // 4000
    paths = joined([b"class/%050d.jpg" % number for number in range(count)], b"/")
    pixels, looked = torch.zeros(3, 32, 32, dtype=torch.uint8), np.arange(images) * at_once

    def read(index: int) -> torch.Tensor:
        for number in range(looked[index], looked[index] + at_once):
            assert paths[number % count].endswith(b".jpg")
        return pixels

    source = Source("many", images, read, "{:07d}.jpg".format)
    config = apply(Config(), {**tiny, "data.in_memory": "never", "data.workers": 2, "optim.epochs": 1})
    held = loader.Images(source, np.arange(images), np.arange(0), None, [], "")
    workers: list[list[float]] = []
    others = set(children(os.getpid()))
    gc.collect()
    gc.freeze()  # else a collection in a worker writes to whatever other tests have left
    for number, _ in enumerate(loader.batches(held, config, resolve(config, images), 0, torch.device("cpu"))):
        if number % 10 == 0:  # a look takes longer than a batch
            new = [child for child in children(os.getpid()) if child not in others and b"python" in command_of(child)]
            workers.append([private(worker) for worker in new])  # without `ps` itself
    gc.unfreeze()
    assert number + 1 == images // batch
    warm = workers[len(workers) // 10 : -1]
    assert all(len(each) == 2 for each in warm)
    # The least of a few looks, because a batch on its way to the training process counts as the worker's own.
    early, late = (np.array(looks).min(0) for looks in (warm[:5], warm[-5:]))
    growth = float((late - early).max())
    # A process with many libraries and other tests behind it writes to some megabytes of what it shares, whatever it
    # looks at: 16 were seen. The names are three times as many, and as objects of Python far more.
    size = len(paths.buffer) / 1e6
    assert growth < (5 if LONG else size / 2), f"{growth:.1f} MB, and the names are {size:.0f} MB"
    print(f"{epochs} epochs of {count} names: {growth:+.1f} MB at most in a worker of {warm[0][0]:.0f} MB")


def command_of(pid: int) -> bytes:
    """Empty for a process that has ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def private(pid: int) -> float:
    """MB that a process shares with no other."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private")) / 1000


def used(pids: list[int]) -> tuple[float, float]:
    """Seconds of computing so far, and MB in memory, of processes together."""
    ticks = pages = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:15]))  # with those of its ended children
            pages += int(fields[21])
    return ticks / os.sysconf("SC_CLK_TCK"), pages * os.sysconf("SC_PAGE_SIZE") / 1e6


@pytest.mark.skipif(not LONG, reason="takes ten minutes: needs make chaos")
@pytest.mark.parametrize("verb", ["embed", "evaluate"])
def test_full_speed_for_minutes(tmp_path: Path, zygote: Zygote, verb: str) -> None:
    """Breaks if 100,000 images through two workers stall, or need more memory the longer it takes."""
    from byol.networks import resnet

    encoder = tmp_path / "encoder.safetensors"
    settings = {"network.encoder": "resnet18", "network.width": 0.25, "network.small_images": True}
    checkpoint.save_encoder(encoder, resnet(18, 0.25, True), apply(Config(), {**settings, "data.resolution": 64}), {})
    on = ["scenes:100000", "--out", str(tmp_path / "features.npz")]
    if verb == "evaluate":
        on = ["--on", "scenes:100000", "--protocol", "knn", "--out", str(tmp_path / "results")]
    pid = zygote.start(verb, str(encoder), *on)
    seconds, memory = [0.0], [0.0]
    while not zygote.ended(pid):
        now = used([pid, *children(pid)])
        seconds.append(max(now[0], seconds[-1]))  # a child that ends while they are asked is missed once
        memory.append(now[1])
        time.sleep(1)
    code, said = zygote.wait(pid)
    assert code == 0, said
    if verb == "embed":
        assert len(np.load(tmp_path / "features.npz")["names"]) == 100_000
    stalls = [after - before for before, after in zip(seconds, seconds[10:], strict=False)]
    assert min(stalls) > 1, "ten seconds without work"
    middle, late = max(memory[len(memory) // 4 : len(memory) // 2]), max(memory[len(memory) // 2 : -5])
    features = 100_000 * 128 * 4 / 1e6
    assert late < 1.1 * middle + 2 * features
    print(f"{verb}: 100,000 images in {len(memory)} s; {middle:.0f} MB in the first half, {late:.0f} MB in the second")
