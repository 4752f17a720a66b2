"""Logistic regression with an ℓ2 penalty at many penalties at once: the classifier of linear transfer (paper, App. D).

For a penalty λ: the sum over images of the cross-entropy + λ/2 · ‖W‖², the bias free (scikit-learn's C = 1/λ).
Targets are labels (one softmax) or signs (one binary problem a class).

The features are centred and rotated once into the eigenbasis of their Gram matrix. Neither changes the problem: the
free bias takes up the shift, and a rotation keeps ‖W‖. There the curvature is near diagonal whatever the penalty, so
L-BFGS needs few iterations; and the problems of a group share each matrix product with the features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

HISTORY = 10
FLAT = 1e-5  # no direction is taken to be flatter than this share of the curvature that the last step saw
TRIALS = 12  # lengths of a step
STRIDE = 8  # of the penalties solved first; the others start between two solved ones
COLUMNS = {"cpu": 256, "cuda": 2048}  # penalties × classes solved together
ELEMENTS = {"cpu": 2**17, "cuda": 2**24}  # logits at a time; on a CPU they stay in its cache
BLOCK = 2**22  # feature values at a time where they are read once
RANK = 1e-13  # directions with less than this share of the features' squares are their rounding errors
CERTAIN = 1e4  # stands for the infinite bias of a class that every image has, or none


class Fit(NamedTuple):
    """Weights (P, D + 1, C) with the bias in the last row, objectives (P,) float64, L-BFGS iterations (P,)."""

    weights: Tensor
    losses: Tensor
    iterations: Tensor


class Data(NamedTuple):
    """Features in their eigenbasis, and what is to be predicted from them."""

    rows: Tensor  # (N, R): the centred features rotated, and a column of ones for the bias
    spectrum: Tensor  # (R,) squared length of each column; the columns are orthogonal
    mean: Tensor  # (D,)
    basis: Tensor  # (D, R - 1)
    targets: Tensor  # labels (N,), or signs (C, N)


class State(NamedTuple):
    """Where L-BFGS is with B problems of K classes each; B is the first axis of every field."""

    place: Tensor  # (B,) which of the problems it began with
    classes: Tensor  # (B,) class of a binary problem
    penalties: Tensor  # (B, 1, R), zero for the bias
    points: Tensor  # (B, K, R)
    losses: Tensor  # (B,)
    gradients: Tensor  # (B, K, R)
    curvature: Tensor  # (B,) of the cross-entropy along the last step, as a share of the Gram matrix's


class Pair(NamedTuple):
    """What L-BFGS remembers of an iteration."""

    step: Tensor  # (B, K, R)
    change: Tensor  # (B, K, R) of the gradient
    inverse: Tensor  # (B,) 1 / (step · change), or 0 for a pair that says nothing


def fit(
    features: Tensor,
    targets: Tensor,
    classes: int,
    penalties: Sequence[float],
    *,
    start: Tensor | None = None,
    tolerance: float = 1e-5,
    max_iterations: int = 2000,
    progress: Callable[[int], None] | None = None,
) -> Fit:
    """Optimum for features (N, D) at each penalty; `progress` is told how many penalties are solved.

    Targets are labels (N,) or signs (N, classes): 1 present, −1 absent, 0 not counted. `start` is (D + 1, C) or
    (P, D + 1, C). A problem is solved when its objective can fall by no more than about the share `tolerance`.
    """
    assert min(penalties) > 0, "without a penalty there may be no optimum"
    trained, biases = _split_classes(targets.to(features.device), classes)
    data = _rotate(features, _select(targets.to(features.device), trained))
    distinct, places = np.unique(np.asarray(penalties, dtype=np.float64), return_inverse=True)
    strengths, at = (torch.from_numpy(a).to(features.device) for a in (distinct, places))
    points = torch.zeros(len(distinct), len(trained), len(data.spectrum), dtype=torch.float64, device=features.device)
    if start is not None:
        points[at] = _to_points(start.expand(len(at), -1, -1)[..., trained], data)
    losses = torch.zeros_like(strengths)
    iterations = torch.zeros_like(strengths, dtype=torch.long)
    solved: list[int] = []
    for group in _groups(len(distinct), len(trained), features.device):
        if start is None:
            points[group] = torch.stack([_between(i, solved, points, strengths) for i in group])
        found = _solve(data, points[group], strengths[group], tolerance, max_iterations)
        points[group], losses[group], iterations[group] = found
        solved += group
        if progress:
            progress(len(solved))
    weights = torch.zeros(len(distinct), features.shape[1] + 1, classes, device=features.device)
    weights[:, -1] = biases
    weights[..., trained] = _to_weights(points, data)
    return Fit(weights[at], losses[at], iterations[at])


def scores(weights: Tensor, features: Tensor) -> Tensor:
    """Logits (P, N, C) of features (N, D) under weights (P, D + 1, C), a block of rows at a time."""
    penalties, _, classes = weights.shape
    flat = weights.transpose(0, 1).flatten(1)  # (D + 1, P · C)
    found = flat.new_empty(penalties, len(features), classes)
    for rows in _blocks(len(features), max(flat.shape), BLOCK):
        logits = torch.addmm(flat[-1], features[rows].to(flat), flat[:-1])
        found[:, rows] = logits.unflatten(1, (penalties, classes)).transpose(0, 1)
    return found


def _blocks(count: int, width: int, elements: int) -> Iterator[slice]:
    """Ranges of rows with at most so many elements of this width."""
    size = max(1, elements // max(1, width))
    return (slice(first, min(first + size, count)) for first in range(0, count, size))


def _split_classes(targets: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Indices of the classes with something to learn, and the bias (classes,) at which any other one is optimal."""
    if targets.ndim == 1:
        present = torch.bincount(targets.long(), minlength=classes) > 0
        return present.nonzero()[:, 0], -CERTAIN * (~present).float()
    present, absent = (targets > 0).any(0), (targets < 0).any(0)
    return (present & absent).nonzero()[:, 0], CERTAIN * (present.float() - absent.float())


