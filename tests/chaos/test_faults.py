"""Disks that fail and directories that vanish: what is lost, what is said, and how the command ends."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import byol
from byol import checkpoint
from byol.errors import DiskError
from byol.run import files
from tests.chaos import faults
from tests.chaos.scale import LONG
from tests.test_checkpoint import state, tensors
from tests.test_pretraining import digest
from tests.zygote import Zygote, logged, pretrain, slowness

pytestmark = pytest.mark.timeout(3600)


def test_a_death_at_every_system_call_of_a_save(tmp_path: Path) -> None:
    """Breaks if between any two of them no whole checkpoint is there, or what loads is neither old nor new (G2)."""
    old, new = state(1), state(2, seed=1)
    kept = checkpoint.save(tmp_path / "kept", old, keep=1)
    points, loaded = 0, []
    while True:
        points += 1
        place = tmp_path / f"at{points}"
        shutil.copytree(kept.parent, place)
        pid = os.fork()
        if not pid:
            faulty = faults.Faulty(faults.die, points)
            faults.plant(faulty)
            checkpoint.save(place, new, keep=1)
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        found = state(0, seed=2)
        loaded.append(checkpoint.load_newest(place, found.method, found.optimizer))
        expected = tensors(new if loaded[-1] == 2 else old)
        assert all(torch.equal(value, expected[name]) for name, value in tensors(found).items())
        shutil.rmtree(place)
        if os.waitstatus_to_exitcode(status) == 0:
            break
    assert points > 20
    assert loaded == sorted(loaded)
    assert set(loaded) == {1, 2}
    print(f"{points - 1} deaths inside a save")


def test_a_full_disk_at_every_system_call_of_a_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks if the error of one of them is no `DiskError` with path and bytes, costs the old checkpoint, or leaves a
    partial file (G5)."""
    old, new = state(1), state(2, seed=1)
    directory = tmp_path / "checkpoints"
    failed = 0
    for point in range(1, 30):
        shutil.rmtree(directory, ignore_errors=True)
        first = checkpoint.save(directory, old, keep=1)
        with monkeypatch.context() as patch:
            faulty = faults.Faulty(faults.full, point)
            patch.setattr(files, "os", faulty)
            patch.setattr(files, "open", faulty.opened, raising=False)
            said = ""
            try:
                checkpoint.save(directory, new, keep=1)
            except DiskError as error:
                said = str(error)
        if not said:
            continue
        failed += 1
        assert str(directory) in said
        assert "MB needed, " in said
        assert "MB free" in said
        assert checkpoint.read(checkpoint.found(directory)[-1])
        assert first in checkpoint.found(directory) or len(checkpoint.found(directory)) == 1
        assert all(p.suffix == ".safetensors" for p in directory.iterdir())
    assert failed >= 15


def test_checking_costs_little(tmp_path: Path) -> None:
    """Breaks if a checksum takes more than a second a GB beyond 5 % of the time of the save (G2)."""
    import hashlib

    content = os.urandom(2**26)
    began = time.thread_time()
    files.write_atomically(tmp_path / "blob", content)
    saving, began = time.thread_time() - began, time.thread_time()
    hashlib.sha256(content).hexdigest()
    checking = time.thread_time() - began
    assert checking < 0.05 * saving + len(content) / 1e9 * 1.5  # half more than promised, for machines that are busy
    print(f"checking {checking / len(content) * 1e9:.2f} s/GB, saving {saving / len(content) * 1e9:.2f} s/GB")


