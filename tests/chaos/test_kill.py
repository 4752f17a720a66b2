"""Killed at random moments and started again, every command ends with the bits it would have had."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from byol import checkpoint
from byol.tables.cells import missing
from tests.chaos import several
from tests.chaos.scale import KILLS, LONG
from tests.conftest import TINY, write_images
from tests.data.test_sharding import digests
from tests.parallel.test_processes import SMALL
from tests.parallel.test_processes import command as distributed
from tests.tables.test_jobs import command
from tests.tables.test_tables import asked
from tests.test_pretraining import children, digest
from tests.zygote import Zygote, logged, pretrain

pytestmark = pytest.mark.timeout(3600)


@pytest.mark.parametrize("workers", [0, 2])
def test_sigkill_at_random_moments(
    folder: Path, tmp_path: Path, tiny: dict[str, Any], workers: int, zygote: Zygote
) -> None:
    """Breaks if a checkpoint can be half written, or any state lives outside it (G1). Every fourth kill is aimed
    inside a save."""
    kills, chance = KILLS if workers == 0 else max(2, KILLS // 5), random.Random(workers)
    overrides = tiny | {
        "data.in_memory": "never",
        "data.workers": workers,
        "optim.accumulate": 2,
        "optim.epochs": kills + 2,  # of three steps
        "run.checkpoint_steps": 2,
        "run.monitor_epochs": kills,
    }
    again = pretrain(folder, tmp_path / "cut", overrides)
    code, said = zygote.run(*pretrain(folder, tmp_path / "whole", overrides | {"data.workers": 0}))
    assert code == 0, said
    inside = 0
    for number in range(kills):
        if number % 4 == 3:
            pid = zygote.start(*again, act="die", at=chance.randint(1, 50), inside="save")
        else:
            pid = zygote.start(*again)
            while logged(tmp_path / "cut") < 3 * number and not zygote.ended(pid):
                time.sleep(0.002)
            time.sleep(chance.uniform(0, 0.1))
            os.kill(pid, signal.SIGKILL)
        code, said = zygote.wait(pid)
        assert code == -signal.SIGKILL, said
        inside += number % 4 == 3
    code, said = zygote.run(*again)
    assert code == 0, said
    assert digest(tmp_path / "cut") == digest(tmp_path / "whole")
    assert not list(tmp_path.glob("cut/**/.*.tmp"))
    print(f"{kills} kills of a run with {workers} workers, {inside} of them inside a save")


def sharding(folder: Path, out: Path, **_: Any) -> list[str]:
    return ["shard", str(folder), str(out), "--shard-size", "10KB"]


def evaluating(folder: Path, out: Path, encoder: Path) -> list[str]:
    settings = ["--knn.k=3", "--transfer.penalties=0.1", "--linear.epochs=4", "--linear.lrs=0.1", "--linear.batch=16"]
    settings.append("--precision=float32")
    protocols = ["--protocol", "knn", "linear", "transfer-linear"]
    place = ["--out", str(out / "results"), "--cache", str(out / "cache")]
    return ["evaluate", str(encoder), "--on", str(folder), *place, *settings, *protocols]


def embedding(folder: Path, out: Path, encoder: Path) -> list[str]:
    return ["embed", str(encoder), str(folder), "--out", str(out / "features.npz")]


def fitting(folder: Path, out: Path, encoder: Path) -> list[str]:
    return ["fit", str(encoder), "--on", str(folder), "-o", str(out / "model"), "--cache", str(out / "cache")]


def predicting(folder: Path, out: Path, encoder: Path) -> list[str]:
    return ["predict", str(encoder.parent / "model"), str(folder), "-o", str(out / "predictions.csv")]


def contents(out: Path) -> dict[str, bytes]:
    """Of every file but locks."""
    return {path.name: path.read_bytes() for path in sorted(out.glob("**/[!.]*")) if path.is_file()}


def features(out: Path) -> Any:
    with np.load(out / "features.npz") as found:
        return {name: found[name].tobytes() for name in found.files}


def results(out: Path) -> dict[str, Any]:
    """What every protocol found, without times."""
    found = {}
    for path in sorted(out.glob("results/*/result.json")):
        record = json.loads(path.read_text())
        runs = [{k: v for k, v in run.items() if k != "seconds"} for run in record["runs"]]
        found[path.parent.name] = [record["test"], runs]
    caches = {p.name: np.load(p).tobytes() for p in sorted(out.glob("cache/*.npy"))}
    return {**found, **caches}


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory, zygote: Zygote) -> Path:
    """Trained for two epochs on 60 images; beside it a model fitted to them."""
    root = tmp_path_factory.mktemp("encoder")
    write_images(root / "images", 60, sides=(64, 80))
    code, said = zygote.run(*pretrain(root / "images", root / "run", dict(TINY)))
    assert code == 0, said
    code, said = zygote.run("fit", str(root / "run"), "--on", str(root / "images"), "-o", str(root / "model"))
    assert code == 0, said
    return root / "run"


COMMANDS: dict[str, tuple[Any, Any]] = {
    "shard": (sharding, digests),
    "evaluate": (evaluating, results),
    "embed": (embedding, features),
    "fit": (fitting, contents),
    "predict": (predicting, contents),
}


@pytest.mark.parametrize("verb", COMMANDS)
def test_kills_of_other_commands(verb: str, encoder: Path, tmp_path: Path, zygote: Zygote) -> None:
    """Breaks if shards, results, features, their cache, models or predictions can be found half written, or come out
    differently."""
    arguments, read = COMMANDS[verb]
    folder = encoder.parent / "images"
    began = time.monotonic()
    code, said = zygote.run(*arguments(folder, tmp_path / "whole", encoder=encoder))
    whole = time.monotonic() - began
    assert code == 0, said
    chance, kills = random.Random(verb), 0
    for _ in range(max(1, KILLS // 3)):
        pid = zygote.start(*arguments(folder, tmp_path / "cut", encoder=encoder))
        time.sleep(chance.uniform(0, whole))
        if not zygote.ended(pid):
            os.kill(pid, signal.SIGKILL)
            kills += 1
        zygote.wait(pid)
        for path in tmp_path.glob("cut/**/*.json"):
            json.loads(path.read_text())
        for path in (*tmp_path.glob("cut/**/*.npy"), *tmp_path.glob("cut/**/*.npz")):
            np.load(path)
    code, said = zygote.run(*arguments(folder, tmp_path / "cut", encoder=encoder))
    assert code == 0, said
    assert read(tmp_path / "cut") == read(tmp_path / "whole")
    assert not list(tmp_path.glob("cut/**/.*.tmp"))
    print(f"{kills} kills of byol {verb}")


@pytest.mark.skipif(not LONG, reason="needs make chaos; tests/tables/test_jobs.py has the short version")
def test_kills_of_a_table(tmp_path: Path, tiny: dict[str, Any], zygote: Zygote) -> None:
    """Breaks if a cell is lost, computed twice, or comes out differently (G25)."""
    tiny = {**tiny, "optim.epochs": 6, "run.checkpoint_steps": 3}
    plan, began = asked(tmp_path / "cut", tiny), time.monotonic()
    code, said = zygote.run(*command(asked(tmp_path / "whole", tiny), tiny)[3:])
    assert code == 0, said
    whole, chance, kills = time.monotonic() - began, random.Random(0), 0
    finished: dict[str, int] = {}
    for _ in range(max(10, KILLS // 3)):
        pid = zygote.start(*command(plan, tiny)[3:])
        time.sleep(chance.uniform(0, whole / 8))
        if not zygote.ended(pid):
            os.kill(pid, signal.SIGKILL)
            kills += 1
        zygote.wait(pid)
        for path in tmp_path.glob("cut/cells/*.json"):
            assert path.stat().st_mtime_ns == finished.setdefault(path.name, path.stat().st_mtime_ns)
            json.loads(path.read_text())
    code, said = zygote.run(*command(plan, tiny)[3:])
    assert code == 0, said
    assert not missing(plan.distinct())
    for ending in ("md", "csv"):
        name = f"target-decay-cpu.{ending}"
        assert (tmp_path / "cut" / name).read_text() == (tmp_path / "whole" / name).read_text()
    print(f"{kills} kills of byol table")


@pytest.mark.skipif(not LONG, reason="takes minutes: needs make chaos")
def test_kills_of_the_jobs_of_a_table(tmp_path: Path, tiny: dict[str, Any], zygote: Zygote) -> None:
    """Breaks if a cell whose process is killed is lost, stops the others, or comes out differently (G25)."""
    pytest.importorskip("submitit", reason="needs submitit, which queues jobs")
    tiny = {**tiny, "optim.epochs": 60, "run.checkpoint_steps": 3}
    plan = asked(tmp_path / "cut", tiny)
    code, said = zygote.run(*command(asked(tmp_path / "whole", tiny), tiny)[3:])
    assert code == 0, said
    chance, kills, starts, finished = random.Random(0), 0, 0, dict[str, int]()
    while missing(plan.distinct()):
        starts += 1
        pid = zygote.start(*command(plan, tiny)[3:], "--jobs=local:2")
        while not zygote.ended(pid):
            time.sleep(chance.uniform(0, 6))
            jobs = [job for beside in children(pid) for job in children(beside)]
            if jobs and kills < 10:
                os.kill(chance.choice(jobs), signal.SIGKILL)
                kills += 1
            for path in tmp_path.glob("cut/cells/*.json"):
                if json.loads(path.read_text())["status"] == "finished":
                    assert path.stat().st_mtime_ns == finished.setdefault(path.name, path.stat().st_mtime_ns)
        code, said = zygote.wait(pid)
        assert "Traceback" not in said
        assert starts < 10, said
    assert kills == 10
    for ending in ("md", "csv"):
        name = f"target-decay-cpu.{ending}"
        assert (tmp_path / "cut" / name).read_text() == (tmp_path / "whole" / name).read_text()
    print(f"{kills} kills of jobs of byol table --jobs local:2, {starts} starts")


def test_a_full_disk_at_any_write_costs_nothing_but_time(
    folder: Path, tmp_path: Path, tiny: dict[str, Any], zygote: Zygote
) -> None:
    """Breaks if a write that fails anywhere in a run ends it otherwise than with 74, the path and the bytes, leaves a
    partial file, or harms the checkpoint before it (G5)."""
    overrides = tiny | {"run.checkpoint_steps": 1, "optim.epochs": 1}
    code, said = zygote.run(*pretrain(folder, tmp_path / "whole", overrides))
    assert code == 0, said
    chance, out, failed = random.Random(0), tmp_path / "cut", 0
    for _ in range(max(3, KILLS // 2)):
        code, said = zygote.run(*pretrain(folder, out, overrides), act="full", at=chance.randint(40, 240))
        if code == 0:  # the point lies behind the end
            continue
        failed += 1
        assert code == 74, said
        sentences = [line for line in said.splitlines() if line.startswith("byol: ")]
        assert len(sentences) == 1
        assert "MB needed" in sentences[0] or "Cannot write to" in sentences[0]
        assert str(out) in sentences[0]
        assert "Traceback" not in said
        assert not list(out.glob("**/.*.tmp"))
        for path in checkpoint.found(out / "checkpoints"):
            checkpoint.read(path)
    code, said = zygote.run(*pretrain(folder, out, overrides))
    assert code == 0, said
    assert digest(out) == digest(tmp_path / "whole")
    print(f"{failed} failed writes")


@pytest.mark.skipif(not LONG, reason="needs make chaos; tests/parallel/test_processes.py has the short version")
def test_a_killed_process_ends_its_job_every_time(tmp_path: Path) -> None:
    """Breaks if one of two processes, killed at any step, leaves the other waiting (G9)."""
    chance = random.Random(0)
    changes = SMALL | {"optim.epochs": 3, "optim.batch": 16, "run.checkpoint_steps": 2, "run.timeout": 20}
    jobs, tries = list[dict[str, Any]](), min(KILLS, 20)
    for number in range(tries):
        mischief = {"mischief": "SIGKILL", "rank": chance.randint(0, 1), "step": chance.randint(1, 11)}
        shared = {"world": 2, "command": distributed(tmp_path / str(number), changes), "place": str(tmp_path)}
        jobs += [shared | mischief | {"seconds": 60}, shared]
    found = several.run(jobs, timeout=3000)
    for killed, again in zip(found[::2], found[1::2], strict=True):
        assert None not in killed["codes"], "one was left waiting"
        assert all(code for code in killed["codes"])
        assert again["codes"] == [0, 0]
    ends = [digest(tmp_path / str(number)) for number in range(tries)]
    assert all(end == ends[0] for end in ends)
    print(f"{tries} of {tries} jobs ended, the slowest after {max(job['seconds'] for job in found[::2]):.0f} s")
