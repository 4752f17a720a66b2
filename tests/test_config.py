"""The config: every wrong value is one sentence that says where; every right one survives a round trip."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from typing import Any, get_origin

import numpy as np
import pytest

from byol import presets
from byol.config import Config, apply, declared, flatten, resolve
from byol.errors import UsageError

FIELDS = {name: (kind, metadata) for name, kind, metadata in declared()}


def refused(overrides: dict[str, Any], *phrases: str, origin: str = "flags") -> str:
    with pytest.raises(UsageError) as caught:
        apply(Config(), overrides, origin)
    message = str(caught.value)
    assert message.startswith(f"{origin}: ")
    assert "\n" not in message
    for phrase in phrases:
        assert phrase in message, message
    return message


@pytest.mark.parametrize(
    ("name", "offered"),
    [("optim.lrr", "optim.lr"), ("optim.weight_dekay", "optim.weight_decay"), ("views.t.blurr", "views.t.blur")],
)
def test_unknown_field_offers_the_nearest(name: str, offered: str) -> None:
    """Breaks if a typo is ignored, or the sentence does not name it, its origin and the nearest field."""
    refused({name: 1}, f"'{name}'", "Did you mean", offered, origin="my.yaml")


@pytest.mark.parametrize("name", ["lr", "optim", "views.t", "", "optim.", "zzz", "optim.lr.base", "__class__"])
def test_only_leaves_are_fields(name: str) -> None:
    """Breaks if a section, an attribute or a bare name passes for a field."""
    refused({name: 1}, f"there is no field '{name}'")


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("optim.batch", "many", "a whole number"),
        ("optim.batch", 2.5, "a whole number"),
        ("optim.batch", True, "a whole number"),
        ("optim.batch", None, "a whole number"),
        ("optim.batch", [256], "a whole number"),
        ("optim.batch", "inf", "a whole number"),
        ("optim.batch", float("nan"), "a whole number"),
        ("optim.lr", "fast", "a number"),
        ("optim.lr", False, "a number"),
        ("optim.lr", {"base": 1}, "a number"),
        ("network.head_bias", "maybe", "true or false"),
        ("network.head_bias", 1, "true or false"),
        ("network.encoder", 50, "text"),
        ("network.encoder", None, "text"),
    ],
)
def test_wrong_type(name: str, value: Any, expected: str) -> None:
    """Breaks if a value is silently rounded, or read as another type (True as 1, 50 as a name)."""
    refused({name: value}, name, f"must be {expected}", repr(value))


@pytest.mark.parametrize(
    ("name", "value", "bounds"),
    [
        ("optim.tau", 1.1, "at least 0 and at most 1"),
        ("optim.tau", -0.1, "at least 0 and at most 1"),
        ("optim.batch", 0, "at least 1"),
        ("data.resolution", 7, "at least 8"),
        ("data.workers", -2, "at least -1"),
        ("network.projector_depth", 4, "at least 1 and at most 3"),
        ("optim.lr", float("nan"), "at least 0"),
        ("optim.lr", float("inf"), "at least 0"),
        ("views.t_prime.hue", "0.6", "at most 0.5"),
        ("objective.temperature", 0, "at least 0.001"),
        ("objective.beta", 1.5, "at least 0 and at most 1"),
    ],
)
def test_out_of_range(name: str, value: Any, bounds: str) -> None:
    """Breaks if a bound is not checked, or not said; NaN is inside no range."""
    refused({name: value}, name, "must be", bounds, repr(value))


@pytest.mark.parametrize("name", [name for name, (kind, _) in FIELDS.items() if kind in (int, float)])
def test_bounds_of_every_number_are_enforced(name: str) -> None:
    """Breaks for a new number without a lower bound, or with a range that `apply` does not check."""
    metadata = FIELDS[name][1]
    refused({name: metadata["low"] - 1}, name, "must be at least")
    if metadata["high"] < float("inf"):
        refused({name: max(metadata["high"] + 1, 2 * metadata["high"])}, name, "at most")


@pytest.mark.parametrize(
    ("name", "value", "offered"),
    [
        ("optim.optimizer", "larz", "Did you mean lars?"),
        ("optim.optimizer", 3, "lars, sgd, adamw"),
        ("run.device", "cdua", "cuda"),
        ("network.padding", None, "same"),
        ("network.predictor", False, "mlp, none, optimal-linear, isotropic"),
        ("network.target", "offline", "Did you mean online"),
        ("objective.normalization", "l1", "l2"),
        ("views.crop", ["byol"], "byol"),
    ],
)
def test_bad_choice_offers_the_valid(name: str, value: Any, offered: str) -> None:
    """Breaks if a choice outside the list passes, or the list is not said."""
    refused({name: value}, name, f"cannot be {value!r}", offered)


@pytest.mark.parametrize("value", [0.5, "0.5", "abc", None])
def test_one_value_is_no_tuple(value: Any) -> None:
    """Breaks if the mean may be other than a number for each channel; text of three letters is not three numbers."""
    refused({"views.mean": value}, "views.mean needs one or more numbers", repr(value))


def test_tuple_of_wrong_type() -> None:
    """Breaks if the members of a tuple are not checked."""
    refused({"views.mean": [0.5, "red", 0.5]}, "views.mean must be a number", "'red'")


@pytest.mark.parametrize("value", [0, -0.1])
def test_deviation_is_positive(value: float) -> None:
    """Breaks if views may be divided by zero."""
    refused({"views.std": [0.2, value, 0.2]}, "views.std", "at least")


def test_text_of_a_large_seed_is_exact() -> None:
    """Breaks if a seed given as text is rounded to 53 bits."""
    assert apply(Config(), {"run.seed": "9007199254740993"}).run.seed == 9_007_199_254_740_993


@pytest.mark.parametrize("what", ["area", "ratio", "sigma"])
@pytest.mark.parametrize("view", ["t", "t_prime"])
def test_minimum_above_maximum(view: str, what: str) -> None:
    """Breaks if a range of the views may be empty."""
    name = f"views.{view}.{what}"
    refused({f"{name}_min": 0.9, f"{name}_max": 0.5}, f"{name}_min is larger than {name}_max")
    assert apply(Config(), {f"{name}_min": 0.5, f"{name}_max": 0.5})


def test_batch_is_a_multiple_of_its_passes() -> None:
    """Breaks if a batch that cannot be split evenly is accepted."""
    refused({"optim.batch": 100, "optim.accumulate": 3}, "optim.batch (100)", "optim.accumulate (3)")
    assert apply(Config(), {"optim.batch": 99, "optim.accumulate": 3}).optim.accumulate == 3


def test_info_nce_is_normalized_by_the_cosine() -> None:
    """Breaks if a normalization that info-nce does not have is silently ignored."""
    refused({"objective.name": "info-nce", "objective.normalization": "batch"}, "normalization batch", "info-nce")
    assert apply(Config(), {"objective.normalization": "batch"}).objective.normalization == "batch"


def test_an_optimal_predictor_needs_more_images_than_features() -> None:
    """Breaks if a fit that is exact for any projections, and so teaches nothing, is accepted."""
    solved = {"network.predictor": "optimal-linear", "optim.batch": 512}
    refused(solved | {"optim.accumulate": 2}, "256 features", "256 images a pass", "network.projection")
    refused(solved | {"network.projection": 512}, "512 images")
    assert apply(Config(), solved).network.predictor == "optimal-linear"


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("optim.lr", "1e-4", 1e-4),
        ("optim.lr", 3, 3.0),
        ("optim.batch", "64", 64),
        ("optim.batch", 64.0, 64),
        ("optim.batch", "1e3", 1000),
        ("network.head_bias", "False", False),
        ("network.head_bias", "true", True),
        ("run.seed", 2**62 + 1, 2**62 + 1),
        ("views.std", [1, "2", 3.0], (1.0, 2.0, 3.0)),
    ],
)
def test_conversions(name: str, value: Any, expected: Any) -> None:
    """Breaks if YAML's 1e-4 (text) or 3 (an integer) is refused, or a large seed passes through a float."""
    found = flatten(apply(Config(), {name: value}))[name]
    assert found == expected
    assert type(found) is type(expected)


