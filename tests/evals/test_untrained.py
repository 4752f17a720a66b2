"""The untrained network beside every figure: the same figures as random:RUN, computed once for a data set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from byol.errors import DiskError
from byol.evals import evaluation, record
from byol.evals.evaluation import evaluate
from byol.evals.metrics import chance
from byol.evals.record import EvaluationRecord, Figure
from tests.evals.test_places import run as run  # an encoder in a directory of its own

USUAL: dict[str, Any] = {"settings": {"run.device": "cpu", "data.workers": 0, "run.precision": "float32"}}


@pytest.fixture
def scored(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each time that a protocol runs, whether the encoder was untrained."""
    seen, real = list[bool](), evaluation.run_protocol
    monkeypatch.setattr(
        evaluation,
        "run_protocol",
        lambda name, encoder, *rest: seen.append(encoder.untrained) or real(name, encoder, *rest),
    )
    return seen


def test_the_untrained_network_is_scored_once(
    run: Path, tmp_path: Path, scored: list[bool], capsys: pytest.CaptureFixture[str]
) -> None:
    """Breaks if the figure beside an encoder's is not that of random:RUN, or is computed again for the next run."""
    evaluate(run, "scenes:60", ["knn"], **USUAL)
    assert scored == [False, True]
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["protocol", "figure", "test", "untrained", "chance", "seconds"]
    stored = record.read(run / "evaluations" / "random-scenes-60" / "knn" / record.NAME)
    asked = evaluate(f"random:{run}", "scenes:60", ["knn"], out=tmp_path / "asked", **USUAL)["knn"]
    assert stored.encoder.untrained
    assert stored.test == asked.test
    assert f"{stored.test['top1'].mean:.2%}" == lines[1].split()[3]
    assert lines[1].split()[4] == "10.00%"  # scenes have ten classes
    assert lines[-1].startswith("Took ")
    assert "for the untrained network" in lines[-1]

    scored.clear()
    other = tmp_path / "other" / "encoder.safetensors"
    other.parent.mkdir()
    other.write_bytes((run / "encoder.safetensors").read_bytes())
    evaluate(other, "scenes:60", ["knn"], **USUAL)
    assert scored == [False]
    assert record.read(other.parent / "evaluations" / "random-scenes-60" / "knn" / record.NAME).test == stored.test
    evaluate(other, "scenes:70", ["knn"], **USUAL)
    assert scored == [False, False, True]


def test_the_untrained_network_can_be_left_out(
    run: Path, scored: list[bool], capsys: pytest.CaptureFixture[str]
) -> None:
    """Breaks if somebody in a hurry has to wait for a network that nobody asked about."""
    evaluate(run, "scenes:60", ["knn"], compare=False, **USUAL)
    assert scored == [False]
    assert "untrained" not in capsys.readouterr().out


def test_a_damaged_memory_of_the_untrained_network_is_made_again(
    run: Path, own_cache: Path, scored: list[bool]
) -> None:
    """Breaks if half a file in the cache ends an evaluation, or is believed."""
    evaluate(run, "scenes:60", ["knn"], **USUAL)
    (kept,) = (own_cache / "byol" / "untrained").glob("*.json")
    kept.write_text(kept.read_text()[:200])
    with pytest.raises(DiskError):
        record.read(kept)
    evaluate(run, "scenes:60", ["knn"], **USUAL)
    assert scored == [False, True, False, True]
    assert record.read(kept).encoder.untrained


def test_chance_of_every_figure() -> None:
    """Breaks if a figure is held against a guess that it cannot be compared with."""
    assert chance("top1", 10) == 0.1
    assert chance("top5", 10) == 0.5
    assert chance("top5", 4) == 1.0
    assert chance("scratch top1@1%", 20) == 0.05
    assert chance("mean-per-class", 8) == 0.125
    assert [chance(name, 10) for name in ("map11", "AP50 (11 points)", "mIoU", "rms")] == [None] * 4


def test_a_table_has_no_empty_column(run: Path) -> None:
    """Breaks if ± stands above nothing, or is missing where seeds differ."""
    found = evaluate(run, "scenes:60", ["knn"], compare=False, **USUAL)
    assert "±" not in evaluation.table(found)
    several: EvaluationRecord = found["knn"]
    several.test["top1"] = Figure(0.5, 0.02, 2)
    assert "2.00" in evaluation.table(found).splitlines()[1]
    assert "±" in evaluation.table(found).splitlines()[0]
