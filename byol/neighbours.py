"""Exact search among many vectors by blocked matrix products: who is nearest, who is nearly the same, whom to choose.

Tens of thousands of vectors take seconds; neither all similarities nor all normalized vectors are held at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from byol.errors import UsageError

BANK = 2**25  # numbers of the bank that are compared at a time
ASKED = 1024  # queries at a time
COSINES = 2**26  # of a block, at most
GROUP = 8  # cosines of which the highest is found first
PAIRS = 2**28  # similarities that `representing` holds at once
VOTERS = 65_536  # queries that vote at a time: their neighbours need not fit in memory
LAZY = 256  # gains looked at again at a time


class Nearest(NamedTuple):
    """Of each query the most similar rows of the bank, the most similar first, both (Q, k)."""

    cosines: Tensor
    rows: Tensor


class Pairs(NamedTuple):
    """Pairs of rows (P,), in the order of the lower row, and their cosines."""

    lower: np.ndarray
    higher: np.ndarray
    cosines: np.ndarray


class Block(NamedTuple):
    """Cosines (queries, rows) of consecutive queries and consecutive rows of the bank, and where both begin."""

    query: int
    row: int
    cosines: Tensor


def silent(count: int) -> None:
    """For searches whose progress nobody watches."""


def nearest(
    bank: Tensor, queries: Tensor, k: int, own: Tensor | None = None, advance: Callable[[int], None] = silent
) -> Nearest:
    """The k rows of the bank (N, D) with the highest cosine to each query (Q, D), or all rows if there are fewer.

    `own` (Q,) names for each query the row that is the query itself, which is left out of its answer.
    """
    k = min(k, len(bank) - (own is not None))
    best = [Nearest(torch.empty(0, 0), torch.empty(0, 0, dtype=torch.int64))] * math.ceil(len(queries) / ASKED)
    for query, row, cosines in _blocks(bank, queries, k, advance):
        if own is not None:
            places = own[query : query + len(cosines)] - row
            here = (places >= 0) & (places < cosines.shape[1])
            cosines[here.nonzero()[:, 0], places[here]] = -2.0
        values, columns = _top(cosines, k)
        best[query // ASKED] = _merged(best[query // ASKED], Nearest(values, columns + row), k)
    return Nearest(torch.cat([each.cosines for each in best]), torch.cat([each.rows for each in best]))


def pairs(vectors: Tensor, threshold: float, advance: Callable[[int], None]) -> Iterator[Pairs]:
    """All pairs of rows, the lower row first, whose cosine is at least the threshold, in blocks.

    A row has met every lower row before it meets a higher one.
    """
    for query, row, cosines in _blocks(vectors, vectors, 1, advance, upper=True):
        lower, higher = (cosines >= threshold).nonzero(as_tuple=True)
        once = higher + row > lower + query
        lower, higher = lower[once], higher[once]
        yield Pairs((lower + query).numpy(), (higher + row).numpy(), cosines[lower, higher].numpy())


def keep_first(kept: np.ndarray, lower: np.ndarray, higher: np.ndarray) -> None:
    """Points rows to the first kept row that they are paired with; `kept` points every row to itself at first.

    Pairs are in the order of the lower row. Unlike `join` this makes no chains: a row that points to another one keeps
    nobody, so that every row of a group is paired with the row that the group keeps.
    """
    bounds = np.flatnonzero(np.diff(lower, prepend=-1, append=-1))
    for begin, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        row = lower[begin]
        if kept[row] == row:
            others = higher[begin:end]
            kept[others[kept[others] == others]] = row


def _blocks(
    bank: Tensor, queries: Tensor, k: int, advance: Callable[[int], None], upper: bool = False
) -> Iterator[Block]:
    """Every query against every row of the bank, in parts of at least k rows; `upper` when the queries are the bank:
    then rows before the first query of a block, which have met it from their own side, are left out."""
    rows = min(len(bank), max(k, min(BANK // max(1, bank.shape[1]), COSINES // ASKED)))
    room = torch.empty(min(ASKED, len(queries)) * rows)  # used again and again: new pages cost as much as the search
    for first in range(0, len(bank), rows or 1):
        part = F.normalize(bank[first : first + rows].float(), dim=1)
        for query in range(0, len(queries), ASKED):
            block = F.normalize(queries[query : query + ASKED].float(), dim=1)
            start = max(first, query) if upper else first
            if start < first + len(part):
                shape = len(block), first + len(part) - start
                out = room[: math.prod(shape)].view(shape)
                yield Block(query, start, torch.mm(block, part[start - first :].T, out=out))
            if first + rows >= len(bank):
                advance(len(block))


def votes(
    bank: Tensor, labels: Tensor, queries: Tensor, *, classes: int, k: int = 20, temperature: float = 0.07
) -> Tensor:
    """Scores (Q, classes) of each query (Q, D): the k most similar of bank (N, D) vote with exp(cos / temperature)."""
    scores = []
    for chunk in queries.split(VOTERS):
        cosines, rows = nearest(bank, chunk, k)
        # 1 is the highest cosine: subtracting it changes no order and keeps small temperatures finite
        weights = ((cosines - 1) / temperature).exp()
        scores.append(torch.zeros(len(chunk), classes).scatter_add_(1, labels[rows], weights))
    return torch.cat(scores)


def _top(cosines: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Values and columns (Q, k) of the highest in each row, or all of them.

    They are among the k groups with the highest maxima; a maximum costs little, a selection among all a lot.
    """
    queries, columns = cosines.shape
    groups = columns // GROUP
    if groups <= k:
        values, order = cosines.topk(min(k, columns), dim=1)
        return values, order
    grouped = cosines[:, : groups * GROUP].unflatten(1, (GROUP, groups))
    best = grouped.amax(1).topk(k, dim=1, sorted=False).indices
    among = (best[:, None] + groups * torch.arange(GROUP)[:, None]).flatten(1)
    rest = torch.arange(groups * GROUP, columns).expand(queries, -1)
    among = torch.cat([among, rest], 1)
    values, order = cosines.gather(1, among).topk(k, dim=1)
    return values, among.gather(1, order)


def _merged(before: Nearest, here: Nearest, k: int) -> Nearest:
    """The best k of two parts of the bank."""
    if not before.cosines.shape[1]:
        return here
    values, rows = (torch.cat(both, 1) for both in zip(before, here, strict=True))
    values, order = values.topk(min(k, values.shape[1]), dim=1)
    return Nearest(values, rows.gather(1, order))


def join(lowest: np.ndarray, one: np.ndarray, two: np.ndarray) -> None:
    """Merges the groups of the two rows of each pair; `lowest` points every row to the first row of its group."""
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


def approximate(bank: Tensor, queries: Tensor, k: int) -> Nearest:
    """As `nearest`, for vectors of length 1, by faiss's graph index, which misses a few neighbours: for millions."""
    try:
        import faiss
    except ImportError:
        raise UsageError("--approximate needs faiss: pip install 'byol[faiss]'.") from None
    index = faiss.IndexHNSWFlat(bank.shape[1], 32, faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efConstruction, index.hnsw.efSearch = 80, max(64, 2 * k)
    index.add(np.ascontiguousarray(bank.numpy(), np.float32))
    similarity, rows = index.search(np.ascontiguousarray(queries.numpy(), np.float32), min(k, len(bank)))
    return Nearest(torch.from_numpy(similarity), torch.from_numpy(rows))