def test_apply_leaves_the_rest() -> None:
    """Breaks if another field changes with it, or the config given is not left as it was."""
    start = Config()
    changed = apply(start, {"views.t_prime.blur": 0.3, "optim.lr": 1})
    before, after = flatten(start), flatten(changed)
    assert {name for name in before if before[name] != after[name]} == {"views.t_prime.blur", "optim.lr"}
    assert start == Config()
    assert (changed.views.t.blur, changed.views.t_prime.solarize) == (1.0, 0.2)


@pytest.mark.parametrize("preset", presets.PRESETS)
def test_round_trip_through_json(preset: str) -> None:
    """Breaks if a field is not plain data: the stored config of a run would not be the one it began with."""
    config = presets.PRESETS[preset]()
    stored = json.loads(json.dumps(flatten(config), allow_nan=False))
    assert apply(Config(), stored) == config
    assert flatten(apply(Config(), stored)) == flatten(config)


def test_flatten_and_declared_agree() -> None:
    """Breaks if a field is left out of either."""
    assert list(flatten(Config())) == list(FIELDS)
    assert len(FIELDS) > 60


@pytest.mark.parametrize("name", FIELDS)
def test_every_field_is_described(name: str) -> None:
    """Breaks for a new field without help, with a default of the wrong type or outside its range, or not classified."""
    kind, metadata = FIELDS[name]
    assert set(metadata) - {"auto"} == {"help", "low", "high", "on_resume"}
    assert len(metadata["help"]) > 5
    assert not metadata["help"].endswith(".")
    assert metadata["low"] < metadata["high"]
    assert isinstance(metadata["on_resume"], bool)
    default = flatten(Config())[name]
    assert flatten(apply(Config(), {name: default}))[name] == default
    if kind in (int, float, bool, str):
        assert type(default) is kind


