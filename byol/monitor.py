"""Is it learning, is it collapsing: measures that need no labels, and a verdict in words."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from byol import views
from byol.config import Config, Plan
from byol.crops import center_crop
from byol.data.loader import Images
from byol.errors import BadData
from byol.evals import knn
from byol.machine import Machine
from byol.method import Method

SHARE = 0.03  # of the training time, at most, goes into looking
COLLAPSED_SPREAD = 0.1
COLLAPSED_RANK = 2.0
FAST_TARGET_RANK = 0.75  # of the rank at the start
FEW_STEPS = 500  # of the small recipes; the paper's shortest run has 12,500


class Verdict(NamedTuple):
    """One word for programs and one sentence for people."""

    word: Literal["too early", "learning", "stalled", "collapsing", "collapsed data"]
    sentence: str


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

    def __init__(self, images: Images, config: Config, plan: Plan, machine: Machine) -> None:
        self.config, self.machine = config, machine
        budget = SHARE * 8 * plan.monitor_steps * plan.batch  # a trained image costs about eight forward passes
        pairs = int(min(config.run.monitor_images, max(128.0, budget / 4)))
        pool = images.held_out if len(images.held_out) >= 32 else images.train
        chosen = np.random.default_rng([config.run.seed, 2]).permutation(pool)[:pairs]
        readable = images.read(chosen)
        if not readable:
            raise BadData(f"None of {len(chosen)} images of {images.source.name} can be read.")
        # A digest each: a look must tell images that were the same from a network that makes them so.
        self.distinct = len({hashlib.sha256(image.numpy().tobytes()).digest() for image in readable})
        self.views = self._draw_views(readable)
        self.bank = self.queries = None
        if images.source.labels is not None:
            size = int(min(5000.0, max(256.0, budget / 2)))
            rng = np.random.default_rng([config.run.seed, 3])
            others = rng.permutation(np.setdiff1d(images.train, chosen))[:size]
            if not len(others):  # so few images that all were chosen: half of them are asked about the other half
                chosen, others = chosen[::2], chosen[1::2]
            if len(others):
                self.bank = self._whole(images, others)
                self.queries = self._whole(images, chosen)
        self.classes = len(images.source.classes)

    def _draw_views(self, images: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """uint8 (N, 3, S, S) each: eight bits are enough to look at, and cost a quarter of the memory."""
        config, size = self.config.views, self.config.data.resolution
        drawn = views.draw(self.config.run.seed, -1, len(images), config)
        result = []
        for draw in drawn:
            crops = [views.crop_one(image, draw, place, config, size) for place, image in enumerate(images)]
            seen = views.augment(torch.stack(crops), draw, config)
            result.append((seen * 255).round().to(torch.uint8))
        return result[0], result[1]

    def _whole(self, images: Images, indices: np.ndarray) -> tuple[Tensor, Tensor]:
        """Centre crops uint8 and labels, for the neighbours; only called when there are labels and all images read."""
        size = self.config.data.resolution
        crops, kept = [], []
        for index in indices:
            for image in images.read(np.array([index])):
                crops.append((center_crop(image, size) * 255).round().to(torch.uint8))
                kept.append(images.source.labels[index])  # type: ignore[index]
        return torch.stack(crops), torch.tensor(np.array(kept))

    @torch.no_grad()
    def _forward(self, method: Method, pixels: Tensor) -> tuple[Tensor, Tensor]:
        representations, projections = [], []
        for chunk in pixels.split(self.machine.at_once(pixels)):
            normalized = views.normalize(
                chunk.to(self.machine.device).float() / 255, self.config.views.mean, self.config.views.std
            )
            with self.machine.autocast():
                y, z = method.online(self.machine.images(normalized, self.config))
            representations.append(y.float().cpu())
            projections.append(z.float().cpu())
        return torch.cat(representations), torch.cat(projections)

    def look(self, method: Method) -> dict[str, float]:
        """The measures of this moment; leaves the method as it was."""
        method.eval()
        y1, z1 = self._forward(method, self.views[0])
        _, z2 = self._forward(method, self.views[1])
        seen = {
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
            found = knn.votes(bank, self.bank[1], queries, classes=self.classes).argmax(1)
            seen["knn"] = float((found == self.queries[1]).double().mean())
        method.train()
        return {name: round(value, 6) for name, value in seen.items()}


def verdict(history: Sequence[Mapping[str, Any]], config: Config = Config()) -> Verdict:
    """What the looks so far say; see the README for how it was checked against runs known to collapse."""
    looks = [record for record in history if "spread" in record]
    if not looks:
        return Verdict("too early", "Too early to tell: no look yet.")
    first, last = looks[0], looks[-1]
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
    fast_target = _fast_target(history, config)
    if last["spread"] < COLLAPSED_SPREAD or last["rank_projection"] < COLLAPSED_RANK:
        cause = _cause(fast_target, config)
        return Verdict("collapsing", f"Collapsing: all images are becoming the same: {figures}. {cause}")
    if fast_target and last["rank_projection"] < FAST_TARGET_RANK * first["rank_projection"]:
        # What the paper found to end in a collapse, and its early sign.
        fallen = f"the rank has fallen from {first['rank_projection']:.0f}, and the target follows at once"
        return Verdict("collapsing", f"Collapsing: {fallen}: {figures}. {_cause(fast_target, config)}")
    risen = max(1.2 * first["retrieval"], 3 / last["images"])
    if len(looks) < 5 and last["retrieval"] < risen:
        return Verdict("too early", f"Too early to tell: {figures}.")
    if len(looks) >= 5 and not _classes_emerge(looks):
        # Three looks together, and two standard errors: a few hundred images make a single look uncertain.
        values = [record["retrieval"] for record in looks]
        averages = [sum(values[i : i + 3]) / 3 for i in range(len(values) - 2)]
        best_before = max(averages[: max(1, math.ceil(len(averages) * 0.6))])
        error = 2 * _standard_error(best_before, 3 * last["images"])
        if averages[-1] < risen:
            few = " So few steps are rarely enough: raise optim.epochs." if last["step"] < FEW_STEPS else ""
            return Verdict("stalled", f"Stalled: views are not told apart better than at the start: {figures}.{few}")
        if averages[-1] < 0.8 * best_before - error:
            return Verdict("stalled", f"Stalled: views were told apart better earlier ({best_before:.0%}): {figures}.")
    return Verdict("learning", f"Learning: {figures}.")


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
