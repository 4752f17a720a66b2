"""Exact search among many vectors by blocked matrix products: who is nearest, who is nearly the same, whom to choose.

Tens of thousands of vectors take seconds; neither all similarities nor, for `nearest`, all vectors are held at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from byol.errors import UsageError

BANK = 2**25  # numbers of the bank, compared at a time
GROUP = 8  # similarities of which the highest is found first
ASKED = 1024  # queries at a time, of a part of the bank
BLOCK = 512  # queries at a time, of all vectors
PAIRS = 2**28  # similarities held at once
LAZY = 256  # gains looked at again at a time


def nearest(bank: Tensor, queries: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Cosines and rows (Q, k) of the most similar rows of the bank, or all of them; `queries` have length 1."""
    blocks = queries.split(ASKED)
    found = [(torch.empty(len(block), 0), torch.empty(len(block), 0, dtype=torch.int64)) for block in blocks]
    rows = min(len(bank), max(k, BANK // max(1, bank.shape[1])))
    room = torch.empty(min(ASKED, len(queries)) * rows)  # used again and again: new pages cost as much as the search
    for first in range(0, len(bank), rows or 1):
        part = F.normalize(bank[first : first + rows].float(), dim=1).T
        for place, block in enumerate(blocks):
            shape = len(block), part.shape[1]
            similarity = torch.mm(block, part, out=room[: math.prod(shape)].view(shape))
            found[place] = _merged(found[place], _top(similarity, k), first, k)
    return torch.cat([values for values, _ in found]), torch.cat([indices for _, indices in found])


def _top(similarity: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Values and columns (Q, k) of the highest in each row, or all of them.

    They are among the k groups with the highest maxima; a maximum costs little, a selection among all a lot.
    """
    queries, columns = similarity.shape
    groups = columns // GROUP
    if groups <= k:
        return similarity.topk(min(k, columns), dim=1)
    grouped = similarity[:, : groups * GROUP].unflatten(1, (GROUP, groups))
    best = grouped.amax(1).topk(k, dim=1, sorted=False).indices
    among = (best[:, None] + groups * torch.arange(GROUP)[:, None]).flatten(1)
    rest = torch.arange(groups * GROUP, columns).expand(queries, -1)
    among = torch.cat([among, rest], 1)
    values, order = similarity.gather(1, among).topk(k, dim=1)
    return values, among.gather(1, order)


def _merged(before: tuple[Tensor, Tensor], here: tuple[Tensor, Tensor], first: int, k: int) -> tuple[Tensor, Tensor]:
    """The best k of what was found before and of rows that count from `first`."""
    if not before[0].shape[1]:
        return here[0], here[1] + first
    values, rows = torch.cat([before[0], here[0]], 1), torch.cat([before[1], here[1] + first], 1)
    values, order = values.topk(min(k, values.shape[1]), dim=1)
    return values, rows.gather(1, order)


def other_neighbours(vectors: Tensor, k: int, advance: Callable[[int], None]) -> tuple[Tensor, Tensor]:
    """Cosines and rows (N, k) of the nearest other vectors of each, most similar first; vectors have length 1."""
    values, rows = [], []
    for first in range(0, len(vectors), BLOCK):
        similarity = vectors[first : first + BLOCK] @ vectors.T
        similarity[torch.arange(len(similarity)), torch.arange(first, first + len(similarity))] = -2.0
        best, row = _top(similarity, min(k, len(vectors) - 1))
        values.append(best)
        rows.append(row)
        advance(len(similarity))
    return torch.cat(values), torch.cat(rows)


def pairs(vectors: Tensor, threshold: float, advance: Callable[[int], None]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """All pairs of rows, the lower one first, whose product is at least the threshold, in blocks."""
    for first in range(0, len(vectors), BLOCK):
        product = vectors[first : first + BLOCK] @ vectors[first:].T  # pairs before were seen from the other side
        one, two = (product >= threshold).nonzero(as_tuple=True)
        upper = two > one
        yield one[upper].numpy() + first, two[upper].numpy() + first
        advance(len(product))


def join(lowest: np.ndarray, one: np.ndarray, two: np.ndarray) -> None:
    """Merges the groups of each pair; `lowest` points every row to the first of its group."""
    while True:
        a, b = lowest[one], lowest[two]
        apart = a != b
        if not apart.any():
            return
        one, two, a, b = one[apart], two[apart], a[apart], b[apart]
        np.minimum.at(lowest, np.maximum(a, b), np.minimum(a, b))
        while not np.array_equal(shorter := lowest[lowest], lowest):
            lowest[:] = shorter


def groups(lowest: np.ndarray) -> list[list[int]]:
    """The groups of two or more rows, in the order of their first."""
    members: dict[int, list[int]] = {}
    for row, first in enumerate(lowest.tolist()):
        members.setdefault(first, []).append(row)
    return [group for group in members.values() if len(group) > 1]


def covering(vectors: Tensor, count: int, advance: Callable[[int], None]) -> tuple[np.ndarray, np.ndarray]:
    """Rows chosen one after the other, each farthest from those before (k-centre greedy), and the distance after each
    choice of the vector (N, D) of length 1 that is farthest from all chosen ones.

    The first is the one nearest to the mean. The distance that remains is at most twice the smallest possible.
    """
    row = int((vectors @ vectors.mean(0)).argmax())
    closest = torch.full((len(vectors),), -2.0)  # similarity to the nearest chosen one
    chosen, radii = list[int](), list[float]()
    while len(chosen) < count:
        chosen.append(row)
        closest = closest.maximum(vectors @ vectors[row])
        closest[row] = 2.0  # never again
        row = int(closest.argmin())  # the first of equals: the same answer every time
        radii.append(max(2 - 2 * float(closest[row]), 0.0) ** 0.5)
        advance(1)
    return np.array(chosen), np.array(radii)


def representing(vectors: Tensor, count: int, advance: Callable[[int], None]) -> tuple[np.ndarray, np.ndarray]:
    """Rows chosen one after the other so that every vector is as similar as possible to one of them (facility
    location, greedy), and the mean similarity after each choice.

    Gains are over all vectors, or over some spread among them when all pairs would need over a gigabyte.
    """
    some = np.linspace(0, len(vectors) - 1, min(len(vectors), PAIRS // len(vectors))).astype(int)
    similarity = vectors @ vectors[torch.from_numpy(some)].T  # (N, some)
    best = torch.full((similarity.shape[1],), -1.0)
    bound = torch.full((len(vectors),), torch.inf)  # gains only fall, so an old gain bounds the new one
    chosen, means = list[int](), list[float]()
    while len(chosen) < count:
        while True:
            rows = bound.topk(min(LAZY, len(bound))).indices.sort().values
            bound[rows] = (similarity[rows] - best).clamp_min_(0).sum(1)
            bound[chosen] = -1.0
            row = int(rows[bound[rows].argmax()])
            if float(bound[row]) >= float(bound.max()):
                break
        chosen.append(row)
        best = best.maximum(similarity[row])
        bound[row] = -1.0
        means.append(float(best.mean()))
        advance(1)
    return np.array(chosen), np.array(means)


def approximate_neighbours(vectors: Tensor, queries: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """As `nearest`, by faiss's graph index: for millions of vectors, of which it misses a few."""
    try:
        import faiss
    except ImportError:
        raise UsageError("--approximate needs faiss: pip install 'byol[faiss]'.") from None
    index = faiss.IndexHNSWFlat(vectors.shape[1], 32, faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efConstruction, index.hnsw.efSearch = 80, max(64, 2 * k)
    index.add(np.ascontiguousarray(vectors.numpy(), np.float32))
    similarity, rows = index.search(np.ascontiguousarray(queries.numpy(), np.float32), min(k, len(vectors)))
    return torch.from_numpy(similarity), torch.from_numpy(rows)
