"""Ctrl-C, SIGTERM and loader processes that die: answered early, quickly, and never by waiting."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from byol import checkpoint, data
from byol.config import Config, apply, resolve
from byol.data import loader, workers
from byol.data.source import Source
from byol.errors import Interrupted, LoaderLost, Lost
from byol.run import signals
from tests.chaos.scale import LONG
from tests.conftest import TINY, write_images
from tests.test_pretraining import children
from tests.zygote import Zygote, flags, logged, pretrain, slowness

pytestmark = pytest.mark.timeout(3600)


def caught(pid: int) -> bool:
    """Whether a process has its own answer to SIGTERM."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    mask = int(next(line.split()[1] for line in lines if line.startswith("SigCgt")), 16)
    return bool(mask >> (signal.SIGTERM - 1) & 1)


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs /proc")
@pytest.mark.parametrize("delay", [0.0, 0.3, 1.5] if not LONG else [i / 10 for i in range(20)])
def test_a_signal_before_anything_is_loaded(tmp_path: Path, delay: float) -> None:
    """Breaks if the answer to signals is installed after the imports, or an import swallows it (G3)."""
    command = [sys.executable, "-m", "byol", "pretrain", "scenes:2000", "--out", str(tmp_path / "run")]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    while not caught(process.pid):
        assert process.poll() is None
    early = "libtorch" not in Path(f"/proc/{process.pid}/maps").read_text()
    time.sleep(delay)
    process.send_signal(signal.SIGTERM)
    _, error = process.communicate(timeout=60)
    assert early
    assert process.returncode == 75, error
    assert "Traceback" not in error


def test_a_second_ctrl_c_ends_at_once(tmp_path: Path, tiny: dict[str, Any], zygote: Zygote) -> None:
    """Breaks if the second one waits for the step, or loader processes outlive the run (G3)."""
    slow = tiny | {"optim.batch": 1024, "data.in_memory": "never", "data.workers": 2, "optim.epochs": 50}
    pid = zygote.start("pretrain", "scenes:2000", "--preset=cifar10-cpu", f"--out={tmp_path / 'run'}", *flags(slow))
    while len(readers := children(pid)) < 2:
        assert not zygote.ended(pid)
        time.sleep(0.05)
    os.kill(pid, signal.SIGINT)
    time.sleep(0.2)
    began, limit = time.monotonic(), 2 * slowness()
    if not zygote.ended(pid):
        os.kill(pid, signal.SIGINT)
    code, said = zygote.wait(pid)
    assert code in (130, 75), said  # 75: one was enough
    assert time.monotonic() - began < limit
    while any(alive(reader) for reader in readers):
        assert time.monotonic() - began < 2 * limit, "a loader process is left"
        time.sleep(0.01)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except OSError:
        return False


def test_ctrl_c_is_not_taken_for_a_bad_image(folder: Path, tiny: dict[str, Any]) -> None:
    """Breaks if what a signal raises inside a decoder becomes a line of skipped.txt, and the command goes on."""
    source = data.open_source(str(folder), Config().data)
    real = Image.Image.load

    def interrupted(image: Image.Image) -> Any:
        signals.handle(signal.SIGINT, None)
        return real(image)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("PIL.ImageFile.ImageFile.load", interrupted)
        with pytest.raises(Interrupted):
            source.read(0)


def test_reading_stops_at_ctrl_c(tiny: dict[str, Any]) -> None:
    """Breaks if all images are still read after it, by the threads that read ahead."""
    read: list[int] = []

    def slow(index: int) -> torch.Tensor:
        time.sleep(0.01)
        read.append(index)
        if index == 20:
            raise Interrupted("now")
        return torch.zeros(3, 8, 8, dtype=torch.uint8)

    threads = apply(Config(), {**tiny, "data.in_memory": "always", "data.workers": 0})
    began = time.monotonic()
    with pytest.raises(Interrupted):
        loader.prepare(Source("slow", 5000, slow, str), threads)
    assert len(read) < 200
    assert time.monotonic() - began < 2 * slowness()


