"""Weighted nearest neighbours: the quickest honest question to a frozen representation."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from byol import neighbours
from byol.data.task import Task
from byol.errors import UsageError
from byol.evals import features
from byol.evals.encoder import Encoder
from byol.evals.metrics import score
from byol.evals.spec import Knn
from byol.evals.sweep import Result, Session

QUERIES = 65_536  # at a time: their neighbours need not fit in memory


def votes(
    bank: Tensor, labels: Tensor, queries: Tensor, *, classes: int, k: int = 20, temperature: float = 0.07
) -> Tensor:
    """Scores (Q, classes) of each query (Q, D): the k most similar of bank (N, D) vote with exp(cos / temperature)."""
    found = []
    for chunk in queries.split(QUERIES):
        similarity, nearest = neighbours.nearest(bank, F.normalize(chunk.float(), dim=1), k)
        # 1 is the highest cosine: subtracting it changes no order and keeps small temperatures finite
        weights = ((similarity - 1) / temperature).exp()
        found.append(torch.zeros(len(chunk), classes).scatter_add_(1, labels[nearest], weights))
    return torch.cat(found)


def evaluate(encoder: Encoder, task: Task, spec: Knn = Knn(), session: Session = Session()) -> Result:
    """Nothing is chosen, so train and validation vote together; the test images are asked once."""
    if task.train.multi_label:
        raise UsageError(f"knn needs one class an image, and {task.name} has several. Use transfer-linear.")
    known = features.of_both(encoder, task.train, task.validation, session.cache)
    asked = features.of_part(encoder, task.test.open(), session.cache)
    found = votes(
        torch.from_numpy(known.values),
        torch.from_numpy(known.targets),
        torch.from_numpy(asked.values),
        classes=len(task.classes),
        k=spec.k,
        temperature=spec.temperature,
    )
    return Result([], {"k": spec.k, "temperature": spec.temperature}, score(task.metric, found.numpy(), asked.targets))
