"""Weighted nearest neighbours: the quickest honest question to a frozen representation."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

CHUNK = 1024


def classify(
    bank: Tensor, labels: Tensor, queries: Tensor, *, classes: int, k: int = 20, temperature: float = 0.07
) -> Tensor:
    """Class (Q,) of each query (Q, D): the k most similar of bank (N, D) vote with weight exp(cos / temperature)."""
    bank = F.normalize(bank.float(), dim=1)
    found = []
    for chunk in F.normalize(queries.float(), dim=1).split(CHUNK):
        similarity, nearest = (chunk @ bank.T).topk(min(k, len(bank)), dim=1)
        votes = torch.zeros(len(chunk), classes).scatter_add_(1, labels[nearest], (similarity / temperature).exp())
        found.append(votes.argmax(1))
    return torch.cat(found)
