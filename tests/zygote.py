"""The command line in processes that begin at once, to be killed often: forked from one that has torch loaded.

`python -m tests.zygote` reads requests from standard input, a line of JSON each, and answers each with another.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.chaos.several import end_with

ROOT = Path(__file__).resolve().parents[1]


class Zygote:
    """`start` a command and get its process number; `wait` for its exit code and what it said."""

    def __init__(self, place: Path) -> None:
        environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "tests.zygote"]
        self.place, self.pipe = place, subprocess.PIPE
        self.process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdin=self.pipe, stdout=self.pipe, text=True, start_new_session=True
        )

    def _ask(self, **request: Any) -> Any:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def start(
        self,
        *arguments: str,
        act: str = "",
        at: int = 0,
        inside: str = "",
        limit: int = 0,
        files: int = 0,
        streams: dict[str, str] | None = None,
        **more: Any,
    ) -> int:
        """With a fault of `faults` planted: `act` die or full at the `at`-th point; `limit` of bytes a file; at most so
        many open `files`; `streams` that are closed, gone (a pipe without a reader) or a file, in ASCII.

        `more`: the directory `cwd`, the bytes of `memory` that may be taken, and one of `STREAMS` as `stream`.
        """
        fault = {
            "act": act,
            "at": at,
            "inside": inside,
            "limit": limit,
            "files": files,
            "streams": streams or {},
            **more,
        }
        return int(self._ask(start=arguments, said=str(self.place / "said.txt"), **fault))

    def ended(self, pid: int) -> bool:
        return bool(self._ask(ended=pid))

    def wait(self, pid: int) -> tuple[int, str]:
        code = int(self._ask(wait=pid))
        return code, (self.place / "said.txt").read_text()

    def run(self, *arguments: str, **fault: Any) -> tuple[int, str]:
        return self.wait(self.start(*arguments, **fault))

    def close(self) -> None:
        self.process.kill()  # to unload torch would take longer
        self.process.communicate()


def flags(overrides: dict[str, Any]) -> list[str]:
    return [f"--{name}" if value is True else f"--{name}={value}" for name, value in overrides.items()]


def pretrain(folder: Path, out: Path, overrides: dict[str, Any]) -> list[str]:
    return ["pretrain", str(folder), "--preset", "cifar10-cpu", "--out", str(out), *flags(overrides)]


def logged(out: Path) -> int:
    """The last step in the metrics of a run, -1 before the first."""
    try:
        lines = (out / "metrics.jsonl").read_text().splitlines()
    except FileNotFoundError:
        return -1
    return max((json.loads(line)["step"] for line in lines if line.endswith("}")), default=-1)


def slowness() -> float:
    """How much longer than its computing time a process takes here and now, as others share the machine."""
    wall, own = time.monotonic(), time.process_time()
    while time.process_time() - own < 0.1:
        pass
    return max(1.0, (time.monotonic() - wall) / 0.1)


def _break(name: str, state: str) -> None:
    """Standard output or error as a shell could have left it: `2>&-`, `| true`, `> /dev/full`."""
    number = {"stdout": 1, "stderr": 2}[name]
    if state == "closed":
        os.close(number)
        setattr(sys, name, None)
        return
    read, write = os.pipe()
    os.close(read)
    target = write if state == "gone" else os.open(state, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(target, number)
    os.close(target)
    setattr(sys, name, open(number, "w", encoding="ascii", errors="strict", closefd=False))  # noqa: SIM115 (never closed)


def _child(request: dict[str, Any]) -> None:
    for number, flags in ((0, os.O_RDONLY), (1, os.O_WRONLY)):
        os.dup2(os.open(os.devnull, flags), number)
    os.dup2(os.open(request["said"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
    for name, state in request["streams"].items():
        _break(name, state)
    if request["files"]:
        import resource

        resource.setrlimit(resource.RLIMIT_NOFILE, (request["files"], request["files"]))
    if request["act"]:
        from tests.chaos import faults

        faults.plant(faults.Faulty(getattr(faults, request["act"]), request["at"]), request["inside"])
    if request["limit"]:
        import resource

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (request["limit"], request["limit"]))
    if "cwd" in request:
        os.chdir(request["cwd"])
    if "memory" in request:
        import resource

        taken = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGESIZE")
        resource.setrlimit(resource.RLIMIT_AS, (taken + request["memory"],) * 2)
    STREAMS[request.get("stream", "")]()
    sys.argv = ["byol", *request["start"]]
    end_with(_command)


def _command() -> None:
    """The command, and what Python itself does at its end: 120 when the last words cannot be written."""
    from byol.__main__ import main

    try:
        main()
    finally:
        try:
            if sys.stdout:
                sys.stdout.flush()
        except OSError:
            os._exit(120)


def _nowhere(number: int, name: str) -> None:
    """A stream that was closed before the program began."""
    os.close(number)
    setattr(sys, name, None)


def _full(number: int) -> None:
    os.dup2(os.open("/dev/full", os.O_WRONLY), number)


def _unread(number: int) -> None:
    """A pipe whose reader has gone away."""
    reader, writer = os.pipe()
    os.close(reader)
    os.dup2(writer, number)


def _ascii() -> None:
    for name, number in (("stdout", 1), ("stderr", 2)):
        setattr(sys, name, open(number, "w", encoding="ascii", errors="strict", closefd=False))  # noqa: SIM115


STREAMS: dict[str, Callable[[], None]] = {
    "": lambda: None,
    "closed stdout": lambda: _nowhere(1, "stdout"),
    "full stdout": lambda: _full(1),
    "unread stdout": lambda: _unread(1),
    "closed stderr": lambda: _nowhere(2, "stderr"),
    "full stderr": lambda: _full(2),
    "unread stderr": lambda: _unread(2),
    "ASCII": _ascii,
}


def _main() -> None:
    import torch._dynamo  # noqa: F401 (loaded by the first optimizer)
    from PIL import Image

    import byol.cli
    import byol.data.shards.writing
    import byol.evals.evaluation
    import byol.explore.doctor
    import byol.explore.search
    import byol.pretraining
    import byol.report.build
    import byol.tables.measure
    import byol.tables.run
    import byol.weights.exports
    import byol.weights.imports  # noqa: F401
    import tests.brief  # noqa: F401

    Image.init()

    codes: dict[int, int] = {}
    for line in sys.stdin:
        request = json.loads(line)
        if "start" in request:
            pid = os.fork()
            if not pid:
                _child(request)
            print(pid, flush=True)
            continue
        pid, answer = request.get("wait", request.get("ended")), None
        while answer is None:
            found, status = (0, 0) if pid in codes else os.waitpid(pid, os.WNOHANG)
            if found:
                codes[pid] = os.waitstatus_to_exitcode(status)
            if pid in codes or "ended" in request:
                answer = codes.get(pid) if "wait" in request else pid in codes
            else:
                time.sleep(0.005)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    _main()
