"""Loader processes: a dataset's items made beside the main process, and what becomes of processes that fail or stop.

An item crosses over as one block of shared memory, because every block costs an open file on both sides until the item
has been used, and a system allows only so many.
"""

from __future__ import annotations

import ctypes
import errno
import multiprocessing.queues
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, get_worker_info

from byol.errors import KILLED, WORKER_KILLED, ByolError, DiskError, LoaderLost
from byol.run import signals
from byol.run.progress import say

T = TypeVar("T")

PR_SET_PDEATHSIG = 1  # of Linux's prctl
ALIGNED = 64  # bytes; every number type may begin there
SPARE_FILES = 32  # for what is opened in the course of a run; torch alone wants to have ten
FILES_OF_WORKER = 6  # its queues and pipes, in the main process
LOOK_SECONDS = 0.2
STOPPED_SECONDS = 30.0  # after which a stopped loader process is told to go on
ANSWER_SECONDS = 30.0  # for a step that waits for its images when the command has been told to stop
NO_FILES = "Too many open files"  # the words of the system, and of torch

# Seconds that torch waits for each worker to finish its batch when the run ends: torch's 5 are too long for a Ctrl-C.
torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL = 0.2


class Place(NamedTuple):
    """Where a tensor lies in the block of its item."""

    start: int
    shape: tuple[int, ...]
    dtype: torch.dtype


class Packed(NamedTuple):
    """An item whose tensors lie in one block of shared memory, each replaced by its `Place`."""

    block: Tensor  # uint8
    item: Any


@dataclass
class Waiting:
    """What the thread that watches the loader processes needs to know of the main thread."""

    since: float | None = None  # when the main thread began to wait for an item; None while it works
    over: threading.Event = field(default_factory=threading.Event)


def loaded(dataset: Dataset[T], order: Sequence[int], workers: int, prefetch: int = 2) -> Generator[T, None, None]:
    """The dataset's items in this order, made by `workers` processes; a worker's error keeps its one sentence."""
    if not workers:
        yield from DataLoader(dataset, batch_size=None, sampler=order, collate_fn=_packed)
        return
    _allow_files(workers, prefetch)
    options: dict[str, Any] = {"worker_init_fn": _begin_worker, "prefetch_factor": prefetch, "collate_fn": _packed}
    items: Any = None
    waiting = Waiting()
    try:
        with signals.uncut():  # torch prints a traceback of an iterator that was left half made
            items = iter(DataLoader(dataset, batch_size=None, sampler=order, num_workers=workers, **options))
        threading.Thread(target=_watch, args=(items._workers, waiting), daemon=True).start()
        while True:
            waiting.since = time.monotonic()
            item = next(items, None)
            waiting.since = None
            if item is None:
                return
            yield _unpacked(item)
    except ByolError as error:  # torch puts the worker's traceback before the sentence
        kind = type(error)
        raise kind(str(error).strip().splitlines()[-1].removeprefix(f"{kind.__module__}.{kind.__name__}: ")) from None
    except (RuntimeError, OSError, EOFError) as error:
        if items is None:
            raise
        raise _explained(error, items._workers) from None
    finally:  # ended here, because workers left to the interpreter's exit print a traceback of torch's
        waiting.over.set()
        if items is not None:
            items._shutdown_workers()
        for worker in items._workers:
            worker.kill()  # a hanging worker ignores torch's SIGTERM


def _allow_files(workers: int, prefetch: int) -> None:
    """Raises this process's limit on open files as far as the workers need it, or says that it cannot be raised.

    Without this, a process that cannot open one more file would leave the other side waiting for an item.
    """
    try:
        used = len(os.listdir("/proc/self/fd" if sys.platform == "linux" else "/dev/fd"))
    except OSError:
        used = SPARE_FILES
    needed = used + SPARE_FILES + workers * (FILES_OF_WORKER + 2 * prefetch)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = sys.maxsize if hard == resource.RLIM_INFINITY else hard
    if needed > most:
        raise DiskError(
            f"{workers} loader processes with {prefetch} batches each need about {needed} open files, and the limit "
            f"here is {most}. Raise it (ulimit -n {needed}), or use --data.workers 0 or a lower --data.prefetch."
        )
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def _explained(error: Exception, workers: Sequence[Any]) -> Exception:
    """What torch and the system say when a loader process is gone or cannot be reached, as an error with a sentence."""
    codes = {worker.exitcode for worker in workers}
    if NO_FILES in str(error) or DiskError.exit_code in codes:
        return DiskError(
            f"{NO_FILES} in a loader process. Raise the limit (ulimit -n), or use --data.workers 0 or a lower "
            "--data.prefetch."
        )
    if isinstance(error, ConnectionError | EOFError) or str(error).startswith(KILLED):
        if signals.requested():
            return LoaderLost("Interrupted while a loader process did not answer; the same command continues.")
        return LoaderLost(WORKER_KILLED)
    return error


