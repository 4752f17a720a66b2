"""The plan of a run: refused beyond memory, with threads that were timed, honest about the time that learning takes."""

from __future__ import annotations

import re
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import byol
from byol.config import Config, apply
from byol.errors import UsageError
from byol.method import Method
from byol.run import cost, machine, planning, progress
from byol.run.cost import Pace
from byol.run.directory import Setup
from byol.run.machine import Machine
from byol.run.record import read_run


def test_a_plan_beyond_memory_is_refused_with_what_would_fit(
    folder: Path, tmp_path: Path, tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Breaks if a run begins that the system would end, anything is written for it, or settings are named that do not
    fit: every one that is named is taken."""
    monkeypatch.setattr(machine, "memory", lambda _: 0.004)
    asked = tiny | {"optim.batch": 16, "data.in_memory": "never", "data.workers": 0}
    with pytest.raises(UsageError, match="Each of these would fit") as refused:
        byol.pretrain(folder, tmp_path / "run", "cifar10-cpu", asked)
    assert not (tmp_path / "run").exists()
    named = str(refused.value).split("would fit: ")[1].rstrip(".").split(", ")
    assert len(named) == 3, named
    for place, flags in enumerate(named):
        found = re.findall(r"--([a-z.]+)(?: (\d+))?", flags)
        changed = {name: int(value) if value else True for name, value in found}
        run = byol.pretrain(folder, tmp_path / str(place), "cifar10-cpu", asked | changed | {"optim.epochs": 0.7})
        assert run.plan.steps


def test_memory_that_others_use_is_not_counted_on(
    folder: Path, tmp_path: Path, tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Breaks if only the machine's size is looked at, and not what is free of it."""
    monkeypatch.setattr(machine, "free_memory", lambda _: 0.0001)
    with pytest.raises(UsageError, match=r"0\.0 can be used now\. No batch of this network fits"):
        byol.pretrain(folder, tmp_path / "run", "cifar10-cpu", tiny)


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


BESIDE = 0  # where a number of threads is meant: two, with the views side by side; less: with the views as one batch


def timed(monkeypatch: pytest.MonkeyPatch, seconds: dict[int, float], share: float = 1.0) -> list[int]:
    """Times of a step by the number of threads, as on a machine of that kind; returns the threads that were timed."""
    seen: list[int] = []

    def pace(model: Method, config: Config, place: Machine, most: int) -> Pace:
        beside = place.passes == "side-by-side"
        seen.append(BESIDE if beside else -place.threads if place.passes == "together" else place.threads)
        assert torch.get_num_threads() == (1 if beside else place.threads)
        return Pace(seconds[seen[-1]], share)

    monkeypatch.setattr(cost, "pace", pace)
    return seen


def test_one_thread_where_it_is_faster_and_ever_after(
    folder: Path,
    tmp_path: Path,
    tiny: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    two_threads: None,
) -> None:
    """Breaks if threads are not timed, the slower number is taken, it is not stored, or a run that goes on is timed
    again, whose bits would change."""
    asked = tiny | {"run.threads": 0, "optim.epochs": 1}
    assert timed(monkeypatch, {1: 4.0, 2: 9.0, BESIDE: 8.0, -2: 9.0, -1: 5.0}, share=0.5) == []
    byol.pretrain(folder, tmp_path / "run", "cifar10-cpu", asked)
    said = capsys.readouterr().err
    for text in ("1 thread,", "busy with other programs", "took 50%"):
        assert text in said
    stored = read_run(tmp_path / "run")
    assert stored.machine.threads == 1
    assert stored.estimate is not None
    assert stored.estimate.images_per_second == 0.2  # 1/4, rounded
    assert torch.get_num_threads() == 2  # afterwards as before
    seen = timed(monkeypatch, {1: 9.0, 2: 4.0})
    byol.pretrain(folder, tmp_path / "run", "cifar10-cpu", asked | {"optim.epochs": 2})
    assert seen == [1]
    assert read_run(tmp_path / "run").machine.threads == 1
    assert "run.threads 1 and keeps it" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "seconds", "timed_with", "way"),
    [
        ({}, {BESIDE: 41.0, -2: 42.0}, [2, 1, BESIDE, -2, -1], (2, "in-turn")),  # all threads are faster
        ({}, {BESIDE: 30.0}, [2, 1, BESIDE, -2, -1], (2, "side-by-side")),
        ({}, {BESIDE: 30.0, -2: 25.0}, [2, 1, BESIDE, -2, -1], (2, "together")),
        ({}, {-2: 30.0, -1: 25.0}, [2, 1, BESIDE, -2, -1], (1, "together")),
        ({"run.threads": 2}, {1: 10.0, -1: 10.0}, [2, BESIDE, -2], (2, "in-turn")),  # the number is given
        ({"run.threads": 1}, {-1: 80.0}, [1, -1], (1, "together")),
        ({"run.passes": "in-turn"}, {BESIDE: 30.0}, [2, 1], (2, "in-turn")),  # so is the way
        ({"run.compile": True}, {BESIDE: 30.0}, [2, 1], (2, "in-turn")),
        ({"run.recompute": True}, {BESIDE: 30.0}, [2, 1], (2, "in-turn")),  # memory is short
        ({}, {1: 0.1, 2: 0.2}, [2], (2, "in-turn")),  # the run is over before it matters
    ],
)
def test_the_fastest_way_is_taken(
    folder: Path,
    tmp_path: Path,
    tiny: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    two_threads: None,
    changes: dict[str, Any],
    seconds: dict[int, float],
    timed_with: list[int],
    way: tuple[int, str],
) -> None:
    """Breaks if one thread, one for each view, or both views as one batch is not taken where it is clearly faster, or
    is where all are faster or were asked for, or a short run is timed twice."""
    usual = {1: 90.0, 2: 40.0, BESIDE: 90.0, -2: 90.0, -1: 90.0}
    seen, taken = timed(monkeypatch, usual | seconds), []

    def stop(setup: Setup, *_: object) -> None:
        taken.append((setup.machine.threads, setup.machine.passes))
        raise UsageError("enough is known")

    monkeypatch.setattr(planning, "plan_lines", stop)
    asked = tiny | {"run.threads": 0, "optim.epochs": 0.4} | changes
    with pytest.raises(UsageError, match="enough"):
        byol.pretrain(folder, tmp_path / "run", "cifar10-cpu", asked)
    assert (seen, taken) == (timed_with, [way])


