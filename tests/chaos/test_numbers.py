"""Numbers that are not finite, data that cannot be learned from, and fields that may not change."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import byol
from byol import checkpoint, pretraining
from byol.checkpoint import State
from byol.config import Config, apply, declared, flatten
from byol.data import loader
from byol.data.source import Source
from byol.errors import BadData, Diverged, OutputBusy, UsageError
from byol.run import directory, files
from byol.run.machine import Machine
from byol.run.record import FORMAT, Asked, DataFacts, RunRecord
from byol.run.verdict import judge
from tests.conftest import TINY
from tests.test_pretraining import digest

pytestmark = pytest.mark.timeout(3600)


@pytest.fixture
def tiny() -> dict[str, Any]:
    """Without loader processes, which have no part in this."""
    return TINY | {"data.workers": 0}


def poisoned(monkeypatch: pytest.MonkeyPatch, *steps: int) -> None:
    """NaN in one view of each of these steps."""
    real, calls = pretraining.augmented, [-1]

    def augmented(*arguments: Any) -> Any:
        calls[0] += 1
        for item in real(*arguments):
            yield item._replace(view1=item.view1 * float("nan")) if calls[0] in steps else item

    monkeypatch.setattr(pretraining, "augmented", augmented)


def test_a_step_that_is_not_finite_is_left_out(
    folder: Path, tmp_path: Path, tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Breaks if a skipped step reaches weights, statistics or target, or the wrong images are written down (G14)."""
    seen: dict[int, bytes] = {}
    real = pretraining.guarded

    def watching(state: State, *others: Any) -> Any:
        seen[state.step] = b"".join(t.numpy().tobytes() for t in state.method.state_dict().values())
        return real(state, *others)

    poisoned(monkeypatch, 3)
    monkeypatch.setattr(pretraining, "guarded", watching)
    run = byol.pretrain(folder, tmp_path / "run", "cifar10-cpu", tiny | {"run.on_nan": "skip"})
    assert [m["step"] for m in run.metrics if "loss" in m] == [0, 1, 2, 4, 5]
    assert seen[4] == seen[3] != seen[2]
    assert all(t.isfinite().all() for t in checkpoint.read(checkpoint.found(run.out / "checkpoints")[0]).values())
    (note,) = files.read_json(run.out / "diverged.json")
    images = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.jpg"))
    expected = [images[i] for i in loader.batch_positions(0, 3, 8, 24)]
    assert note["step"] == 3
    assert note["images"] == expected


