"""Transfer by a linear classifier (paper, appendix D.2): logistic regression by L-BFGS on frozen features.

No augmentation; the ℓ2 penalty is chosen on validation among 45, fitted again on train and validation, tested once.
"""

from __future__ import annotations

import torch
from torch import Tensor

from byol.data.parts import Task
from byol.evals import features, logistic
from byol.evals.encoder import Encoder
from byol.evals.features import Features
from byol.evals.metrics import METRICS, score
from byol.evals.protocol import Result, Session, Trial, best
from byol.evals.spec import Transfer

WHOLE = 1.0  # the short side becomes the crop's side: nothing around it is cut away


def evaluate(encoder: Encoder, task: Task, spec: Transfer, session: Session) -> Result:
    """Every penalty is fitted in one batched sweep from strong to weak."""
    classes = len(task.classes)
    train = features.of_part(encoder, task.train, session.cache, WHOLE)
    held = features.of_part(encoder, task.validation, session.cache, WHOLE)
    fitted = logistic.fit(*_tensors(train), classes, spec.penalties, max_iterations=spec.max_iterations)
    trials = [
        Trial({"penalty": penalty}, METRICS[task.metric](logits.numpy(), held.targets))
        for penalty, logits in zip(spec.penalties, logistic.scores(fitted.weights, _tensors(held)[0]), strict=True)
    ]
    # Of equal scores the strongest penalty, which is the simplest classifier.
    chosen = best(sorted(trials, key=lambda t: -t.setting["penalty"])).setting
    both = features.of_both(encoder, task.train, task.validation, session.cache, WHOLE)
    final = logistic.fit(*_tensors(both), classes, [chosen["penalty"]], max_iterations=spec.max_iterations)
    test = features.of_part(encoder, task.test.open(), session.cache, WHOLE)
    logits = logistic.scores(final.weights, _tensors(test)[0])[0].numpy()
    return Result(trials, chosen, score(task.metric, logits, test.targets))


def _tensors(known: Features) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(known.values), torch.from_numpy(known.targets)
