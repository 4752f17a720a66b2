"""Whole searches on a few small images: goes on after any end, keeps to its budget, and writes what training takes."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from byol.cli import main
from byol.config import Config, Views, apply
from byol.config_file import read_yaml
from byol.errors import Interrupted, OutputBusy, UsageError
from byol.presets import small_views
from byol.run.files import read_json
from byol.tune import halving, judge, run, search
from byol.tune.policies import POLICIES, RATES
from byol.tune.policies import apply as with_policy
from tests.conftest import TINY, write_images

SMALL = {
    name: TINY[name]
    for name in ("network.width", "network.small_images", "optim.batch", "run.threads", "run.precision")
} | {"data.resolution": 16, "network.projector_hidden": 16, "network.predictor_hidden": 16, "network.projection": 8}
NAMES = ("usual", "no flip", "turns", "geometry", "whole images")


def quickened(patch: pytest.MonkeyPatch) -> None:
    """A search has a few steps a run, which take far less time than is planned for them."""
    patch.setattr(halving, "FEWEST_STEPS", 2)
    patch.setattr(run, "_cost", lambda *_: halving.Cost(10.0, 10.0))
    patch.setattr(run, "spent_on", lambda _: 0.0)


def request(images: Path, out: Path, minutes: float = 7.5) -> run.Request:
    return run.Request(str(images), minutes, out, labels=str(images), values=SMALL, policies=NAMES)


def cells(out: Path) -> dict[str, int]:
    """When each cell was written."""
    return {path.name: path.stat().st_mtime_ns for path in (out / "cells").glob("*.json")}


class Finished(NamedTuple):
    """A search that nothing disturbed."""

    images: Path
    out: Path
    chosen: str
    told: str


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    place = tmp_path_factory.mktemp("tune")
    images = write_images(place / "images", 24)
    told: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        quickened(patch)
        patch.setattr(run, "say", told.append)
        chosen = run.tune(request(images, place / "out"))
    return Finished(images, place / "out", chosen, "\n".join(told))


def test_a_search_that_was_ended_goes_on_to_the_same_choice(
    finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Breaks when a finished trial is trained again, a rung is planned anew, or the order of its ends decides."""
    quickened(monkeypatch)
    out, compute = tmp_path / "cut", search.compute

    def ended(*given: Any, **named: Any) -> Any:
        if len(cells(out)) >= 2:
            raise Interrupted("as by a signal")
        return compute(*given, **named)

    monkeypatch.setattr(search, "compute", ended)
    with pytest.raises(Interrupted):
        run.tune(request(finished.images, out))
    monkeypatch.setattr(search, "compute", compute)
    before = cells(out)
    assert len(before) == 2
    next((out / "measures").glob("*.json")).unlink()  # as after a kill between a trial and its measures
    assert run.tune(request(finished.images, out)) == finished.chosen
    assert {name: when for name, when in cells(out).items() if name in before} == before
    whole, cut = search.read(finished.out), search.read(out)
    assert whole is not None
    assert cut is not None
    assert [rung.policies for rung in cut.rungs] == [rung.policies for rung in whole.rungs]
    assert [len(rung.policies) for rung in cut.rungs] == [5, 3]
    assert (out / "tune.yaml").read_text().partition("views:")[2] == (finished.out / "tune.yaml").read_text().partition(
        "views:"
    )[2]
    after = cells(out)
    run.tune(request(finished.images, out))
    assert cells(out) == after  # a finished search trains nothing


def test_what_a_search_writes(finished: Finished) -> None:
    """Breaks when the YAML is not what the policy changes, the page loads anything, or the judge ignores labels."""
    assert "judge     probes of labelled images (" in finished.told
    assert f"Next: byol pretrain {finished.images} --config {finished.out / 'tune.yaml'}" in finished.told
    record = search.read(finished.out)
    assert record is not None
    assert (record.choice, record.judge) == (finished.chosen, "labels")
    for base in (Views(), small_views()):  # on whatever the run that follows has
        config = apply(Config(views=base), read_yaml(finished.out / "tune.yaml"))
        assert config.views == with_policy(POLICIES[finished.chosen], base)
    plain = run.in_yaml(POLICIES["usual"], Config(), False, ["why"])
    (finished.out / "usual.yaml").write_text(plain)
    assert apply(Config(), read_yaml(finished.out / "usual.yaml")) == Config()
    page = (finished.out / "tune.html").read_text()
    assert not re.search(r"<script|https?://|src=\"(?!data:)", page)
    assert page.count("<img ") == len(NAMES)
    assert all(name in page for name in (*NAMES, "rotation", "lidar", "labels", "(chosen)", "★"))
    assert "default-src 'none'" in page


