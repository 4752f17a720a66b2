"""Semi-supervised training (paper, section 4 and appendix C.1): fine-tuning with a fraction of the labels.

Learning rate and epochs are chosen on the held-out part, for the pretrained network and, beside it, for the same
network from scratch; both are scored on test once, after every choice for every fraction was made.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from byol import networks, pictures
from byol.data.loader import Images
from byol.data.task import Part, Task
from byol.errors import BadData, UsageError
from byol.evals import training
from byol.evals.encoder import Encoder
from byol.evals.metrics import score
from byol.evals.spec import SemiSupervised
from byol.evals.sweep import Ledger, Result, Session, Setting, Trial, best, cut, timed_first, tried
from byol.progress import say

STEPS_AN_EPOCH, SMALLEST_BATCH = 8, 16


@dataclass(frozen=True)
class Case:
    """One network on one selection of labels: how it begins and what it may see."""

    encoder: Encoder
    classes: int
    share: float
    scratch: bool
    images: Images
    batch: int
    seed: int

    @property
    def name(self) -> str:
        """As the figures are named: `1%`."""
        return f"{100 * self.share:.3g}%"

    def start(self) -> nn.Module:
        module = self.encoder.trainable()
        if self.scratch:
            torch.manual_seed(self.seed)
            module = networks.encoder(self.encoder.config.network)
        return training.classifier(module, self.encoder.num_features, self.classes, self.seed)

    def steps(self, setting: Setting) -> int:
        return training.steps_of(setting["epochs"], len(self.images.train), self.batch)

    def train(self, setting: Setting, steps: int) -> tuple[nn.Module, bool]:
        """SGD with Nesterov momentum and a cosine, no weight decay; the rate scales with the batch, as in the code."""
        model = self.start()
        recipe = training.Recipe(steps, self.batch, setting["lr"] * self.batch / 256, seed=self.seed)
        title = f"{self.name} {'from scratch' if self.scratch else 'fine-tuned'}"
        return model, training.fit(model, self.images, recipe, self.encoder, title)


class Choice(NamedTuple):
    """What was tried for a case, what won, and for how many steps that is trained."""

    trials: list[Trial]
    setting: Setting
    steps: int
    notes: list[str]


def evaluate(
    encoder: Encoder, task: Task, spec: SemiSupervised = SemiSupervised(), session: Session = Session()
) -> Result:
    """Figures are named as top1@1%, and `scratch top1@1%` for the network that began from random weights."""
    if task.train.multi_label:
        raise UsageError(f"semi-supervised needs one class an image, and {task.name} has several.")
    cases = _cases(encoder, task, spec, session.seed)
    held = training.Held(task.validation, encoder)
    seconds = session.left * 0.9 / len(cases)  # the final run of a case, which comes later, is part of its share
    choices = [_choose(case, task, spec, held, session, seconds) for case in cases]
    # Trained once more, which gives the same weights as when the setting was tried.
    models = [case.train(choice.setting, choice.steps)[0] for case, choice in zip(cases, choices, strict=True)]
    test = training.Held(task.test.open(), encoder)
    figures = [score(task.metric, *test.predict(model)) for model in models]
    rows = [_row(*row) for row in zip(cases, choices, figures, strict=True)]
    _picture(session.out, rows, task.metric)
    where = [{"labels": case.name, "scratch": case.scratch} for case in cases]
    return Result(
        [Trial(w | t.setting, t.validation) for w, choice in zip(where, choices, strict=True) for t in choice.trials],
        {f"{c.name}{' scratch' * c.scratch}": choice.setting for c, choice in zip(cases, choices, strict=True)},
        {f"{'scratch ' * row['scratch']}{n}@{row['labels']}": v for row in rows for n, v in row["test"].items()},
        [f"{case.name}: {note}" for case, choice in zip(cases, choices, strict=True) for note in choice.notes],
        {"rows": rows},
    )


def _cases(encoder: Encoder, task: Task, spec: SemiSupervised, seed: int) -> list[Case]:
    parts = {fraction: balanced(task.train, fraction, seed) for fraction in spec.fractions}
    if spec.labels:
        part = listed(task.train, Path(spec.labels))
        parts = {len(part) / len(task.train): part}
    cases = []
    for share, part in parts.items():
        images, batch = training.images_of(part, encoder), batch_of(spec, len(part))
        for scratch in (False, True) if spec.scratch else (False,):
            cases.append(Case(encoder, len(task.classes), share, scratch, images, batch, seed))
    return cases


def batch_of(spec: SemiSupervised, images: int) -> int:
    """The protocol's, or fewer so that an epoch of a small set has some steps: ImageNet's 1 % has twelve."""
    return min(spec.batch, images, max(SMALLEST_BATCH, images // STEPS_AN_EPOCH))


def _choose(
    case: Case, task: Task, spec: SemiSupervised, held: training.Held, session: Session, seconds: float
) -> Choice:
    settings: list[Setting] = [{"lr": lr, "epochs": epochs} for epochs in spec.epochs for lr in spec.lrs]
    share, notes = 1.0, list[str]()
    if timed_first(session, sum(map(case.steps, settings))):
        recipe = training.Recipe(1, case.batch, 0.0)
        each = training.seconds_a_step(case.start(), case.images, recipe, case.encoder)
        settings, share, notes = cut(settings, case.steps, each, seconds)
    steps: Callable[[Setting], int] = lambda setting: max(1, int(case.steps(setting) * share))

    def attempt(setting: Setting) -> float:
        model, good = case.train(setting, steps(setting))
        return held.score(model, task.metric) if good else -1.0

    seen = [case.encoder.checksum(), case.images.fingerprint, case.scratch, case.batch, case.seed, share]
    trials = tried(settings, attempt, Ledger(session.out, seen))
    setting = best(trials).setting
    return Choice(trials, setting, steps(setting), notes)


def _row(case: Case, choice: Choice, figures: dict[str, float]) -> dict[str, Any]:
    return {
        "labels": case.name,
        "share": case.share,
        "images": len(case.images.train),
        "scratch": case.scratch,
        "chosen": choice.setting,
        "test": figures,
    }


def balanced(train: Part, fraction: float, seed: int) -> Part:
    """As many images of each class, or all of one that has fewer; smaller fractions lie inside larger ones."""
    if fraction >= 1:
        return train
    random = np.random.default_rng([seed, 20])
    labels = np.unique(train.targets)
    each = max(1, round(len(train) * fraction / len(labels)))
    chosen = [random.permutation(np.flatnonzero(train.targets == label))[:each] for label in labels]
    return train.take(np.sort(np.concatenate(chosen)))


def listed(train: Part, path: Path) -> Part:
    """The images whose file names stand in the file, one a line, as in SimCLR's 1percent.txt."""
    try:
        names = {line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()}
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"Cannot read the list of labelled images {path}: {error}.") from None
    ours = [Path(train.source.describe(int(index))).name for index in train.indices]
    places = np.flatnonzero([name in names for name in ours])
    if not len(places):
        raise BadData(f"None of the {len(names)} names in {path} is a training image; ours are like {ours[0]}.")
    return train.take(places)


def _picture(out: Path | None, rows: list[dict[str, Any]], metric: str) -> None:
    """The paper's figure of accuracy against the share of labels."""
    if out is None or len({row["share"] for row in rows}) < 2:
        return
    lines = {
        title: [(row["share"], row["test"][metric]) for row in rows if row["scratch"] == scratch]
        for title, scratch in (("fine-tuned", False), ("from scratch", True))
    }
    try:
        pictures.few_labels(out / "few_labels.png", {t: points for t, points in lines.items() if points}, metric)
    except UsageError as error:  # no matplotlib: the figures themselves are worth more than their picture
        say(str(error))