def _select(targets: Tensor, trained: Tensor) -> Tensor:
    """Labels (N,) counted among the trained classes, or the signs (trained, N)."""
    if targets.ndim == 1:
        return torch.searchsorted(trained, targets.long())
    return targets.T[trained].contiguous()


def _rotate(features: Tensor, targets: Tensor) -> Data:
    """Float64 for the statistics, float32 for the one copy of the features that is made."""
    count, width = features.shape
    mean = torch.zeros(width, dtype=torch.float64, device=features.device)
    gram = torch.zeros(width, width, dtype=torch.float64, device=features.device)
    for block in _blocks(count, width, BLOCK):
        mean += features[block].double().sum(0) / count
    for block in _blocks(count, width, BLOCK):
        centred = features[block].double() - mean
        gram.addmm_(centred.T, centred)
    spectrum, basis = torch.linalg.eigh(gram)
    kept = spectrum > RANK * (spectrum[-1] + count * mean.square().sum())
    spectrum, basis = spectrum[kept], basis[:, kept]
    rows = torch.ones(count, len(spectrum) + 1, device=features.device)
    for block in _blocks(count, width, BLOCK):
        rows[block, :-1] = ((features[block].double() - mean) @ basis).float()
    return Data(rows, F.pad(spectrum, (0, 1), value=count), mean, basis, targets)


def _to_points(weights: Tensor, data: Data) -> Tensor:
    """Weights (P, D + 1, C) of the raw features as points (P, C, R) for the rotated ones."""
    weights = torch.where(weights.abs() < CERTAIN, weights, 0).double()
    if data.targets.ndim == 1:  # what all classes share cannot matter to a softmax, but would cost its penalty
        weights = weights - weights.mean(2, keepdim=True)
    slopes, bias = weights[:, :-1].mT, weights[:, -1]  # (P, C, D), (P, C)
    return torch.cat([slopes @ data.basis, (bias + slopes @ data.mean)[..., None]], 2)


def _to_weights(points: Tensor, data: Data) -> Tensor:
    """The inverse of `_to_points`, in float32; one penalty at a time, to hold float64 weights of one only."""
    weights = torch.empty(len(points), len(data.mean) + 1, points.shape[1], device=points.device)
    for found, point in zip(weights, points, strict=True):
        slopes = data.basis @ point[:, :-1].T
        found[:-1], found[-1] = slopes, point[:, -1] - data.mean @ slopes
    return weights


