"""Cells in other processes and on other machines: claims, kills, queues, shares of the GPUs."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import byol
from byol.errors import UsageError
from byol.evals.encoder import checksum
from byol.parallel.launching import Tasks
from byol.run.record import read_run
from byol.tables import measure
from byol.tables.cells import Cell, Plan, missing, stored
from byol.tables.compute import compute
from byol.tables.jobs import placed
from byol.tables.record import Score
from byol.tables.run import forget_other_weights, run
from tests.chaos import several
from tests.conftest import TINY
from tests.tables.test_tables import asked, fake


def command(plan: Plan, tiny: dict[str, Any]) -> list[str]:
    flags = [f"--{n}" if v is True else f"--{n}={v}" for n, v in tiny.items()]
    words = ["table", plan.table.name, "--scale", "cpu", "--seeds", str(plan.seeds), "--data", plan.data]
    return [sys.executable, "-m", "byol", *words, "--rows", "0.99", "τ 0", "--out", str(plan.out), *flags]


def scores(cells: list[Cell]) -> list[list[Score]]:
    """What each cell was scored."""
    return [record.scores for cell in cells if (record := stored(cell))]


def test_kills_repeat_no_finished_cell(tmp_path: Path, tiny: dict[str, Any]) -> None:
    """Breaks if a cell is stored before it is whole, or lost or computed again by the next driver (G25, G3)."""
    tiny = {**tiny, "optim.epochs": 12, "run.checkpoint_steps": 3}
    whole = asked(tmp_path / "whole", tiny)
    run(whole)
    plan = asked(tmp_path / "cut", tiny)
    cells, chance = plan.distinct(), random.Random(0)
    stopped, killed = signal.SIGINT, signal.SIGKILL
    for how in (stopped, killed):
        before = {cell.key: cell.path.stat().st_mtime_ns for cell in cells if stored(cell)}
        process = subprocess.Popen(command(plan, tiny), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        until = cells[0].run / "metrics.jsonl" if how == stopped else cells[0].path
        while process.poll() is None and not until.exists():
            time.sleep(0.01)
        time.sleep(chance.uniform(0, 0.3))
        assert process.poll() is None, process.communicate()[1]
        process.send_signal(how)
        _, error = process.communicate(timeout=60)
        assert process.returncode == (75 if how == stopped else -9), error
        assert all(cell.path.stat().st_mtime_ns == before[cell.key] for cell in cells if cell.key in before)
    left = missing(cells)
    before = {cell.key: cell.path.stat().st_mtime_ns for cell in cells if cell not in left}
    assert before, "nothing was finished before the kill"
    run(plan)
    assert {key: (plan.out / "cells" / f"{key}.json").stat().st_mtime_ns for key in before} == before
    for ending in ("md", "csv"):
        name = f"target-decay-cpu.{ending}"
        assert (plan.out / name).read_text() == (whole.out / name).read_text()
    assert scores(cells) == scores(whole.distinct())


def test_a_claimed_cell_is_left_alone(tmp_path: Path, tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks if two drivers can compute one cell: the claim is looked at before, the result again after it."""
    from filelock import FileLock

    monkeypatch.setattr(measure, "measure", fake)
    cell = asked(tmp_path, tiny).distinct()[0]
    cell.path.parent.mkdir(parents=True)
    with FileLock(cell.path.with_suffix(".lock")):
        answer = subprocess.run(
            [sys.executable, "-c", CLAIM.format(path=str(cell.path))], capture_output=True, text=True
        )
        assert answer.stdout.strip() == "busy", answer.stderr
    first = compute(cell)
    monkeypatch.setattr(measure, "measure", lambda cell: pytest.fail("computed twice"))
    assert compute(cell) == first


CLAIM = """
from pathlib import Path
from byol.tables.compute import _claimed
class Cell: path = Path({path!r})
with _claimed(Cell, False) as mine:
    print("mine" if mine else "busy")
"""


def test_two_local_jobs(tmp_path: Path, tiny: dict[str, Any]) -> None:
    """Breaks if a cell cannot travel to another process, or its result does not come back; and if a job of
    submitit cannot be queued again."""
    submitit = pytest.importorskip("submitit", reason="needs submitit, which queues jobs")
    from byol.tables.jobs import Job

    plan = asked(tmp_path / "jobs", {**tiny, "optim.epochs": 1}, rows=("0.99",))
    record = run(plan, "local:2")
    assert [cell.status for row in record.rows for cell in row.cells] == ["finished"] * 2
    here = asked(tmp_path / "here", {**tiny, "optim.epochs": 1}, rows=("0.99",))
    run(here)
    assert scores(plan.distinct()) == scores(here.distinct())
    job = Job(plan.distinct()[0])
    again = job.checkpoint()
    assert isinstance(again, submitit.helpers.DelayedSubmission)
    assert again.function is job


def plan_together(out: Path) -> Plan:
    return asked(out, {**TINY, "run.precision": "float64", "optim.epochs": 1}, rows=("0.99",))