def test_ctrl_c_in_a_callback_is_not_lost() -> None:
    """Breaks if what Python prints and forgets, such as an error in a callback of a fork, was the only answer."""

    class Dropped:
        def __del__(self) -> None:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.01)

    def work() -> None:
        dropped = Dropped()
        del dropped  # the first one comes up in here, and is forgotten
        until = time.monotonic() + 30
        while time.monotonic() < until:
            time.sleep(0.01)

    with pytest.raises(Interrupted), signals.handled():
        work()


STUCK = """
import threading, time
from byol.run import signals
with signals.handled():
    try:
        print("here", flush=True)
        time.sleep(60)
    finally:
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()
"""


def test_a_lock_that_is_never_released_ends_too() -> None:
    """Breaks if a signal that came up where a lock was held leaves the command waiting for that lock."""
    process = subprocess.Popen([sys.executable, "-c", STUCK], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 75, error
    assert error.startswith("byol: Interrupted")


def test_what_is_at_stake_is_said_truly() -> None:
    """Breaks if a signal after training has begun says that nothing was at stake, or hides that another process was
    lost, after which torchrun sends SIGTERM to those that are left."""
    with pytest.raises(Interrupted, match="before anything was at stake"), signals.handled():
        os.kill(os.getpid(), signal.SIGTERM)

    def after_training() -> None:
        with signals.deferred():
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    def after_a_loss() -> None:
        try:
            raise Lost("another process is gone")
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Interrupted, match="what was last saved is kept"), signals.handled():
        after_training()
    with pytest.raises(Lost, match="gone"), signals.handled():
        after_a_loss()


def test_a_late_ctrl_c_is_not_lost() -> None:
    """Breaks if one in the last step of a run lets a table go on with its next cell."""
    with pytest.raises(Interrupted, match="finished"), signals.deferred():
        signals.handle(signal.SIGINT, None)


VERBS = {
    "doctor": ["doctor", "scenes:20000", "--out={out}/doctor"],
    "embed": ["embed", "{run}", "scenes:20000", "--out={out}/features.npz"],
    "evaluate": ["evaluate", "{run}", "--on=scenes:4000", "--cache={out}/cache", "--out={out}/evaluation"],
    "report": ["report", "{run}", "--out={out}/report.html", "--data=scenes:20000"],
    "pretrain": ["pretrain", "scenes:20000", "--out={out}/other"],
    "dedupe": ["dedupe", "{run}", "scenes:20000", "--out={out}/groups.csv"],
    "outliers": ["outliers", "{run}", "scenes:20000", "--out={out}/outliers.csv"],
    "pick": ["pick", "100", "{run}", "scenes:20000", "--out={out}/pick.csv"],
    "search": ["search", "{images}/class0/000.jpg", "{run}", "scenes:20000", "--out={out}/found.csv"],
    "shard": ["shard", "{many}", "{out}/shards"],
    "demo": ["demo", "--out={out}/demo"],
    "plan": ["plan", "paper-1000"],
    "table": ["table", "target-decay", "--scale=cpu", "--seeds=1", "--data=scenes:400", "--out={out}/table"],
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, zygote: Zygote) -> Path:
    root = tmp_path_factory.mktemp("trained")
    write_images(root / "images", 40)
    (root / "many").mkdir()
    for number in range(20_000):
        os.link(root / "images" / "class0" / f"{number % 20 * 2:03d}.jpg", root / "many" / f"{number:05d}.jpg")
    code, said = zygote.run(*pretrain(root / "images", root / "run", TINY | {"optim.epochs": 1}))
    assert code == 0, said
    return root


def begun(verb: str, trained: Path, out: Path, zygote: Zygote) -> int:
    places = {"run": trained / "run", "images": trained / "images", "many": trained / "many", "out": out}
    return zygote.start(*(word.format(**places) for word in VERBS[verb]))