@pytest.mark.parametrize(
    ("asked", "seconds", "hint"),
    [
        ({}, 6000.0, "--budget 10m"),
        ({}, 700.0, ""),
        ({"run.budget": "90m"}, 5400.0, ""),
        ({"optim.epochs": 100.0}, 6000.0, ""),
    ],
)
def test_a_shorter_run_is_planned_anew(asked: dict[str, Any], seconds: float, hint: str) -> None:
    """Breaks if the plan's hint cuts epochs, and with them the steps, instead of planning a quicker shape."""
    request = types.SimpleNamespace(preset="auto", overrides=asked)
    setup: Any = types.SimpleNamespace(record_of_run=types.SimpleNamespace(request=request))
    lines = planning.shorter(setup, seconds)
    assert hint in "".join(lines)
    assert bool(lines) == bool(hint)


def test_the_plan_says_where_images_are_and_how_many_are_left_out(
    folder: Path, tmp_path: Path, tiny: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """Breaks if images of several sizes, held in memory, are called streamed and cost nothing, or those that a list
    leaves out are not counted."""
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.jpg"))[:3]
    (tmp_path / "list.txt").write_text("\n".join(names))
    asked = tiny | {"data.exclude": str(tmp_path / "list.txt"), "data.workers": 0, "optim.epochs": 0.4}
    byol.pretrain(folder, tmp_path / "run", "cifar10-cpu", asked)
    assert "in memory, cropped by this process; 0 held out, 3 left out (3 by data.exclude)" in capsys.readouterr().err
    stored = read_run(tmp_path / "run")
    assert stored.data.in_memory
    held = sum(3 * image.width * image.height for path in folder.rglob("*.jpg")
               if str(path.relative_to(folder)) not in names for image in [Image.open(path)])  # fmt: skip
    assert stored.estimate is not None
    without = byol.pretrain(folder, tmp_path / "streamed", "cifar10-cpu", asked | {"data.in_memory": "never"})
    streamed = read_run(without.out).estimate
    assert streamed is not None
    assert stored.estimate.fixed_bytes - streamed.fixed_bytes == held


def test_what_fits_is_counted_for_every_process() -> None:
    """Breaks if a device's share of the batch is taken for the whole batch, or a pass cannot be shared evenly."""
    config = apply(Config(), {"optim.batch": 48, "network.encoder": "timm:any"})
    memory = cost.Memory(weights=100, an_image=10.0, checkpoint=0)
    # a fifth is left free: 4 images of 10 bytes beside the weights on each of 3 devices, in 4 passes of 12
    assert planning.fitting(config, memory, 176.0, 3, "float32") == ["--optim.accumulate 4", "--optim.batch 8"]


def test_the_time_left_is_estimated_anew(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Breaks if a run at a third of the planned rate goes on under the plan's time, or a rate once told is told again
    and again."""
    clock = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    with progress.bar("Pretraining", 1000, "images", 0, 10, expected=30.0) as shown:
        for step in range(300):
            clock[0] += 1.0 if step < 200 else 0.1  # 10 images/s, then the machine is free: 100 images/s
            shown.advance()
        lines = [line for line in capsys.readouterr().err.splitlines() if "expected" in line]
        assert lines == [
            "Pretraining is slower than expected: 10 images/s in the last minute, not 30; about 15m39s left.",
        ]
        for _ in range(700):
            clock[0] += 0.1
            shown.advance()
    assert "faster than expected" in capsys.readouterr().err
