"""Loggers of others against the real packages, offline: they have the numbers of metrics.jsonl, and end no run."""

from __future__ import annotations

import json
import sqlite3
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import byol
from byol.errors import DiskError, UsageError
from byol.run import files, logs
from tests.chaos.formats import SMALLEST

EVERY = ("tensorboard", "wandb", "mlflow")
TWO = {"optim.epochs": 2, "run.log_every": 1}


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """A logger that asks for another machine fails, and the test with it, as its line of warning is looked for."""
    import socket

    real = socket.socket.connect

    def connect(self: socket.socket, address: Any) -> Any:
        local = not isinstance(address, tuple) or address[0] in ("127.0.0.1", "::1", "localhost")
        assert local, f"a connection to {address}"
        return real(self, address)

    monkeypatch.setattr(socket.socket, "connect", connect)
    for name in ("WANDB_MODE", "MLFLOW_TRACKING_URI", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)


def needs(*names: str) -> None:
    for name in names:
        for package in logs.PACKAGES[name]:
            pytest.importorskip(package, reason=f"needs {package}, which run.log {name} writes with")


def records(data: bytes) -> Iterator[bytes]:
    """Of a .wandb file: a head of 7 bytes, then blocks of 32 KB as LevelDB's log has them (checksum, length, kind)."""
    place, whole = 7, b""
    while place + 7 <= len(data):
        if 32768 - place % 32768 < 7:  # the rest of a block, too short for a head
            place += 32768 - place % 32768
            continue
        _, length, kind = struct.unpack_from("<IHB", data, place)
        whole += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # a full record, or the last piece of one
            yield whole
            whole = b""


def wandb_lines(run: Path) -> list[dict[str, Any]]:
    """Every line of the history in the offline files."""
    from wandb.proto import wandb_internal_pb2

    found: list[dict[str, Any]] = []
    for path in sorted((run / "wandb").glob("offline-run-*/run-*.wandb"), key=lambda p: p.stat().st_mtime_ns):
        for data in records(path.read_bytes()):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            if record.WhichOneof("record_type") == "history":
                items = record.history.item
                found.append({i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in items})
    return found


def test_three_loggers_tell_what_the_run_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Breaks if a logger misses a step, a look, the verdict, the sheet of views or the final figures; if a second
    session begins a logger's run anew; or if being told changes the run."""
    needs(*EVERY)
    from mlflow.tracking import MlflowClient
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    plain = byol.pretrain("scenes:32", tmp_path / "plain", "cifar10-cpu", SMALLEST | TWO)
    out = tmp_path / "told"
    asked = SMALLEST | TWO | {"run.log": ",".join(EVERY)}
    byol.pretrain("scenes:32", out, "cifar10-cpu", asked | {"optim.epochs": 1})
    known = files.read_json(out / logs.NAME)
    run = byol.pretrain("scenes:32", out, "cifar10-cpu", asked)  # goes on for another epoch
    assert files.read_json(out / logs.NAME) == known
    assert "failed" not in capsys.readouterr().err
    steps, looks = [line["step"] for line in run.steps], [line["step"] for line in run.looks]
    assert len(steps) == 2 * len(set(range(steps[-1] + 1))) // 2 > 4

    events = EventAccumulator(str(out / "tensorboard"), size_guidance={"scalars": 0})
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("train/loss")] == [
        (line["step"], pytest.approx(line["loss"])) for line in run.steps
    ]
    assert {e.step for e in events.Scalars("look/spread")} >= set(looks)
    assert events.Tags()["images"] == ["views"]
    assert {"verdict/text_summary", "final/text_summary", "config/text_summary"} <= set(events.Tags()["tensors"])

    lines = wandb_lines(out)
    assert {(n["step"], n["train/loss"]) for n in lines if "train/loss" in n} == {
        (n["step"], n["loss"]) for n in run.steps
    }
    assert any(run.verdict.sentence in str(n.get("verdict")) for n in lines)
    assert any("views" in "".join(n) for n in lines)

    client = MlflowClient(f"sqlite:///{out / 'mlflow.db'}")
    stored = client.get_run(known["mlflow"])
    assert stored.info.status == "FINISHED"
    history = {(m.step, m.value) for m in client.get_metric_history(known["mlflow"], "train/loss")}
    assert history == {(line["step"], line["loss"]) for line in run.steps}
    assert stored.data.metrics["final/loss"] == run.steps[-1]["loss"]
    assert stored.data.tags["final.verdict"] == run.verdict.word
    assert stored.data.params["network.encoder"] == run.config.network.encoder
    assert [file.path for file in client.list_artifacts(known["mlflow"])] == ["views.png"]

    assert files.read_metrics(out / "metrics.jsonl") != []
    assert plain.encoder.stat().st_size == run.encoder.stat().st_size


