"""How good a representation is without labels: published measures, each a pure function of frozen features, float64.

Features come from reference views that are the same for every policy (`looks`): under a policy's own views weaker ones
would look better. MEASURES at the end says which are compared and where they come from.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from byol import neighbours

RIDGE = 1e-2  # of the mean square of the features, in the linear probes
FEW_RIDGE = 1.0  # likewise where there are about as many images as features
TEMPERATURE = 0.07  # of the neighbours' votes
SMALL = 1e-4  # of the mean variance within images, in LiDAR


class Features(NamedTuple):
    """What an encoder gives for N fixed images."""

    plain: Tensor  # (N, D), of the images themselves
    crops: Tensor  # (N, Q, D), of Q reference views of each
    turned: Tensor  # (N, 4, D), of the images turned by 0, 90, 180 and 270 degrees


class Measure(NamedTuple):
    """Larger is better; `about` says what it is, and whose."""

    of: Callable[[Features], float]
    about: str


def rankme(vectors: Tensor) -> float:
    """Effective rank: exp of the entropy of the singular values of (N, D) (RankMe, Garrido et al. 2023)."""
    values = torch.linalg.svdvals(vectors.double())
    share = values / values.sum().clamp(min=1e-300) + 1e-7
    return float(torch.exp(-(share * share.log()).sum()))


def lidar(views: Tensor) -> float:
    """Effective rank of the between-image covariance, whitened by the one within images, of (N, Q, D) (LiDAR, Thilak et
    al. 2024)."""
    views = views.double()
    means = views.mean(1)
    between = torch.cov(means.T, correction=0).reshape(views.shape[2], -1)
    inner = (views - means[:, None]).flatten(0, 1)
    within = inner.T @ inner / len(inner)
    within += SMALL * within.diagonal().mean().clamp(min=1e-12) * torch.eye(len(within), dtype=torch.float64)
    values, vectors = torch.linalg.eigh(within)
    root = vectors @ torch.diag(values.clamp(min=1e-300).rsqrt()) @ vectors.T
    found = torch.linalg.eigvalsh(root @ between @ root).clamp(min=0)
    share = found / found.sum().clamp(min=1e-300) + 1e-7
    return float(torch.exp(-(share * share.log()).sum()))


def slope(vectors: Tensor) -> float:
    """α of the covariance's eigenvalues, which fall as i^-α, by least squares on logarithms (α-ReQ, Agrawal et al.
    2022)."""
    centred = vectors.double() - vectors.double().mean(0)
    values = torch.linalg.svdvals(centred).square()
    values = values[values > 1e-10 * values[0].clamp(min=1e-300)]
    if len(values) < 3:
        return float("inf")  # all that differs is in a direction or two
    x = torch.arange(1, len(values) + 1, dtype=torch.float64).log()
    y = values.log()
    x, y = x - x.mean(), y - y.mean()
    return float(-(x @ y) / (x @ x))


def near_one(vectors: Tensor) -> float:
    """α-ReQ's choice is the slope nearest to 1: the negative distance to it."""
    return -min(abs(slope(vectors) - 1), 10.0)


def twins(views: Tensor) -> float:
    """How often a reference view is nearest to the other one of its image among (N, 2, D), centred cosines."""
    first, second = views[:, 0].double(), views[:, 1].double()
    mean = torch.cat([first, second]).mean(0)
    first, second = F.normalize(first - mean, dim=1), F.normalize(second - mean, dim=1)
    return float(((first @ second.T).argmax(1) == torch.arange(len(first))).double().mean())


def rotation(turned: Tensor) -> float:
    """Share of images of the second half whose turn, one of four, a linear probe of the first half tells (SelfAugment,
    Reed et al. 2021)."""
    half = len(turned) // 2
    targets = torch.arange(4).repeat(len(turned))
    train, test = turned[:half].flatten(0, 1), turned[half:].flatten(0, 1)
    found = probe(train, targets[: 4 * half], test, 4)
    return float((found == targets[4 * half :]).double().mean())


