"""The monitor of a run: is it learning, is it collapsing? Measures without labels, neighbours, a verdict in words."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from byol import neighbours, views
from byol.config import Config, Plan
from byol.crops import center_crop
from byol.data.loader import Images
from byol.errors import BadData, DiskError
from byol.method import Method
from byol.run import files
from byol.run.machine import Machine, represent
from byol.run.record import Verdict

SHARE = 0.03  # of the training time, at most, goes into measuring
COLLAPSED_SPREAD = 0.1
COLLAPSED_RANK = 2.0
FAST_TARGET_RANK = 0.75  # of the highest rank so far
UNCHANGED = "views are not told apart better than at the start"
FEW_STEPS = 500  # of the small recipes; the paper's shortest run has 12,500

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


def retrieval(first: Tensor, second: Tensor) -> float:
    """How often an image's first view is nearest to its own second view among all second views (N, D), (N, D)."""
    first, second = (torch.nn.functional.normalize(v.double(), dim=1) for v in (first, second))
    return float(((first @ second.T).argmax(1) == torch.arange(len(first))).double().mean())


class Monitor:
    """Fixed images and fixed views of them, so that looks can be compared over a run and between runs."""

    def __init__(self, images: Images, config: Config, plan: Plan, machine: Machine, out: Path, step: int = 0) -> None:
        """`step` is where training begins: it will make the looks at or after `step` again, so they are dropped."""
        self.config, self.machine = config, machine
        trained = 8 * plan.monitor_steps * plan.batch  # between two looks, in forward passes: eight for each image
        self.neighbourhood = Neighbourhood(images, config, trained, out / NEIGHBOURS, step)
        budget = SHARE * trained
        pairs = int(min(config.run.monitor_images, max(128.0, budget / 4)))
        pool = images.held_out if len(images.held_out) >= 32 else images.train
        chosen = np.random.default_rng([config.run.seed, 2]).permutation(pool)[:pairs]
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
        """uint8 (N, 3, S, S) each: eight bits are enough to look at, and cost a quarter of the memory."""
        visible = views.unnormalized(self.config.views)
        first, second = (
            _bytes(views.make(images, draw, visible, self.config.data.resolution))
            for draw in views.draw(self.config.run.seed, -1, len(images), visible)
        )
        return first, second

    def _forward(self, method: Method, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Representations and projections of the images."""
        together = represent(lambda images: torch.cat(method.online(images), 1), pixels, self.config, self.machine)
        size = together.shape[1] - self.config.network.projection
        return together[:, :size], together[:, size:]

    def look(self, method: Method, step: int) -> dict[str, float]:
        """The measures after `step`; also adds the step's neighbours to their file. Leaves the method as it was."""
        method.eval()
        y1, z1 = self._forward(method, self.views[0])
        _, z2 = self._forward(method, self.views[1])
        measures = {
            "spread": spread(z1),
            "rank_representation": effective_rank(y1),
            "rank_projection": effective_rank(z1),
            "norm_representation": length(y1),
            "norm_projection": length(z1),
            "retrieval": retrieval(z1, z2),
            "images": float(len(y1)),
            "distinct": float(self.distinct),
        }
        if self.bank and self.queries:
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

    def __init__(self, images: Images, config: Config, trained: int, path: Path, step: int) -> None:
        self.path = path
        count = int(min(MOST_SHOWN, max(FEWEST_SHOWN, NEIGHBOURS_SHARE * trained)))
        random = np.random.default_rng([config.run.seed, 4])
        order = [*random.permutation(images.held_out), *random.permutation(images.train)]
        crops, indices = _whole(images, order[:count], config.data.resolution)
        self.pixels = torch.stack(crops) if len(crops) > 1 else None
        self.names = [images.source.describe(index) for index in indices]
        self.looks = [look for look in _looks(path) if look["step"] < step]

    def keep(self, vectors: Tensor, step: int) -> None:
        """Adds the neighbours after `step`, by the images' representations (N, D)."""
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


def _whole(images: Images, indices: Sequence[int], size: int) -> tuple[list[Tensor], list[int]]:
    """Centre crops uint8 (3, size, size) of the images that can be read, and their numbers."""
    crops, kept = [], []
    for index in map(int, indices):
        for image in images.read(np.array([index])):
            crops.append(_bytes(center_crop(image, size)))
            kept.append(index)
    return crops, kept


def _labelled(images: Images, indices: np.ndarray, config: Config) -> tuple[Tensor, Tensor]:
    """Centre crops and labels of images that have labels."""
    assert images.source.labels is not None
    crops, kept = _whole(images, indices.tolist(), config.data.resolution)
    return torch.stack(crops), torch.tensor(images.source.labels[kept])


def _bytes(pixels: Tensor) -> Tensor:
    """Pixels in [0, 1] as uint8."""
    return (pixels * 255).round().to(torch.uint8)


def verdict(history: Sequence[Mapping[str, Any]], config: Config = Config()) -> Verdict:
    """What the looks so far say; the README tells how that was checked against runs known to collapse."""
    looks = [record for record in history if "spread" in record]
    if not looks:
        return Verdict("too early", "Too early to tell: no look yet.")
    last = looks[-1]
    figures = (
        f"spread {last['spread']:.2f} (collapsed 0, healthy near 1), rank {last['rank_projection']:.0f}, "
        f"a view finds its twin in {last['retrieval']:.0%} of cases (chance {1 / last['images']:.1%})"
    )
    if len(looks) == 1:
        return Verdict("too early", f"Too early to tell: {figures}.")
    if last.get("distinct", 2) < 2:
        return Verdict(
            "collapsed data",
            f"Collapsed data: all {last['images']:.0f} images looked at are one and the same, so there is nothing to "
            "tell apart. Check what the folder holds.",
        )
    collapse = _collapse(looks, _fast_target(history, config))
    if collapse:
        cause = _cause(_fast_target(history, config), config)
        return Verdict("collapsing", f"Collapsing: {collapse}: {figures}. {cause}")
    if len(looks) < 5 and last["retrieval"] < _told_apart(looks):
        return Verdict("too early", f"Too early to tell: {figures}.")
    stall = _stall(looks)
    if stall:
        few = last["step"] < FEW_STEPS and stall == UNCHANGED
        remedy = " So few steps are rarely enough: raise optim.epochs." if few else ""
        return Verdict("stalled", f"Stalled: {stall}: {figures}.{remedy}")
    return Verdict("learning", f"Learning: {figures}.")


def _collapse(looks: Sequence[Mapping[str, Any]], fast_target: bool) -> str:
    """How the last look shows a collapse; empty if it does not."""
    last, highest = looks[-1], max(look["rank_projection"] for look in looks)
    if last["spread"] < COLLAPSED_SPREAD or last["rank_projection"] < COLLAPSED_RANK:
        return "all images are becoming the same"
    # The paper found that a target which follows at once ends in a collapse; a falling rank is the early sign. The
    # rank rises in the first steps, and how far it has fallen at the end of a short run depends on rounding: measured
    # from the highest look, it falls below the threshold whatever the number of threads.
    if fast_target and last["rank_projection"] < FAST_TARGET_RANK * highest:
        return f"the rank has fallen from {highest:.0f}, and the target follows at once"
    return ""


def _told_apart(looks: Sequence[Mapping[str, Any]]) -> float:
    """The retrieval above which views are told apart better than at the start."""
    return max(1.2 * float(looks[0]["retrieval"]), 3 / float(looks[-1]["images"]))


def _stall(looks: Sequence[Mapping[str, Any]]) -> str:
    """How the looks show that nothing is learned any more; empty if they do not, or are too few to tell."""
    if len(looks) < 5 or _classes_emerge(looks):
        return ""
    # Means of three looks, and two standard errors: with a few hundred images a single look is uncertain.
    values = [look["retrieval"] for look in looks]
    averages = [sum(values[i : i + 3]) / 3 for i in range(len(values) - 2)]
    best_before = max(averages[: max(1, math.ceil(len(averages) * 0.6))])
    error = 2 * _standard_error(best_before, 3 * looks[-1]["images"])
    if averages[-1] < _told_apart(looks):
        return UNCHANGED
    if averages[-1] < 0.8 * best_before - error:
        return f"views were told apart better earlier ({best_before:.0%})"
    return ""


def _classes_emerge(looks: Sequence[Mapping[str, Any]]) -> bool:
    """With labels: nearest neighbours are right clearly more often than at the start, whatever the views say."""
    if "knn" not in looks[0]:
        return False
    before, now = looks[0]["knn"], sum(record["knn"] for record in looks[-3:]) / 3
    return bool(now > before + 2 * _standard_error(now, looks[-1]["images"]))


def _standard_error(share: float, count: float) -> float:
    return math.sqrt(max(share * (1 - share), 0.0) / count)


def _held_apart(config: Config) -> bool:
    """Whether images stay apart without a slow target: by negatives (paper, section 5), or by a predictor that is
    solved for or learns faster than the rest (appendix I)."""
    negatives = config.objective.name == "info-nce" and config.objective.beta > 0
    faster = config.network.predictor == "mlp" and config.optim.predictor_lr > 1
    return negatives or faster or config.network.predictor == "optimal-linear"


def _fast_target(history: Sequence[Mapping[str, Any]], config: Config) -> bool:
    taus = [record["tau"] for record in history if "tau" in record]
    return bool(taus) and taus[0] < 0.5 and not _held_apart(config)


def _cause(fast_target: bool, config: Config) -> str:
    """The likeliest reason, from what the run was told to do."""
    if config.network.predictor == "none" and not _held_apart(config):
        return "Likely cause: there is no predictor (network.predictor is none)."
    if fast_target:
        return "Likely cause: the target follows at once; try network.target moving-average, optim.tau 0.97 to 0.996."
    return "Likely causes: a learning rate out of range (try a lower optim.lr), or too slow a predictor (predictor_lr)."
