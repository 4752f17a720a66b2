"""What the looks of a run mean: a word, and a few sentences for people. The measures alone decide; the config may name
a likely cause afterwards.

    too early       too few looks or steps to tell
    learning        images are told apart, or classes are found, clearly better than before training
    stalled         neither is better than before training, or most of what was better has been lost
    worse           classes are found clearly worse than before training, or images look more alike than before it
    collapsing      images look almost the same: the spread, the rank or the directions have fallen to nearly nothing;
                    projections alone do not count, which a loss of another kind may want flat
    collapsed data  all images that were looked at are one and the same

Every look is held against the one before the first step. `benchmarks/verdicts.py` compares the words with what labels
say of the encoders, over healthy runs and runs made to fail.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from byol.checkpoint import BEST
from byol.config import Config
from byol.run.progress import say
from byol.run.record import Verdict

MEASURES = (
    *("step", "spread", "rank_representation", "rank_projection", "directions", "twins", "retrieval"),
    *("images", "distinct", "knn"),
)
COLLAPSED_SPREAD = 0.1
COLLAPSED_RANK = 2.0
LINE = 2.5  # directions below which it matters that they become fewer
LOST, LOST_RANK = 0.4, 0.5  # of the directions beyond the first and of the rank before training: less is a collapse
SHRUNK = 0.85  # of the directions beyond the first: less, and images look more alike than before training
SETTLED = 5  # looks, and
FEW_STEPS = 200  # steps, before which no news is no bad news
SURE, VERY_SURE = 2.0, 3.0  # standard errors; that views are found more often must be clear before it counts
PLACE = 0.29  # deviation of the place of a twin among strangers where all places are as likely
KEPT = 0.5  # of the best that was learned
AVERAGED = 3  # looks: one alone is uncertain

Look = Mapping[str, Any]


def judge(history: Sequence[Look], config: Config | None = None) -> Verdict:
    """The verdict on the looks among the lines of a run's metrics, the first of which is before the first step."""
    verdict = measured([line for line in history if "spread" in line])
    if config is None or verdict.word not in ("worse", "collapsing"):
        return verdict
    return replace(verdict, sentence=f"{verdict.sentence} {cause(config)}")


def measured(looks: Sequence[Look]) -> Verdict:
    """The verdict without a cause: a function of the looks alone."""
    if not looks:
        return Verdict("too early", "Too early to tell: no look yet.")
    last, figures = looks[-1], _figures(looks)
    if last.get("distinct", 2) < 2:
        return Verdict(
            "collapsed data",
            f"Collapsed data: all {last['images']:.0f} images looked at are one and the same, so there is nothing to "
            "tell apart. Check what the folder holds.",
        )
    if len(looks) == 1:
        return Verdict("too early", f"Too early to tell: nothing is trained yet; {figures}.")
    knn, twins = _change(looks, "knn"), _change(looks, "twins")
    if _collapsed(looks) or (not knn.up and _nearly_collapsed(looks)):
        return Verdict("collapsing", f"Collapsing: images look alike to it; {figures}. Do not use this encoder.")
    worse, better = _worse(looks, knn, twins), _better(knn, twins)
    if (len(looks) <= SETTLED or last["step"] + 1 < FEW_STEPS) and (worse or not better):
        so_far = f"{worse} so far, and " * bool(worse)
        few = f"{so_far}{last['step'] + 1:,} steps are few, raise optim.epochs"
        return Verdict("too early", f"Too early to tell: {few}; {figures}.")
    if worse:
        told = f"Worse than before training: {worse}; do not use this encoder yet. {_advice(looks)}"
        return Verdict("worse", f"{told} Measured: {figures}.")
    why = _lost(looks, knn, twins) if better else "views of an image are not found more often than before training"
    if why:
        return Verdict("stalled", f"Stalled: {why}; {figures}. {_advice(looks)}")
    return Verdict("learning", f"Learning: {better}; {figures}.")


def best_look(history: Sequence[Look]) -> Look:
    """The first of the looks with the best figure: nearest neighbours where there are labels, else how often a view is
    nearer to its twin than to a stranger."""
    return max((line for line in history if "spread" in line), key=lambda look: look.get("knn", look.get("twins", 0.0)))


class Change(NamedTuple):
    """A measure before training and over the last looks; `up` and `down` where chance does not explain the change."""

    before: float
    now: float
    up: bool
    down: bool


def _change(looks: Sequence[Look], name: str) -> Change:
    if not (name in looks[0] and name in looks[-1]):
        return Change(math.nan, math.nan, up=False, down=False)
    before, now = looks[0][name], _average(looks[1:], name)
    error = _standard_error(name, now, looks[-1]["images"])
    clear = VERY_SURE if name == "twins" else SURE
    return Change(before, now, up=now > before + clear * error, down=now < before - SURE * error)


def _average(looks: Sequence[Look], name: str) -> float:
    """Over the last few of these looks."""
    values = [float(look[name]) for look in looks[-AVERAGED:]]
    return sum(values) / len(values)


def _standard_error(name: str, share: float, images: float) -> float:
    deviation = PLACE if name == "twins" else math.sqrt(max(share * (1 - share), 0.0))
    return deviation / math.sqrt(images)


def _collapsed(looks: Sequence[Look]) -> bool:
    """Whether the representation has almost one direction alone, or lost some together with the projections' collapse.

    What is kept is the representation: projections that have collapsed beside a sound one are no harm.
    """
    return _flat(looks, "rank_representation") or (_flat_projections(looks) and not _sound(looks))


def _flat(looks: Sequence[Look], rank: str) -> bool:
    """Whether almost one direction is left of more."""
    first, last = looks[0].get(rank, math.inf), looks[-1].get(rank, math.inf)
    return bool(last < COLLAPSED_RANK and last < SHRUNK * first)


