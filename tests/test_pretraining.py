"""Whole runs, tiny: what they write, how they go on, what they refuse."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pytest
import torch
from cyclopts import App, Parameter

import byol
from byol import checkpoint, pretraining
from byol.cli.app import ConfigFlags, PlaceFlags, given_values, place_settings
from byol.data import loader
from byol.errors import BadData, Diverged, Interrupted, OutputBusy
from byol.run import files, signals
from tests.conftest import write_images
from tests.zygote import slowness


def digest(out: Path) -> tuple[dict[str, bytes], str]:
    """All tensors of the newest checkpoint, and the metrics."""
    newest = checkpoint.read(checkpoint.found(out / "checkpoints")[0])
    return {name: value.numpy().tobytes() for name, value in newest.items()}, (out / "metrics.jsonl").read_text()


def test_a_run_from_images_to_features(folder: Path, tmp_path: Path, tiny: dict[str, Any]) -> None:
    """Breaks if any file of a run, its plan, or the way from encoder to features is missing."""
    run = byol.pretrain(folder, tmp_path / "run", preset="cifar10-cpu", overrides=tiny)
    assert run.plan.steps == 6
    record = files.read_json(run.out / "run.json")
    assert record["status"] == "finished"
    assert record["plan"]["peak_lr"] == pytest.approx(0.4 * 8 / 256)
    assert record["data"]["images"] == 24
    assert record["verdict"]["word"] in ("learning", "stalled", "collapsing", "too early")
    steps = [m for m in run.metrics if "loss" in m]
    assert [m["step"] for m in steps] == list(range(6))
    assert all(-4 < m["loss"] < 8 and 0 <= m["probe_accuracy"] <= 1 for m in steps)
    looks = [m for m in run.metrics if "spread" in m]
    assert looks[-1]["step"] == 5
    assert {"rank_projection", "rank_representation", "retrieval", "knn"} <= set(looks[-1])
    features, names = byol.embed(run.out, folder)
    assert features.shape == (24, byol.load_encoder(run.out).num_features)
    assert names[0] == "class0/000.jpg"
    assert np.isfinite(features).all()
    assert features.std(0).max() > 0


def test_the_same_command_again_does_not_train_again(folder: Path, tmp_path: Path, tiny: dict[str, Any]) -> None:
    """Breaks if a finished run is touched."""
    byol.pretrain(folder, tmp_path / "run", "cifar10-cpu", tiny)
    before = digest(tmp_path / "run")
    again = byol.pretrain(folder, tmp_path / "run", "cifar10-cpu", tiny)
    assert digest(tmp_path / "run") == before
    assert again.verdict.word


@pytest.mark.parametrize("in_memory", ["always", "never"])
def test_interrupted_runs_end_as_uninterrupted_ones(
    folder: Path, tmp_path: Path, tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch, in_memory: str
) -> None:
    """Breaks if anything but (seed, step, weights, momentum) carries over between steps."""
    overrides = tiny | {"data.in_memory": in_memory, "data.workers": 0, "optim.accumulate": 2, "optim.epochs": 4}
    byol.pretrain(folder, tmp_path / "whole", "cifar10-cpu", overrides)
    stops = iter([2, 5])
    stop = {"at": next(stops)}
    real = pretraining.update

    def update(*arguments: Any, **named: Any) -> Any:
        stop["at"] -= 1
        if stop["at"] == 0:
            signals._state.requested = True
        return real(*arguments, **named)

    monkeypatch.setattr(pretraining, "update", update)
    for _ in range(2):
        with pytest.raises(Interrupted, match="saved"):
            byol.pretrain(folder, tmp_path / "cut", "cifar10-cpu", overrides)
        stop["at"] = next(stops, 10**9)
    byol.pretrain(folder, tmp_path / "cut", "cifar10-cpu", overrides)
    assert digest(tmp_path / "cut") == digest(tmp_path / "whole")


def test_a_crash_between_checkpoints_repeats_the_lost_steps(
    folder: Path, tmp_path: Path, tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Breaks if metrics logged after the last checkpoint stay and are logged twice."""
    overrides = tiny | {"run.checkpoint_steps": 3, "optim.epochs": 4}
    byol.pretrain(folder, tmp_path / "whole", "cifar10-cpu", overrides)
    real, calls = pretraining.update, []

    def crash(*arguments: Any, **named: Any) -> Any:
        calls.append(1)
        if len(calls) == 6:
            raise RuntimeError("power cut")
        return real(*arguments, **named)

    monkeypatch.setattr(pretraining, "update", crash)
    with pytest.raises(RuntimeError, match="power cut"):
        byol.pretrain(folder, tmp_path / "cut", "cifar10-cpu", overrides)
    monkeypatch.setattr(pretraining, "update", real)
    byol.pretrain(folder, tmp_path / "cut", "cifar10-cpu", overrides)
    assert digest(tmp_path / "cut") == digest(tmp_path / "whole")


