"""Every constant of the paper beside the config of a run: equal, or departs and why. Nothing here needs torch.

The values are typed from the paper, not taken from our presets, so that each checks the other.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from textwrap import wrap
from typing import TYPE_CHECKING, Any, NamedTuple

from byol.config import Config, flatten
from byol.errors import UsageError, nearest

if TYPE_CHECKING:
    from byol.run.record import RunRecord

IMAGENET = 1_281_167
SHORT = 14  # letters of a reason that fit beside the figures


class Constant(NamedTuple):
    """What the paper says of a config field, where; `note` is why our default is another, if it is."""

    field: str
    value: Any
    where: str
    note: str = ""


class Line(NamedTuple):
    """One constant against a run."""

    what: str
    paper: Any
    run: Any
    equal: bool
    why: str
    where: str


def constants(recipe: str = "paper-1000") -> list[Constant]:
    """Of the main recipe, of the ablations' 300 epochs, or of batch 512."""
    if recipe not in RECIPES:
        raise UsageError(f"The paper has no recipe '{recipe}'. {nearest(recipe, RECIPES)}")
    changed = RECIPES[recipe]
    return [constant._replace(**changed.get(constant.field, {})) for constant in _all()]


def _all() -> Iterator[Constant]:
    table = "appendix B, its table"
    for view, blur, solarize in (("t", 1.0, 0.0), ("t_prime", 0.1, 0.2)):
        yield Constant(f"views.{view}.area_min", 0.08, "appendix B")
        yield Constant(f"views.{view}.area_max", 1.0, "appendix B")
        yield Constant(f"views.{view}.ratio_min", 3 / 4, "appendix B")
        yield Constant(f"views.{view}.ratio_max", 4 / 3, "appendix B")
        for name, value in (("flip", 0.5), ("jitter", 0.8), ("brightness", 0.4), ("contrast", 0.4)):
            yield Constant(f"views.{view}.{name}", value, table)
        for name, value in (("saturation", 0.2), ("hue", 0.1), ("grayscale", 0.2)):
            yield Constant(f"views.{view}.{name}", value, table)
        yield Constant(f"views.{view}.blur", blur, table)
        yield Constant(f"views.{view}.sigma_min", 0.1, "appendix B")
        yield Constant(f"views.{view}.sigma_max", 2.0, "appendix B")
        yield Constant(f"views.{view}.solarize", solarize, table)
    yield from FIXED


def check(record: RunRecord, recipe: str = "") -> list[Line]:
    """The constants against those of a run; the recipe is the run's own preset when that is one of the paper's."""
    preset = record.request.preset
    recipe = recipe or (preset if preset in RECIPES else "paper-1000")
    config = flatten(Config()) | record.config  # a field that was added since was at its default
    lines = []
    for field, value, where, note in constants(recipe):
        same = _same(config[field], value)
        why = "" if same else _reason(field, record) or note or f"preset {preset}"
        lines.append(Line(field, value, config[field], same, why, where))
    return lines + list(_derived(record, {c.field: c.value for c in constants(recipe)}))


def _derived(record: RunRecord, paper: Mapping[str, Any]) -> Iterator[Line]:
    """What follows from the fields and the images."""
    images, data = record.data.images - record.data.bad, record.data.name
    yield Line(
        "images", IMAGENET, images, images == IMAGENET, "" if images == IMAGENET else f"it is {data}", "section 4"
    )
    if record.plan is None:
        return
    batch, epochs = paper["optim.batch"], paper["optim.epochs"]
    expected = {
        "steps": int(epochs * IMAGENET / batch),
        "warmup_steps": int(paper["optim.warmup_epochs"] * IMAGENET / batch),
        "peak_lr": paper["optim.lr"] * batch / 256,
    }
    for name, value in expected.items():
        own = getattr(record.plan, name)
        same = _same(own, value)
        yield Line(name, value, own, same, "" if same else "follows from images, batch and epochs", "section 3.3")
    taps = 2 * int(record.config["data.resolution"] / 10 / 2) + 1
    yield Line(
        "blur kernel", 23, taps, taps == 23, "" if taps == 23 else "a tenth of the resolution, odd", "appendix B"
    )


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(_same(a, b) for a, b in zip(one, other, strict=True))
    if isinstance(one, bool) or isinstance(other, bool) or not isinstance(one, int | float):
        return bool(one == other)
    return math.isclose(one, other, rel_tol=1e-9)


def _reason(field: str, record: RunRecord) -> str:
    """Asked for by the user, or why `auto` chose the value; empty when neither did."""
    if field in record.request.overrides:
        return "asked for"
    return next((f"auto: {reason.why}" for reason in record.reasons if reason.field == field), "")


