"""A real single-node Slurm: cells of a table and a launched run as jobs, put back into the queue in the middle."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from byol import checkpoint
from byol.run import files
from byol.tables import catalog
from byol.tables.catalog import Request
from byol.tables.cells import Plan, stored
from byol.tables.run import run
from tests.chaos import several
from tests.chaos.scale import LONG
from tests.conftest import TINY, write_images
from tests.test_pretraining import digest

PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
NEEDED = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol")
ABSENT = [name for name in NEEDED if not shutil.which(name, path=PATH)]

pytestmark = [
    pytest.mark.skipif(
        bool(ABSENT), reason=f"needs Slurm (Debian: slurmctld slurmd slurm-client munge), no {ABSENT[:1]}"
    ),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to start Slurm's daemons"),
    pytest.mark.skipif(not LONG, reason="takes minutes: needs make chaos"),
    pytest.mark.timeout(2400),
]

CONF = """
ClusterName=test
SlurmctldHost={host}
SlurmUser=root
AuthType=auth/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
MpiDefault=none
StateSaveLocation={place}/state
SlurmdSpoolDir={place}/spool
SlurmctldPidFile={place}/slurmctld.pid
SlurmdPidFile={place}/slurmd.pid
SlurmctldLogFile={place}/slurmctld.log
SlurmdLogFile={place}/slurmd.log
KillWait=30
SlurmdParameters=config_overrides
GresTypes=gpu
NodeName={host} NodeAddr=127.0.0.1 CPUs={cores} Gres=gpu:2 State=UNKNOWN
PartitionName=test Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""
CORES = 16  # which Slurm counts, as it counts two files for GPUs: no task needs more than a core, or sees a GPU
TINIER = TINY | {"data.resolution": 16, "run.checkpoint_steps": 2}