def test_a_damaged_checkpoint_costs_nothing_but_time(
    folder: Path,
    tmp_path: Path,
    tiny: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Breaks if the previous checkpoint is not used, or the end differs."""
    overrides = tiny | {"run.checkpoint_steps": 2, "optim.epochs": 4}
    byol.pretrain(folder, tmp_path / "whole", "cifar10-cpu", overrides)
    with monkeypatch.context() as patch:
        patch.setattr(signals, "requested", lambda: len(checkpoint.found(tmp_path / "cut" / "checkpoints")) >= 2)
        with pytest.raises(Interrupted):
            byol.pretrain(folder, tmp_path / "cut", "cifar10-cpu", overrides)
    newest = checkpoint.found(tmp_path / "cut" / "checkpoints")[0]
    newest.write_bytes(newest.read_bytes()[:-100])
    byol.pretrain(folder, tmp_path / "cut", "cifar10-cpu", overrides)
    assert "checksum" in capsys.readouterr().err
    assert digest(tmp_path / "cut") == digest(tmp_path / "whole")


def test_another_run_in_the_directory_is_refused_with_the_difference(
    folder: Path, tmp_path: Path, tiny: dict[str, Any]
) -> None:
    """Breaks if a run is overwritten, or continued as something else (G19)."""
    byol.pretrain(folder, tmp_path / "run", "cifar10-cpu", tiny)
    before = digest(tmp_path / "run")
    with pytest.raises(OutputBusy, match=r"run\.seed: 0 → 1"):
        byol.pretrain(folder, tmp_path / "run", "cifar10-cpu", tiny | {"run.seed": 1})
    assert digest(tmp_path / "run") == before
    byol.pretrain(folder, tmp_path / "run", "cifar10-cpu", tiny | {"run.seed": 1}, overwrite=True)
    assert digest(tmp_path / "run") != before


def test_other_images_are_refused(folder: Path, tmp_path: Path, tiny: dict[str, Any]) -> None:
    """Breaks if a changed folder goes unnoticed."""
    byol.pretrain(folder, tmp_path / "run", "cifar10-cpu", tiny)
    (folder / "class0" / "000.jpg").unlink()
    with pytest.raises(OutputBusy, match="the images"):
        byol.pretrain(folder, tmp_path / "run", "cifar10-cpu", tiny)


def test_fields_that_may_change_do(folder: Path, tmp_path: Path, tiny: dict[str, Any]) -> None:
    """Breaks if more workers or epochs are taken for another run."""
    byol.pretrain(folder, tmp_path / "run", "cifar10-cpu", tiny)
    longer = byol.pretrain(folder, tmp_path / "run", "cifar10-cpu", tiny | {"optim.epochs": 3, "data.workers": 1})
    assert longer.plan.steps == 9
    assert [m["step"] for m in longer.metrics if "loss" in m] == list(range(9))


def test_a_stranger_s_directory_is_left_alone(folder: Path, tmp_path: Path, tiny: dict[str, Any]) -> None:
    """Breaks if --out can point into somebody's files."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("important")
    with pytest.raises(OutputBusy, match="not a run of byol"):
        byol.pretrain(folder, tmp_path / "mine", "cifar10-cpu", tiny)
    assert os.listdir(tmp_path / "mine") == ["thesis.txt"]


def test_non_finite_numbers_stop_before_the_weights(
    folder: Path, tmp_path: Path, tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Breaks if a NaN reaches weights, target or checkpoint (G14)."""
    real, calls = pretraining.augmented, []

    def poisoned(*arguments: Any) -> Any:
        for item in real(*arguments):
            calls.append(1)
            yield item._replace(view1=item.view1 * float("nan")) if len(calls) == 4 else item

    monkeypatch.setattr(pretraining, "augmented", poisoned)
    with pytest.raises(Diverged, match=r"at step 3 the loss is nan.*last good checkpoint is .*step-000000003") as error:
        byol.pretrain(folder, tmp_path / "run", "cifar10-cpu", tiny | {"run.checkpoint_steps": 1})
    assert error.value.exit_code == 76
    tensors = checkpoint.read(checkpoint.found(tmp_path / "run" / "checkpoints")[0])
    assert all(t.isfinite().all() for t in tensors.values())
    assert files.read_json(tmp_path / "run" / "run.json")["status"] == "diverged"


def test_bad_images_are_listed_in_the_run(folder: Path, tmp_path: Path, tiny: dict[str, Any]) -> None:
    """Breaks if a bad file is not skipped, counted and named."""
    (folder / "class0" / "empty.jpg").write_bytes(b"")
    good = (folder / "class1" / "001.jpg").read_bytes()
    (folder / "class1" / "short.jpg").write_bytes(good[: len(good) // 2])
    for in_memory in ("always", "never"):
        out = tmp_path / in_memory
        byol.pretrain(folder, out, "cifar10-cpu", tiny | {"data.in_memory": in_memory, "data.workers": 2})
        lines = (out / "skipped.txt").read_text().splitlines()
        assert {line.split("\t")[0] for line in lines} == {"class0/empty.jpg", "class1/short.jpg"}


def test_a_folder_of_bad_images_ends_with_a_sentence(tmp_path: Path, tiny: dict[str, Any]) -> None:
    """Breaks if nothing but bad files is a crash."""
    (tmp_path / "bad").mkdir()
    for i in range(20):
        (tmp_path / "bad" / f"{i}.jpg").write_text("not an image")
    for in_memory in ("always", "never"):
        with pytest.raises(BadData, match=r"can.* be read"):
            byol.pretrain(tmp_path / "bad", tmp_path / in_memory, "cifar10-cpu", tiny | {"data.in_memory": in_memory})


@pytest.mark.parametrize("accumulate", [1, 2])
def test_bad_data_in_the_middle_of_a_run_cost_no_step(
    folder: Path, tmp_path: Path, tiny: dict[str, Any], accumulate: int
) -> None:
    """Breaks if a run that ends with 65 saves nothing, or saves statistics that the failed step has changed: put right,
    the images must lead to the bits of a run that never failed."""
    overrides = tiny | {"data.in_memory": "never", "data.workers": 0, "optim.accumulate": accumulate}
    overrides |= {"data.max_bad": 0.0, "data.holdout": 0.0}
    byol.pretrain(folder, tmp_path / "whole", "cifar10-cpu", overrides)
    names = sorted(path for path in folder.rglob("*.jpg"))
    later = names[int(loader.batch_positions(0, 2, 8, 24)[-1])]  # of the last pass of step 2, and of no step before
    content = later.read_bytes()
    later.write_bytes(b"")
    with pytest.raises(BadData):
        byol.pretrain(folder, tmp_path / "cut", "cifar10-cpu", overrides)
    assert [checkpoint.step_of(path) for path in checkpoint.found(tmp_path / "cut" / "checkpoints")] == [2]
    later.write_bytes(content)
    byol.pretrain(folder, tmp_path / "cut", "cifar10-cpu", overrides)
    assert digest(tmp_path / "cut")[0] == digest(tmp_path / "whole")[0]


def test_the_process_is_left_as_it_was_found(folder: Path, tmp_path: Path, tiny: dict[str, Any]) -> None:
    """Breaks if a call of byol.pretrain changes what the caller's own code draws or computes afterwards."""
    before = torch.get_num_threads(), torch.get_default_dtype()
    states = list[tuple[Any, ...]]()
    torch.set_num_threads(2)
    torch.set_default_dtype(torch.float64)
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(5)
    np.random.seed(5)
    random.seed(5)

    def flags() -> tuple[Any, ...]:
        exact = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
        filled = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
        shared = torch.get_num_threads(), torch.get_default_dtype(), torch.backends.cudnn.benchmark, exact, filled
        drawn = torch.get_rng_state().tolist(), np.random.get_state()[1].tolist(), random.getstate()  # type: ignore[index]
        return *shared, *drawn, torch.is_grad_enabled()

    try:
        states.append(flags())
        with torch.no_grad():
            run = byol.pretrain(folder, tmp_path / "run", "cifar10-cpu", tiny)
        states.append(flags())
        with pytest.raises(OutputBusy):
            byol.pretrain(folder, tmp_path / "run", "cifar10-cpu", tiny | {"run.seed": 1})
        states.append(flags())
    finally:
        torch.set_num_threads(before[0])
        torch.set_default_dtype(before[1])
        torch.use_deterministic_algorithms(False)
        torch.backends.cudnn.benchmark = False
    assert states[0] == states[1] == states[2]
    plain = byol.pretrain(folder, tmp_path / "plain", "cifar10-cpu", tiny)
    assert digest(plain.out) == digest(run.out)
    assert plain.encoder.read_bytes() == run.encoder.read_bytes()


@pytest.mark.parametrize("same", [True, False])
def test_a_second_thread_may_not_train(folder: Path, tmp_path: Path, tiny: dict[str, Any], same: bool) -> None:
    """Breaks if two threads of one process train at once, which share torch's random numbers: both would differ from
    runs one after the other, in one directory or in two (73)."""
    alone = byol.pretrain(folder, tmp_path / "alone", "cifar10-cpu", tiny)
    first, second = tmp_path / "first", tmp_path / ("first" if same else "second")
    errors, began, go_on = list[Exception](), threading.Event(), threading.Event()
    real = pretraining.train

    def train(*arguments: Any) -> None:
        began.set()
        assert go_on.wait(100)
        real(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pretraining, "train", train)
        thread = threading.Thread(target=byol.pretrain, args=(folder, first, "cifar10-cpu", tiny))
        thread.start()
        assert began.wait(100)
        try:
            byol.pretrain(folder, second, "cifar10-cpu", tiny)
        except OutputBusy as error:
            errors.append(error)
        go_on.set()
        thread.join()
    assert "thread" in str(errors[0])
    assert digest(first) == digest(alone.out)
    assert digest(byol.pretrain(folder, second, "cifar10-cpu", tiny).out) == digest(alone.out)


def test_float64_sgd_and_adamw_runs(folder: Path, tmp_path: Path, tiny: dict[str, Any]) -> None:
    """Breaks if a precision or optimizer exists only in the config."""
    for change in (
        {"run.precision": "float64"},
        {"optim.optimizer": "sgd"},
        {"optim.optimizer": "adamw", "optim.lr": 0.01},
    ):
        run = byol.pretrain(folder, tmp_path / str(change), "cifar10-cpu", tiny | {"optim.epochs": 1} | change)
        assert run.plan.steps == 3
    tensors = checkpoint.read(checkpoint.found(tmp_path / str({"run.precision": "float64"}) / "checkpoints")[0])
    assert tensors["method.online.encoder.conv1.weight"].dtype == torch.float64


def start(folder: Path, out: Path, overrides: dict[str, Any], **options: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "byol", "pretrain", str(folder), "--preset", "cifar10-cpu", "--out", str(out)]
    given = [f"--{n}" if v is True else f"--{n}={v}" for n, v in overrides.items()]
    return subprocess.Popen([*command, *given], stderr=subprocess.PIPE, text=True, **options)


def children(pid: int) -> list[int]:
    listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True)
    return [int(line) for line in listed.stdout.split()]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_save_and_exit_75(folder: Path, tmp_path: Path, tiny: dict[str, Any], number: int) -> None:
    """Breaks if a signal loses steps, leaves workers, or exits with anything but 75 (G3)."""
    overrides = tiny | {"data.in_memory": "never", "data.workers": 2, "optim.epochs": 300}
    process = start(folder, tmp_path / "run", overrides)
    metrics = tmp_path / "run" / "metrics.jsonl"
    limit = time.monotonic() + 200
    while time.monotonic() < limit and not (metrics.exists() and metrics.stat().st_size > 2000):
        time.sleep(0.05)
    workers = children(process.pid)
    began, limit = time.monotonic(), 2.5 * slowness()  # two seconds and a step
    os.kill(process.pid, number)
    _, error = process.communicate(timeout=200)
    assert process.returncode == 75, error
    assert time.monotonic() - began < limit
    assert "Traceback" not in error
    saved = int(checkpoint.found(tmp_path / "run" / "checkpoints")[0].name[5:14])
    last = [json.loads(line) for line in metrics.read_text().splitlines() if "loss" in line][-1]
    assert saved == last["step"] + 1
    assert workers
    assert not any(os.path.exists(f"/proc/{worker}") for worker in workers)


def test_a_second_writer_is_refused_by_name(folder: Path, tmp_path: Path, tiny: dict[str, Any]) -> None:
    """Breaks if two processes can write one run (G18)."""
    first = start(folder, tmp_path / "run", tiny | {"optim.epochs": 1000})
    try:
        limit = time.monotonic() + 200
        while time.monotonic() < limit and not (tmp_path / "run" / "metrics.jsonl").exists():
            time.sleep(0.05)
        second = start(folder, tmp_path / "run", tiny | {"optim.epochs": 1000})
        _, error = second.communicate(timeout=60)
        assert second.returncode == 73
        assert str(first.pid) in error
    finally:
        first.kill()
        first.communicate()


@pytest.mark.parametrize("count", [2, 20])
def test_a_handful_of_labelled_images_is_enough(tmp_path: Path, tiny: dict[str, Any], count: int) -> None:
    """Breaks if so few images that the monitor looks at all of them leave none to find neighbours among."""
    images = write_images(tmp_path / "few", count)
    run = byol.pretrain(images, tmp_path / "run", "cifar10-cpu", tiny | {"run.monitor_images": 1000, "optim.epochs": 8})
    assert "knn" in run.metrics[-1]


def test_a_run_loads_what_it_needs() -> None:
    """Breaks if training loads evaluations, other verbs' modules or kinds of data that it was not asked for."""
    count = "import byol.pretraining, sys; print(*[name for name in sys.modules if name.split('.')[0] == 'byol'])"
    done = subprocess.run([sys.executable, "-c", count], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "byol.data.loader" in loaded
    assert not {name for name in loaded if name.split(".")[1:2] in (["evals"], ["explore"], ["weights"], ["cli"])}
    assert len(loaded) <= 33, sorted(loaded)


@pytest.mark.parametrize(("name", "short", "value"), [("data.root", "root", "here"), ("run.device", "device", "cpu")])
def test_flags_of_places_have_two_names(name: str, short: str, value: str) -> None:
    """Breaks if --root and --device mean something in one verb and nothing in another."""
    verbs = App()

    @verbs.command
    def with_config(*, given: Annotated[ConfigFlags | None, Parameter(name="*")] = None) -> dict[str, Any]:
        return given_values(given)

    @verbs.command
    def without(*, place: Annotated[PlaceFlags | None, Parameter(name="*")] = None) -> dict[str, Any]:
        return place_settings(place)

    for verb in ("with-config", "without"):
        for flag in (name, short):
            assert verbs([verb, f"--{flag}", value], result_action="return_value") == {name: value}
