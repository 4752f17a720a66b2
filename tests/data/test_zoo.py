"""A folder of every bad and odd kind of file: each is shown rightly, or left out and listed once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import byol
from byol import data
from byol.config import Config, apply, resolve
from byol.data import loader
from byol.data.decode import printable
from byol.data.source import BadImage
from byol.errors import BadData
from tests.conftest import TINY
from tests.data import zoo
from tests.test_pretraining import digest

ROOT = Path(__file__).resolve().parents[2]
WRONG = {printable(name) for name in (*zoo.BAD, *zoo.SPARSE)}


@pytest.fixture(scope="module")
def menagerie(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return zoo.build(tmp_path_factory.mktemp("zoo"))


def opened(folder: Path, **changes: Any) -> tuple[loader.Images, Config]:
    asked = TINY | {"data.in_memory": "never", "data.workers": 0, "data.max_bad": 1.0, "optim.epochs": 1.1}
    config = apply(Config(), asked | {name.replace("__", "."): value for name, value in changes.items()})
    return loader.prepare(data.open_source(str(folder), config.data), config), config


def test_every_file_is_right_or_left_out(menagerie: Path) -> None:
    """Breaks if an odd image is shown wrongly, a bad one is shown or hangs, a pipe or a loop is opened (G11, G12)."""
    assert zoo.KINDS >= 70
    source = data.open_source(str(menagerie), Config().data)
    shown, refused = dict[str, np.ndarray](), dict[str, str]()
    for index in range(len(source)):
        began = time.thread_time()
        try:
            shown[source.describe(index)] = source.read(index).permute(1, 2, 0).numpy().astype(float)
        except BadImage as error:
            refused[source.describe(index)] = str(error)
        assert time.thread_time() - began < 1, source.describe(index)
    assert set(refused) == WRONG
    assert all(0 < len(reason) < 130 and reason.isprintable() for reason in refused.values())
    assert set(shown) == {printable(name) for name in zoo.ODD}
    for name, (content, expected) in zoo.ODD.items():
        found = shown[printable(name)]
        assert found.shape == expected.shape, name
        lossy = content.startswith(b"\xff\xd8")
        assert np.abs(found - expected).mean() <= (zoo.LOSSY if lossy else 0.51), name


def test_a_run_lists_each_bad_file_once_for_any_workers(menagerie: Path, tmp_path: Path) -> None:
    """Breaks if a worker dies, a bad file is listed twice or not at all, or weights depend on the workers (G6, G11)."""
    ends = []
    for workers in (0, 2):
        out = tmp_path / str(workers)
        changes = {"data.in_memory": "never", "data.workers": workers, "data.max_bad": 1.0}
        byol.pretrain(menagerie, out, "cifar10-cpu", TINY | changes | {"optim.epochs": 1.1})
        lines = (out / "skipped.txt").read_text(encoding="utf-8").splitlines()
        names = [line.partition("\t")[0] for line in lines]
        assert len(names) == len(set(names))
        assert set(names) == WRONG
        ends.append(digest(out))
    assert ends[0] == ends[1]


@pytest.mark.parametrize("in_memory", ["always", "never"])
def test_policies(menagerie: Path, in_memory: str) -> None:
    """Breaks if `data.max_bad` does not mean none, a number or a fraction (G11: error, skip up to N, skip)."""

    def outcome(most: float) -> str:
        try:
            images, config = opened(menagerie, data__max_bad=most, data__in_memory=in_memory)
            listed = loader.BadList(images.bad, len(WRONG) + len(zoo.ODD), config, lambda _: None)
            for batch in loader.batches(images, config, resolve(config, len(images.train)), 0, torch.device("cpu")):
                listed.add(batch.bad)
        except BadData as error:
            return str(error)
        assert set(listed.seen) == WRONG
        return ""

    assert BadData.exit_code == 65
    assert " cannot be read, more than data.max_bad allows; the first is " in outcome(0)
    assert outcome(len(WRONG)) == ""
    assert outcome(len(WRONG) - 1).startswith(f"{len(WRONG)} of ")
    assert 10 < int(outcome(0.01).split(" of ")[0]) <= len(WRONG)  # 1 % of them would be none


def test_files_that_go_or_change_during_the_run(tmp_path: Path) -> None:
    """Breaks if a file that was there when the folder was listed must still be there, or be what it was."""
    from tests.conftest import write_images

    folder = write_images(tmp_path / "images", 24)
    changed = sorted((folder / "class0").iterdir())[:4]
    for workers in (0, 2):
        images, config = opened(folder, data__workers=workers, data__prefetch=1, optim__epochs=6)
        steps = loader.batches(images, config, resolve(config, len(images.train)), 0, torch.device("cpu"))
        seen = {bad.name: bad.reason for bad in next(steps).bad}
        kept = [path.read_bytes() for path in changed]
        for path in changed:
            path.unlink()
        changed[1].write_text("no longer an image")
        os.mkfifo(changed[2])
        changed[3].mkdir()
        for batch in steps:
            seen |= {bad.name: bad.reason for bad in batch.bad}
            assert torch.isfinite(batch.crops[0]).all()
        reasons = ["no such file or directory", "not an image", "not a regular file", "not a regular file"]
        assert seen == {f"class0/{path.name}": reason for path, reason in zip(changed, reasons, strict=True)}
        changed[2].unlink()
        changed[3].rmdir()
        for path, content in zip(changed, kept, strict=True):
            path.write_bytes(content)


MEASURED = """
import json, resource, sys, time
from byol import data
from byol.config import Config
from byol.data.source import BadImage
source = data.open_source(sys.argv[1], Config().data)
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
names = {source.describe(i): i for i in range(len(source))}
source.read(names["plain.jpg"])
base, found = peak(), {}
for name, index in names.items():
    before, began = peak(), time.process_time()
    try:
        source.read(index)
    except BadImage:
        pass
    found[name] = [peak() - before, time.process_time() - began]
print(json.dumps({"over": peak() - base, "files": found}))
"""


def test_memory_and_time(menagerie: Path) -> None:
    """Breaks if one of the files costs 500 MB or a second, or the bomb of 400 megapixels 50 MB or 50 ms (G11, G13)."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", MEASURED, str(menagerie)]
    result = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["over"] <= 500
    assert max(seconds for _, seconds in found["files"].values()) < 1
    megabytes, seconds = found["files"]["20000x20000.png"]
    assert megabytes < 50
    assert seconds < 0.05
