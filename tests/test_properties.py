"""What must hold for every value, not only for those that someone thought of; `make chaos` tries many more of them."""

from __future__ import annotations

import json
import math
from typing import Any, get_args, get_origin

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from byol import optim, schedules, views
from byol.config import Config, View, Views, apply, declared, flatten, resolve
from byol.data import loader
from byol.data.source import Source
from byol.errors import UsageError, nearest
from tests.chaos.scale import often
from tests.test_optim import transcribed

pytestmark = pytest.mark.timeout(1800)

FIELDS = {name: (kind, metadata) for name, kind, metadata in declared()}
ANYTHING = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.lists(st.floats(allow_nan=False) | st.text(max_size=3), max_size=4)
    | st.dictionaries(st.text(max_size=3), st.integers(), max_size=2)
)


def tries(short: int, long: int) -> Any:
    return settings(
        max_examples=often(short, long), deadline=None, suppress_health_check=list(HealthCheck), print_blob=True
    )


def fits(value: Any, kind: Any, metadata: Any) -> bool:
    """Whether a stored value is of its field's type and within its range."""
    if get_origin(kind) is tuple:
        return isinstance(value, tuple) and all(fits(v, get_args(kind)[0], metadata) for v in value)
    if kind in (int, float):
        return type(value) is kind and math.isfinite(value) and metadata["low"] <= value <= metadata["high"]
    return value in get_args(kind) if get_args(kind) else type(value) is kind


@tries(150, 20_000)
@given(st.dictionaries(st.sampled_from(list(FIELDS)) | st.text(max_size=12), ANYTHING, max_size=4))
def test_overrides_are_taken_or_refused_in_a_sentence(overrides: dict[str, Any]) -> None:
    """Breaks if any override raises anything but a sentence, or leaves a value outside its field's type and range."""
    sentence, config = "", Config()
    try:
        config = apply(config, overrides, "flags")
    except UsageError as error:
        sentence = str(error)
    assert not sentence or (sentence.startswith("flags: ") and sentence.isprintable())
    for name, value in flatten(config).items():
        kind, metadata = FIELDS[name]
        assert fits(value, kind, metadata), name
    stored = json.loads(json.dumps(flatten(config), allow_nan=False))
    assert apply(Config(), stored) == config


@st.composite
def slips(draw: st.DrawFn) -> tuple[str, str]:
    """(a field's name, the name with one or two keys missed)"""
    name = draw(st.sampled_from(list(FIELDS)))
    typed = name
    for _ in range(draw(st.integers(1, 2))):
        place = draw(st.integers(0, len(typed) - 1))
        letter = draw(st.sampled_from("abcdefghijklmnopqrstuvwxyz_."))
        ways = (typed[:place] + typed[place + 1 :], typed[:place] + letter + typed[place:])
        ways += (
            typed[:place] + letter + typed[place + 1 :],
            typed[:place] + typed[place : place + 2][::-1] + typed[place + 2 :],
        )
        typed = draw(st.sampled_from(ways))
    return name, typed


@tries(150, 20_000)
@given(slips())
def test_a_slip_of_two_keys_is_understood(slip: tuple[str, str]) -> None:
    """Breaks if a name with at most two wrong keys is not offered, or only after three that are nearer (G23)."""
    name, typed = slip
    offer = nearest(typed, FIELDS)
    assert offer.startswith("Did you mean ")
    offered = offer.removeprefix("Did you mean ").removesuffix("?").split(" or ")
    assert name in offered or len(offered) == 3


def between(name: str) -> st.SearchStrategy[float]:
    low, high = FIELDS[f"views.t.{name}"][1]["low"], FIELDS[f"views.t.{name}"][1]["high"]
    return st.floats(low, high if math.isfinite(high) else 1e6) | st.sampled_from([low, min(high, 1e6)])


@st.composite
def a_view(draw: st.DrawFn) -> View:
    """Any that the config accepts."""
    values = {name: draw(between(name)) for name in View.__dataclass_fields__}
    for what in ("area", "ratio", "sigma"):
        values[f"{what}_min"], values[f"{what}_max"] = sorted((values[f"{what}_min"], values[f"{what}_max"]))
    return View(**values)


