"""Several processes as one run: how they meet, what they tell each other, and how all of them end when one does.

The first process decides and writes. Every process computes its slice of the global batch; statistics, negatives and
gradients are those of the whole batch. With a single process nothing here does anything.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from byol.errors import ByolError, Interrupted, Lost
from byol.run.progress import complain

T = TypeVar("T")

JOIN_SECONDS = 600.0  # machines of a cluster do not start together
SUMMONS_TIMEOUT = 60.0
BEAT_SECONDS = 0.5
PATIENCE = 0.3  # of the timeout, after which a process without a heart beat counts as dead; a late one has it all
LAST_WORDS_SECONDS = 3.0  # a process that fails stays this long for the others to read why

GONE = re.compile("gloo|nccl|socket|store|connect|timed? ?out|broken pipe|reset by peer", re.IGNORECASE)

_calls = itertools.count()
_stores: list[Any] = []


class Seat(NamedTuple):
    """Which of how many processes this is, in the job and on its machine."""

    rank: int
    world: int
    local_rank: int
    local_world: int


@dataclass
class Job:
    """The processes of this run, once they have met."""

    seat: Seat
    store: Any
    timeout: float
    turns: Iterator[int] = field(default_factory=itertools.count)
    groups: dict[int, Any] = field(default_factory=dict)
    heard: int = 0
    kept: set[int] | None = None  # the cores that this process had before it kept to its share of them
    answered: float = math.inf  # when the store last answered; infinite before the first beat and after the last
    over: threading.Event = field(default_factory=threading.Event)


_job: Job | None = None


def seat(environment: Mapping[str, str] = os.environ) -> Seat:
    """This process's seat, from torchrun's variables, or from those of a Slurm step of several tasks."""

    def get(name: str, default: int) -> int:
        return int(environment.get(name) or default)

    if "RANK" in environment and "WORLD_SIZE" in environment:
        rank, world = get("RANK", 0), get("WORLD_SIZE", 1)
        return Seat(rank, world, get("LOCAL_RANK", rank), get("LOCAL_WORLD_SIZE", world))
    tasks = get("SLURM_STEP_NUM_TASKS", 1)
    if tasks > 1:
        here = re.match(r"\d+", environment.get("SLURM_STEP_TASKS_PER_NODE", ""))
        return Seat(get("SLURM_PROCID", 0), tasks, get("SLURM_LOCALID", 0), int(here[0]) if here else tasks)
    return Seat(0, 1, 0, 1)


def address(environment: Mapping[str, str] = os.environ) -> tuple[str, str]:
    """Host and port of the first process; on Slurm the first host of the step, and a port of the job's own."""
    nodes = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST") or "127.0.0.1"
    job = int(environment.get("SLURM_JOB_ID") or 0) + int(environment.get("SLURM_STEP_ID") or 0)
    port = environment.get("MASTER_PORT") or str(20000 + job % 20000)
    return environment.get("MASTER_ADDR") or first_host(nodes), port


def first_host(nodes: str) -> str:
    """`gpu[03-07,9]-ib,cpu1` → `gpu03-ib`."""
    match = re.match(r"([^\[,]*)(?:\[(\d+)[^\]]*\])?([^\[,]*)", nodes)
    assert match
    return "".join(part or "" for part in match.groups())


def current() -> Job | None:
    """The job that this process belongs to, or None if it is alone."""
    return _job


def rank() -> int:
    return _job.seat.rank if _job else 0


def world() -> int:
    return _job.seat.world if _job else 1


def local_world() -> int:
    """Processes that share this machine's memory."""
    return _job.seat.local_world if _job else 1


