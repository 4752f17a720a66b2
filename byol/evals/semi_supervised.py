"""Semi-supervised training (paper, section 4 and appendix C.1): fine-tuning with a fraction of the labels, and the same
network from scratch beside it. Learning rate and epochs are chosen on validation; test is opened after every choice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

from byol.data.loader import Images
from byol.data.parts import Part, Task, balanced, listed
from byol.errors import UsageError
from byol.evals import classifier
from byol.evals.budget import Setting
from byol.evals.encoder import Encoder
from byol.evals.fit import Recipe, steps_of
from byol.evals.metrics import score
from byol.evals.protocol import MARGIN, Result, Session, Study, Trial, choose, dependencies, final
from byol.evals.spec import SemiSupervised
from byol.run import pictures

STEPS_AN_EPOCH, SMALLEST_BATCH = 8, 16


class Case(NamedTuple):
    """One network on one selection of labels: how it begins and what it may see."""

    share: float  # of the labels
    scratch: bool  # begins from random weights
    part: Part

    @property
    def label(self) -> str:  # as the figures are named: `1%`
        return f"{100 * self.share:.3g}%"

    @property
    def start(self) -> str:
        return "from scratch" if self.scratch else "fine-tuned"


def evaluate(encoder: Encoder, task: Task, spec: SemiSupervised, session: Session) -> Result:
    """Figures are named as top1@1%, and `scratch top1@1%` for the network that began from random weights."""
    if task.train.multi_label:
        raise UsageError(f"semi-supervised needs one class an image, and {task.name} has several.")
    cases = _cases(task, spec, session.seed)
    held = classifier.Held(task.validation, encoder)
    seconds = session.left * MARGIN / len(cases)  # the final run of a case, which comes later, is part of its share
    studies = [_study(case, encoder, task, spec, held, session) for case in cases]
    choices = [choose(study, session, seconds) for study in studies]
    # Trained once more, which gives the same weights as when the setting was tried.
    models = [final(study, choice, study.images) for study, choice in zip(studies, choices, strict=True)]
    test = classifier.Held(task.test.open(), encoder)
    figures = [score(task.metric, *test.predict(model)) for model in models]
    tested = list(zip(cases, choices, figures, strict=True))
    points = [(case.start, case.share, figure[task.metric]) for case, _, figure in tested]
    pictures.few_labels(session.out, points, task.metric)
    tried = [(case, trial) for case, choice, _ in tested for trial in choice.trials]
    return Result(
        [Trial({"labels": c.label, "scratch": c.scratch} | t.setting, t.validation) for c, t in tried],
        {f"{case.label}{' scratch' * case.scratch}": choice.setting for case, choice, _ in tested},
        {f"{'scratch ' * case.scratch}{n}@{case.label}": v for case, _, test in tested for n, v in test.items()},
        [f"{case.label}: {note}" for case, choice, _ in tested for note in choice.notes],
        {"images": {case.label: len(case.part) for case in cases}},
    )


def _cases(task: Task, spec: SemiSupervised, seed: int) -> list[Case]:
    parts = {fraction: balanced(task.train, fraction, seed) for fraction in spec.fractions}
    if spec.labels:
        part = listed(task.train, Path(spec.labels))
        parts = {len(part) / len(task.train): part}
    starts = (False, True) if spec.scratch else (False,)
    return [Case(share, scratch, part) for share, part in parts.items() for scratch in starts]


def batch_of(spec: SemiSupervised, images: int) -> int:
    """The protocol's, or fewer so that an epoch of a small set has some steps: ImageNet's 1 % has twelve."""
    return min(spec.batch, images, max(SMALLEST_BATCH, images // STEPS_AN_EPOCH))


def _study(
    case: Case, encoder: Encoder, task: Task, spec: SemiSupervised, held: classifier.Held, session: Session
) -> Study[Images, classifier.Held]:
    """SGD with Nesterov momentum and a cosine, no weight decay; the rate scales with the batch, as in the code."""
    batch = batch_of(spec, len(case.part))

    def train(images: Images, setting: Setting, steps: int, title: str) -> nn.Module:
        torch.manual_seed(session.seed)
        begun = encoder.fresh() if case.scratch else encoder.trainable()
        model = classifier.classifier(begun, encoder.num_features, len(task.classes), session.seed)
        recipe = Recipe(steps, batch, setting["lr"] * batch / 256, seed=session.seed)
        return classifier.train(
            model, images, recipe, encoder, f"{title}, {case.label}{' from scratch' * case.scratch}"
        )

    own = replace(spec, fractions=(), labels="", lrs=(), epochs=(), batch=batch, scratch=case.scratch)
    return Study(
        [{"lr": lr, "epochs": epochs} for epochs in spec.epochs for lr in spec.lrs],
        lambda setting: steps_of(setting["epochs"], len(case.part), batch),
        train,
        lambda model, held: held.score(model, task.metric),
        classifier.images_of(case.part, encoder),
        held,
        dependencies(encoder, replace(task, train=case.part), own, session.seed),
    )