@pytest.mark.parametrize("number", signals.SIGNALS)
@pytest.mark.parametrize("verb", VERBS if LONG else ["doctor", "embed", "evaluate"])
def test_a_signal_is_answered_within_two_seconds(
    verb: str, number: signal.Signals, trained: Path, tmp_path: Path, zygote: Zygote
) -> None:
    """Breaks if a verb waits for a long piece of work, or for its threads or loader processes."""
    chance, answered = random.Random(f"{verb} {number}"), []
    for _ in range(6 if LONG else 1):
        pid = begun(verb, trained, tmp_path, zygote)
        time.sleep(chance.uniform(0.3, 3.0))
        if zygote.ended(pid):
            continue
        before, began = slowness(), time.monotonic()
        os.kill(pid, number)
        code, said = zygote.wait(pid)
        answered.append(time.monotonic() - began)
        assert code == 75, said
        assert "Traceback" not in said
        assert answered[-1] < 2 * max(before, slowness()), f"{answered[-1]:.1f} s"
    assert answered, "it ended before it could be interrupted"
    print(f"byol {verb}: {len(answered)} answers, the slowest after {max(answered):.2f} s")


@pytest.mark.parametrize("verb", VERBS if LONG else ["evaluate", "search"])
def test_many_ctrl_c_leave_no_traceback(verb: str, trained: Path, tmp_path: Path, zygote: Zygote) -> None:
    """Breaks if a Ctrl-C that comes while the first one is answered is a traceback, or ends the process otherwise."""
    chance = random.Random(verb)
    for _ in range(12 if LONG else 4):
        pid = begun(verb, trained, tmp_path, zygote)
        time.sleep(chance.uniform(0.3, 2.0))
        until = time.monotonic() + 20
        while not zygote.ended(pid):
            assert time.monotonic() < until
            os.kill(pid, signal.SIGINT)
            time.sleep(chance.uniform(0.0, 0.05))
        code, said = zygote.wait(pid)
        assert code in (75, 130, 0), said  # 75: one was enough; 0: it was done
        assert "Traceback" not in said


def test_ctrl_c_ends_local_jobs_without_a_traceback(tmp_path: Path) -> None:
    """Breaks if the processes that submitit keeps beside each job answer as well, or a job outlives the command."""
    pytest.importorskip("submitit", reason="needs submitit, which queues jobs")
    table = [*(word.format(out=tmp_path) for word in VERBS["table"]), "--jobs=local:1"]
    command = [sys.executable, "-m", "byol", *table]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    while not (jobs := [job for beside in children(process.pid) for job in children(beside)]):
        assert process.poll() is None
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    _, said = process.communicate(timeout=60)
    assert process.returncode == 75, said
    assert "Traceback" not in said
    began = time.monotonic()
    while any(alive(job) for job in jobs):
        assert time.monotonic() - began < 30, "a job is left"
        time.sleep(0.05)


def test_workers_without_shared_memory_say_so(
    folder: Path, tmp_path: Path, tiny: dict[str, Any], zygote: Zygote
) -> None:
    """Breaks if a worker that cannot hand its images over leaves the run waiting for ever."""
    # 160 kB hold the encoder, which is written first, and not the 197 kB of a batch's crops.
    streamed = tiny | {"data.in_memory": "never", "data.workers": 2, "optim.batch": 16}
    code, said = zygote.run(*pretrain(folder, tmp_path / "run", streamed), limit=160_000)
    assert code == 74, said
    assert "shared memory" in said.splitlines()[-1]
    assert "--data.workers 0" in said


@pytest.mark.skipif(not LONG, reason="needs make chaos; the test before this one limits file sizes instead")
def test_a_full_shared_memory(folder: Path, tmp_path: Path, tiny: dict[str, Any]) -> None:
    """Breaks if a /dev/shm without room leaves the run waiting, or is a traceback."""
    streamed = tiny | {"data.in_memory": "never", "data.workers": 2, "optim.batch": 24}
    small = 'mount -t tmpfs -o size=100k tmpfs /dev/shm || exit 99; exec "$@"'
    command = ["unshare", "-m", "sh", "-c", small, "sh", sys.executable, "-m", "byol"]
    told = subprocess.run([*command, *pretrain(folder, tmp_path / "run", streamed)], capture_output=True, text=True)
    if told.returncode in (1, 99):
        pytest.skip("needs root, for a /dev/shm of its own")
    assert told.returncode == 74, told.stderr
    assert "shared memory" in told.stderr.splitlines()[-1]


