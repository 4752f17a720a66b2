"""Cells as jobs beyond this process: `local:N` processes here or a Slurm partition, both through submitit.

A job only computes its cell: results, claims and checkpoints are files below `out`, which all machines must see.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from byol.errors import Interrupted, UsageError
from byol.parallel.launching import saving_first
from byol.tables.cells import Cell, stored
from byol.tables.compute import compute, header
from byol.tables.record import CellRecord, write

POLL_SECONDS = 0.5
QUEUE_SECONDS = 15.0
TRIES = 3  # of a job that ends without a result, as when its machine dies
# Of one job; most partitions allow a day. When it is over on Slurm, the job saves and is queued again.
MINUTES = {"local": 7 * 24 * 60, "slurm": 24 * 60}
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
            record = compute(self.cell, wait=True)
        return record.status if record else ""

    def checkpoint(self) -> Any:
        """Called by submitit before a preempted job is queued again."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


def run(cells: Sequence[Cell], where: str, out: Path, done: Callable[[Cell, CellRecord], None]) -> None:
    """Submits all cells, as many at a time as `where` allows, and calls `done` for each cell that ends."""
    executor, most = _executor(where, out)
    queue = Queue() if where.startswith("slurm") else None
    waiting, tries = list(cells), Counter[str]()
    running: list[tuple[Job, Any]] = []
    try:
        while waiting or running:
            while waiting and len(running) < most:
                job = Job(waiting.pop(0), "" if queue else _free_gpu(job for job, _ in running))
                with _without_stderr():
                    running.append((job, executor.submit(job)))
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


def check(where: str) -> None:
    """What is wrong with --jobs is said before anything is timed or computed."""
    kind, _, rest = where.partition(":")
    name = rest.partition(":")[0]
    if not where:
        return
    if kind not in ("local", "slurm") or not name or (kind == "local" and not (name.isdecimal() and int(name))):
        raise UsageError(f"--jobs should be local:N or slurm:PARTITION[:GPUS], such as local:2, not '{where}'.")
    if not importlib.util.find_spec("submitit"):
        raise UsageError("--jobs needs submitit: pip install 'byol[slurm]'.")
    if kind == "slurm" and not shutil.which("sbatch"):
        raise UsageError("--jobs slurm needs Slurm's commands, and there is no sbatch here. Try --jobs local:2.")


def _executor(where: str, out: Path) -> tuple[Any, int]:
    """submitit's executor and how many jobs it may run at a time."""
    import submitit

    kind, _, rest = where.partition(":")
    name, _, gpus = rest.partition(":")
    (out / "jobs").mkdir(parents=True, exist_ok=True)
    executor = submitit.AutoExecutor(folder=out / "jobs", cluster=kind, slurm_max_num_timeout=MANY)
    executor.update_parameters(timeout_min=MINUTES[kind], name="byol")
    if kind == "local":
        # Each job its share of the cores: several that use all of them slow each other down.
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // int(name))))
        return executor, int(name)
    executor.update_parameters(slurm_partition=name, slurm_cpus_per_task=2 if not gpus else 8)
    if gpus:
        executor.update_parameters(slurm_gpus_per_node=int(gpus))
    return executor, MANY
