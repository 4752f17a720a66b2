"""The monitor of a run: measures without labels at every look, nearest neighbours for people to watch, and accuracy
where there are labels. `byol.run.verdict` says what the looks mean."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from byol import views
from byol.config import Config, Plan
from byol.crops import Scale, center_crop, scale_of
from byol.data.loader import Images
from byol.errors import BadData, DiskError
from byol.method import Method
from byol.run import files
from byol.run.machine import Machine, represent

LOOKS = 20  # in a run, besides the one before it
SHARE = 0.03  # of the training time, at most, goes into measuring
FEWEST = 256.0  # images to look at: fewer tell a third from a quarter by chance

NEIGHBOURS = "neighbours.json"
QUERIES, NEAREST_SHOWN = 12, 8
FEWEST_SHOWN, MOST_SHOWN = 200, 500  # images among which neighbours are searched; 500 at 224 px fill 75 MB
NEIGHBOURS_SHARE = 0.01  # of the training time, at most, goes into neighbours, unless the run is very short


def spread(projections: Tensor) -> float:
    """Deviation of the normalized projections over images, times √d: 1 when they fill the sphere, 0 when all agree."""
    normalized = torch.nn.functional.normalize(projections.double(), dim=1)
    return float(normalized.std(0, correction=0).square().sum().sqrt())


def effective_rank(vectors: Tensor) -> float:
    """exp of the entropy of the singular values: how many directions the vectors (N, D) really use."""
    values = torch.linalg.svdvals(vectors.double())
    share = values / values.sum().clamp(min=1e-300)
    return float(torch.exp(-(share * (share + 1e-300).log()).sum()))


def length(vectors: Tensor) -> float:
    """Mean ℓ2 norm of the vectors (N, D), as in the figure of the paper's appendix F.6."""
    return float(vectors.double().norm(dim=1).mean())


def directions(vectors: Tensor, centred: bool = False) -> float:
    """In how many directions vectors (N, D) differ: 1 over the mean squared cosine of two of them, which are centred.

    1: they lie on a line, so that any two images are the same or opposite; D: they fill the sphere.
    """
    mean = vectors.double().mean(0) * (not centred)
    unit = torch.nn.functional.normalize(vectors.double() - mean, dim=1)
    squares = (unit.T @ unit).square().sum() - len(unit)
    return float(len(unit) * (len(unit) - 1) / squares.clamp(min=1e-12)) if len(unit) > 1 else 1.0


def retrieval(first: Tensor, second: Tensor) -> float:
    """How often an image's first view is nearest to its own second view among all second views (N, D), (N, D)."""
    first, second = (torch.nn.functional.normalize(v.double(), dim=1) for v in (first, second))
    return float(((first @ second.T).argmax(1) == torch.arange(len(first))).double().mean())


def twins(first: Tensor, second: Tensor) -> float:
    """How often a view is nearer to the other view of its image than to another image's: 0.5 by chance, 1 at best.

    Vectors (N, D), (N, D) are centred, because what all images share tells none from another.
    """
    mean = torch.cat([first, second]).double().mean(0)
    first, second = (torch.nn.functional.normalize(v.double() - mean, dim=1) for v in (first, second))
    cosines = first @ second.T
    return float((cosines < cosines.diagonal()[:, None]).double().sum() / max(len(cosines) * (len(cosines) - 1), 1))


