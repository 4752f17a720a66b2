"""Representations on a plane: t-SNE with its repulsion found on a grid, and clusters, for thousands of images."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize

from byol.neighbours import Nearest, nearest
from byol.run.progress import bar

NEAREST = 15  # equal affinities to so many: maps as those of perplexity 30, for a sixth of the work
EXAGGERATION, EARLY, LATE = 12.0, 250, 500  # van der Maaten and Hinton's, in steps
SPACING, FEWEST_NODES, MOST_NODES = 0.4, 32, 508  # of the grid; the kernels are 1 wide
LENGTHS = (96, 128, 192, 256, 320, 384, 512, 640, 768, 1024)  # that a Fourier transform is quick at
FEW = 300
REACH = 100.0  # a map of 5,000 images fills ±40; beyond this the grid would be too coarse for its kernels
CLUSTERS, STARTS = 12, 8


class Edges(NamedTuple):
    """Each row with each of its neighbours, and the other way round: pairs of affinity 1 / count."""

    start: Tensor
    end: Tensor


def neighbours(features: Tensor, count: int) -> Nearest:
    """The rows most similar to each row; no row is its own neighbour."""
    return nearest(features, features, count, torch.arange(len(features)))


def layout(features: Tensor) -> Tensor:
    """Coordinates (N, 2) of representations (N, D): a pure function of them."""
    start = principal(features)
    if len(features) < 8:
        return start
    edges = pairs(neighbours(features, min(NEAREST, len(features) // 3)))
    place = start / start.std(0)[0].clamp_min(1e-12) * 1e-4
    rate = max(len(place) / EXAGGERATION / 4, 10.0)
    speed, gains = torch.zeros_like(place), torch.ones_like(place)
    with bar("Drawing the map", EARLY + LATE, "steps") as shown:
        for step in range(EARLY + LATE):
            early = step < EARLY
            slope = gradient(place, edges, EXAGGERATION if early else 1.0)
            gains = torch.where(slope * speed < 0, gains + 0.2, gains * 0.8).clamp_min(0.01)
            speed = (0.5 if early else 0.8) * speed - rate * gains * slope
            place = (place + speed).clamp(-REACH, REACH)
            shown.advance()
    return place - place.mean(0)


def principal(features: Tensor) -> Tensor:
    """The two directions of largest variance (N, 2), by power iteration from a fixed start."""
    centred = normalize(features.double(), dim=1)
    centred = centred - centred.mean(0)
    generator = torch.Generator().manual_seed(0)
    basis = torch.randn(centred.shape[1], 6, dtype=torch.float64, generator=generator)
    for _ in range(20):
        basis = torch.linalg.qr(centred.T @ (centred @ basis)).Q
    directions = torch.linalg.eigh((centred @ basis).T @ (centred @ basis)).eigenvectors.flip(1)[:, :2]
    found = (centred @ (basis @ directions)).float()
    return torch.nn.functional.pad(found, (0, 2 - found.shape[1]))


def pairs(near: Nearest) -> Edges:
    count, width = near.rows.shape
    rows, columns = torch.arange(count).repeat_interleave(width), near.rows.reshape(-1)
    return Edges(torch.cat([rows, columns]), torch.cat([columns, rows]))


def gradient(place: Tensor, edges: Edges, exaggeration: float = 1.0) -> Tensor:
    """Of the divergence between affinities and the map (N, 2); repulsion to about a hundredth, attraction exact."""
    apart = [column.index_select(0, edges.start) - column.index_select(0, edges.end) for column in place.unbind(1)]
    weight = exaggeration / len(edges.start) / (1 + apart[0].square() + apart[1].square())
    pull = [torch.zeros_like(place[:, 0]).scatter_add_(0, edges.start, weight * part) for part in apart]
    return 4 * (torch.stack(pull, 1) - repulsion(place))


def repulsion(place: Tensor) -> Tensor:
    """Σ_j k²(y_i - y_j) / Σ k with k = 1 / (1 + distance²): charges on a grid, a convolution, and read back."""
    if len(place) <= FEW:
        return _summed(place)
    low = place.amin(0)
    span = float((place.amax(0) - low).max()) or 1.0
    nodes = int(min(max(span / SPACING, FEWEST_NODES), MOST_NODES))
    spacing = span / nodes
    length = next(n for n in LENGTHS if n >= 2 * (nodes + 4))
    index, weight = _stencil((place - low) / spacing, length)
    charges = torch.stack([torch.ones_like(place[:, 0]), place[:, 0] - low[0], place[:, 1] - low[1]])
    grid = place.new_zeros(3, length * length)
    grid.index_add_(1, index.reshape(-1), (charges[:, :, None] * weight).reshape(3, -1))
    waves = torch.fft.rfft2(grid.view(3, length, length))
    kernel = 1 / (1 + _squares(length, spacing, place))
    first, second = torch.fft.rfft2(kernel), torch.fft.rfft2(kernel.square())
    fields = torch.fft.irfft2(torch.cat([waves[:1] * first, waves * second]), s=(length, length))
    near = (fields.view(4, -1).index_select(1, index.reshape(-1)).view(4, *index.shape) * weight).sum(2)  # (4, N)
    total = near[0].sum() - len(place)  # without every point's own 1
    push: Tensor = (charges[1:] * near[1] - near[2:]).T / total.clamp_min(1e-12)
    return push


def _summed(place: Tensor) -> Tensor:
    """The same, pair by pair: quicker for a few points."""
    apart = place[:, None] - place  # (N, N, 2)
    kernel = (1 / (1 + apart.square().sum(2))).fill_diagonal_(0)
    return (kernel.square()[..., None] * apart).sum(1) / kernel.sum()


def _stencil(position: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """The 16 grid nodes around each point, and their weights by cubic interpolation, (N, 16) each."""
    whole = position.floor()
    t = position - whole  # (N, 2) in [0, 1)
    ends = [-t * (t - 1) * (t - 2) / 6, (t + 1) * (t - 1) * (t - 2) / 2, -(t + 1) * t * (t - 2) / 2]
    weights = torch.stack([*ends, (t + 1) * t * (t - 1) / 6], 2)  # (N, 2, 4), nodes -1 to 2
    nodes = whole.long()[:, :, None] + torch.arange(4)  # the grid begins one node before the first point
    index = nodes[:, 0, :, None] * length + nodes[:, 1, None, :]
    return index.reshape(-1, 16), (weights[:, 0, :, None] * weights[:, 1, None, :]).reshape(-1, 16)


def _squares(length: int, spacing: float, like: Tensor) -> Tensor:
    """Squared distances from node 0, (length, length), wrapped around."""
    steps = torch.arange(length, dtype=like.dtype)
    wrapped = (torch.minimum(steps, length - steps) * spacing).square()
    return wrapped[:, None] + wrapped


def clusters(features: Tensor, count: int | None = None) -> Tensor:
    """k-means on the sphere, the best of several starts: a number for each row, the largest cluster first."""
    unit = normalize(features.float(), dim=1)
    count = count or max(1, min(CLUSTERS, len(unit) // 20))
    generator = torch.Generator().manual_seed(0)
    centres = max((_settled(unit, count, generator) for _ in range(STARTS)), key=lambda c: _closeness(unit, c))
    member = (unit @ centres.T).argmax(1)
    rank = torch.bincount(member, minlength=count).argsort(descending=True, stable=True).argsort()
    return rank[member]


def _settled(unit: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Centres (count, D), begun by k-means++: far rows are likelier."""
    centres = unit[torch.randint(len(unit), (1,), generator=generator)]
    for _ in range(count - 1):
        far = (2 - 2 * (unit @ centres.T).amax(1)).clamp_min(1e-9)
        centres = torch.cat([centres, unit[torch.multinomial(far, 1, generator=generator)]])
    for _ in range(30):
        member = (unit @ centres.T).argmax(1)
        sums = torch.zeros_like(centres).index_add_(0, member, unit)
        centres = torch.where(sums.norm(dim=1, keepdim=True) > 0, normalize(sums, dim=1), centres)
    return centres


def _closeness(unit: Tensor, centres: Tensor) -> float:
    return float((unit @ centres.T).amax(1).sum())