def _watch(workers: Sequence[Any], waiting: Waiting) -> None:
    """Looks after the loader processes from a thread, as the main thread may wait for one of them in a system call.

    A process that somebody stopped is told to go on: at once when the command shall end, else after a while. When the
    command shall end and still no item comes, the loader processes are killed, which ends the waiting.
    """
    stopped_since: dict[int, float] = {}
    asked_since: float | None = None
    while not waiting.over.wait(LOOK_SECONDS):
        now, since = time.monotonic(), waiting.since
        asked_since = (asked_since or now) if signals.requested() else None
        stopped = {worker.pid for worker in workers if since and _is_stopped(worker.pid)}
        stopped_since = {pid: stopped_since.get(pid, now) for pid in stopped}
        for pid, first in stopped_since.items():
            if asked_since or now - first > STOPPED_SECONDS:
                say(f"Loader process {pid} was stopped; it is told to go on.")
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
        if since and asked_since and now - max(since, asked_since) > ANSWER_SECONDS:
            for worker in workers:
                worker.kill()


def _is_stopped(pid: int) -> bool:
    """Whether a signal or a debugger has stopped the process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "tT"
    except (OSError, IndexError):
        return False


def _begin_worker(_: int) -> None:
    """Leave signals to the main process, which needs its workers for the step it finishes and then ends them.

    Ctrl-C reaches the whole process group, as SIGHUP does, and a cluster's SIGTERM and SIGUSR2 reach every process of a
    job.
    """
    for number in (*signals.SIGNALS, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    sys.excepthook = lambda _kind, error, _trace: _give_up(error)
    multiprocessing.queues.Queue._on_queue_feeder_error = staticmethod(  # type: ignore[attr-defined]
        lambda error, _item: _give_up(error)
    )
    if sys.platform == "linux":  # a worker shares the lock on the run directory, so it must not outlive a killed run
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _give_up(error: BaseException) -> None:
    """Ends a worker one of whose threads cannot hand items over; other errors of these threads are the run's end."""
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        os._exit(DiskError.exit_code)


def _packed(item: T) -> T | Packed:
    """The item with its tensors in shared memory."""
    if get_worker_info() is None:
        return item
    places: list[tuple[Tensor, Place]] = []
    end = 0

    def place(tensor: Tensor) -> Place:
        nonlocal end
        places.append((tensor, Place(end, tuple(tensor.shape), tensor.dtype)))
        end += -(-tensor.nbytes // ALIGNED) * ALIGNED
        return places[-1][1]

    replaced = _mapped(item, Tensor, place)
    if not places:
        return item
    # Torch would share it in a thread of the worker, whose errors go unseen while the main process waits for ever.
    try:
        block = torch.empty(0, dtype=torch.uint8).set_(torch.UntypedStorage._new_shared(end))
    except (RuntimeError, OSError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise DiskError(
            f"A loader process cannot hand its images over in shared memory ({reason[:200]}). Free /dev/shm or raise "
            "its limits, or use --data.workers 0, which needs none."
        ) from None
    for tensor, where in places:
        _tensor(block, where).copy_(tensor)
    return Packed(block, replaced)


def _unpacked(item: Any) -> Any:
    """The item as the worker made it; its tensors share the block's memory."""
    if not isinstance(item, Packed):
        return item
    return _mapped(item.item, Place, lambda place: _tensor(item.block, place))


def _tensor(block: Tensor, place: Place) -> Tensor:
    size = place.dtype.itemsize
    for side in place.shape:
        size *= side
    return block[place.start : place.start + size].view(place.dtype).reshape(place.shape)


def _mapped(item: Any, kind: type, function: Callable[[Any], Any]) -> Any:
    """The item with the function's result in place of everything of a kind inside it."""
    if isinstance(item, kind):
        return function(item)
    if isinstance(item, Mapping):
        return {name: _mapped(part, kind, function) for name, part in item.items()}
    if isinstance(item, tuple) and hasattr(item, "_fields"):
        return type(item)(*(_mapped(part, kind, function) for part in item))
    if isinstance(item, list | tuple):
        return type(item)(_mapped(part, kind, function) for part in item)
    return item