def test_few_open_files_are_told(folder: Path, tmp_path: Path, tiny: dict[str, Any], zygote: Zygote) -> None:
    """Breaks if loader processes that cannot open another file leave the run waiting for ever."""
    streamed = tiny | {"data.in_memory": "never", "data.workers": 2}
    code, said = zygote.run(*pretrain(folder, tmp_path / "run", streamed), files=35)
    assert code == 74, said
    assert "open files" in said.splitlines()[-1]
    assert "ulimit -n" in said
    assert "--data.workers 0" in said


def test_a_batch_costs_one_open_file(folder: Path, tiny: dict[str, Any]) -> None:
    """Breaks if each of a batch's forty tensors is shared by itself: thousand open files would hold 25 batches."""
    config = apply(Config(), {**tiny, "data.in_memory": "never", "data.workers": 1})
    images = loader.prepare(data.open_source(str(folder), config.data), config)
    batches = loader.batches(images, config, resolve(config, len(images.train)), 0, torch.device("cpu"))
    batch = next(batches)
    batches.close()
    tensors = [*batch.crops, *(tensor for draw in batch.draws for tensor in draw.values())]
    assert len(tensors) > 10
    assert len({tensor.untyped_storage().data_ptr() for tensor in tensors}) == 1


@pytest.mark.parametrize("asked", [True, False])
def test_a_stopped_worker_is_woken(
    asked: bool, folder: Path, tmp_path: Path, tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Breaks if a run waits for ever for a loader process that somebody stopped, or leaves SIGTERM unanswered then."""
    monkeypatch.setattr(workers, "STOPPED_SECONDS", 3600.0 if asked else 1.0)
    source = data.open_source(str(folder), Config().data)
    items = workers.loaded(loader.Pieces(source), [0] * 400, 2)
    next(items)
    for process in multiprocessing.active_children():
        assert process.pid
        os.kill(process.pid, signal.SIGSTOP)
    began = time.monotonic()
    with contextlib.suppress(Interrupted), signals.handled(), signals.deferred():
        if asked:
            signals.handle(signal.SIGTERM, None)
        assert sum(1 for _ in items) == 399
    assert time.monotonic() - began < 60


def test_a_worker_that_never_answers_is_given_up(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks if SIGTERM is not answered while a loader process hangs in a system call of its own."""
    monkeypatch.setattr(workers, "ANSWER_SECONDS", 1.0)
    source = Source("hanging", 8, lambda _: time.sleep(3600), str)  # type: ignore[arg-type,return-value]
    items = workers.loaded(loader.Pieces(source), range(1), 1)

    def asked_to_stop() -> None:
        with signals.handled(), signals.deferred():
            signals.handle(signal.SIGTERM, None)
            next(items)

    with pytest.raises(LoaderLost, match="did not answer"):
        asked_to_stop()


def test_a_killed_worker_is_told(folder: Path, tmp_path: Path, tiny: dict[str, Any], zygote: Zygote) -> None:
    """Breaks if a loader process that the system killed is a traceback, or the run cannot go on after it."""
    streamed = tiny | {"data.in_memory": "never", "data.workers": 2, "optim.epochs": 40, "run.checkpoint_steps": 1}
    pid = zygote.start(*pretrain(folder, tmp_path / "run", streamed))
    while logged(tmp_path / "run") < 2:
        assert not zygote.ended(pid)
        time.sleep(0.01)
    os.kill(children(pid)[0], signal.SIGKILL)
    code, said = zygote.wait(pid)
    assert code == 75, said
    assert "loader process was killed" in said.splitlines()[-1], said
    assert checkpoint.found(tmp_path / "run" / "checkpoints")
