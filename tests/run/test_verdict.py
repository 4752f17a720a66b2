"""The verdict against looks with known endings: measures decide, the config names a cause, encoders carry it along."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

import byol
from byol import checkpoint
from byol.config import Config, apply
from byol.run import caution
from byol.run.record import Verdict, read_run
from byol.run.verdict import cause, judge, measured
from tests.conftest import TINY

Look = dict[str, float]
START: Look = {"spread": 0.25, "rank_representation": 18, "rank_projection": 17, "directions": 1.8, "twins": 0.57}
GOOD: Look = {"spread": 0.8, "rank_representation": 50, "rank_projection": 50, "directions": 6.0, "twins": 0.75}
# As they were measured: lambda 0, a rate 30 times too high, and the partial collapse to three directions.
FALLEN: Look = {"spread": 0.38, "rank_representation": 3.1, "rank_projection": 2.2, "directions": 1.08, "twins": 0.53}
TOO_FAST: Look = {"spread": 0.75, "rank_representation": 6, "rank_projection": 2.2, "directions": 1.28, "twins": 0.68}
RANK_3: Look = {"spread": 0.6, "rank_representation": 3, "rank_projection": 3, "directions": 1.25, "twins": 0.6}


def course(ends: Sequence[Look], images: float = 500, every: int = 50) -> list[Look]:
    """The look before training, then these, `every` so many steps."""
    steps = (-1, *(every * (place + 1) - 1 for place in range(len(ends))))
    return [
        {"step": s, "images": images, "distinct": images, **look} for s, look in zip(steps, (START, *ends), strict=True)
    ]


def towards(end: Look, count: int = 20) -> list[Look]:
    """A straight way from the start to the end in the first half, and then no change."""
    shares = [min(1.0, 2 * (place + 1) / count) for place in range(count)]
    return [{name: START[name] + share * (end[name] - START[name]) for name in START} for share in shares]


@pytest.mark.parametrize(
    ("word", "looks"),
    [
        ("too early", course([])),
        ("too early", course([START, START])),
        ("learning", course([GOOD, GOOD])),
        ("learning", course(towards(GOOD))),
        ("stalled", course([START] * 20)),
        ("stalled", course([*[START] * 5, *[GOOD] * 8, *[START | {"twins": 0.62}] * 7])),
        ("worse", course(towards(START | {"directions": 1.5}))),
        ("worse", course(towards(START | {"twins": 0.53}))),
        ("collapsing", course([START | {"spread": 0.05, "directions": 1.4}] * 2)),
        ("collapsing", course([START | {"rank_projection": 1.2, "rank_representation": 8}] * 2)),
        ("learning", course(towards(GOOD | {"spread": 0.01, "rank_projection": 1.0}))),
        ("stalled", course([START | {"spread": 0.01, "rank_projection": 1.0}] * 20)),
        ("collapsing", course([START | {"rank_representation": 1.2}] * 2)),
        ("collapsing", course(towards(FALLEN))),
        ("collapsing", course(towards(TOO_FAST))),
        ("collapsing", course(towards(RANK_3))),
        ("collapsed data", [look | {"distinct": 1.0} for look in course(towards(GOOD))]),
    ],
)
def test_words(word: str, looks: list[Look]) -> None:
    """Breaks if a threshold moves across one of these plain cases, or a sentence does not begin with its word."""
    verdict = measured(looks)
    assert verdict.word == word, verdict.sentence
    assert verdict.sentence.lower().startswith(word)


def test_partial_collapse_is_never_learning() -> None:
    """Breaks if views that are told apart along three directions pass for learning (rank 3)."""
    for twins in (0.5, 0.6, 0.7, 0.9):
        assert measured(course(towards(RANK_3 | {"twins": twins}))).word == "collapsing"


@pytest.mark.parametrize("end", [GOOD, START, FALLEN, TOO_FAST, RANK_3])
@pytest.mark.parametrize(
    "changes",
    [
        {"network.predictor": "none"},
        {"network.target": "stop-gradient"},
        {"optim.tau": 0.0},
        {"optim.predictor_lr": 0.0},
        {"objective.normalization": "none"},
        {"network.target": "online", "objective.name": "info-nce"},
    ],
)
def test_another_config_does_not_flip_the_verdict(end: Look, changes: dict[str, Any]) -> None:
    """Breaks if a field of the config decides: the same looks have the same word, whatever the run was told to do."""
    looks = course(towards(end))
    plain, other = (judge(looks, apply(Config(), each)) for each in ({}, changes))
    assert plain.word == other.word == measured(looks).word


def test_a_learning_rate_and_tau_in_the_log_do_not_matter() -> None:
    """Breaks if the lines of the steps, which tell of the config, are read for the verdict."""
    looks = course(towards(FALLEN))
    lines = [{"step": 0, "tau": tau, "loss": 1.0, "lr": 9.0} for tau in (0.0, 0.99)]
    assert [judge([line, *looks]) for line in lines] == [measured(looks)] * 2


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"network.predictor": "none"}, "network.predictor is none"),
        ({"network.target": "stop-gradient"}, "optim.tau"),
        ({"optim.tau": 0.0}, "optim.tau"),
        ({"optim.predictor_lr": 0.0}, "optim.predictor_lr is 0"),
        ({}, "optim.lr"),
        ({"network.target": "online", "network.predictor": "none", "objective.name": "info-nce"}, "optim.lr"),
    ],
)
def test_a_collapse_names_its_likely_cause(changes: dict[str, Any], words: str) -> None:
    """Breaks if the likely cause is missing from the sentence, or SimCLR is blamed for having no predictor."""
    config = apply(Config(), changes)
    assert words in cause(config)
    assert judge(course(towards(FALLEN)), config).sentence.endswith(cause(config))
    assert "Likely cause" not in judge(course(towards(GOOD)), config).sentence


def with_knn(looks: list[Look], values: Sequence[float]) -> list[Look]:
    return [look | {"knn": value} for look, value in zip(looks, values, strict=True)]


def test_labels_have_the_last_word() -> None:
    """Breaks if classes that emerge are overruled by other measures, or classes that vanish are not noticed."""
    for end, word in ((START, "stalled"), (START | {"directions": 1.5}, "worse"), (GOOD, "learning")):
        looks = course(towards(end))
        assert measured(with_knn(looks, [0.27] * 21)).word == word
        assert measured(with_knn(looks, [0.27 + 0.01 * place for place in range(21)])).word == "learning"
        fallen = measured(with_knn(looks, [0.27, *[0.2] * 20]))
        assert fallen.word == "worse"
        assert fallen.sentence.startswith("Worse than before training: kNN 27 → 20 %; do not use this encoder yet.")


def test_a_short_run_is_not_called_worse() -> None:
    """Breaks if somebody who tried a few steps is told that it went wrong, and not that this was to be expected."""
    bad = towards(START | {"directions": 1.5})
    short, long = (measured(course(bad, every=every)) for every in (5, 50))
    assert (short.word, long.word) == ("too early", "worse")
    assert "100 steps are few, raise optim.epochs" in short.sentence
    assert measured(course(towards(FALLEN), every=5)).word == "collapsing"


def test_more_epochs_are_advised_only_where_they_help() -> None:
    """Breaks if a run whose last three quarters brought nothing is told to train for longer."""
    flat = measured(course([START] * 20)).sentence
    assert "since step 250, a quarter of the run, so more epochs will not help" in flat
    assert "raise optim.epochs" not in flat
    rising = course([START | {"twins": 0.54 + 0.002 * place} for place in range(20)])
    assert "still getting better: raise optim.epochs" in measured(rising).sentence


def test_chance_is_no_change() -> None:
    """Breaks if a difference that so few images cannot show is taken for one: 57 % against 62 % of 100 images."""
    end = START | {"twins": 0.62}
    assert measured(course(towards(end), images=100)).word == "stalled"
    assert measured(course(towards(end), images=1000)).word == "learning"


def test_the_text_shows_the_rank_of_the_tiles() -> None:
    """Breaks if the sentence gives another rank than the page's tile, which is the last look's representation."""
    sentence = measured(course(towards(GOOD))).sentence
    assert "rank 50 (18 before training)" in sentence
    assert "in 75% of cases (57%, chance 50%)" in sentence


def test_the_verdict_travels_with_the_encoder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Breaks if an encoder leaves its run, or a run is still going on, and nobody hears of the verdict."""
    run = byol.pretrain("scenes:24", tmp_path / "run", "cifar10-cpu", TINY)
    assert run.verdict.word == "too early"
    assert checkpoint.encoder_header(run.out)["verdict"] == asdict(run.verdict)
    assert caution.travelled(run.out) == caution.travelled(run.encoder) == run.verdict == read_run(run.out).verdict
    capsys.readouterr()
    caution.repeat(run.encoder)
    assert capsys.readouterr().err == f"Caution, the run's verdict: {run.verdict.sentence}\n"
    before = run.encoder.read_bytes()
    run.encoder.unlink()
    byol.pretrain("scenes:24", tmp_path / "run", "cifar10-cpu", TINY)
    assert run.encoder.read_bytes() == before


