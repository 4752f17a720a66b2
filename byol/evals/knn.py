"""Weighted nearest neighbours: the quickest honest question to a frozen representation."""

from __future__ import annotations

import torch

from byol import neighbours
from byol.data.parts import Task
from byol.errors import UsageError
from byol.evals import features
from byol.evals.encoder import Encoder
from byol.evals.metrics import score
from byol.evals.protocol import Result, Session
from byol.evals.spec import Knn


def evaluate(encoder: Encoder, task: Task, spec: Knn, session: Session) -> Result:
    """Nothing is chosen, so train and validation vote together; the test images are asked once."""
    if task.train.multi_label:
        raise UsageError(f"knn needs one class an image, and {task.name} has several. Use transfer-linear.")
    known = features.of_both(encoder, task.train, task.validation, session.cache)
    asked = features.of_part(encoder, task.test.open(), session.cache)
    found = neighbours.votes(
        torch.from_numpy(known.values),
        torch.from_numpy(known.targets),
        torch.from_numpy(asked.values),
        classes=len(task.classes),
        k=spec.k,
        temperature=spec.temperature,
    )
    return Result([], {"k": spec.k, "temperature": spec.temperature}, score(task.metric, found.numpy(), asked.targets))
