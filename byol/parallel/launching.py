"""`byol launch`: a pretraining over several machines as one Slurm job, written and submitted by submitit."""

from __future__ import annotations

import importlib.util
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from byol.errors import ByolError, Interrupted, Lost, UsageError
from byol.parallel import processes as peers
from byol.run import signals
from byol.run.progress import say, tell

REQUEUES = 1000
NOTICE_SECONDS = 120  # between Slurm's warning and the end, to finish a step and save
PREEMPTED = signal.SIGUSR2  # submitit's choice


@dataclass(frozen=True)
class Tasks:
    """The processes of a job, and where and how long they may run."""

    nodes: int = 1
    gpus: int = 0  # of each machine
    processes: int = 1  # of each machine
    partition: str = ""
    hours: float = 24.0
    cpus: int = 2  # of each process


@dataclass(frozen=True)
class Request:
    data: str
    preset: str
    out: Path
    overrides: dict[str, Any]
    tasks: Tasks
    plugin: str = ""  # its file, seen by all machines


@contextmanager
def saving_first() -> Iterator[None]:
    """Answers Slurm's warning by saving; submitit's own answer, which ends the process at once, comes after that.

    The work inside then ends with a request to be queued again, or, where Slurm does that itself, with exit code 75.
    """
    warned: list[int] = []

    def save_first(number: int, frame: FrameType | None) -> None:
        warned.append(number)
        signals.handle(number, frame)

    requeue = signal.signal(PREEMPTED, save_first)
    try:
        yield
    except (Interrupted, Lost) as error:
        if isinstance(error, Lost) and not warned:  # of the tasks that are warned, some see others leave first
            raise
        if peers.seat().rank:
            # The first task queues the job again, and Slurm then sends SIGTERM; a task that ends before ends the job.
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            time.sleep(NOTICE_SECONDS)
        elif warned and callable(requeue):
            requeue(PREEMPTED, None)
        # As an exception submitit would store it as the job's outcome, and the requeued job would seem to have ended.
        raise SystemExit(error.exit_code) from None
    finally:
        signal.signal(PREEMPTED, requeue)


class Job:
    """What every task of the job runs; the tasks find each other by Slurm's variables."""

    def __init__(self, request: Request) -> None:
        self.request = request

    def __call__(self) -> str:
        from byol.pretraining import pretrain

        asked = self.request
        plugin: dict[str, Any] = {"plugin": asked.plugin} if asked.plugin else {}
        try:
            with saving_first():
                return pretrain(asked.data, asked.out, asked.preset, asked.overrides, **plugin).verdict.sentence
        except ByolError as error:
            say(f"byol: {error}")
            raise

    def checkpoint(self) -> Any:
        """Called by submitit before a preempted job, or one out of time, is queued again."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


def launch(request: Request, dry_run: bool) -> None:
    """Submits the job, or shows its script."""
    if not importlib.util.find_spec("submitit"):
        raise UsageError("byol launch needs submitit: pip install 'byol[slurm]'.")
    folder = request.out.with_name(request.out.name + "-jobs").absolute()
    if dry_run:
        tell(script(request, folder))
        return
    if not shutil.which("sbatch"):
        raise UsageError("byol launch needs Slurm's commands, and there is no sbatch here. --dry-run shows the script.")
    job = executor(folder, request.tasks).submit(Job(request))
    say(f"Submitted as job {job.job_id}. Logs: {folder}/{job.job_id}_0_log.err; the run: {request.out}")


def executor(folder: Path, tasks: Tasks) -> Any:
    """submitit's, for jobs of these tasks; scripts, logs and outcomes go to the folder."""
    import submitit

    folder.mkdir(parents=True, exist_ok=True)
    made = submitit.SlurmExecutor(folder=folder, max_num_timeout=REQUEUES)
    made.update_parameters(**parameters(tasks))
    return made


def parameters(tasks: Tasks) -> dict[str, Any]:
    """Slurm's parameters: one task a process; a task that fails ends the step, so that no task waits for it."""
    asked: dict[str, Any] = {
        "job_name": "byol",
        "nodes": tasks.nodes,
        "ntasks_per_node": tasks.processes,
        "cpus_per_task": tasks.cpus,
        "time": max(1, round(tasks.hours * 60)),
        "signal_delay_s": NOTICE_SECONDS,
        "srun_args": ["--kill-on-bad-exit=1", "--wait=0"],
        "additional_parameters": {"requeue": True},
        "setup": ["export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}"] if tasks.gpus else None,
    }
    if tasks.gpus:
        asked["gpus_per_node"] = tasks.gpus
    if tasks.partition:
        asked["partition"] = tasks.partition
    return {name: value for name, value in asked.items() if value is not None}


def script(request: Request, folder: Path) -> str:
    """The sbatch file as submitit would write it."""
    from submitit.slurm.slurm import _make_sbatch_string

    command = f"{shlex.quote(sys.executable)} -u -m submitit.core._submit {shlex.quote(str(folder))}"
    text: str = _make_sbatch_string(command=command, folder=folder, **parameters(request.tasks))
    return text