class Monitor:
    """Fixed images and fixed views of them, so that looks can be compared over a run and between runs."""

    def __init__(self, images: Images, config: Config, plan: Plan, machine: Machine, out: Path, step: int = 0) -> None:
        """`step` is where training begins: it will make the looks at or after `step` again, so they are dropped."""
        self.config, self.machine = config, machine
        # Between two looks, in forward passes: eight for each image. How many images are looked at follows from the
        # data and the epochs alone, so that runs with other batches look at the same images.
        trained = 8 * plan.images * (config.run.monitor_epochs or config.optim.epochs / LOOKS)
        self.neighbourhood = Neighbourhood(images, config, trained, out / NEIGHBOURS, step)
        budget = SHARE * trained
        pairs = int(min(config.run.monitor_images, max(FEWEST, budget / 4)))
        random = np.random.default_rng([config.run.seed, 2])
        chosen = np.concatenate([random.permutation(images.held_out), random.permutation(images.train)])[:pairs]
        readable = images.read(chosen)
        if not readable:
            raise BadData(f"None of {len(chosen)} images of {images.source.name} can be read.")
        # Digests tell images that are the same from a network that makes them the same.
        self.distinct = len({hashlib.sha256(image.numpy().tobytes()).digest() for image in readable})
        self.views = self._draw_views(readable)
        self.bank = self.queries = None
        if images.source.labels is not None:
            size = int(min(5000.0, max(256.0, budget / 2)))
            rng = np.random.default_rng([config.run.seed, 3])
            others = rng.permutation(np.setdiff1d(images.train, chosen))[:size]
            if not len(others):  # so few images that all were chosen: one half of them votes on the other half
                chosen, others = chosen[::2], chosen[1::2]
            if len(others):
                self.bank = _labelled(images, others, config)
                self.queries = _labelled(images, chosen, config)
        self.classes = len(images.source.classes)

    def _draw_views(self, images: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """(N, C, S, S) each, in few bits."""
        visible, scale = views.unnormalized(self.config.views), scale_of(self.config.data)
        first, second = (
            compact(views.make(images, draw, visible, self.config.data.resolution, scale), scale)
            for draw in views.draw(self.config.run.seed, -1, len(images), visible)
        )
        return first, second

    def _forward(self, method: Method, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Representations and projections of the images."""
        together = represent(lambda images: torch.cat(method.online(images), 1), pixels, self.config, self.machine)
        size = together.shape[1] - self.config.network.projection
        return together[:, :size], together[:, size:]

    def look(self, method: Method, step: int) -> dict[str, float]:
        """The measures after `step`, −1 for those before the first; also adds the step's neighbours to their file.

        Leaves the method as it was.
        """
        method.eval()
        (y1, z1), (y2, z2) = (self._forward(method, pixels) for pixels in self.views)
        measures = {
            "spread": spread(z1),
            "rank_representation": effective_rank(y1),
            "rank_projection": effective_rank(z1),
            "norm_representation": length(y1),
            "norm_projection": length(z1),
            "directions": min(directions(y1), float(y1.shape[1])),
            "retrieval": retrieval(z1, z2),
            "twins": twins(y1, y2),
            "images": float(len(y1)),
            "distinct": float(self.distinct),
        }
        if self.bank and self.queries:
            from byol import neighbours

            bank, _ = self._forward(method, self.bank[0])
            queries, _ = self._forward(method, self.queries[0])
            winners = neighbours.votes(bank, self.bank[1], queries, classes=self.classes).argmax(1)
            measures["knn"] = float((winners == self.queries[1]).double().mean())
        if self.neighbourhood.pixels is not None:
            pixels = self.neighbourhood.pixels
            self.neighbourhood.keep(represent(method.online.encoder, pixels, self.config, self.machine), step)
        method.train()
        return {name: round(value, 6) for name, value in measures.items()}


class Neighbourhood:
    """Which of a few fixed images are nearest to which, at every look, for people to watch the change.

    RUN/neighbours.json holds the names of the images, of which the first are the queries, and the looks so far.
    """

    def __init__(self, images: Images, config: Config, trained: float, path: Path, step: int) -> None:
        self.path = path
        count = int(min(MOST_SHOWN, max(FEWEST_SHOWN, NEIGHBOURS_SHARE * trained)))
        random = np.random.default_rng([config.run.seed, 4])
        order = [*random.permutation(images.held_out), *random.permutation(images.train)]
        crops, indices = _whole(images, order[:count], config)
        self.pixels = torch.stack(crops) if len(crops) > 1 else None
        self.names = [images.source.describe(index) for index in indices]
        self.looks = [look for look in _looks(path) if look["step"] < step] if step else []

    def keep(self, vectors: Tensor, step: int) -> None:
        """Adds the neighbours after `step`, by the images' representations (N, D)."""
        from byol import neighbours  # here, as importing the loop loads nothing that only a look needs

        queries = torch.arange(min(QUERIES, len(vectors)))
        cosines, rows = neighbours.nearest(vectors, vectors[queries], NEAREST_SHOWN, own=queries)
        shown = [[round(value, 4) for value in line] for line in cosines.tolist()]
        self.looks.append({"step": step, "nearest": rows.tolist(), "cosines": shown})
        files.write_json(self.path, {"format": 1, "names": self.names, "queries": QUERIES, "looks": self.looks})


def _looks(path: Path) -> list[dict[str, Any]]:
    """The looks that an earlier session kept; a damaged file costs the pictures, never the run."""
    try:
        looks = files.read_json(path)["looks"]
        return [look for look in looks if isinstance(look["step"], int)]
    except (DiskError, KeyError, TypeError):
        return []


def _whole(images: Images, indices: Sequence[int], config: Config) -> tuple[list[Tensor], list[int]]:
    """Centre crops (C, size, size) of the images that can be read, in few bits, and their numbers."""
    crops, kept = [], []
    scale = scale_of(config.data)
    for index in map(int, indices):
        for image in images.read(np.array([index])):
            crops.append(compact(center_crop(image, config.data.resolution, scale=scale), scale))
            kept.append(index)
    return crops, kept


def _labelled(images: Images, indices: np.ndarray, config: Config) -> tuple[Tensor, Tensor]:
    """Centre crops and labels of images that have labels."""
    assert images.source.labels is not None
    crops, kept = _whole(images, indices.tolist(), config)
    return torch.stack(crops), torch.tensor(images.source.labels[kept])


def compact(pixels: Tensor, scale: Scale | None) -> Tensor:
    """Pixels in [0, 1] to look at: uint8 where the images have 8 bits, which costs a quarter of the memory, else
    float16, whose steps are fine where values are small."""
    return (pixels * 255).round().to(torch.uint8) if scale is None else pixels.to(torch.float16)
