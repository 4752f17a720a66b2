"""Several hosts on one machine: network namespaces on a bridge, each with its own address, and faults between them.

`python -m tests.chaos.hosts COUNT` makes COUNT faults and writes results/hosts.json; it needs root and iproute2. A job
runs over two hosts with one process each, given torchrun's variables but started without torchrun;
something happens to it in the middle of training; what is left
has to end within the promised time with its exit code, and the same command, run again, has to end with the bits of a
job that nothing happened to.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from byol import checkpoint
from byol.run import directory, files
from byol.run.machine import versions
from tests.chaos.several import ROOT
from tests.conftest import TINY

TIMEOUT = 20  # run.timeout of the jobs
PROMISED = 2.0 * TIMEOUT + 10  # seconds from the fault to the end of the last process that can still answer
HOSTS = ("one", "two")
FAULTS = ("kill first", "kill second", "link down", "partition 10 s", "partition 120 s", "stop second")
OVERRIDES = TINY | {
    **{"data.resolution": 16, "run.monitor_epochs": 100, "optim.epochs": 60, "optim.batch": 16},
    **{"run.checkpoint_steps": 2, "run.timeout": TIMEOUT, "run.precision": "float64", "data.workers": 0},
}


def ip(*words: str, host: str = "") -> str:
    inside = ["ip", "netns", "exec", f"byol-{host}"] if host else []
    return subprocess.run([*inside, "ip", *words], check=True, capture_output=True, text=True).stdout


@contextmanager
def network(latency: float = 0.0, loss: float = 0.0) -> Iterator[bool]:
    """Two hosts on a bridge; whether latency (ms) and loss (%) could be had, which not every kernel has."""
    _remove()
    shaped = latency > 0 or loss > 0
    ip("link", "add", "byol-bridge", "type", "bridge")
    ip("link", "set", "byol-bridge", "up")
    for number, host in enumerate(HOSTS, 1):
        ip("netns", "add", f"byol-{host}")
        ip("link", "add", f"byol-{host}", "type", "veth", "peer", "name", "eth0", "netns", f"byol-{host}")
        ip("link", "set", f"byol-{host}", "master", "byol-bridge")
        ip("link", "set", f"byol-{host}", "up")
        ip("addr", "add", f"10.77.0.{number}/24", "dev", "eth0", host=host)
        for device in ("eth0", "lo"):
            ip("link", "set", device, "up", host=host)
        if shaped:
            rule = ["delay", f"{latency}ms", "loss", f"{loss}%"]
            command = [
                "ip",
                "netns",
                "exec",
                f"byol-{host}",
                "tc",
                "qdisc",
                "add",
                "dev",
                "eth0",
                "root",
                "netem",
                *rule,
            ]
            shaped = subprocess.run(command, capture_output=True).returncode == 0
    try:
        yield shaped
    finally:
        _remove()


def _remove() -> None:
    for host in HOSTS:
        subprocess.run(["ip", "netns", "del", f"byol-{host}"], capture_output=True)
        subprocess.run(["ip", "link", "del", f"byol-{host}"], capture_output=True)
    subprocess.run(["ip", "link", "del", "byol-bridge"], capture_output=True)


def started(out: Path, port: int) -> list[subprocess.Popen[str]]:
    """A process on each host, as torchrun starts them: the first host's address, a rank each."""
    flags = [f"--{name}={value}" if value is not True else f"--{name}" for name, value in OVERRIDES.items()]
    command = [
        sys.executable,
        "-m",
        "byol",
        "pretrain",
        "scenes:32",
        "--preset",
        "cifar10-cpu",
        "--out",
        str(out),
        *flags,
    ]
    jobs = []
    for rank, host in enumerate(HOSTS):
        environment = os.environ | {
            **{"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"},
            **{"MASTER_ADDR": "10.77.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "eth0"},
            **{"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"},
        }
        inside = ["ip", "netns", "exec", f"byol-{host}", *command]
        jobs.append(
            subprocess.Popen(inside, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        )
    return jobs


def steps(out: Path) -> int:
    found = checkpoint.found(out / "checkpoints")
    return checkpoint.step_of(found[0]) if found else 0


def strike(fault: str, jobs: list[subprocess.Popen[str]]) -> list[int]:
    """Makes the fault; returns the ranks that can still answer."""
    if fault.startswith("kill"):
        rank = int(fault == "kill second")
        jobs[rank].send_signal(signal.SIGKILL)
        return [1 - rank]
    if fault == "stop second":
        jobs[1].send_signal(signal.SIGSTOP)
        return [0]
    ip("link", "set", "byol-two", "down")
    if fault.startswith("partition"):
        time.sleep(float(fault.split()[1]))
        ip("link", "set", "byol-two", "up")
    return [0, 1]


def ended(jobs: list[subprocess.Popen[str]], ranks: list[int], since: float) -> tuple[list[int | None], float]:
    """The exit codes of these, None for one that hangs, and seconds until the last of them ended."""
    until = since + 200
    while time.monotonic() < until and any(jobs[rank].poll() is None for rank in ranks):
        time.sleep(0.1)
    codes, took = [jobs[rank].poll() for rank in ranks], time.monotonic() - since
    for job in jobs:
        if job.poll() is None:
            job.send_signal(signal.SIGCONT)
            job.kill()
        job.communicate()
    return codes, took


def whole(out: Path, port: int) -> str:
    """A job that nothing happens to, to its end: the digest of its last checkpoint and its metrics."""
    jobs = started(out, port)
    errors = [job.communicate(timeout=600)[1] for job in jobs]
    assert [job.returncode for job in jobs] == [0, 0], errors
    return checkpoint.found(out / "checkpoints")[0].name + (out / "metrics.jsonl").read_text()


def one(fault: str, out: Path, expected: str, chance: random.Random, port: int) -> dict[str, Any]:
    """A fault at a moment of chance, and the same command again."""
    jobs, at = started(out, port), chance.randrange(4, 60)
    while steps(out) < at and all(job.poll() is None for job in jobs):
        time.sleep(0.02)
    since = time.monotonic()
    ranks = strike(fault, jobs)
    codes, took = ended(jobs, ranks, since)
    if fault == "link down":
        ip("link", "set", "byol-two", "up")
    same = whole(out, port + 1) == expected
    goes_on = fault == "partition 10 s" and codes == [0, 0]  # shorter than the timeout: the job may survive it
    right = goes_on or all(code == 75 for code in codes)
    return {"fault": fault, "step": at, "codes": codes, "seconds": round(took, 1), "right": right, "same": same}


def run(count: int, place: Path, seed: int = 0) -> dict[str, Any]:
    """So many faults in turn, without and with latency and loss; the figures so far are written after each."""
    chance, rows = random.Random(seed), list[dict[str, Any]]()
    with network():
        expected = whole(place / "whole", 29600)
    for number in range(count):
        fault, rough = FAULTS[number % len(FAULTS)], (number // len(FAULTS)) % 2 == 1
        with network(*((5.0, 0.5) if rough else (0.0, 0.0))) as shaped:
            row = one(fault, place / f"fault-{number}", expected, chance, 29700 + 4 * number)
        rows.append(row | {"latency_and_loss": shaped})
        print(json.dumps(rows[-1]), flush=True)
        summary = {
            "faults": len(rows),
            "ended_as_promised": sum(r["right"] and r["seconds"] <= _limit(r["fault"]) for r in rows),
            "same_bits": sum(r["same"] for r in rows),
            "slowest_seconds": max(r["seconds"] for r in rows),
        }
        about = {"command": f"python -m tests.chaos.hosts {count}", "timeout": TIMEOUT, "versions": versions()}
        figures = {**about, "commit": directory.commit(), "summary": summary, "rows": rows}
        files.write_json(place / "hosts.json", figures)
    return figures


def _limit(fault: str) -> float:
    """Seconds that a fault may take: while it lasts nobody has to end."""
    return PROMISED + (120 if fault == "partition 120 s" else 10 if fault == "partition 10 s" else 0)


if __name__ == "__main__":
    import tempfile

    made = run(int(sys.argv[1]), Path(tempfile.mkdtemp()))
    files.write_json(ROOT / "results" / "hosts.json", made)
