"""What every evaluation shares: its session, its result, and the choice of a setting on the validation part.

A protocol that trains describes itself as a `Study`: its settings, how a model is trained with one of them, how the
model is scored. `choose` times a step, fits the sweep into the budget, tries the settings and remembers what each of
them gave; `final` trains with the chosen one. A training run that diverges loses the choice; when the final one
diverges nothing is reported.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from torch import nn

from byol.config import flatten
from byol.data.parts import Task
from byol.errors import Diverged
from byol.evals.budget import Setting, cut, in_words, timed_first
from byol.evals.encoder import Encoder
from byol.evals.features import default_cache
from byol.run.files import read_lines, write_atomically
from byol.run.progress import say

T = TypeVar("T")
H = TypeVar("H", bound="Held")

TIMED_STEPS, TIMED_IMAGES = 3, 4
MEASURING = 0.02  # of a budget may be spent on more than one timed step
MARGIN = 0.9  # of a budget is planned with
DIVERGED = -1.0  # the score of a setting whose training diverged: below every real score
LEDGER = "trials.jsonl"


@dataclass(frozen=True)
class Session:
    """What an evaluation runs in: its seed, where features are kept, the time it may take, where its files go."""

    seed: int = 0
    cache: Path = field(default_factory=default_cache)
    seconds: float = math.inf
    out: Path | None = None
    started: float = field(default_factory=time.monotonic)

    @property
    def left(self) -> float:
        return max(self.started + self.seconds - time.monotonic(), 0.0)


class Trial(NamedTuple):
    """A setting and its score on the validation part, `DIVERGED` for a training run that diverged."""

    setting: Setting
    validation: float


@dataclass(frozen=True)
class Result:
    """What one evaluation found; `notes` say what a budget left out, `extra` is the protocol's own."""

    trials: list[Trial]
    chosen: Setting
    test: dict[str, float]
    notes: list[str] = field(default_factory=list)
    extra: dict[str, Any] = field(default_factory=dict)


class Held(Protocol):
    """What a study is scored on: a part, or something made of it."""

    def __len__(self) -> int: ...
    def take(self: H, positions: Sequence[int]) -> H: ...


@dataclass(frozen=True)
class Study(Generic[T, H]):
    """How a protocol trains and scores; every setting has at least a learning rate `lr`."""

    settings: Sequence[Setting]  # those that matter most first: a budget leaves out the last ones
    steps: Callable[[Setting], int]
    train: Callable[[T, Setting, int, str], nn.Module]  # images, setting, steps, title; raises `Diverged`
    score: Callable[[nn.Module, H], float]  # higher is better
    images: T  # what the settings are tried on
    held: H  # what they are scored on
    key: Sequence[Any]  # everything else that a score depends on, see `dependencies`


class Chosen(NamedTuple):
    """What was tried, which setting won, for how many steps it is trained, and what a budget left out."""

    trials: list[Trial]
    setting: Setting
    steps: int
    notes: list[str]

    def result(self, test: dict[str, float], extra: dict[str, Any] | None = None) -> Result:
        return Result(self.trials, self.setting, test, self.notes, extra or {})


def dependencies(encoder: Encoder, task: Task, spec: Any, seed: int) -> list[Any]:
    """Everything that a validation score depends on but its setting and steps. `spec` comes without the settings."""
    config = {
        name: value
        for name, value in flatten(encoder.config).items()
        if name.startswith(("network.", "views.")) or name == "data.resolution"
    }
    parts = [task.train.fingerprint(), task.validation.fingerprint()]
    return [encoder.checksum(), config, encoder.place.precision, task.metric, parts, flatten(spec), seed]


def choose(study: Study[T, H], session: Session, seconds: float | None = None) -> Chosen:
    """The setting with the best validation score among those that fit the budget; a single setting is not tried."""
    settings, share, notes = list(study.settings), 1.0, list[str]()
    several = len(settings) > 1
    if timed_first(session.seconds, sum(map(study.steps, settings))):
        left = session.left * MARGIN if seconds is None else seconds
        each, look = _measured(study, left)
        # The size of the test part is not known before it is opened; it is taken to be twice that of validation.
        left = max(left - look * (2 + len(settings) * several), 0.0)
        # A single setting is not tried, so its only run is the final one.
        settings, share, notes = cut(settings, study.steps, each, left, finals=int(several))

    def steps(setting: Setting) -> int:
        return max(1, int(study.steps(setting) * share))

    if not several:
        return Chosen([], settings[0], steps(settings[0]), notes)
    known = _read_ledger(session.out)
    trials = []
    for place, setting in enumerate(settings):
        key = hashlib.sha256(json.dumps([study.key, setting, steps(setting)], default=str).encode()).hexdigest()[:16]
        if key not in known:
            known[key] = {"key": key, "setting": setting, "validation": _attempt(study, setting, steps(setting))}
            _write_ledger(session.out, known)
        trials.append(Trial(setting, float(known[key]["validation"])))
        shown = "diverged" if trials[-1].validation == DIVERGED else f"{trials[-1].validation:.2%} on validation"
        say(f"{place + 1}/{len(settings)} {in_words(setting)}: {shown}")
    winner = best(trials).setting
    return Chosen(trials, winner, steps(winner), notes)


def final(study: Study[T, H], chosen: Chosen, images: T) -> nn.Module:
    """The model that is tested, trained with the chosen setting."""
    return study.train(images, chosen.setting, chosen.steps, "Final training")


def best(trials: Sequence[Trial]) -> Trial:
    """The highest validation score; of equal ones the first."""
    winner = max(trials, key=lambda trial: trial.validation)
    if winner.validation == DIVERGED:
        raise Diverged(f"Training diverged with each of the {len(trials)} settings. Lower the learning rates.")
    return winner


def _attempt(study: Study[T, H], setting: Setting, steps: int) -> float:
    try:
        return study.score(study.train(study.images, setting, steps, "Training").eval(), study.held)
    except Diverged:
        return DIVERGED


def _measured(study: Study[T, H], left: float) -> tuple[float, float]:
    """Seconds of a training step, and of one look at the validation part."""

    def timed(steps: int) -> tuple[float, nn.Module]:
        began = time.monotonic()
        model = study.train(study.images, {**study.settings[0], "lr": 0.0}, steps, "Measuring")
        return (time.monotonic() - began) / steps, model

    each, model = timed(1)
    if each < MEASURING * left:  # the first step is slower than those after it, but few of them fit in the budget
        each, model = timed(TIMED_STEPS)
    few = study.held.take(range(min(len(study.held), TIMED_IMAGES)))
    began = time.monotonic()
    study.score(model.eval(), few)
    return each, (time.monotonic() - began) * len(study.held) / len(few)


def _read_ledger(out: Path | None) -> dict[str, dict[str, Any]]:
    """key → trial: what was tried is not computed again when the same evaluation is started again."""
    return {record["key"]: record for record in read_lines(out / LEDGER, _is_trial)} if out else {}


def _is_trial(record: dict[str, Any]) -> bool:
    score = record.get("validation")
    return isinstance(record.get("key"), str) and isinstance(score, int | float) and not isinstance(score, bool)


def _write_ledger(out: Path | None, known: dict[str, dict[str, Any]]) -> None:
    if out:
        out.mkdir(parents=True, exist_ok=True)
        write_atomically(out / LEDGER, "".join(json.dumps(record) + "\n" for record in known.values()).encode())