@pytest.fixture(scope="module", autouse=True)
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """munged, slurmctld and slurmd in the foreground, ended by their ids, and all jobs before them."""
    place = tmp_path_factory.mktemp("slurm")
    for folder in ("/run/munge", "/var/log/munge", "/var/lib/munge"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        shutil.chown(folder, "munge", "munge")
    for folder in ("state", "spool"):
        (place / folder).mkdir()
    conf = place / "slurm.conf"
    conf.write_text(CONF.format(host=socket.gethostname().split(".")[0], place=place, cores=CORES))
    (place / "gres.conf").write_text(f"Name=gpu File={place}/gpu[0-1]\n")
    for number in range(2):
        (place / f"gpu{number}").touch()
    commands = [["munged", "-F"], ["slurmctld", "-D", "-f", str(conf)], ["slurmd", "-D", "-f", str(conf)]]
    started = []
    with pytest.MonkeyPatch.context() as patch, (place / "daemons.log").open("w") as log:
        for name, value in {"PATH": PATH, "SLURM_CONF": str(conf), "PYTHONPATH": str(several.ROOT)}.items():
            patch.setenv(name, value)
        try:
            for number, command in enumerate(commands):
                user = None if number else "munge"
                started.append(subprocess.Popen(command, user=user, stdout=log, stderr=subprocess.STDOUT))
                time.sleep(2)
            wait_for(lambda: "idle" in ask("sinfo", "-h", "-o", "%t"), 60)
            yield
            ask("scancel", "--user=root")
            wait_for(lambda: not ask("squeue", "-h"), 150)
        finally:
            for process in reversed(started):
                process.terminate()
                process.wait(30)


def ask(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def wait_for(true: Any, seconds: float) -> None:
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until, f"waited {seconds} s"
        time.sleep(0.2)


def step(run: Path) -> int:
    """Of the newest checkpoint."""
    return max((int(p.name[5:14]) for p in checkpoint.found(run / "checkpoints")), default=0)


def interrupt(run: Path, after: int, *how: str) -> None:
    """Puts the running job back into the queue once the run has come so far, and lets it start again at once.

    Slurm itself would hold it back for two minutes.
    """
    wait_for(lambda: step(run) > after, 600)
    job = ask("squeue", "-h", "-t", "R", "-o", "%A").split()[0]
    subprocess.run([*how, job], check=True)
    wait_for(lambda: ask("squeue", "-h", "-j", job, "-o", "%t").strip() == "PD", 150)
    wait_for(lambda: not subprocess.run(["scontrol", "update", f"JobId={job}", "StartTime=now"]).returncode, 60)


def plan_at(out: Path, **more: Any) -> Plan:
    given = {**TINIER, "optim.epochs": 8, **more}
    return catalog.plan(Request("target-decay", "cpu", 1, "scenes:40", out, ("0.99", "τ 0"), given))


def test_requeues_in_the_middle_of_cells(tmp_path: Path) -> None:
    """Breaks if a preempted job is lost, begins its run anew, or gives another figure than without Slurm.

    The first is warned, as before its time is over, and asks to be queued again; the second is taken off by Slurm.
    """
    here, there = plan_at(tmp_path / "here"), plan_at(tmp_path / "there")
    run(here)
    driver = subprocess.Popen([sys.executable, "-c", DRIVER.format(out=str(there.out), more={}, where="slurm:test")])
    first, second, _ = there.distinct()
    try:
        interrupt(first.run, 2, "scancel", "--signal=USR2")
        interrupt(second.run, 2, "scontrol", "requeue")
        assert driver.wait(600) == 0
    finally:
        driver.kill()
    said = "".join(path.read_text() for path in (there.out / "jobs").glob("*.err"))
    assert said.count("Resuming at step") == 2, said
    assert [stored(c).scores for c in there.distinct()] == [stored(c).scores for c in here.distinct()]  # type: ignore[union-attr]


DRIVER = """
from pathlib import Path
from tests.parallel.test_slurm import plan_at
from byol.tables.run import run
run(plan_at(Path({out!r}), **{more!r}), {where!r})
"""


def test_cells_of_two_tasks_are_the_cells_of_one(tmp_path: Path) -> None:
    """Breaks if the tasks of a cell do not find each other, one that waits keeps the job from being queued again, a
    requeued cell begins anew, or its figures are others than those of one process here."""
    more = {"run.precision": "float64"}
    here, there = plan_at(tmp_path / "here", **more), plan_at(tmp_path / "there", **more)
    run(here)
    code = DRIVER.format(out=str(there.out), more=more, where="slurm:test:2")
    driver = subprocess.Popen([sys.executable, "-c", code])
    first, second, _ = there.distinct()
    try:
        interrupt(first.run, 2, "scancel", "--signal=USR2")
        interrupt(second.run, 2, "scontrol", "requeue")
        assert driver.wait(900) == 0
    finally:
        driver.kill()
    said = "".join(path.read_text() for path in (there.out / "jobs").glob("*.err"))
    assert said.count("Resuming at step") == 2, said
    assert [files.read_json(cell.run / "run.json")["processes"] for cell in (first, second)] == [2, 2]
    assert [cell.key for cell in there.distinct()] == [cell.key for cell in here.distinct()]
    assert [stored(c).scores for c in there.distinct()] == [stored(c).scores for c in here.distinct()]  # type: ignore[union-attr]


def test_a_launched_run_goes_on_after_requeues(tmp_path: Path) -> None:
    """Breaks if two tasks do not find each other, a warning or SIGTERM loses a step, loader processes die of it before
    the step is saved, or the end differs by a bit from an uninterrupted run of two processes."""
    images = write_images(tmp_path / "images", 24)
    settings = TINIER | {"optim.epochs": 5, "data.in_memory": "never", "data.workers": 1}
    flags = [f"--{name}={value}" for name, value in settings.items()]
    asked = [str(images), "--preset", "cifar10-cpu", *flags, "--out"]
    job = {"world": 2, "command": ["pretrain", *asked, str(tmp_path / "whole")], "place": str(tmp_path), "seconds": 600}
    (whole,) = several.run([job])
    assert whole["codes"] == [0, 0], whole["errors"]
    out = tmp_path / "run"
    limits = ["--gpus", "0", "--processes", "2", "--cpus", "1", "--hours", "1"]
    command = [sys.executable, "-m", "byol", "launch", *asked, str(out), "--nodes", "1", *limits]
    done = subprocess.run(command, capture_output=True, text=True)
    assert "Submitted as job" in done.stderr, done.stderr
    interrupt(out, 2, "scancel", "--signal=USR2")
    saved = step(out)
    interrupt(out, saved + 2, "scontrol", "requeue")
    wait_for(lambda: not ask("squeue", "-h"), 600)
    logs = sorted((tmp_path / "run-jobs").glob("*_log.err"))
    said = logs[0].read_text()
    assert said.count("Resuming at step") == 2, said
    assert f"Resuming at step {saved} of 15" in said
    assert "This should not happen" not in "".join(log.read_text() for log in logs)
    record = files.read_json(out / "run.json")
    assert [session["status"] for session in record["sessions"]] == ["interrupted", "interrupted", "finished"]
    assert record["processes"] == 2
    assert digest(out) == digest(tmp_path / "whole")