KINDS, BORDERS = st.sampled_from(["byol", "torchvision"]), st.sampled_from(["zero", "reflect"])
VIEWS = st.builds(
    Views, t=a_view(), t_prime=a_view(), crop=KINDS, colour=KINDS, antialias=st.booleans(), border=BORDERS
)
# A learning rate: none below which products and squares lose their digits, but 0.
NORMAL = st.floats(0, 100).map(lambda v: v if v > 1e-12 else 0.0)
PIXELS = st.sampled_from(["black", "white", "noise", "half"])
SEEDS = st.integers(0, 2**63 - 1)


@tries(25, 5_000)
@given(VIEWS, st.tuples(st.integers(1, 40), st.integers(1, 40)), st.integers(8, 33), PIXELS, SEEDS)
def test_views_are_images(config: Views, sides: tuple[int, int], size: int, pixels: str, seed: int) -> None:
    """Breaks if a view of any parameters is not finite, leaves [0, 1] or has another shape than was asked for."""
    images = torch.full((3, 3, *sides), {"black": 0, "white": 255, "noise": 0, "half": 128}[pixels], dtype=torch.uint8)
    if pixels == "noise":
        images = torch.randint(0, 256, images.shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    for draw in views.draw(seed, 3, 3, config):
        box = views.boxes(draw, *sides, config)
        assert min(int(box.height.min()), int(box.width.min())) >= 1
        assert int((box.top + box.height).max()) <= sides[0]
        assert int((box.left + box.width).max()) <= sides[1]
        shown = views.make(list(images), draw, views.unnormalized(config), size)
        assert shown.shape == (3, 3, size, size)
        assert bool(torch.isfinite(shown).all())
        assert float(shown.min()) >= 0
        assert float(shown.max()) <= 1
        assert bool(torch.isfinite(views.make(images, draw, config, size)).all())


@tries(150, 20_000)
@given(st.integers(1, 10**7), st.integers(0, 10**7), NORMAL, st.floats(0, 1), st.floats(0, 1))
def test_schedules_stay_in_their_ranges(total: int, warmup: int, peak: float, base: float, share: float) -> None:
    """Breaks if a rate leaves [0, peak], rises after the warm-up, or tau leaves [base, 1] or falls."""
    warmup = min(warmup, total // 2)
    step = min(int(share * total), total - 1)
    after = min(step + 1, total - 1)
    rates = [schedules.learning_rate(s, peak=peak, warmup_steps=warmup, total_steps=total) for s in (step, after)]
    assert all(0 <= rate <= peak * (1 + 1e-12) for rate in rates)
    slack = 1e-12 * peak
    assert rates[0] <= rates[1] + slack if after <= warmup else rates[1] <= rates[0] + slack or step < warmup
    taus = [schedules.target_decay(s, base=base, total_steps=total) for s in (step, after)]
    assert base - 1e-12 <= taus[0] <= taus[1] + 1e-12 <= 1 + 2e-12


NUMBERS = st.floats(-1e3, 1e3).map(lambda v: v if abs(v) > 1e-6 else 0.0)


@tries(80, 10_000)
@given(
    st.integers(1, 6).flatmap(lambda n: st.tuples(*[st.lists(NUMBERS, min_size=n, max_size=n)] * 4)),
    st.floats(0, 1).map(lambda v: v if v > 1e-12 else 0.0),  # less is lost in the squares of a norm
    st.lists(NORMAL, min_size=3, max_size=3),
    st.booleans(),
)
def test_lars_is_its_formula(values: Any, decay: float, rates: list[float], adapt: bool) -> None:
    """Breaks if LARS departs from the formula in float64 for any weights, gradients, decay or rate, also 0."""
    weight, *gradients = (list(v) for v in values)
    parameter = nn.Parameter(torch.tensor(weight, dtype=torch.float64))
    optimizer = optim.LARS([{"params": [parameter], "weight_decay": decay, "adapt": adapt}], lr=0.0)
    momentum = [0.0] * len(weight)
    for gradient, rate in zip(gradients, rates, strict=True):
        optimizer.param_groups[0]["lr"] = rate
        parameter.grad = torch.tensor(gradient, dtype=torch.float64)
        optimizer.step()
        weight, momentum = transcribed(weight, gradient, momentum, rate, decay, adapt)
    scale = max(1e-300, *(abs(v) for v in weight), *(abs(v) for v in values[0]))
    assert np.allclose(parameter.detach().numpy(), weight, rtol=1e-9, atol=1e-12 * scale)


@st.composite
def a_run(draw: st.DrawFn) -> tuple[int, int, int, int, loader.Blocks | None]:
    """(images, batch, passes, processes, shards): any that divide as the config demands."""
    world, passes = draw(st.integers(1, 5)), draw(st.integers(1, 4))
    batch = world * passes * draw(st.integers(1 if world > 1 else 2, 4))  # two images a pass at least
    count = draw(st.integers(1, 60))
    if draw(st.booleans()):
        return count, batch, passes, world, None
    shards = np.sort(np.array(draw(st.lists(st.integers(0, 5), min_size=count, max_size=count)), np.int32))
    return count, batch, passes, world, loader.Blocks(shards, draw(st.integers(1, 4)))


def streams(run: Any, seed: int) -> list[loader.Stream]:
    """One for each process."""
    count, batch, passes, world, blocks = run
    config = apply(Config(), {"optim.batch": batch, "optim.accumulate": passes, "run.seed": seed, "optim.epochs": 50.0})
    source = Source("x", count, lambda i: torch.zeros(3, 2, 2, dtype=torch.uint8), str)
    images = loader.Images(source, np.arange(count), np.arange(0), None, [], "", blocks)
    made = [loader.Stream(images, config, resolve(config, count, steps=1000), 1) for _ in range(world)]
    for rank, stream in enumerate(made):
        stream.rank, stream.world = rank, world
    return made


@tries(60, 5_000)
@given(a_run(), SEEDS)
def test_every_image_once_an_epoch(run: Any, seed: int) -> None:
    """Breaks if for any processes, passes and shards an epoch leaves an image out, or shows one twice."""
    count, batch, passes, _, _ = run
    every = streams(run, seed)
    epochs = 2
    steps = -(-epochs * count // batch)
    seen = [int(i) for k in range(steps * passes) for stream in every for i in stream.draw(k)[0]]
    for epoch in range(epochs):
        assert sorted(seen[epoch * count : (epoch + 1) * count]) == list(range(count))


@tries(60, 5_000)
@given(a_run(), SEEDS, st.integers(0, 900))
def test_a_step_is_the_same_wherever_a_run_begins(run: Any, seed: int, step: int) -> None:
    """Breaks if what a step sees depends on the steps before it, so that a resumed run would see something else."""
    loader._epoch_order.cache_clear()
    fresh = streams(run, seed)[-1]
    direct = fresh.draw(step)
    loader._epoch_order.cache_clear()
    gone = streams(run, seed)[-1]
    for k in range(max(0, step - 3), step):
        gone.draw(k)
    after = gone.draw(step)
    assert np.array_equal(direct[0], after[0])
    for one, other in zip(direct[1], after[1], strict=True):
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) for name in one)
    # Together the processes have what one alone would have.
    count, batch, passes, _, blocks = run
    alone = streams((count, batch, passes, 1, blocks), seed)[0].draw(step)[0]
    together = np.concatenate([stream.draw(step)[0] for stream in streams(run, seed)])
    assert np.array_equal(alone, together)


def test_the_config_of_a_view_is_all_there_is() -> None:
    """Breaks if a field of the views is not among those that the tests above vary."""
    assert {name.split(".")[-1] for name in FIELDS if name.startswith("views.t.")} == set(View.__dataclass_fields__)
    assert set(Views.__dataclass_fields__) == {"t", "t_prime", "crop", "colour", "antialias", "border", "mean", "std"}