def _groups(count: int, classes: int, device: torch.device) -> Iterator[list[int]]:
    """Positions of the penalties to solve together: every STRIDE-th, then those halfway between, and so on."""
    size = max(1, COLUMNS.get(device.type, COLUMNS["cuda"]) // max(1, classes))
    rounds, stride = [range(0, count, STRIDE)], STRIDE // 2
    while stride:
        rounds.append(range(stride, count, 2 * stride))
        stride //= 2
    for places in rounds:
        order = [count - 1 - i for i in places]  # strong ones first: they are easy, and a start for the next group
        yield from (order[i : i + size] for i in range(0, len(order), size))


def _between(place: int, solved: list[int], points: Tensor, strengths: Tensor) -> Tensor:
    """Start (C, R): the solved neighbours' points, interpolated over the logarithm of the penalty."""
    weaker = max((i for i in solved if i < place), default=None)
    stronger = min((i for i in solved if i > place), default=None)
    if weaker is None or stronger is None:
        nearest = stronger if weaker is None else weaker
        return torch.zeros_like(points[place]) if nearest is None else points[nearest]
    low, here, high = strengths[[weaker, place, stronger]].log().tolist()
    return torch.lerp(points[weaker], points[stronger], (here - low) / (high - low))


def _solve(
    data: Data, points: Tensor, strengths: Tensor, tolerance: float, max_iterations: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Points (P, C, R), losses (P,) and iterations (P,) of penalties (P,) from points (P, C, R)."""
    penalties, classes, width = points.shape
    apart = data.targets.ndim == 2
    each, outputs = (classes, 1) if apart else (1, classes)  # problems a penalty, classes a problem
    begin = points.reshape(penalties * each, outputs, width)
    place = torch.arange(len(begin), device=points.device)
    owners = place % max(1, each)
    free = torch.ones_like(data.spectrum)
    free[-1] = 0
    ridge = strengths.repeat_interleave(each)[:, None, None] * free
    losses, gradients = _evaluate(data, begin, ridge, owners)
    # Böhning's bound: softmax curvature is at most 1/2, a binary one 1/4; so the first step cannot overshoot.
    curvature = torch.full_like(losses, 0.25 if apart else 0.5)
    state = State(place, owners, ridge, begin, losses, gradients, curvature)
    found, losses, iterations = _minimize(data, state, tolerance, max_iterations)
    most = F.pad(iterations.view(penalties, each), (0, 1)).amax(1)  # padded, as there may be no class at all
    return found.view_as(points), losses.view(penalties, each).sum(1), most


def _minimize(data: Data, state: State, tolerance: float, max_iterations: int) -> tuple[Tensor, Tensor, Tensor]:
    """L-BFGS on all problems side by side; the solved ones leave."""
    points, losses, iterations = state.points.clone(), state.losses.clone(), torch.zeros_like(state.place)
    history: list[Pair] = []
    for _ in range(max_iterations):
        if not len(state.place):
            break
        iterations[state.place] += 1
        before, (state, moved) = state, _advance(data, state, _direction(data, state, history))
        history = [*history[1 - HISTORY :], _pair(before, state)]
        state = state._replace(curvature=_curvature(data, state, history[-1]))
        going = moved & (_gap(data, state) > tolerance * state.losses)
        if not going.all():
            points[state.place], losses[state.place] = state.points, state.losses
            state = State(*(field[going] for field in state))
            history = [Pair(*(field[going] for field in pair)) for pair in history]
    points[state.place], losses[state.place] = state.points, state.losses
    return points, losses, iterations


def _gap(data: Data, state: State) -> Tensor:
    """How much the losses (B,) can still fall, if the curvature is nowhere below the FLAT share of the usual.

    The decrease of the last steps would not tell: along a feature that is rarely above zero the loss is almost flat,
    and L-BFGS crosses a plateau on the way. With FLAT = 0 it is the duality gap, a strict bound but a distant one.
    """
    least = FLAT * _column(state.curvature) * data.spectrum + state.penalties
    return _dot(state.gradients, state.gradients / least) / 2


def _direction(data: Data, state: State, history: list[Pair]) -> Tensor:
    """Two-loop recursion (B, K, R) around the inverse of curvature · Gram matrix + penalty."""
    towards = state.gradients.neg()
    shares = []
    for pair in reversed(history):
        shares.append(pair.inverse * _dot(pair.step, towards))
        towards.addcmul_(pair.change, _column(shares[-1]), value=-1)
    towards /= _column(state.curvature) * data.spectrum + state.penalties
    for pair, share in zip(history, reversed(shares), strict=True):
        towards.addcmul_(pair.step, _column(share - pair.inverse * _dot(pair.change, towards)))
    return towards


def _advance(data: Data, state: State, directions: Tensor) -> tuple[State, Tensor]:
    """Backtracks from a full step until the loss falls enough (Armijo), with the problems that still search.

    Also says which (B,) have moved; where none of the steps helps, rounding errors hide any further descent.
    """
    slopes = _dot(state.gradients, directions)
    lengths = torch.ones_like(slopes)
    points, losses, gradients = state.points.clone(), state.losses.clone(), state.gradients.clone()
    searching = torch.arange(len(slopes), device=slopes.device)
    for _ in range(TRIALS):
        length, slope, loss = lengths[searching], slopes[searching], state.losses[searching]
        trial = torch.addcmul(state.points[searching], directions[searching], _column(length))
        reached, steepness = _evaluate(data, trial, state.penalties[searching], state.classes[searching])
        fell = reached <= loss + 1e-4 * length * slope
        there = searching[fell]
        points[there], losses[there], gradients[there] = trial[fell], reached[fell], steepness[fell]
        # The lowest point of the parabola through both losses and the slope.
        lowest = -slope * length / (2 * (reached - loss - length * slope))
        lengths[searching] = length * lowest.nan_to_num(0.1).clamp(0.1, 0.5)
        searching = searching[~fell]
        if not len(searching):
            break
    moved = torch.ones_like(slopes, dtype=torch.bool)
    moved[searching] = False
    return state._replace(points=points, losses=losses, gradients=gradients), moved


def _pair(before: State, after: State) -> Pair:
    """What a step teaches; nothing where it was so short that rounding errors rule."""
    step, change = after.points - before.points, after.gradients - before.gradients
    product = _dot(step, change)
    noise = torch.finfo(step.dtype).eps * (_dot(step, step) * _dot(change, change)).sqrt()
    return Pair(step, change, torch.where(product > noise, 1 / product, 0))


def _curvature(data: Data, state: State, pair: Pair) -> Tensor:
    """What the last step saw of the cross-entropy's curvature, as a share of the Gram matrix's; else what was known.

    Of the two usual estimates the greater one: the other is a mean along the step, and oversteps elsewhere.
    """
    change = pair.change - state.penalties * pair.step
    share = _dot(change, change / data.spectrum) / _dot(pair.step, change)
    return torch.where((pair.inverse > 0) & (share > 0), share, state.curvature)


def _evaluate(data: Data, points: Tensor, penalties: Tensor, classes: Tensor) -> tuple[Tensor, Tensor]:
    """Losses (B,) and gradients (B, K, R), a block of rows at a time."""
    problems, outputs, width = points.shape
    flat = points.reshape(-1, width)
    gradients = penalties * points
    losses = _dot(points, gradients) / 2
    elements = ELEMENTS.get(points.device.type, ELEMENTS["cuda"])
    for block in _blocks(len(data.rows), len(flat), elements):
        rows = data.rows[block].double()
        logits = (flat @ rows.T).view(problems, outputs, len(rows))
        if data.targets.ndim == 1:
            entropy, residual = _softmax(logits, data.targets[block])
        else:
            entropy, residual = _binary(logits, data.targets[:, block][classes][:, None])
        losses += entropy
        gradients.view_as(flat).addmm_(residual.view(len(flat), len(rows)), rows)
    return losses, gradients


def _softmax(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Cross-entropies (B,) of logits (B, K, n), and their gradients (B, K, n)."""
    at = labels.expand(len(logits), 1, -1)
    logs = logits.log_softmax(1)
    entropy = -logs.gather(1, at).sum((1, 2))
    residual = logs.exp_()
    return entropy, residual.scatter_add_(1, at, residual.new_tensor(-1.0).expand(at.shape))


def _binary(logits: Tensor, signs: Tensor) -> tuple[Tensor, Tensor]:
    """The same for binary problems with signs (B, 1, n); a sign of 0 adds nothing."""
    margins = -signs * logits
    entropy = (F.softplus(margins) * signs.abs()).sum((1, 2))
    return entropy, -signs * torch.sigmoid(margins)


def _dot(a: Tensor, b: Tensor) -> Tensor:
    """Inner products (B,) of (B, K, R)."""
    return torch.einsum("bkr,bkr->b", a, b)


def _column(values: Tensor) -> Tensor:
    """Numbers (B,) in the shape that scales (B, K, R)."""
    return values[:, None, None]