def test_a_cell_of_two_processes_is_the_cell_of_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks if a job of several tasks trains a cell in each of them, under another key, or to other weights than one
    process does (in float64, up to rounding), or leaves a process waiting for a cell that needs no training."""
    here, there = plan_together(tmp_path / "here"), plan_together(tmp_path / "there")
    run(here)
    monkeypatch.setenv("BYOL_TEST_PLACE", str(there.out))
    (done,) = several.run([{"world": 2, "check": "cells_of_one_job", "place": str(tmp_path), "seconds": 100}])
    assert done["codes"] == [0, 0], done["errors"]
    assert [cell.key for cell in there.distinct()] == [cell.key for cell in here.distinct()]
    one, two = (next(cell for cell in plan.distinct() if not cell.untrained).run for plan in (here, there))
    assert (read_run(one).processes, read_run(two).processes) == (1, 2)
    expected, found = (byol.load_encoder(run).state_dict() for run in (one, two))
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-6, atol=1e-9)
    assert scores(there.distinct()) == scores(here.distinct())


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("local:3", (3, None)),
        ("slurm:gpu", (0, Tasks(1, 0, 1, "gpu", 24.0, 2))),
        ("slurm:gpu:8", (0, Tasks(1, 8, 8, "gpu", 24.0, 8))),
        ("slurm:gpu:8:4", (0, Tasks(4, 8, 8, "gpu", 24.0, 8))),
        ("slurm:cpu:0:2", (0, Tasks(2, 0, 1, "cpu", 24.0, 2))),
        *(
            (wrong, None)
            for wrong in ("slurm:", "slurm:a:b", "slurm:a:1:0", "slurm:a:1:2:3", "local:2:1", "local:0", "x")
        ),
    ],
)
def test_where_jobs_go(where: str, expected: tuple[int, Tasks | None] | None) -> None:
    """Breaks if GPUS and NODES are taken for each other, a cell on GPUs has not a process for each, or a wrong text is
    taken for a place."""
    if expected is None:
        with pytest.raises(UsageError, match="slurm:PARTITION"):
            placed(where)
    else:
        assert (placed(where).count, placed(where).tasks) == expected


def test_local_jobs_share_the_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks if submitit's jobs on a machine with GPUs see none of them, all take the first, or a hidden one."""
    from byol.tables import jobs

    cells = asked(tmp_path, {}).distinct()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert jobs._free_gpu([]) == ("0" if torch.cuda.device_count() else "")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    running = list[jobs.Job]()
    for wanted in ("0", "1", "0", "1"):
        running.append(jobs.Job(cells[0], jobs._free_gpu(running)))
        assert running[-1].gpu == wanted
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-ab,3")
    assert jobs._free_gpu([jobs.Job(cells[0], "GPU-ab")]) == "3"
    seen = []
    monkeypatch.setattr(jobs, "compute", lambda cell, wait: seen.append(os.environ["CUDA_VISIBLE_DEVICES"]))
    jobs.Job(cells[0], "3")()
    assert seen == ["3"]


def test_a_job_that_left_the_queue_without_a_result_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks if a vanished job is waited for for ever where there is no sacct, or one look that fails counts."""
    from byol.tables import jobs

    answers = tmp_path / "squeue"
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(jobs, "QUEUE_SECONDS", 0.0)
    here, gone, done = (
        SimpleNamespace(job_id=name, paths=SimpleNamespace(result_pickle=tmp_path / f"{name}.pkl")) for name in "123"
    )
    done.paths.result_pickle.touch()
    queue = jobs.Queue()
    ended = []
    for answer in ("echo 1; echo 2", "exit 1", "echo 1", "exit 1", "echo 1"):
        answers.write_text(f"#!/bin/sh\n{answer}\n")
        answers.chmod(0o755)
        queue.look([here, gone])
        ended.append([queue.ended(job) for job in (here, gone, done)])
    assert ended == [[False, False, True]] * 4 + [[False, True, True]]


def test_figures_of_other_weights_are_computed_again(
    tmp_path: Path, tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Breaks if the run of a cell is trained again by hand with another seed, and the table goes on showing the old
    figures, or scores the wrong run for this row."""
    plan = asked(tmp_path, tiny)
    monkeypatch.setattr(measure, "_score", lambda *_: {"top1": 0.5})
    cell = next(cell for cell in plan.distinct() if not cell.untrained)
    record = compute(cell)
    assert record
    assert record.weights == checksum(byol.load_encoder(cell.run))
    forget_other_weights([cell])
    assert stored(cell) == record
    byol.pretrain(cell.data, cell.run, cell.preset, {**cell.overrides, "run.seed": 99}, overwrite=True)
    forget_other_weights([cell])
    assert stored(cell) is None
    again = compute(cell)
    assert again
    assert again.status == "failed"
    assert "holds another run than this row's: run.seed differ" in again.error
