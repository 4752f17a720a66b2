"""Shards are written once, whole or not at all, and go on where a kill left them."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from byol import data
from byol.config import Data
from byol.data.folder import folder as open_folder
from byol.data.shards import index, writing
from byol.errors import BadData, Interrupted, OutputBusy, UsageError
from byol.run import signals
from tests.conftest import write_images
from tests.data.test_shards import SMALL, damaged, flip, same_images

pytestmark = pytest.mark.usefixtures("own_cache")


def test_parts_and_tasks(tmp_path: Path) -> None:
    """Breaks if a tree of train and test loses its parts, or an evaluation sees other images than from the folder."""
    root = tmp_path / "tree"
    for part, count in (("train", 20), ("test", 6)):
        write_images(root / part, count)
    writing.shard(root, tmp_path / "out", SMALL)
    for split in ("train", "test"):
        same_images(open_folder(root / split), data.open_source(str(tmp_path / "out"), Data(), split))
    one, other = (data.open_task(str(p), Data()) for p in (root, tmp_path / "out"))
    assert np.array_equal(one.train.indices, other.train.indices)
    assert np.array_equal(one.validation.indices, other.validation.indices)
    assert len(other.test.open()) == 6
    with pytest.raises(UsageError, match="no test part"):
        data.open_source(str(tmp_path / "out" / "train"), Data(), "test")


def test_unlabelled_unreadable_and_oddly_named_files(tmp_path: Path) -> None:
    """Breaks if a name that is no UTF-8, a file without permission or a missing class ends or shifts the shards."""
    root = write_images(tmp_path / "images", 4, classes=1) / "class0"
    os.rename(os.fsencode(root / "001.jpg"), os.fsencode(root) + b"/a\xff\n.b.JPG")
    (root / "002.jpg").unlink()
    (root / "002.jpg").symlink_to("/proc/self/mem")
    writing.shard(root, tmp_path / "out", SMALL)
    one, other = open_folder(root), data.open_source(str(tmp_path / "out"), Data())
    assert [one.describe(i) for i in range(4)] == [other.describe(i) for i in range(4)]
    assert other.labels is None
    assert list(damaged(other)) == ["002.jpg"]
    assert torch.equal(one.read(3), other.read(3))


def test_a_kill_costs_one_shard(tmp_path: Path) -> None:
    """Breaks if a killed command leaves a half-written shard, redoes a finished one, or ends with other bytes."""
    root = write_images(tmp_path / "images", 60)
    writing.shard(root, tmp_path / "whole", SMALL)
    out = tmp_path / "killed"
    slow = (
        "import sys, time; from pathlib import Path; from byol.data.shards import writing\n"
        "fast = writing._file\n"
        "writing._file = lambda *a: (time.sleep(0.02), fast(*a))[1]\n"
        f"writing.shard(Path(sys.argv[1]), Path(sys.argv[2]), {SMALL})"
    )
    process = subprocess.Popen([sys.executable, "-c", slow, str(root), str(out)])
    deadline = time.monotonic() + 60
    while len(list(out.glob("*.tar"))) < 4 and time.monotonic() < deadline:
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    manifest = index.read_manifest(str(out))
    assert manifest is not None
    assert 3 <= len(manifest.shards) < len(list((tmp_path / "whole").glob("*.tar")))
    with pytest.raises(BadData, match="not finished"):
        data.open_source(str(out), Data())
    times = {s.name: (out / s.name).stat().st_mtime_ns for s in manifest.shards}
    writing.shard(root, out, SMALL)
    assert all((out / name).stat().st_mtime_ns == at for name, at in times.items())
    assert digests(out) == digests(tmp_path / "whole")


def digests(out: Path) -> dict[str, str]:
    files = [p for p in sorted(out.iterdir()) if p.name not in (".lock", ".holder")]
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def test_finished_shards_are_checked(folder: Path, shards: Path) -> None:
    """Breaks if the same command does not notice a flipped bit or a lost index, or cannot mend them."""
    before = digests(shards)
    flip(sorted(shards.glob("*.tar"))[2], 700)
    writing.shard(folder, shards, SMALL)
    assert digests(shards) == before
    (shards / "shards.npz").unlink()
    writing.shard(folder, shards, SMALL)
    assert digests(shards) == before


def test_other_images_are_not_mixed_in(folder: Path, shards: Path, tmp_path: Path) -> None:
    """Breaks if changed images continue old shards, or a stranger's files are overwritten."""
    shutil.copy(folder / "class0" / "000.jpg", folder / "class0" / "new.jpg")
    with pytest.raises(OutputBusy, match="other images"):
        writing.shard(folder, shards, SMALL)
    writing.shard(folder, shards, SMALL, overwrite=True)
    assert len(data.open_source(str(shards), Data())) == 25
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "shard-000000.tar").write_bytes(b"mine")
    with pytest.raises(OutputBusy, match=r"other files, such as shard-000000\.tar"):
        writing.shard(folder, tmp_path / "mine", SMALL, overwrite=True)
    assert (tmp_path / "mine" / "shard-000000.tar").read_bytes() == b"mine"


def test_an_interrupt_keeps_what_is_finished(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks if Ctrl-C leaves a temporary file or a shard that is not listed."""
    asked = iter([False] * 12 + [True] * 99)
    monkeypatch.setattr(signals, "requested", lambda: next(asked))
    with pytest.raises(Interrupted, match="goes on"):
        writing.shard(folder, tmp_path / "out", SMALL)
    manifest = index.read_manifest(str(tmp_path / "out"))
    assert manifest is not None
    assert {s.name for s in manifest.shards} == {p.name for p in (tmp_path / "out").glob("*.tar")} != set()
    assert not list((tmp_path / "out").glob(".*.tmp"))


def byol_shard(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "byol", "shard", *arguments], capture_output=True, text=True, timeout=60
    )


def test_the_command(folder: Path, tmp_path: Path) -> None:
    """Breaks if the verb is not there, or a mistake is anything but a sentence and its exit code (G4)."""
    out = tmp_path / "out"
    done = byol_shard(str(folder), str(out), "--shard-size", "20KB")
    assert done.returncode == 0, done.stderr
    assert "24 images in" in done.stderr
    same_images(open_folder(folder), data.open_source(str(out), Data()))
    for arguments, code, text in (
        ([str(folder), str(out), "--shard-size", "big"], 2, "256MB"),
        ([str(tmp_path / "none"), str(out)], 2, "There is no folder"),
    ):
        wrong = byol_shard(*arguments)
        assert (wrong.returncode, "Traceback" in wrong.stderr) == (code, False)
        assert wrong.stderr.startswith("byol: ")
        assert text in wrong.stderr
