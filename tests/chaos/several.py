"""Jobs of several processes for the tests: forked from one that has torch loaded, so that each starts at once.

`python -m tests.chaos.several` reads a list of jobs from standard input and prints what came of them, as JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parents[2]


def run(jobs: list[dict[str, Any]], timeout: float = 800) -> list[dict[str, Any]]:
    """Each job: world, arguments of the command (or a check's name), mischief.

    Back: codes, errors, seconds of it all, and seconds from the mischief to the end of the others.
    """
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.chaos.several"]
    pipe = subprocess.PIPE
    started = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True, start_new_session=True
    )
    try:
        output, error = started.communicate(json.dumps(jobs), timeout=timeout)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)  # the session that it began, with all that it forked
    assert started.returncode == 0, error
    results: list[dict[str, Any]] = json.loads(output.splitlines()[-1])
    return results


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _fork(job: dict[str, Any], rank: int, port: int, error: Path) -> int:
    child = os.fork()
    if child:
        return child
    output = os.open(error, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    if job["world"] > 1:
        os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(job["world"]), "LOCAL_RANK": str(rank)}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    if "check" in job:
        from tests import checks

        end_with(getattr(checks, job["check"]))
    end_with(partial(_command, job, rank))


def end_with(work: Callable[[], None]) -> NoReturn:
    """The end of a forked process: its work, and the exit code of that; an error is printed."""
    code = 1
    try:
        work()
        code = 0
    except SystemExit as ending:
        code = int(ending.code or 0)
    except BaseException:
        import traceback

        traceback.print_exc()
    sys.stderr.flush()
    os._exit(code)


def _command(job: dict[str, Any], rank: int) -> None:
    """The command line, with something happening at the start of one step of one process, or a moment later."""
    from byol import pretraining
    from byol.cli import main

    real, left = pretraining.update, [job.get("step", 0)]

    def strike() -> None:
        (Path(job["place"]) / "struck").write_text(str(time.monotonic()))
        os.kill(os.getpid(), getattr(signal, job["mischief"]))

    def update(*arguments: Any, **named: Any) -> Any:
        left[0] -= 1
        if left[0] == 0 and rank == job["rank"]:
            if job["mischief"] == "raise":
                raise RuntimeError("a wire was cut")
            threading.Timer(job["delay"], strike).start() if "delay" in job else strike()
        return real(*arguments, **named)

    if "mischief" in job:
        pretraining.update = update
    sys.argv = ["byol", *job["command"]]
    main()


def small(smooth: bool = False) -> Any:
    """An encoder with few batch norms, as exchanges of many processes on one core are slow; smooth: without an edge."""
    from torch import nn

    activation = nn.GELU if smooth else nn.ReLU
    layers = [nn.Conv2d(3, 6, 3, 2, 1, bias=False), nn.BatchNorm2d(6), activation(), nn.Conv2d(6, 8, 3, 2, 1)]
    encoder = nn.Sequential(*layers, nn.BatchNorm2d(8), activation(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    encoder.num_features = 8  # type: ignore[assignment]
    return encoder


def _wait(children: list[int], seconds: float, one_stopped: bool) -> list[int | None]:
    """Exit codes; None for what had to be ended, a stopped process among them."""
    codes: dict[int, int | None] = {}
    until = time.monotonic() + seconds
    while len(codes) < len(children) - one_stopped and time.monotonic() < until:
        for child in children:
            if child not in codes:
                found, status = os.waitpid(child, os.WNOHANG)
                if found:
                    codes[child] = os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    for child in set(children) - codes.keys():
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return [codes.get(child) for child in children]


def _main() -> None:
    # Loaded once, for all that are forked; dynamo by the first optimizer.
    import torch._dynamo  # noqa: F401

    import byol.pretraining  # noqa: F401
    import tests.brief  # noqa: F401
    from byol import networks

    networks.BACKBONES["small"] = lambda config: small()
    networks.BACKBONES["smooth"] = lambda config: small(smooth=True)
    results = []
    for number, job in enumerate(json.load(sys.stdin)):
        began = time.monotonic()
        port = free_port()
        errors = [Path(job["place"]) / f"{number}.{rank}.txt" for rank in range(job["world"])]
        children = [_fork(job, rank, port, errors[rank]) for rank in range(job["world"])]
        codes = _wait(children, job.get("seconds", 120), job.get("mischief") == "SIGSTOP")
        texts = [error.read_text() for error in errors]
        struck = Path(job["place"]) / "struck"
        since = time.monotonic() - float(struck.read_text()) if struck.exists() else 0.0
        struck.unlink(missing_ok=True)
        results.append({"codes": codes, "errors": texts, "seconds": time.monotonic() - began, "since": since})
    print(json.dumps(results))


if __name__ == "__main__":
    _main()