def cores() -> int:
    """How many this process may use: a share of those that it has in common with others of its machine."""
    if not hasattr(os, "sched_getaffinity"):
        return max(1, (os.cpu_count() or 1) // local_world())
    mine = len(os.sched_getaffinity(0))
    return mine if _job is None or _job.kept else max(1, mine // local_world())


def share(allowed: Collection[int], place: int, count: int) -> set[int]:
    """Of some cores, those of one of `count` processes; none if there are fewer cores than processes."""
    if count > len(allowed):
        return set()
    return set(sorted(allowed)[place * len(allowed) // count : (place + 1) * len(allowed) // count])


def _keep_to_share(who: Seat, store: Any) -> set[int] | None:
    """Processes on a machine's CPUs keep to cores of their own, unless somebody has seen to that before.

    Left alone, Linux puts a process where the one that wakes it runs, and processes that wait for each other a hundred
    times in a step end up taking turns on one core.
    """
    if who.local_world == 1 or not hasattr(os, "sched_setaffinity"):
        return None
    allowed, first = os.sched_getaffinity(0), who.rank - who.local_rank
    store.set(f"cores.{who.rank}", json.dumps(sorted(allowed)))
    told = [json.loads(store.get(f"cores.{first + n}")) for n in range(who.local_world)]
    mine = share(allowed, who.local_rank, who.local_world)
    if not mine or any(other != told[0] for other in told):
        return None
    os.sched_setaffinity(0, mine)
    return allowed


@contextmanager
def joined(cuda: bool, timeout: float, patience: float = JOIN_SECONDS) -> Iterator[None]:
    """Meets the other processes, if there are any; inside, an error of one process ends all of them."""
    global _job
    who = seat()
    if who.world == 1:
        yield
        return
    assert _job is None, "a run inside a run"
    _job = job = _join(who, cuda, timeout, patience)
    heart = threading.Thread(target=_beat, args=(job, job.store.clone()), daemon=True)
    heart.start()
    threading.Thread(target=_guard, args=(job,), daemon=True).start()
    try:
        yield
        _leave(job)
    except BaseException as error:
        _report(job, error)
        with suppress(Exception):
            _leave(job, LAST_WORDS_SECONDS)
        raise
    finally:
        job.over.set()
        heart.join(5)
        if job.kept:
            os.sched_setaffinity(0, job.kept)
        _job = None
        if not cuda or sys.exc_info()[0] is None:  # nccl would wait here for what will never come
            dist.destroy_process_group()


def summoned(first_says: bool = False) -> bool:
    """Outside a run, whether the first process wants the others to do something now; they wait for its word as long as
    it takes. One process alone gets its own word back."""
    with joined(False, SUMMONS_TIMEOUT, math.inf):
        return from_first(lambda: first_says)


def _join(who: Seat, cuda: bool, timeout: float, patience: float) -> Job:
    host, port = address()
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = host, port
    attempt = f"{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}.{next(_calls)}"
    try:
        # The store is kept for later runs of these processes: one that is opened again might be met while it closes.
        if not _stores:
            limit = timedelta(seconds=JOIN_SECONDS)
            _stores.append(next(rendezvous("env://", who.rank, who.world, timeout=limit))[0])
        store = PrefixStore(f"byol.{attempt}", _stores[0])
        # All processes are here before any of them waits for others no longer than `timeout`.
        store.set(f"here.{who.rank}", "")
        _await(store, [f"here.{other}" for other in range(who.world)], time.monotonic() + patience)
        kept = None if cuda else _keep_to_share(who, store)
        if cuda:
            torch.cuda.set_device(who.local_rank)
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if cuda else "gloo",
            store=store,
            rank=who.rank,
            world_size=who.world,
            timeout=timedelta(seconds=timeout),
        )
    except RuntimeError as error:
        raise Lost(
            f"Process {who.rank} of {who.world} did not meet the others at {host}:{port}: {_brief(error)}."
        ) from None
    return Job(who, store, timeout, kept=kept)


def _await(store: Any, keys: list[str], until: float) -> None:
    """Waits for keys so that a signal can be answered meanwhile, which the store's own waiting does not allow."""
    seconds = 0.001
    while not store.check(keys):
        if time.monotonic() > until:
            raise RuntimeError("some of them did not come")
        time.sleep(seconds)
        seconds = min(2 * seconds, 0.2)


def _leave(job: Job, seconds: float = math.inf) -> None:
    """The first process leaves last: the others may still want to read from the store, which it keeps."""
    keys = [f"left.{other}" for other in range(job.seat.world)]
    with together():
        job.store.set(keys[job.seat.rank], "")
        until = time.monotonic() + seconds
        while job.seat.rank == 0 and not job.store.check(keys) and time.monotonic() < until:
            time.sleep(0.01)


def _brief(error: object) -> str:
    """The first line, without the places in others' source that gloo and torch put before and after it."""
    text = re.sub(r"\[/\S+:\d+\] | This is typically caused.*", "", str(error).strip())
    return _first(text or error)


def _first(error: object) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200].rstrip(".")


def _beat(job: Job, store: Any) -> None:
    """Shows the others that this process lives, and ends it when its neighbour is silent or another has failed.

    It runs in a thread of its own, so that it can end a process whose main thread hangs in a collective.
    """
    other = (job.seat.rank + 1) % job.seat.world
    last, since, failed = b"", time.monotonic(), 0.0
    with suppress(RuntimeError):  # the store is gone with its process, which the main thread notices by itself
        for count in itertools.count():
            job.answered = time.monotonic()
            store.set(f"beat.{job.seat.rank}", str(count))
            if job.over.wait(BEAT_SECONDS):
                return
            now = time.monotonic()
            beat = store.get(f"beat.{other}") if store.check([f"beat.{other}"]) else b""
            if beat != last or store.check([f"left.{other}"]):
                last, since = beat, now
            failed = failed or (now if store.check(["error"]) else 0.0)
            if failed and now - failed > PATIENCE * job.timeout:
                _end(job, store)
            if not failed and now - since > PATIENCE * job.timeout:
                silent = f"Process {other} has not answered for {now - since:.0f} s."
                store.compare_set("error", "", json.dumps({"rank": -1, "code": Lost.exit_code, "text": silent}))
                _end(job, store)
    job.answered = math.inf


def _guard(job: Job) -> None:
    """Ends this process when its own heart beat stops: it waits for a store whose process was stopped."""
    while not job.over.wait(BEAT_SECONDS):
        silent = time.monotonic() - job.answered
        if silent > PATIENCE * job.timeout and not job.over.is_set():
            text = f"The process that keeps the others together has not answered for {silent:.0f} s."
            complain(f"{text} The same command continues.")
            os._exit(Lost.exit_code)


def _end(job: Job, store: Any) -> None:
    """Ends the process at once: the heart beat's thread cannot stop a main thread that waits for another process."""
    if not job.over.is_set():
        complain(_found(store))
        os._exit(Lost.exit_code)


def _report(job: Job, error: BaseException) -> None:
    """The first error of a job is the one that all others end with."""
    if isinstance(error, Lost):
        return
    text = str(error) if isinstance(error, ByolError | Interrupted) else f"{type(error).__name__}: {_brief(error)}"
    code = error.exit_code if isinstance(error, ByolError | Interrupted) else 1
    with suppress(RuntimeError):
        job.store.compare_set("error", "", json.dumps({"rank": job.seat.rank, "code": code, "text": text}))


def _found(store: Any, reason: object = "") -> Lost:
    """The error that another process has left in the store, or, without one, that the process is gone."""
    gone = Lost(f"Another process has ended or does not answer ({_brief(reason)}). The same command continues.")
    try:
        if store.check(["error"]):
            left = json.loads(store.get("error"))
            lost = Lost(left["text"] if left["rank"] < 0 else f"Process {left['rank']} failed: {left['text']}")
            lost.exit_code = left["code"]
            return lost
    except RuntimeError:  # the first process is gone, and the store with it
        gone.said_by = 1
    return gone


@contextmanager
def together() -> Iterator[None]:
    """Around every exchange with other processes: their failure becomes `Lost`, with their message."""
    try:
        yield
    except RuntimeError as error:  # gloo and the store have no error type of their own
        if _job is None or (not isinstance(error, dist.DistError) and not GONE.search(str(error))):
            raise
        raise _found(_job.store, error) from None


def _wait(key: str) -> None:
    """Waits for a key for as long as it takes: the heart beat ends the process if nobody is left to set it."""
    assert _job
    seconds = 0.001
    with together():
        while not _job.store.check([key]):
            if _job.store.check(["error"]):
                raise _found(_job.store)
            time.sleep(seconds)
            seconds = min(2 * seconds, 0.2)


def meet() -> None:
    """Waits until every process is here, however long one of them needs."""
    if _job:
        turn = next(_job.turns)
        with together():
            _job.store.set(f"{turn}.{_job.seat.rank}", "")
        for other in range(_job.seat.world):
            _wait(f"{turn}.{other}")


def from_first(make: Callable[[], T]) -> T:
    """The value that the first process makes; the others wait for it, however long that takes, and get it as JSON."""
    if _job is None:
        return make()
    key = f"{next(_job.turns)}"
    if _job.seat.rank == 0:
        value = make()
        with together():
            _job.store.set(key, json.dumps(value))
        return value
    _wait(key)
    received: T = json.loads(_job.store.get(key))
    return received


def post(value: Any) -> None:
    """Leaves a note for the first process, which reads it with `posted`."""
    assert _job
    with together():
        _job.store.set(f"note.{_job.store.add('notes', 1)}", json.dumps(value))


def posted() -> list[Any]:
    """The notes since the last call."""
    if _job is None:
        return []
    with together():
        known, _job.heard = _job.heard, int(_job.store.add("notes", 0))
        return [json.loads(_job.store.get(f"note.{n}")) for n in range(known + 1, _job.heard + 1)]


def any_of(*flags: bool) -> tuple[bool, ...]:
    """Each flag as set by any process."""
    if _job is None:
        return flags
    both = torch.tensor(flags, dtype=torch.int32)
    with together():
        dist.all_reduce(both, dist.ReduceOp.MAX)
    return tuple(bool(flag) for flag in both)