def test_only_what_changes_no_result_may_change_on_resume() -> None:
    """Breaks if a field that the weights depend on may differ between a run and its continuation."""
    free = {name for name, (_, metadata) in FIELDS.items() if metadata["on_resume"]}
    assert {name for name in free if name.startswith(("views.", "network.", "objective.", "optim."))} <= {
        "optim.epochs"
    }
    for name in ("run.seed", "run.device", "run.precision", "run.threads", "data.resolution", "data.holdout"):
        assert name not in free
    assert {"data.workers", "run.keep", "run.checkpoint_seconds"} <= free


def test_defaults_are_the_papers() -> None:
    """Breaks if a default departs from the paper's appendix B and C or FACTS 1.4, 1.6, 1.10."""
    flat = flatten(Config())
    expected = {
        "data.resolution": 224,
        "views.t.area_min": 0.08,
        "views.t.brightness": 0.4,
        "views.t.contrast": 0.4,
        "views.t.saturation": 0.2,
        "views.t.hue": 0.1,
        "views.t.jitter": 0.8,
        "views.t.grayscale": 0.2,
        "views.t.blur": 1.0,
        "views.t_prime.blur": 0.1,
        "views.t.solarize": 0.0,
        "views.t_prime.solarize": 0.2,
        "network.encoder": "resnet50",
        "network.projector_hidden": 4096,
        "network.projection": 256,
        "network.zero_init_last": False,
        "network.head_bias": False,
        "network.target_init": "independent",
        "network.predictor": "mlp",
        "network.target": "moving-average",
        "network.init_scale": 1.0,
        "network.projection_norm": False,
        "objective.name": "byol",
        "objective.normalization": "l2",
        "objective.temperature": 0.1,
        "objective.fade": 0.0,
        "objective.scale": 1.0,
        "optim.predictor_lr": 1.0,
        "optim.projector_lr": 1.0,
        "optim.tau_schedule": "cosine",
        "optim.optimizer": "lars",
        "optim.batch": 4096,
        "optim.warmup_epochs": 10,
        "optim.momentum": 0.9,
        "optim.trust_coefficient": 1e-3,
    }
    assert {name: flat[name] for name in expected} == expected
    same = {name for name in flat if name.startswith("views.t.") and not re.search("blur|solarize", name)}
    assert all(flat[name] == flat[name.replace("views.t.", "views.t_prime.")] for name in same)


def test_config_does_not_need_torch() -> None:
    """Breaks if config or presets import torch, and a wrong flag then answers after seconds."""
    code = "import sys, byol.config, byol.presets; print(sorted({'torch', 'numpy', 'torchvision'} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert found.stdout.strip() == "[]"


@pytest.mark.parametrize("name", [n for n, kind, _ in declared() if kind in (int, float) or get_origin(kind) is tuple])
def test_every_number_has_bounds(name: str) -> None:
    """Breaks if a number of the config has no bound: a stranger's run.json could ask for any memory or time."""
    low, high = next((metadata["low"], metadata["high"]) for n, _, metadata in declared() if n == name)
    assert math.isfinite(low)
    assert math.isfinite(high)


def test_steps_fit_the_names_of_checkpoints() -> None:
    """Breaks if a run is begun whose last checkpoints could not be named or read."""
    with pytest.raises(UsageError, match="more than 999,999,999 steps"):
        resolve(apply(Config(), {"optim.epochs": 1e9}), 1_000_000)


def test_numbers_of_numpy_are_numbers() -> None:
    """Breaks if an override that numpy computed is refused."""
    given = {"optim.batch": np.int64(8), "optim.lr": np.float32(0.5), "optim.probe": np.bool_(False)}
    optim = apply(Config(), given).optim
    assert (optim.batch, optim.lr, optim.probe) == (8, 0.5, False)
    assert [type(value) for value in (optim.batch, optim.lr, optim.probe)] == [int, float, bool]
