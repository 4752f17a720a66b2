"""Cells as jobs beyond this process: `local:N` processes here or a Slurm partition, both through submitit.

A job only computes its cell: results, claims and checkpoints are files below `out`, which all machines must see.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from byol.errors import Interrupted, UsageError
from byol.parallel import processes
from byol.parallel.launching import Tasks, executor, saving_first
from byol.tables.cells import Cell, stored
from byol.tables.compute import compute, header
from byol.tables.record import CellRecord, write

POLL_SECONDS = 0.5
QUEUE_SECONDS = 15.0
TRIES = 3  # of a job that ends without a result, as when its machine dies
HOURS = 24.0  # of a job of Slurm, as most partitions allow; when they are over, it saves and is queued again
LOCAL_MINUTES = 7 * 24 * 60
MANY = 1000


class Job:
    """A cell that may be cut off and put back into the queue: its run goes on from the last checkpoint."""

    def __init__(self, cell: Cell, gpu: str = "") -> None:
        self.cell = cell
        self.gpu = gpu

    def __call__(self) -> str:
        if self.gpu:
            os.environ["CUDA_VISIBLE_DEVICES"] = self.gpu  # submitit has hidden them all
        with saving_first():
            record = _together(self.cell) if processes.seat().world > 1 else compute(self.cell, wait=True)
        return record.status if record else ""

    def checkpoint(self) -> Any:
        """Called by submitit before a preempted job is queued again."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


def _together(cell: Cell) -> CellRecord | None:
    """A cell that all processes of this job train: the first one claims, scores and records it."""
    processes.summoned()  # all are there before any of them waits for a claim
    if processes.seat().rank:
        from byol.tables.measure import follow

        follow(cell)
        return None
    record = compute(cell, wait=True)
    processes.summoned(False)
    return record


def run(cells: Sequence[Cell], where: str, out: Path, done: Callable[[Cell, CellRecord], None]) -> None:
    """Submits all cells, as many at a time as `where` allows, and calls `done` for each cell that ends."""
    place = placed(where)
    queue, most = (Queue(), MANY) if place.tasks else (None, place.count)
    made = _executor(place, out)
    waiting, tries = list(cells), Counter[str]()
    running: list[tuple[Job, Any]] = []
    try:
        while waiting or running:
            while waiting and len(running) < most:
                job = Job(waiting.pop(0), "" if queue else _free_gpu(job for job, _ in running))
                with _without_stderr():
                    running.append((job, made.submit(job)))
            time.sleep(POLL_SECONDS)
            for job, submitted in _ended(running, queue):
                running.remove((job, submitted))
                tries[job.cell.key] += 1
                record = stored(job.cell)
                if record is None and tries[job.cell.key] < TRIES:
                    waiting.append(job.cell)
                else:
                    done(job.cell, record or _lost(job.cell, submitted))
    except Interrupted:
        _cancel([] if queue else running)  # a cluster's queue goes on without us; the same command finds its results
        raise


def _cancel(running: Sequence[tuple[Job, Any]]) -> None:
    for _, submitted in running:
        submitted.cancel()


def _ended(running: Sequence[tuple[Job, Any]], queue: Queue | None) -> list[tuple[Job, Any]]:
    """The jobs that have ended, with or without a result."""
    if queue is None:
        return [pair for pair in running if pair[1].done()]
    queue.look(submitted for _, submitted in running)
    return [pair for pair in running if queue.ended(pair[1])]


def _free_gpu(running: Iterable[Job]) -> str:
    """CUDA's name of the device that the fewest jobs of this machine use; none where there is none."""
    count = torch.cuda.device_count()
    allowed = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = allowed.split(",")[:count] if allowed else [str(number) for number in range(count)]
    used = Counter(job.gpu for job in running)
    return min(names, key=used.__getitem__, default="")


@contextmanager
def _without_stderr() -> Iterator[None]:
    """For processes started inside: submitit's own, beside each job, answers Ctrl-C with a traceback."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


class Queue:
    """Which jobs of Slurm have ended, by their results and by the queue, which is looked at now and then.

    submitit would ask sacct, which not every cluster has: there a job whose machine died would be waited for for ever.
    """

    def __init__(self) -> None:
        self.looked, self.missed = time.monotonic(), Counter[str]()

    def look(self, jobs: Iterable[Any]) -> None:
        if time.monotonic() - self.looked < QUEUE_SECONDS:
            return
        self.looked = time.monotonic()
        command = ["squeue", "--noheader", "--format=%A", f"--user={os.getuid()}"]
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
        if answer.returncode == 0:
            for job in jobs:
                self.missed[job.job_id] = 0 if job.job_id in answer.stdout.split() else self.missed[job.job_id] + 1

    def ended(self, job: Any) -> bool:
        return job.paths.result_pickle.exists() or self.missed[job.job_id] > 1


def _lost(cell: Cell, job: Any) -> CellRecord:
    """The record of a cell whose jobs never wrote one: it has failed like any other."""
    last = (job.stderr() or "nothing").strip().splitlines()[-1][:300]
    lost = replace(header(cell), error=f"{TRIES} jobs ended without a result; the last one said: {last}")
    write(cell.path, lost)
    return lost


@dataclass(frozen=True)
class Place:
    """Where the jobs go: so many processes of this machine, or jobs of Slurm of so many tasks."""

    count: int = 0
    tasks: Tasks | None = None


def placed(where: str) -> Place:
    """What --jobs says: local:N or slurm:PARTITION[:GPUS[:NODES]]."""
    if match := re.fullmatch(r"local:0*([1-9]\d*)", where):
        return Place(count=int(match[1]))
    if match := re.fullmatch(r"slurm:([^:]+)(?::(\d+))?(?::0*([1-9]\d*))?", where):
        gpus, nodes = int(match[2] or 0), int(match[3] or 1)
        return Place(tasks=Tasks(nodes, gpus, max(1, gpus), match[1], HOURS, 8 if gpus else 2))
    wanted = "local:N or slurm:PARTITION[:GPUS[:NODES]], such as local:2 or slurm:gpu:8:4"
    raise UsageError(f"--jobs should be {wanted}, not '{where}'.")


def check(where: str) -> None:
    """What is wrong with --jobs is said before anything is timed or computed."""
    if not where:
        return
    place = placed(where)
    if not importlib.util.find_spec("submitit"):
        raise UsageError("--jobs needs submitit: pip install 'byol[slurm]'.")
    if place.tasks and not shutil.which("sbatch"):
        raise UsageError("--jobs slurm needs Slurm's commands, and there is no sbatch here. Try --jobs local:2.")


def _executor(place: Place, out: Path) -> Any:
    """submitit's: for Slurm the one of `byol launch`."""
    if place.tasks:
        return executor(out / "jobs", place.tasks)
    import submitit

    (out / "jobs").mkdir(parents=True, exist_ok=True)
    made = submitit.AutoExecutor(folder=out / "jobs", cluster="local")
    made.update_parameters(timeout_min=LOCAL_MINUTES, name="byol")
    # Each job its share of the cores: several that use all of them slow each other down.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // place.count)))
    return made
