"""Killed at random moments and started again, a run ends with the bits it would have had."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.test_pretraining import digest, start

# `make chaos` raises this; the default keeps the test run short.
KILLS = int(os.environ.get("BYOL_KILLS", "4"))


def finish(folder: Path, out: Path, overrides: dict[str, Any]) -> float:
    """Runs to the end; the seconds from the first logged step on."""
    process = start(folder, out, overrides)
    began = training(process, out)
    _, error = process.communicate(timeout=300)
    assert process.returncode == 0, error
    return time.monotonic() - began


def training(process: subprocess.Popen[str], out: Path) -> float:
    """Waits until this process has logged a step, or ended; the time of that moment."""
    metrics = out / "metrics.jsonl"
    before = metrics.stat().st_mtime_ns if metrics.exists() else 0
    while process.poll() is None and not (metrics.exists() and metrics.stat().st_mtime_ns > before):
        time.sleep(0.01)
    return time.monotonic()


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("workers", [0, 2])
def test_sigkill_at_random_moments(folder: Path, tmp_path: Path, tiny: dict[str, Any], workers: int) -> None:
    """Breaks if a checkpoint can be half written, or any state lives outside it (G1)."""
    overrides = tiny | {
        "data.in_memory": "never",
        "data.workers": workers,
        "optim.accumulate": 2,
        "optim.epochs": 12 * KILLS,
        "run.checkpoint_steps": 2,
    }
    whole = finish(folder, tmp_path / "whole", overrides | {"data.workers": 0})
    chance = random.Random(workers)
    out = tmp_path / "cut"
    for _ in range(KILLS):
        process = start(folder, out, overrides)
        if chance.random() < 0.8:
            training(process, out)
        time.sleep(chance.uniform(0, whole / KILLS))
        assert process.poll() is None, "the run ended before it could be killed"
        subprocess.run(["kill", "-9", *map(str, [process.pid, *_descendants(process.pid)])], check=False)
        process.communicate()
    finish(folder, out, overrides)
    assert digest(out) == digest(tmp_path / "whole")
    assert not list(out.glob("**/.*.tmp"))


def _descendants(pid: int) -> list[int]:
    listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True)
    return [int(line) for line in listed.stdout.split()]


def test_a_kill_inside_every_write_leaves_a_loadable_run(folder: Path, tmp_path: Path, tiny: dict[str, Any]) -> None:
    """Breaks if a checkpoint is renamed before it is whole: dies at each system call of a save, then resumes (G2)."""
    overrides = tiny | {"run.checkpoint_steps": 1, "optim.epochs": 1}
    finish(folder, tmp_path / "whole", overrides)
    for point in ("write", "fsync", "replace"):
        out = tmp_path / point
        flags = [f"--{n}" if v is True else f"--{n}={v}" for n, v in overrides.items()]
        command = [sys.executable, "-c", DIE.format(point=point, count=5), "pretrain", str(folder), "--preset"]
        command += ["cifar10-cpu", "--out", str(out), *flags]
        died = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert died.returncode == 9, died.stderr
        finish(folder, out, overrides)
        assert digest(out) == digest(tmp_path / "whole"), point


DIE = """
import builtins, os
calls = [0]
def dying(name, real):
    def call(*arguments, **named):
        calls[0] += 1
        if calls[0] == {count}:
            if name == "write":
                real(arguments[0], arguments[1][: len(arguments[1]) // 2])
            os._exit(9)
        return real(*arguments, **named)
    return call
if "{point}" == "write":
    import byol.records as records
    real_open = builtins.open
    class File:
        def __init__(self, file): self.file = file
        def __enter__(self): return self
        def __exit__(self, *_): self.file.close()
        def write(self, content): return dying("write", lambda f, c: (f.file.write(c), f.file.flush()))(self, content)
        def __getattr__(self, name): return getattr(self.file, name)
    def opened(path, mode="r", **named):
        file = real_open(path, mode, **named)
        return File(file) if mode == "wb" else file
    records.open = opened
else:
    setattr(os, "{point}", dying("{point}", getattr(os, "{point}")))
from byol.cli import main
main()
"""