@pytest.mark.parametrize(
    ("stored", "found"),
    [
        ({"word": "learning", "sentence": "Learning: fine."}, Verdict("learning", "Learning: fine.")),
        ({"word": "excellent", "sentence": "Buy it."}, None),
        ({"word": "worse"}, None),
        ({"word": "worse", "sentence": 3}, None),
        ("worse", None),
        (None, None),
        ({"word": "worse", "sentence": "a\nb " * 1000}, Verdict("worse", ("a b " * 350)[:700] + "…")),
    ],
)
def test_a_strangers_verdict_is_bounded(tmp_path: Path, stored: Any, found: Verdict | None) -> None:
    """Breaks if a header can print lines without end, or a verdict of an unknown kind ends a command."""
    from byol import networks

    config = apply(Config(), {"network.encoder": "resnet18", "network.width": 0.05, "data.resolution": 32})
    file = tmp_path / "encoder.safetensors"
    checkpoint.save_encoder(file, networks.encoder(config.network), config, {"step": 3, "verdict": stored})
    assert caution.travelled(file) == found
    assert json.dumps(stored) in json.dumps(checkpoint.encoder_header(file))


def test_a_verdict_that_is_learning_is_not_repeated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Breaks if every command talks about a run that is well."""
    from byol import networks

    config = apply(Config(), {"network.encoder": "resnet18", "network.width": 0.05, "data.resolution": 32})
    file = tmp_path / "encoder.safetensors"
    told = asdict(Verdict("learning", "Learning: fine."))
    checkpoint.save_encoder(file, networks.encoder(config.network), config, {"step": 3, "verdict": told})
    caution.repeat(file)
    caution.repeat(tmp_path / "nothing")
    assert capsys.readouterr().err == ""