def test_rate_and_tau_are_searched_when_asked(
    finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Breaks when --rates trains nothing at another rate, or the file leaves out what was chosen."""
    quickened(monkeypatch)
    asked = replace(request(finished.images, tmp_path / "out", 30.0), policies=NAMES[:2], rates=True)
    chosen = run.tune(asked)
    record = search.read(asked.out)
    assert record is not None
    assert {name.partition(" + ")[2] for name in record.rungs[-1].policies} == {"", *RATES}
    stored = [read_json(path)["overrides"] for path in (asked.out / "cells").glob("*.json")]
    rates = {overrides["optim.lr"] for overrides in stored}
    assert {round(2 * rate / min(rates)) for rate in rates} == {2, 4, 8}
    given = read_yaml(asked.out / "tune.yaml")
    factors = RATES[chosen.partition(" + ")[2]].factors if " + " in chosen else {}
    usual = record.config["optim.lr"]
    assert given["optim.lr"] == pytest.approx(usual * factors.get("lr", 1.0))
    assert 0 <= given["optim.tau"] < 1


def test_no_trial_begins_beyond_the_budget(
    finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Breaks when a machine that becomes slow makes a search longer than it may be."""
    quickened(monkeypatch)
    taken, compute = [], search.compute

    def slow(*given: Any, **named: Any) -> Any:
        taken.append(replace(compute(*given, **named), seconds=220.0))  # of a budget of 450
        return taken[-1]

    monkeypatch.setattr(search, "compute", slow)
    run.tune(request(finished.images, tmp_path / "out"))
    assert len(taken) == 2  # of the first rung; the second rung is as short, and finds them done
    assert "The budget is spent" in capsys.readouterr().err


def test_another_search_is_not_overwritten(finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks when the cells of other settings are mixed, or a foreign directory is written into."""
    quickened(monkeypatch)
    (tmp_path / "thesis.txt").write_text("important")
    with pytest.raises(OutputBusy, match="not a search of byol tune"):
        run.tune(request(finished.images, tmp_path))
    with pytest.raises(UsageError, match="holds the search of other images or settings"):
        run.tune(request(finished.images, finished.out, minutes=2.0))


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["--minutes", "0"], 2, "--minutes must be more than 0"),
        (["--policies", "no flop", "usual"], 2, "Did you mean no flip"),
        (["--policies", "usual"], 2, "needs two names"),
        (["--views.t.flip", "0"], 2, "views.t.flip is what the search chooses"),
        (["--optim.epochs", "5"], 2, "optim.epochs is what the search chooses or plans"),
        (["--jobs", "local:none"], 2, "--jobs should be local:N"),
        (["--labels", "nowhere"], 2, "nowhere"),
        (["--minutes", "0.001", "--data.resolution", "16", "--network.width", "0.05"], 2, "minutes are too few"),
    ],
)
def test_mistakes(
    arguments: list[str],
    code: int,
    sentence: str,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Breaks when a mistake ends in a traceback or another code, or leaves a directory behind."""
    out = folder.parent / "out"
    monkeypatch.setattr(sys, "argv", ["byol", "tune", str(folder), "--out", str(out), *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    told = capsys.readouterr().err
    assert ended.value.code == code
    assert sentence in told
    assert "Traceback" not in told
    assert not out.exists()


@pytest.mark.parametrize(
    ("labels", "classes", "who"), [("", 2, "labels"), ("none", 2, judge.WITHOUT_LABELS), ("", 4, judge.WITHOUT_LABELS)]
)
def test_the_images_own_classes_judge_unless_told_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, labels: str, classes: int, who: str
) -> None:
    """Breaks when classes of the images are not used, are used against the user's word, or too few of them refuse a
    search that nobody asked to have labels."""
    quickened(monkeypatch)
    monkeypatch.setattr(search, "run", lambda *_: "usual")
    monkeypatch.setattr(run, "_write", lambda *_: None)
    images = write_images(tmp_path / "images", 16, classes)
    asked = run.Request(str(images), 7.5, tmp_path / "out", labels=labels, values=SMALL, policies=NAMES[:2])
    run.tune(asked)
    known = search.read(tmp_path / "out")
    assert known is not None
    assert known.judge == who
