"""From a folder of 300 mixed, partly broken images to a page, embeddings and an encoder, as a new user goes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torchvision
from PIL import Image

from byol.cli import main
from byol.config import Data
from byol.data import open_source
from byol.data.decode import printable
from byol.errors import OutputBusy
from byol.run import facts
from byol.run.directory import Request, open_run
from byol.run.progress import NAMED, name_left_out
from tests.conftest import TINY
from tests.mixed import COUNT, ODD_NAMES, write_mixed

pytestmark = pytest.mark.timeout(900)

SHORT = {**TINY, "optim.batch": 32, "optim.epochs": 1, "data.workers": 0}
QUICK = [f"--{name}={value}" for name, value in SHORT.items() if value is not True] + ["--network.small_images"]


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, set[str]]:
    """The folder, and the names of what cannot be read."""
    root = tmp_path_factory.mktemp("mixed") / "my photos"
    rendered = open_source("scenes:40", Data(resolution=64))
    pictures = [Image.fromarray(rendered.read(i).permute(1, 2, 0).numpy()) for i in range(len(rendered))]
    return root, write_mixed(root, pictures)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def byol(*arguments: str) -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["byol", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
    return int(ended.value.code or 0)


def test_three_commands(mixed: tuple[Path, set[str]], home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Breaks if a broken or oddly named file stops the way to page, embeddings and weights, or is not accounted for."""
    folder, broken = mixed
    assert byol("pretrain", str(folder), "--data.max_bad", "1", *QUICK) == 0
    said = capsys.readouterr().err
    assert "Passed over" in said
    assert "3 .heic" in said
    assert said.count("Left out: ") == NAMED + 1
    assert "Next: byol report runs/my-photos-auto" in said
    run = home / "runs" / "my-photos-auto"
    skipped = {line.split("\t")[0] for line in (run / "skipped.txt").read_text().splitlines()}
    assert skipped == broken

    assert byol("report", str(run)) == 0
    page = (run / "report.html").read_text(encoding="utf-8")
    assert len(page) < 10_000_000
    assert "<img src=x onerror" not in page
    assert "&lt;img src=x" in page or "\\u003cimg src=x" in page

    assert byol("embed", str(run), str(folder), "-o", "features.npz") == 0
    assert f"{len(broken)} could not be read" in capsys.readouterr().out
    stored = np.load("features.npz")
    assert len(stored["features"]) == len(stored["names"]) == COUNT - len(broken)
    assert np.isfinite(stored["features"]).all()
    assert {printable(odd) for odd in ODD_NAMES} <= {Path(name).name for name in stored["names"]}

    from safetensors.torch import load_file

    state = load_file(run / "encoder.safetensors")
    assert {n for n in state if n.startswith("layer")} == {
        n for n in torchvision.models.resnet18().state_dict() if n.startswith("layer")
    }


def test_too_many_broken_images_have_a_remedy(
    mixed: tuple[Path, set[str]], home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Breaks if the first answer to a folder of broken images does not say what to do, or doing it does not help."""
    folder, broken = mixed
    assert byol("pretrain", str(folder), *QUICK) == 65
    said = capsys.readouterr().err
    assert "byol doctor" in said
    assert "--data.max_bad" in said
    assert byol("doctor", str(folder), "--no-speed", "--data.workers", "0") == 0
    found = json.loads((home / "doctor" / "doctor.json").read_text())
    assert set(found["unreadable"]) == broken
    assert len(found["kinds"]["animated"]) == 4
    assert len(found["kinds"]["rotated"]) == 10
    assert "bad-files.txt" in capsys.readouterr().out
    assert byol("pretrain", str(folder), "--data.exclude", "doctor/bad-files.txt", *QUICK) == 0
    assert "Left out" not in capsys.readouterr().err


def test_names_of_what_is_left_out_are_few(capsys: pytest.CaptureFixture[str]) -> None:
    """Breaks if thousands of broken files scroll everything else away, or none of them is named."""
    seen = 0
    for count in (3, 5, 9, 1000):
        name_left_out([f"{i}.jpg (truncated)" for i in range(seen, seen + count)], seen)
        seen += count
    lines = capsys.readouterr().err.splitlines()
    assert lines[:NAMED] == [f"Left out: {i}.jpg (truncated)" for i in range(NAMED)]
    assert len(lines) == NAMED + 1
    assert "doctor" in lines[-1]


def test_a_run_of_auto_goes_on_for_longer(folder: Path, home: Path) -> None:
    """Breaks if more epochs for a run that `auto` chose are refused because tau or warm-up would be chosen anew."""
    given = {**SHORT, "run.threads": 1}
    for name in ("optim.epochs", "optim.warmup_epochs"):
        given.pop(name)

    def opened(**more: object) -> dict[str, object]:
        with open_run(Request.make(folder, home / "run", "auto", {**given, **more}, None), overwrite=False) as setup:
            setup.write("interrupted")
            return setup.record_of_run.config

    first = opened()
    longer = opened(**{"optim.epochs": 100_000.0})
    again = opened(**{"optim.epochs": 200_000.0})
    assert (first["optim.epochs"], longer["optim.epochs"], again["optim.epochs"]) == (1000.0, 100_000.0, 200_000.0)
    for name in ("optim.tau", "optim.warmup_epochs"):
        assert first[name] == longer[name] == again[name]
    with pytest.raises(OutputBusy, match=r"optim\.tau"):
        opened(**{"optim.tau": 0.5})


def test_a_budget_is_planned_once(folder: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks if a run that goes on is timed anew, so that a busier machine would give it another length or shape, or if
    a run goes on for another budget as if nothing were."""
    given = {name: value for name, value in SHORT.items() if name not in ("optim.epochs", "network.width")}

    def opened(seconds: float, **more: object) -> dict[str, object]:
        monkeypatch.setattr(facts, "seconds_an_image", lambda sample, config, **settled: seconds)
        with open_run(Request.make(folder, home / "run", "auto", {**given, **more}, None), overwrite=False) as setup:
            setup.write("interrupted")
            return setup.record_of_run.config

    first = opened(1e-3, **{"run.budget": "12s"})
    most = (12 / 1e-3 - 3200) / 24  # without reading and timing, and with what looks take
    assert 0.25 * most <= float(str(first["optim.epochs"])) <= most
    assert opened(1e-1, **{"run.budget": "12s"}) == first
    longer = opened(1e-1, **{"run.budget": "12s", "optim.epochs": 600})
    assert longer == first | {"optim.epochs": 600}
    with pytest.raises(OutputBusy, match=r"run\.budget: 12s → 1h"):
        opened(1e-3, **{"run.budget": "1h", "optim.epochs": 600})


def test_auto_keeps_the_rank_in_the_first_steps(home: Path) -> None:
    """Breaks if the first steps of `auto` cost the representation its rank, as LARS at a rate of 2 without negatives
    does: there it is below a third of its peak after these 40 steps, and does not come back."""
    from byol.pretraining import pretrain

    small = {"data.resolution": 32, "network.small_images": False, "network.width": 0.25, "run.threads": 1}
    heads = {"network.projector_hidden": 256, "network.predictor_hidden": 256}
    run = pretrain("scenes:256", home / "run", "auto", {**small, **heads, "optim.batch": 64, "optim.epochs": 10})
    ranks = [line["rank_representation"] for line in run.metrics if "rank_representation" in line]
    assert run.plan.steps == 39
    assert min(ranks[1:]) > ranks[0]
    assert ranks[-1] > 0.8 * max(ranks)
