"""Files of the present format are read, and those of any other are refused in a sentence (G24)."""

from __future__ import annotations

import json
import lzma
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

import byol
from byol import checkpoint
from byol.errors import DiskError, OutputBusy
from byol.run import record
from tests.chaos.formats import FIXTURES, SMALLEST, digest, features

RELEASED = sorted(FIXTURES.glob("format-*"))


def unpacked(stored: Path, run: Path) -> Path:
    """The fixture as the run directory that it was."""
    (run / "checkpoints").mkdir(parents=True)
    for file in stored.glob("*.xz"):
        place = run / "checkpoints" if file.name.startswith("step-") else run
        (place / file.stem).write_bytes(lzma.decompress(file.read_bytes()))
    shutil.copy(stored / "run.json", run)
    return run


def test_the_present_format_has_its_files() -> None:
    """Breaks if the format moves on without a fixture."""
    assert [path.name for path in RELEASED] == [f"format-{record.FORMAT}"]
    assert all(sum(file.stat().st_size for file in path.iterdir()) < 40_000 for path in RELEASED)


@pytest.mark.parametrize("stored", RELEASED, ids=lambda path: path.name)
def test_a_released_format_is_read(stored: Path, tmp_path: Path) -> None:
    """Breaks if a checkpoint's tensors are not the same bytes any more, or the encoder's features are others."""
    run, expected = unpacked(stored, tmp_path / "run"), json.loads((stored / "expected.json").read_text())
    assert digest(checkpoint.read(checkpoint.found(run / "checkpoints")[0])) == expected["checkpoint"]
    assert features(byol.load_encoder(run)) == pytest.approx(expected["features"], rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("stored", RELEASED, ids=lambda path: path.name)
def test_a_run_of_a_released_format_goes_on(stored: Path, tmp_path: Path) -> None:
    """Breaks if a run that an earlier version began cannot be continued by the same command with more epochs."""
    run = unpacked(stored, tmp_path / "run")
    stored_record = record.read_run(run)
    before = checkpoint.found(run / "checkpoints")[0].name
    changed = SMALLEST | {"optim.epochs": 2}
    record.write_run(run, replace(stored_record, status="running"))
    byol.pretrain("scenes:16", run, "cifar10-cpu", changed)
    assert int(checkpoint.found(run / "checkpoints")[0].name[5:14]) == 2 * int(before[5:14])


def rewritten(path: Path, told: dict[str, Any]) -> bytes:
    """The file with another header."""
    with safe_open(path, "pt") as opened:
        metadata = dict(opened.metadata())
    return save_tensors(load_tensors(path.read_bytes()), metadata | {"byol": json.dumps(told)})


def test_a_later_format_is_refused_in_a_sentence(tmp_path: Path) -> None:
    """Breaks if a file of a later version is guessed at, called damaged, or an older checkpoint used instead of it."""
    import hashlib

    run = unpacked(RELEASED[-1], tmp_path / "run")
    later, words = checkpoint.FORMAT + 1, rf"is of format {checkpoint.FORMAT + 1}, .* Update byol"
    encoder = run / checkpoint.ENCODER
    told = checkpoint.encoder_header(run)
    encoder.write_bytes(rewritten(encoder, told | {"format": later}))
    with pytest.raises(DiskError, match=words):
        byol.load_encoder(run)
    newest = checkpoint.found(run / "checkpoints")[0]
    content = rewritten(newest, {"format": later})
    name = f"step-000000099.{hashlib.sha256(content).hexdigest()[:16]}.safetensors"
    (run / "checkpoints" / name).write_bytes(content)
    with pytest.raises(DiskError, match=words):
        checkpoint.read(run / "checkpoints" / name)
    with pytest.raises(DiskError, match=words):
        checkpoint.load_newest(run / "checkpoints", None, None)  # type: ignore[arg-type]
    for other in (record.FORMAT + 1, record.FORMAT - 1):
        record.write_run(run, replace(decoded(run), format=other))
        with pytest.raises(OutputBusy, match=f"has format {other}, of another version of byol"):
            byol.pretrain("scenes:16", run, "cifar10-cpu", SMALLEST)


def decoded(run: Path) -> record.RunRecord:
    """run.json whatever its format."""
    return record.read(record.RunRecord, run / record.NAME)


def test_a_file_from_before_formats_were_noted_is_of_the_first(tmp_path: Path) -> None:
    """Breaks if an encoder without a number is refused."""
    run = unpacked(RELEASED[0], tmp_path / "run")
    told = {name: value for name, value in checkpoint.encoder_header(run).items() if name != "format"}
    (run / checkpoint.ENCODER).write_bytes(rewritten(run / checkpoint.ENCODER, told))
    assert byol.load_encoder(run) is not None
