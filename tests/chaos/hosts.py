"""Faults between several hosts on one machine, each a network namespace with its own address.

`python -m tests.chaos.hosts COUNT` makes COUNT faults and writes results/hosts.json; it needs root and iproute2. A job
runs over two or three hosts by torchrun, one process each; something happens to it in the middle of training; what is
left has to end within the promised time with its exit code, and the same commands, run again, have to end with the bits
of a job that nothing happened to.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from byol import checkpoint
from byol.run import directory, files
from byol.run.machine import versions
from tests.chaos.several import ROOT
from tests.chaos.wires import Network, address, network
from tests.conftest import TINY

TIMEOUT = 20  # run.timeout of the jobs
PROMISED = 2.0 * TIMEOUT + 10  # seconds from the fault to the end of the last process that can still answer
HOSTS = ("one", "two", "three")
FAULTS = (
    "kill the first process",
    "kill the last process",
    "lose the first host",
    "lose the last host",
    "stop the last process",
    "cut the last host off",
    "partition of 10 s",
    "partition of 120 s",
)
LATENCY, LOSS = 0.002, 0.005  # seconds each way, share of packets
STEPS = 40
OVERRIDES = TINY | {
    **{"data.resolution": 16, "run.monitor_epochs": 100, "optim.epochs": STEPS / 2, "optim.batch": 12},
    **{"run.checkpoint_steps": 2, "run.timeout": TIMEOUT, "run.precision": "float64", "data.workers": 0},
}


class Host(NamedTuple):
    """torchrun on a host, and where its process writes its id and, at its end, its exit code."""

    name: str
    agent: subprocess.Popen[str]
    note: Path

    def process(self) -> int:
        """The id of the process that trains."""
        kind, _, number = self.note.read_text().partition(" ")
        return int(number) if kind == "process" else 0

    def code(self) -> int | None:
        """Its exit code; none if it wrote none, because it was killed or hangs."""
        text = self.note.read_text() if self.note.exists() else ""
        return int(text) if text.lstrip("-").isdecimal() else None


def started(out: Path, notes: Path, port: int, count: int) -> list[Host]:
    """torchrun on every host, as docs/cluster.md has it, and told apart where hosts of one machine look alike."""
    flags = [f"--{name}={value}" if value is not True else f"--{name}" for name, value in OVERRIDES.items()]
    asked = ["pretrain", "scenes:24", "--preset", "cifar10-cpu", "--out", str(out), *flags]
    notes.mkdir(parents=True, exist_ok=True)
    made = []
    for number, host in enumerate(HOSTS[:count]):
        note = notes / f"{port}-"
        start = [sys.executable, "-m", "torch.distributed.run", f"--nnodes={count}", "--nproc-per-node=1"]
        start += [f"--node-rank={number}", f"--master-addr={address(0)}", f"--master-port={port}"]
        start += ["--monitor-interval=0.1", "-m", "tests.chaos.noted", str(note), *asked]
        environment = os.environ | {
            **{"GLOO_SOCKET_IFNAME": "eth0", "TP_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1"},
            **{"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"},
        }
        with (notes / f"{port}-{host}.log").open("w") as log:
            inside = ["ip", "netns", "exec", f"byol-{host}", *start]
            agent = subprocess.Popen(inside, env=environment, stdout=log, stderr=log, text=True)
        made.append(Host(host, agent, Path(f"{note}{number}")))
    return made


def steps(out: Path) -> int:
    found = checkpoint.found(out / "checkpoints")
    return checkpoint.step_of(found[0]) if found else 0


def strike(fault: str, job: list[Host], net: Network) -> list[Host]:
    """Makes the fault; returns the hosts whose process can still answer."""
    last, rest = job[-1], job[:-1]
    if fault in ("kill the first process", "kill the last process"):
        struck = job[0] if "first" in fault else last
        os.kill(struck.process(), signal.SIGKILL)
        return [host for host in job if host is not struck]
    if fault in ("lose the first host", "lose the last host"):  # everything on it at once, and its cable
        struck = job[0] if "first" in fault else last
        net.cut(struck.name)
        for process in (struck.agent.pid, struck.process()):
            os.kill(process, signal.SIGKILL)
        return [host for host in job if host is not struck]
    if fault == "stop the last process":
        os.kill(last.process(), signal.SIGSTOP)
        return rest
    net.cut(last.name)
    return job


def ended(job: list[Host], answering: list[Host], net: Network, mended: float, since: float) -> float:
    """Seconds until the last of those that can answer has ended; the network is whole again at `mended`, and then all
    torchruns are over too. What hangs is killed."""
    took, until = 0.0, since + 240
    while time.monotonic() < until and any(host.agent.poll() is None for host in answering):
        if time.monotonic() > mended:
            for host in job:
                net.mend(host.name)
        if all(_over(host) for host in answering):
            took = took or time.monotonic() - since
        time.sleep(0.05)
    took = took or time.monotonic() - since
    for host in job:
        for process in (host.process(), host.agent.pid):
            if process and (process != host.agent.pid or host.agent.poll() is None):
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
        host.agent.wait(60)
        net.mend(host.name)
    return took


def _over(host: Host) -> bool:
    """Whether the process of a host is gone, whatever its torchrun still does."""
    return host.code() is not None or host.agent.poll() is not None


def whole(out: Path, notes: Path, port: int, count: int) -> str:
    """A job that nothing happens to, to its end: the digest of its last checkpoint and its metrics."""
    job = started(out, notes, port, count)
    for host in job:
        host.agent.wait(600)
    said = [(notes / f"{port}-{host.name}.log").read_text()[-2000:] for host in job]
    assert [host.code() for host in job] == [0] * count, "\n".join(said)
    return checkpoint.found(out / "checkpoints")[0].name + (out / "metrics.jsonl").read_text()


def one(fault: str, out: Path, expected: str, at: int, port: int, net: Network, count: int) -> dict[str, Any]:
    """A fault when the job has come as far as step `at`, and the same command again."""
    notes = out.with_name(f"{out.name}-notes")
    job = started(out, notes, port, count)
    while steps(out) < at and all(host.agent.poll() is None for host in job):
        time.sleep(0.02)
    since = time.monotonic()
    answering = strike(fault, job, net)
    lasts = float(fault.split()[2]) if fault.startswith("partition") else 1e9
    took = ended(job, answering, net, since + lasts, since)
    codes = [host.code() for host in answering]
    survived = fault == "partition of 10 s" and codes == [0] * count  # shorter than the timeout: the job may survive
    again = whole(out, notes, port + 1, count)
    return {
        **{"fault": fault, "hosts": count, "network": net.kind, "step": at, "codes": codes, "seconds": round(took, 1)},
        "right": survived or all(code == 75 for code in codes),
        "in_time": took <= PROMISED + (10 if survived else 0),
        "same": again == expected,
    }


def run(count: int, place: Path, seed: int = 0) -> dict[str, Any]:
    """So many faults in turn, without and with latency and loss, two hosts and now and then three; the figures so far
    are written after each."""
    chance, rows, expected = random.Random(seed), list[dict[str, Any]](), dict[int, str]()
    for hosts in (2, 3):
        with network(HOSTS[:hosts]):
            expected[hosts] = whole(place / f"whole-{hosts}", place / "whole-notes", 29600 + hosts, hosts)
    for number in range(count):
        fault, turn = FAULTS[number % len(FAULTS)], number // len(FAULTS)
        hosts = 3 if turn % 5 == 4 else 2
        with network(HOSTS[:hosts], *((LATENCY, LOSS) if turn % 2 else (0.0, 0.0))) as net:
            at, port = chance.randrange(4, STEPS - 6), 29700 + 4 * number
            rows.append(one(fault, place / f"fault-{number}", expected[hosts], at, port, net, hosts))
            rows[-1]["latency_and_loss"] = bool(turn % 2)
        print(json.dumps(rows[-1]), flush=True)
        summary = {
            "faults": len(rows),
            "ended_as_promised": sum(r["right"] and r["in_time"] for r in rows),
            "same_bits": sum(r["same"] for r in rows),
            "slowest_seconds": max(r["seconds"] for r in rows),
            "promised_seconds": PROMISED,
        }
        about = {"command": f"python -m tests.chaos.hosts {count}", "timeout": TIMEOUT, "versions": versions()}
        rough = {"latency_seconds": LATENCY, "loss": LOSS}
        figures = {**about, **rough, "commit": directory.commit(), "summary": summary, "rows": rows}
        files.write_json(place / "hosts.json", figures)
    return figures


if __name__ == "__main__":
    import tempfile

    made = run(int(sys.argv[1]), Path(tempfile.mkdtemp(dir=os.environ.get("TMPDIR"))))
    files.write_json(ROOT / "results" / "hosts.json", made)
