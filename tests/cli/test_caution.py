"""Every verb that uses an encoder repeats the run's verdict in one line, unless the run was learning."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import byol
from byol.cli import main
from tests.conftest import TINY, write_images

VERBS = {
    "embed": ["embed", "{run}", "{images}", "-o", "{place}/f.npz"],
    "features": ["outliers", "{place}/f.npz", "-o", "{place}/o.csv"],
    "search": ["search", "{images}/class0/000.jpg", "{run}", "{images}", "-o", "{place}/s.csv"],
    "dedupe": ["dedupe", "{run}", "{images}", "--yes", "-o", "{place}/d.csv"],
    "outliers": ["outliers", "{run}", "{images}", "-o", "{place}/o.csv"],
    "pick": ["pick", "3", "{run}", "{images}", "-o", "{place}/p.csv"],
    "evaluate": ["evaluate", "{run}", "--on", "{images}", "--protocol", "knn", "--no-untrained", "--out", "{place}/e"],
    "export": ["export", "{run}", "--to", "safetensors", "-o", "{place}/own.safetensors"],
    "report": ["report", "{whole}", "--images", "0", "-o", "{place}/r.html"],
    "exported": ["embed", "{place}/own.safetensors", "{images}", "-o", "{place}/f.npz"],
}


def test_every_verb_repeats_the_verdict(
    tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Breaks if a verb is silent about the encoder of a run that is not learning, in its directory or a file."""
    images = write_images(tmp_path / "images", 12)
    run = byol.pretrain(images, tmp_path / "run", "cifar10-cpu", TINY | {"optim.epochs": 1})
    line = f"Caution, the run's verdict: {run.verdict.sentence}"
    assert run.verdict.word == "too early"
    for name, words in VERBS.items():
        alone = run.out if name in ("report", "search") else run.encoder
        places = {"run": alone, "whole": run.out, "images": images, "place": tmp_path}
        monkeypatch.setattr(sys, "argv", ["byol", *(word.format(**places) for word in words)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        said = capfd.readouterr().err
        assert ended.value.code == 0, said
        assert said.splitlines().count(line) == 1, (name, said)