def belongs(views: Tensor) -> float:
    """Share of images of the second half for which a linear probe of the first half tells a view of the same image from
    one of another, (N, 2, D): the probe sees the products of both views' features."""
    first, second = views[:, 0].double(), views[:, 1].double()
    mean, deviation = first.mean(0), first.std(0).clamp(min=1e-9)
    first, second = (first - mean) / deviation, (second - mean) / deviation
    own, other = first * second, first * second.roll(1, 0)
    half = len(own) // 2
    train = torch.cat([own[:half], other[:half]])
    weights = _ridge(train, torch.cat([torch.ones(half), -torch.ones(half)]).double()[:, None])
    difference = torch.cat([own[half:] - other[half:], torch.zeros(len(own) - half, 1)], 1) @ weights
    return float((difference[:, 0] > 0).double().mean())


def probe(train: Tensor, targets: Tensor, test: Tensor, classes: int, ridge: float = RIDGE) -> Tensor:
    """The classes (M,) that a linear probe of (N, D) gives to (M, D): ridge regression of one column a class."""
    train, test = train.double(), test.double()
    mean, deviation = train.mean(0), train.std(0).clamp(min=1e-9)
    weights = _ridge((train - mean) / deviation, F.one_hot(targets, classes).double(), ridge)
    scores = F.pad((test - mean) / deviation, (0, 1), value=1.0) @ weights
    return scores.argmax(1)


def few_labels(plain: Tensor, targets: Tensor) -> float:
    """How well a few labelled images (N, D) tell each other's classes: the mean of a linear probe's share and of
    that of nearest neighbours. By both together the choice lost less in the calibration than by either."""
    return (in_folds(plain, targets) + by_neighbours(plain, targets)) / 2


def in_folds(plain: Tensor, targets: Tensor, folds: int = 5, deals: int = 4) -> float:
    """Share that a linear probe of the others tells, in folds to which the images of each class are dealt out, the mean
    of some deals."""
    classes, right = int(targets.max()) + 1, 0
    for deal in range(deals):
        random = torch.Generator().manual_seed(deal)
        own = [(targets == label).nonzero()[:, 0] for label in range(classes)]
        order = torch.cat([rows[torch.randperm(len(rows), generator=random)] for rows in own])
        fold = torch.empty(len(targets), dtype=torch.long)
        fold[order] = torch.arange(len(targets)) % folds
        for number in range(folds):
            known, asked = fold != number, fold == number
            found = probe(plain[known], targets[known], plain[asked], classes, FEW_RIDGE)
            right += int((found == targets[asked]).sum())
    return right / max(deals * len(targets), 1)


def by_neighbours(plain: Tensor, targets: Tensor, k: int = 10) -> float:
    """Share whose class the k nearest others have, by centred cosines, the nearer ones with more weight."""
    centred = plain.float() - plain.float().mean(0)
    near = neighbours.nearest(centred, centred, k, torch.arange(len(plain)))
    votes = torch.zeros(len(plain), int(targets.max()) + 1)
    votes.scatter_add_(1, targets[near.rows], (near.cosines / TEMPERATURE).exp())
    return float((votes.argmax(1) == targets).double().mean())


def _ridge(inputs: Tensor, outputs: Tensor, ridge: float = RIDGE) -> Tensor:
    """Weights (D + 1, K), the last row an offset, of a regression of (N, K) on (N, D)."""
    inputs = F.pad(inputs, (0, 1), value=1.0)
    gram = inputs.T @ inputs
    penalty = ridge * gram.diagonal().mean() * torch.eye(len(gram), dtype=torch.float64)
    penalty[-1, -1] = 0
    penalty += 1e-12 * torch.eye(len(gram), dtype=torch.float64)
    weights: Tensor = torch.linalg.solve(gram + penalty, inputs.T @ outputs)
    return weights


MEASURES: dict[str, Measure] = {
    "rankme": Measure(lambda f: rankme(f.plain), "effective rank of the representations (RankMe, 2023)"),
    "lidar": Measure(lambda f: lidar(f.crops), "effective rank between images over within (LiDAR, 2024)"),
    "alpha": Measure(lambda f: near_one(f.plain), "the spectrum's slope, as near to 1 as can be (α-ReQ, 2022)"),
    "twins": Measure(lambda f: twins(f.crops[:, :2]), "a reference view finds the other one of its image"),
    "rotation": Measure(lambda f: rotation(f.turned), "a linear probe tells four turns apart (SelfAugment, 2021)"),
    "belongs": Measure(lambda f: belongs(f.crops[:, 2:4]), "a linear probe tells which crop belongs to which"),
}