def test_too_many_steps_that_are_not_finite_stop_the_run(
    folder: Path, tmp_path: Path, tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Breaks if skipping has no end, or the step and the list are not named."""
    poisoned(monkeypatch, 0, 2, 3)
    with pytest.raises(Diverged, match=r"at step 3 the loss is nan.* after 2 steps.*diverged\.json"):
        byol.pretrain(folder, tmp_path / "run", "cifar10-cpu", tiny | {"run.on_nan": "skip", "run.max_skips": 2})
    assert [note["step"] for note in files.read_json(tmp_path / "run" / "diverged.json")] == [0, 2, 3]


def test_images_that_are_all_the_same_are_collapsed_data(
    tmp_path: Path, tiny: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """Breaks if identical images are called a collapsing run, or flat ones give numbers that are not finite."""
    for name, levels in (("same", [90] * 6), ("flat", range(0, 240, 40))):
        (tmp_path / name).mkdir()
        for number, level in enumerate(levels):
            Image.new("RGB", (40, 40), (level, level, level)).save(tmp_path / name / f"{number}.png")
        stop = {"run.on_collapse": "stop"} if name == "same" else {}
        run = byol.pretrain(tmp_path / name, tmp_path / f"{name}-run", "cifar10-cpu", tiny | {"optim.epochs": 4} | stop)
        assert (run.verdict.word == "collapsed data") == (name == "same"), run.verdict.sentence
        assert "distinct" in run.metrics[-1]
    assert judge(run.metrics).word != "collapsed data"


def test_few_images_and_small_batches(folder: Path, tmp_path: Path, tiny: dict[str, Any]) -> None:
    """Breaks if a data set smaller than a batch does not train, or a batch of one is a traceback."""
    run = byol.pretrain(folder, tmp_path / "run", "cifar10-cpu", tiny | {"optim.batch": 32, "optim.epochs": 4})
    assert run.plan.steps == 3
    for small in ({"optim.batch": 1}, {"optim.batch": 8, "optim.accumulate": 8}):
        with pytest.raises(UsageError, match="two images a pass"):
            byol.pretrain(folder, tmp_path / "one", "cifar10-cpu", tiny | small)
    with pytest.raises(UsageError, match="no step"):
        byol.pretrain(folder, tmp_path / "one", "cifar10-cpu", tiny | {"optim.batch": 32, "optim.epochs": 1})
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadData):
        byol.pretrain(tmp_path / "empty", tmp_path / "one", "cifar10-cpu", tiny)


def other(value: Any, kind: Any, metadata: Any) -> Any:
    """Another valid value of a field."""
    from typing import get_args

    if isinstance(value, bool):
        return not value
    if isinstance(value, tuple):
        return tuple(v + 0.01 for v in value)
    if isinstance(value, int | float):
        low, high = metadata["low"], metadata["high"]
        near = [value + 1, value - 1, value * 0.9, value / 2 + 0.001]
        return next(v for v in near if low <= v <= high and (kind is float or float(v).is_integer()) and v != value)
    return next((choice for choice in get_args(kind) if choice != value), "another")


FREE = {
    *("data.workers", "data.prefetch", "data.cache", "data.cache_gb", "data.bands", "optim.epochs"),
    *("run.checkpoint_seconds", "run.checkpoint_steps", "run.keep", "run.log_every", "run.log"),
    *("run.recompute", "run.shard", "run.timeout", "run.passes"),
}


FIELDS = {name: (kind, metadata) for name, kind, metadata in declared()}


@pytest.mark.parametrize("name", FIELDS)
def test_every_field_is_refused_or_free_on_resume(name: str, tmp_path: Path) -> None:
    """Breaks for a new field that was put in neither class on purpose, and if a change of one goes unseen (G19)."""
    kind, metadata = FIELDS[name]
    assert metadata["on_resume"] == (name in FREE), f"{name} is new: decide whether a run may go on when it changes"
    before = flatten(Config())
    images = loader.Images(Source("x", 0, lambda _: torch.empty(0), str), np.arange(0), np.arange(0), None, [], "same")
    data, place = DataFacts("x", 0, 0, 0, False, "same"), Machine("cpu", "float32", 1)
    stored = RunRecord(FORMAT, Asked("x", "auto", {}), "", before, [], place, {}, "", data)
    changed = apply(Config(), {name: other(before[name], kind, metadata)}, check=False)
    assert flatten(changed)[name] != before[name]
    if name in FREE:
        directory._refuse_changed(tmp_path, stored, changed, images)
    else:
        with pytest.raises(OutputBusy, match=f"{name}: "):
            directory._refuse_changed(tmp_path, stored, changed, images)


def test_other_surroundings_are_reported(
    folder: Path, tmp_path: Path, tiny: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """Breaks if a run goes on with other threads or libraries without a word (G10)."""
    byol.pretrain(folder, tmp_path / "run", "cifar10-cpu", tiny)
    record = files.read_json(tmp_path / "run" / "run.json")
    record["versions"]["torch"] = "1.0"
    files.write_json(tmp_path / "run" / "run.json", record)
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        byol.pretrain(folder, tmp_path / "run", "cifar10-cpu", tiny | {"optim.epochs": 3})
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(threads)
    assert files.read_json(tmp_path / "run" / "run.json")["machine"]["threads"] == 1
    said = capsys.readouterr().err
    assert "torch 1.0 → " in said
    assert "began with run.threads 1 and keeps it; here 3 is usual" in said


def test_deterministic_algorithms_cost_little(
    folder: Path, tmp_path: Path, tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Breaks if run.deterministic does nothing, fails on the CPU, changes its bits, or stays on afterwards (G10)."""
    seconds, found, real, inside = [], [], pretraining.update, set[bool]()

    def update(*arguments: Any, **named: Any) -> Any:
        inside.add(torch.are_deterministic_algorithms_enabled())
        return real(*arguments, **named)

    monkeypatch.setattr(pretraining, "update", update)
    for name, yes in (("plain", False), ("warm", True), ("again", False)):
        began = time.process_time()
        inside.clear()
        byol.pretrain(folder, tmp_path / name, "cifar10-cpu", tiny | {"run.deterministic": yes})
        seconds.append(time.process_time() - began)
        found.append(digest(tmp_path / name))
        assert inside == {yes}
        assert not torch.are_deterministic_algorithms_enabled()
    assert found[0] == found[1] == found[2]
    print(f"deterministic: {seconds[1] / seconds[2] - 1:+.1%}")