def test_a_logger_that_fails_ends_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Breaks if an error of a logger ends a run, is told more than once, or changes what the run computes."""

    def failing(when: str) -> Any:
        def fail(*_: Any) -> None:
            raise ConnectionError(f"no answer to {when}\nand a second line")

        calls = {name: (fail if name == when else lambda *_: None) for name in ("numbers", "text", "picture", "end")}
        return lambda place: (logs.Log(**calls), "x")

    def never(place: logs.Place) -> Any:
        raise OSError("no room")

    monkeypatch.setitem(logs.LOGGERS, "tensorboard", failing("numbers"))
    monkeypatch.setitem(logs.LOGGERS, "wandb", failing("end"))
    monkeypatch.setitem(logs.LOGGERS, "mlflow", never)
    monkeypatch.setattr(logs, "PACKAGES", dict.fromkeys(EVERY, ()))
    plain = byol.pretrain("scenes:16", tmp_path / "plain", "cifar10-cpu", SMALLEST)
    capsys.readouterr()
    told = byol.pretrain("scenes:16", tmp_path / "told", "cifar10-cpu", SMALLEST | {"run.log": ",".join(EVERY)})
    said = [line for line in capsys.readouterr().err.splitlines() if "run.log" in line]
    assert sorted(said) == [
        "run.log mlflow failed (no room); the run goes on without it.",
        "run.log tensorboard failed (no answer to numbers); the run goes on without it.",
        "run.log wandb failed (no answer to end); the run goes on without it.",
    ]
    assert told.metrics == plain.metrics
    assert told.encoder.read_bytes() == plain.encoder.read_bytes()


@pytest.mark.parametrize("what", ["a folder", "no database"])
def test_a_store_that_cannot_be_opened_is_told_at_once(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Breaks if a run waits for MLflow, which tries for minutes to open what is in the database's place."""
    pytest.importorskip("mlflow", reason="needs mlflow")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    place = tmp_path / "mlflow.db"
    place.mkdir() if what == "a folder" else place.write_bytes(b"no database at all " * 100)
    monkeypatch.setattr("time.sleep", lambda seconds: pytest.fail(f"waits for {seconds} s"))
    with pytest.raises(sqlite3.Error, match=r"unable to open|not a database"):
        logs.mlflow(logs.Place(tmp_path, 0, {}, ""))


def test_images_of_other_channels_are_shown_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Breaks if the sheet of views takes every image for 8-bit colours, or if a sheet that fails ends the run."""
    folder, shown = tmp_path / "five", list[Path]()
    folder.mkdir()
    for index in range(16):
        values = np.random.default_rng(index).integers(0, 4000, (24, 24, 5)).astype(np.uint16)
        np.save(folder / f"{index}.npy", values)
    log = logs.Log(*[lambda *_: None] * 2, lambda name, path: shown.append(path), lambda *_: None)
    monkeypatch.setitem(logs.LOGGERS, "tensorboard", lambda place: (log, "x"))
    monkeypatch.setattr(logs, "PACKAGES", {"tensorboard": ()})
    asked = SMALLEST | {"run.log": "tensorboard"}
    byol.pretrain(folder, tmp_path / "run", "cifar10-cpu", asked)
    assert shown == [tmp_path / "run" / "views.png"]
    with Image.open(shown[0]) as sheet:
        pixels = np.asarray(sheet.convert("RGB"))
    first = pixels[logs.pictures.LINE :, : logs.pictures.CELL]
    assert first.std() > 30, "the first image is painted, not black or white"

    monkeypatch.setattr(logs, "view_rows", lambda *_: [][0])
    capsys.readouterr()
    assert byol.pretrain(folder, tmp_path / "without", "cifar10-cpu", asked).encoder.exists()
    assert "The views are not shown to run.log (list index out of range)." in capsys.readouterr().err


def test_a_logger_that_is_not_there_is_a_mistake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks if a wrong name or a missing package is found out only after hours, or by a traceback."""
    with pytest.raises(UsageError, match=r"there is no logger 'wandbb' for run\.log\. Did you mean wandb\?"):
        byol.pretrain("scenes:16", tmp_path / "run", "cifar10-cpu", {"run.log": "tensorboard, wandbb"})
    monkeypatch.setitem(sys.modules, "wandb", None)
    monkeypatch.setattr(logs, "find_spec", lambda name: None if name == "wandb" else object())
    with pytest.raises(UsageError, match=r"run.log wandb needs wandb: pip install 'byol\[wandb\]'"):
        byol.pretrain("scenes:16", tmp_path / "run", "cifar10-cpu", {"run.log": "wandb"})
    assert not (tmp_path / "run").exists()


def test_no_link_is_written_through(tmp_path: Path) -> None:
    """Breaks if a logger writes to where somebody's link in the run directory leads."""
    out, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    byol.pretrain("scenes:16", out, "cifar10-cpu", SMALLEST)
    elsewhere.mkdir()
    for name in ("tensorboard", "wandb", "mlflow.db", "loggers.json"):
        (out / name).symlink_to(elsewhere)
        with pytest.raises(DiskError, match=name):
            byol.pretrain("scenes:16", out, "cifar10-cpu", SMALLEST | {"optim.epochs": 2, "run.log": "tensorboard"})
        (out / name).unlink()
    assert not list(elsewhere.iterdir())