def text(lines: list[Line]) -> str:
    """A line a constant; those that depart with the reason below."""
    shown = [f"{'constant':<25}{'paper':>15}{'run':>15}"]
    for line in lines:
        verdict = "equal" if line.equal else f"departs: {line.why}" if len(line.why) <= SHORT else "departs"
        shown.append(f"{line.what:<25}{_short(line.paper):>15}{_short(line.run):>15}  {verdict}")
        if len(line.why) > SHORT:
            shown += [f"{'':<25}{part}" for part in wrap(line.why, 55)]
    apart = sum(not line.equal for line in lines)
    shown.append(f"{len(lines) - apart} of {len(lines)} constants are the paper's; {apart} depart.")
    return "\n".join(shown)


def listing(recipe: str) -> str:
    """The constants alone, with where the paper gives them."""
    return "\n".join(f"{c.field:<28}{_short(c.value):>16}  {c.where}" for c in constants(recipe))


def _short(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float | list | tuple):
        return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    if isinstance(value, list | tuple):
        return "/".join(f"{v:.3g}"[1:] if 0 < v < 1 else f"{v:g}" for v in value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.6g}"


FIXED = (
    Constant("views.mean", (0.485, 0.456, 0.406), "appendix B: ImageNet's"),
    Constant("views.std", (0.229, 0.224, 0.225), "appendix B: ImageNet's"),
    Constant("data.resolution", 224, "appendix B"),
    Constant("network.encoder", "resnet50", "section 3.3"),
    Constant("network.width", 1.0, "section 3.3"),
    Constant("network.small_images", False, "section 3.3"),
    Constant("network.zero_init_last", False, "section 3.3: a ResNet v1"),
    Constant("network.projector_hidden", 4096, "section 3.3, appendix J.1"),
    Constant("network.projector_depth", 2, "section 3.3"),
    Constant("network.projection", 256, "section 3.3, appendix J.1"),
    Constant("network.projection_norm", False, "section 3.3"),
    Constant("network.predictor", "mlp", "section 3.3"),
    Constant("network.predictor_hidden", 4096, "section 3.3"),
    Constant("network.predictor_depth", 2, "section 3.3"),
    Constant(
        "network.head_bias", True, "appendix J", "as in the reference code; network.head_bias true is appendix J's"
    ),
    Constant("network.target", "moving-average", "section 3.1"),
    Constant(
        "network.target_init",
        "same",
        "appendix J",
        "as in the reference code; network.target_init same is appendix J's",
    ),
    Constant("network.init", "", "section 3.1: from random weights"),
    Constant("network.init_scale", 1.0, "section 5"),
    Constant("objective.name", "byol", "section 3.1, equation 2"),
    Constant("objective.normalization", "l2", "section 3.1, equation 2"),
    Constant("objective.fade", 0.0, "section 3.1: no negatives"),
    Constant("objective.scale", 1.0, "section 3.1, equation 2"),
    Constant("optim.optimizer", "lars", "section 3.3"),
    Constant("optim.epochs", 1000.0, "section 3.3"),
    Constant("optim.warmup_epochs", 10.0, "section 3.3"),
    Constant("optim.batch", 4096, "section 3.3"),
    Constant("optim.accumulate", 1, "section 3.3"),
    Constant("optim.lr", 0.2, "section 3.3"),
    Constant("optim.predictor_lr", 1.0, "appendix I"),
    Constant("optim.projector_lr", 1.0, "appendix I"),
    Constant("optim.encoder_lr", 1.0, "section 3.3: one rate for all"),
    Constant("optim.layer_decay", 1.0, "section 3.3: one rate for all"),
    Constant("optim.head_epochs", 0.0, "algorithm 1: all learn from the start"),
    Constant("optim.norm_only", False, "algorithm 1: all learn"),
    Constant("optim.weight_decay", 1.5e-6, "section 3.3"),
    Constant("optim.momentum", 0.9, "appendix J.1"),
    Constant("optim.trust_coefficient", 1e-3, "appendix J.1"),
    Constant("optim.clip", 0.0, "appendix A, algorithm 1"),
    Constant("optim.tau", 0.996, "section 3.3"),
    Constant("optim.tau_schedule", "cosine", "section 3.3"),
)
RECIPES: dict[str, dict[str, dict[str, Any]]] = {
    "paper-1000": {},
    "paper-300": {
        "optim.epochs": {"value": 300.0, "where": "section 5"},
        "optim.lr": {"value": 0.3, "where": "section 5, appendix F"},
        "optim.weight_decay": {"value": 1e-6, "where": "appendix F"},
        "optim.tau": {"value": 0.99, "where": "appendix F"},
    },
    "paper-512": {
        "optim.batch": {"value": 512, "where": "appendix G"},
        "optim.lr": {"value": 0.4, "where": "appendix G"},
        "optim.tau": {"value": 0.9995, "where": "appendix G"},
    },
}