def test_a_directory_that_is_removed_ends_the_run(
    folder: Path, tmp_path: Path, tiny: dict[str, Any], zygote: Zygote
) -> None:
    """Breaks if it is made again in silence without its beginning, or the end is a traceback (G5)."""
    out = tmp_path / "run"
    pid = zygote.start(*pretrain(folder, out, tiny | {"optim.epochs": 1000, "run.checkpoint_steps": 1}))
    while logged(out) < 1:
        assert not zygote.ended(pid)
        time.sleep(0.01)
    out.rename(tmp_path / "moved")
    code, said = zygote.wait(pid)
    assert code == 74, said
    last = said.splitlines()[-1]
    assert "was removed or renamed" in last or "No such file" in last
    assert str(out) in last
    assert "Traceback" not in said
    assert not out.exists()
    assert checkpoint.read(checkpoint.found(tmp_path / "moved" / "checkpoints")[-1])


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 40 MB of its own."""
    place = tmp_path / "disk"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=40m", "tmpfs", str(place)], capture_output=True).returncode:
        pytest.skip("needs root, to mount a small disk")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def fill(path: Path) -> None:
    """Takes all the space that is left."""
    with contextlib.suppress(OSError), open(path, "wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass


def test_a_disk_that_fills_up_during_the_run(
    folder: Path, disk: Path, tmp_path: Path, tiny: dict[str, Any], zygote: Zygote
) -> None:
    """Breaks if a real full disk while checkpointing is not 74 with the bytes, harms the last checkpoint, or the run
    does not go on to the same bits when there is room again (G5)."""
    overrides = tiny | {"optim.epochs": 8, "run.checkpoint_steps": 2}
    out = disk / "run"
    assert zygote.run(*pretrain(folder, tmp_path / "whole", overrides))[0] == 0
    pid = zygote.start(*pretrain(folder, out, overrides))
    while logged(out) < 4 and not zygote.ended(pid):
        time.sleep(0.002)
    fill(disk / "filler")
    code, said = zygote.wait(pid)
    assert code == 74, said
    assert "MB needed" in said.splitlines()[-1]
    assert checkpoint.read(checkpoint.found(out / "checkpoints")[0])
    code, said = zygote.run(*pretrain(folder, out, overrides))
    assert code == 74, said  # before anything is computed
    (disk / "filler").unlink()
    code, said = zygote.run(*pretrain(folder, out, overrides))
    assert code == 0, said
    assert digest(out) == digest(tmp_path / "whole")


def test_a_read_only_disk(folder: Path, disk: Path, tiny: dict[str, Any], zygote: Zygote) -> None:
    """Breaks if it is a traceback (74)."""
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    code, said = zygote.run(*pretrain(folder, disk / "run", tiny))
    assert code == 74, said
    assert "Read-only file system" in said
    assert said.startswith("byol: Cannot write to")


def test_space_is_asked_for_before_the_work(folder: Path, tmp_path: Path, tiny: dict[str, Any]) -> None:
    """Breaks if a disk with room for less than the checkpoints and the log is found out later than at the start."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**9, 10**9, 10_100_000))  # type: ignore[attr-defined]
        with pytest.raises(DiskError, match=r"Not enough space in .*run: 3 checkpoints and the log need .* MB"):
            byol.pretrain(folder, tmp_path / "run", "cifar10-cpu", tiny)
    assert not checkpoint.found(tmp_path / "run" / "checkpoints")


def test_many_starts_at_once_leave_one(folder: Path, tmp_path: Path, tiny: dict[str, Any]) -> None:
    """Breaks if two of them run, or the others load torch before they hear of the first (G18)."""
    count = 10 if LONG else 4
    command = [sys.executable, "-m", "byol", *pretrain(folder, tmp_path / "run", tiny | {"optim.epochs": 10_000})]
    began, limit = time.monotonic(), 5 * slowness()
    started = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(count)]
    while len(left := [p for p in started if p.poll() is None]) > 1 and time.monotonic() - began < 10 * limit:
        time.sleep(0.01)
    seconds = time.monotonic() - began
    holder = left[0]
    holder.kill()
    holder.communicate()
    for process in started:
        if process is not holder:
            error = process.communicate()[1]
            assert process.returncode == 73, error
            assert str(holder.pid) in error
    assert len(left) == 1
    assert seconds < limit
    with files.only_writer(tmp_path / "run"):  # the lock has gone with its holder
        pass
    print(f"{count - 1} of {count} refused within {seconds:.1f} s")


def test_nothing_is_left_of_a_start_that_failed(tmp_path: Path) -> None:
    """Breaks if a mistake leaves an empty run directory, or a lock that was asked for twice is let go too early."""
    out = tmp_path / "runs" / "one"
    with files.only_writer(out):
        with files.only_writer(out):
            pass
        assert (out / ".lock").exists()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_overflow_is_76_from_the_command_line(
    folder: Path, tmp_path: Path, tiny: dict[str, Any], zygote: Zygote, precision: str
) -> None:
    """Breaks if a loss beyond the largest number is not called so with its step (G4, G14)."""
    huge = tiny | {"objective.scale": 1e39, "run.precision": precision}
    code, said = zygote.run(*pretrain(folder, tmp_path / "run", huge))
    assert code == 76, said
    assert "at step 0 the loss is" in said.splitlines()[-1]
    assert len(files.read_json(tmp_path / "run" / "diverged.json")[0]["images"]) == 8
