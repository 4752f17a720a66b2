"""A table on a real single-node Slurm: cells as jobs, one of them put back into the queue in the middle."""

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

from byol.tables import paper
from byol.tables.cells import Plan, stored
from byol.tables.paper import Request
from byol.tables.run import run

NEEDED = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol")
ABSENT = [name for name in NEEDED if not shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")]

pytestmark = [
    pytest.mark.skipif(
        bool(ABSENT), reason=f"needs Slurm (Debian: slurmctld slurmd slurm-client munge), no {ABSENT[:1]}"
    ),
    pytest.mark.skipif(os.geteuid() != 0, reason="starts Slurm's daemons, which needs root"),
    pytest.mark.timeout(900),
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
KillWait=2
NodeName={host} NodeAddr=127.0.0.1 CPUs={cores} State=UNKNOWN
PartitionName=test Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """munged, slurmctld and slurmd in the foreground, ended by their ids."""
    monkeypatch.setenv("PATH", f"{os.environ['PATH']}:/usr/sbin:/sbin")
    for folder in ("/run/munge", "/var/log/munge", "/var/lib/munge"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        shutil.chown(folder, "munge", "munge")
    for folder in ("state", "spool"):
        (tmp_path / folder).mkdir()
    conf = tmp_path / "slurm.conf"
    conf.write_text(CONF.format(host=socket.gethostname().split(".")[0], place=tmp_path, cores=os.cpu_count()))
    monkeypatch.setenv("SLURM_CONF", str(conf))
    commands = [["munged", "-F"], ["slurmctld", "-D", "-f", str(conf)], ["slurmd", "-D", "-f", str(conf)]]
    started = []
    try:
        for number, command in enumerate(commands):
            started.append(subprocess.Popen(command, user="munge" if number == 0 else None))
            time.sleep(2)
        wait_for(lambda: "idle" in ask("sinfo", "-h", "-o", "%t"), 60)
        yield
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


def plan_at(out: Path, tiny: dict[str, Any]) -> Plan:
    given = {**tiny, "optim.epochs": 40, "run.checkpoint_steps": 2}
    return paper.plan(Request("target-decay", "cpu", 1, "scenes:40", out, ("0.99", "τ 0"), given))


@pytest.mark.parametrize("how", [["scancel", "--signal=USR2"], ["scontrol", "requeue"]])
def test_a_requeue_in_the_middle_of_a_cell(slurm: None, tmp_path: Path, tiny: dict[str, Any], how: list[str]) -> None:
    """Breaks if a preempted job is lost, begins its run anew, or gives another figure than without Slurm."""
    here, there = plan_at(tmp_path / "here", tiny), plan_at(tmp_path / "there", tiny)
    run(here)
    driver = subprocess.Popen([sys.executable, "-c", DRIVER.format(out=str(there.out), tiny=tiny)])
    first = there.distinct()[0]
    wait_for(lambda: list((first.run / "checkpoints").glob("*")), 300)
    job = ask("squeue", "-h", "-t", "R", "-o", "%A").split()[0]
    subprocess.run([*how, job], check=True)
    assert driver.wait(600) == 0
    assert "Resuming at step" in "".join(p.read_text() for p in (there.out / "jobs").glob("*.err"))
    assert [stored(c)["tests"] for c in there.distinct()] == [stored(c)["tests"] for c in here.distinct()]  # type: ignore[index]


DRIVER = """
from pathlib import Path
from tests.test_slurm import plan_at
from byol.tables.run import run
run(plan_at(Path({out!r}), {tiny!r}), "slurm:test")
"""