def _flat_projections(looks: Sequence[Look]) -> bool:
    return bool(looks[-1]["spread"] < min(COLLAPSED_SPREAD, looks[0]["spread"])) or _flat(looks, "rank_projection")


def _sound(looks: Sequence[Look]) -> bool:
    """Whether the representation was looked at and has kept its directions and half of its rank."""
    before, now = (look.get("rank_representation", math.nan) for look in (looks[0], looks[-1]))
    return bool("directions" in looks[0] and _directions_kept(looks) >= SHRUNK and now >= LOST_RANK * before)


def _nearly_collapsed(looks: Sequence[Look]) -> bool:
    """Whether both the directions and the rank are far below those before training: a few directions are left."""
    before, now = (look.get("rank_representation", math.inf) for look in (looks[0], looks[-1]))
    return bool(_directions_kept(looks) < LOST and now < LOST_RANK * before)


def _directions_kept(looks: Sequence[Look]) -> float:
    """How much of the directions beyond the first is left; 1 where enough are left anyway."""
    if "directions" not in looks[0]:
        return 1.0
    before, now = float(looks[0]["directions"]), _average(looks[1:], "directions")
    return 1.0 if now >= LINE else (now - 1) / max(before - 1, 1e-6)


def _worse(looks: Sequence[Look], knn: Change, twins: Change) -> str:
    """What is worse than before training, where labels do not say that it is better; empty if nothing is."""
    if knn.down:
        return f"kNN {100 * knn.before:.0f} → {100 * knn.now:.0f} %"
    if knn.up:
        return ""
    if _directions_kept(looks) < SHRUNK:
        return "images look more alike to it than before"
    return "views of an image are found less often than before" if twins.down else ""


def _better(knn: Change, twins: Change) -> str:
    if knn.up:
        return f"images find their own class more often, kNN {100 * knn.before:.0f} → {100 * knn.now:.0f} %"
    return "views of an image are found more often than before training" if twins.up else ""


def _lost(looks: Sequence[Look], knn: Change, twins: Change) -> str:
    """How far it has fallen behind what it had learned; empty if it has not, or labels say that it has not."""
    if knn.up or not twins.up:
        return ""
    averages = [_average(looks[1 : end + 1], "twins") for end in range(AVERAGED, len(looks))]
    best, error = max(averages, default=twins.now), SURE * _standard_error("twins", twins.now, looks[-1]["images"])
    if twins.now > twins.before + KEPT * (best - twins.before) or twins.now > best - error:
        return ""
    return f"views of an image were found more often earlier ({best:.0%} of cases)"


def _advice(looks: Sequence[Look]) -> str:
    """Whether more steps would help, judged by what the last three quarters of the run have brought."""
    name = "knn" if "knn" in looks[0] else "twins"
    quarter = len(looks) // 4
    if name not in looks[0] or quarter < AVERAGED:
        return "Raise optim.epochs."
    early, now = _average(looks[1 : quarter + 1], name), _average(looks, name)
    if now > early + _standard_error(name, now, looks[-1]["images"]):
        return "It is still getting better: raise optim.epochs."
    return (
        f"Nothing has become better since step {looks[quarter]['step'] + 1:,}, a quarter of the run, so more epochs "
        "will not help: try another optim.lr, optim.predictor_lr 10, weaker views, or more images."
    )


def _figures(looks: Sequence[Look]) -> str:
    """The last look beside the one before training, in words."""
    first, last = looks[0], looks[-1]
    shown = {
        "rank_representation": ("rank {:.0f}", "{:.0f}"),
        "spread": ("spread {:.2f}", "{:.2f}"),
        "directions": ("{:.1f} directions told apart", "{:.1f}"),
        "twins": ("a view is nearer to its twin than to a stranger in {:.0%} of cases", "{:.0%}, chance 50%"),
    }
    parts = [
        f"{now.format(last[name])} ({then.format(first[name])}{' before training' * (place == 0)})"
        for place, (name, (now, then)) in enumerate((n, s) for n, s in shown.items() if n in last and n in first)
    ]
    beside = "; its projections have collapsed, its representation has not"
    return ", ".join(parts) + beside * (len(looks) > 1 and _flat_projections(looks) and _sound(looks))


def cause(config: Config) -> str:
    """The likeliest reasons why images become the same, from what the run was told to do."""
    network, optim = config.network, config.optim
    negatives = config.objective.contrasts and config.objective.beta > 0
    at_once = network.target != "fixed" and (network.target != "moving-average" or optim.tau < 0.5)
    found = [
        *["there is no predictor (network.predictor is none)"] * (network.predictor == "none" and not negatives),
        *["the predictor does not learn (optim.predictor_lr is 0)"] * (optim.predictor_lr == 0),
        *["the target follows at once (try network.target moving-average, optim.tau 0.97 to 0.996)"]
        * (at_once and not negatives),
        *["projections are not normalized (objective.normalization is none)"]
        * (config.objective.normalization == "none" and not negatives),
    ]
    usual = (
        "a learning rate out of range (try a tenth of optim.lr), or too slow a predictor (try optim.predictor_lr 10)"
    )
    return f"Likely cause: {'; '.join(found) or usual}."


def tell_best(out: Path, history: Sequence[Mapping[str, Any]], steps: int) -> None:
    """Says where the encoder of the best look is, unless that is the last one."""
    if not any("spread" in line for line in history):
        return
    best = best_look(history)
    if best["step"] + 1 < steps and (out / BEST).exists():
        figure = f"neighbours of one class {best['knn']:.1%}" if "knn" in best else f"twins {best['twins']:.1%}"
        say(f"Best look: after {best['step'] + 1} of {steps} steps ({figure}): {out / BEST}")
