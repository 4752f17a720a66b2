"""The schedules against the values recorded from the reference code (FACTS 1.11 and 4.1, item 2)."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from byol import presets
from byol.config import Config, resolve
from byol.errors import UsageError
from byol.schedules import fading, learning_rate, target_decay

IMAGENET = 1_281_167
MAIN = {"peak": 3.2, "warmup_steps": 3127, "total_steps": 312_784}


@pytest.mark.parametrize(("step", "expected"), [(0, 0.0), (1, 0.00102335), (1563, 1.5994884), (3127, 3.2)])
def test_learning_rate_of_the_main_result(step: int, expected: float) -> None:
    """Breaks if steps count from 1, or the warm-up is shorter, longer or not linear."""
    assert learning_rate(step, **MAIN) == pytest.approx(expected, rel=1e-5)


def test_learning_rate_starts_at_exactly_zero() -> None:
    """Breaks if the first step already moves the online weights."""
    assert learning_rate(0, **MAIN) == 0.0


def test_learning_rate_is_continuous_and_ends_near_zero() -> None:
    """Breaks if the cosine starts at step 0 instead of at the end of the warm-up, or ends before the last step."""
    before, at, after = (learning_rate(3127 + i, **MAIN) for i in (-1, 0, 1))
    assert at == 3.2
    assert at - before == pytest.approx(3.2 / 3127, rel=1e-9)
    assert 0 < at - after < 1e-8
    assert 0 < learning_rate(312_783, **MAIN) < 1e-5 * 3.2
    middle = 3127 + (312_784 - 3127) // 2
    assert learning_rate(middle, **MAIN) == pytest.approx(1.6, rel=1e-4)


def test_learning_rate_against_a_transcription() -> None:
    """Breaks with any other curve than linear up, half a cosine down."""
    for k in range(40):
        expected = 2 * k / 7 if k < 7 else 2 * math.cos(math.pi * (k - 7) / (40 - 7) / 2) ** 2
        assert learning_rate(k, peak=2, warmup_steps=7, total_steps=40) == pytest.approx(expected, rel=1e-12)


def test_no_warmup() -> None:
    """Breaks if a warm-up of 0 divides by zero or does not start at the peak."""
    assert learning_rate(0, peak=3.0, warmup_steps=0, total_steps=10) == 3.0
    assert learning_rate(5, peak=3.0, warmup_steps=0, total_steps=10) == pytest.approx(1.5)


def test_nothing_but_warmup() -> None:
    """Breaks if a run as long as its warm-up divides by zero."""
    assert [learning_rate(k, peak=4.0, warmup_steps=4, total_steps=4) for k in range(5)] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("step", "expected"), [(0, 0.996), (78_196, 0.9965858), (156_392, 0.998), (234_588, 0.9994142), (312_784, 1.0)]
)
def test_target_decay_of_the_main_result(step: int, expected: float) -> None:
    """Breaks if tau waits for the warm-up, falls instead of rising, or is linear."""
    assert target_decay(step, base=0.996, total_steps=312_784) == pytest.approx(expected, abs=5e-8)


def test_target_decay_stays_between_base_and_one() -> None:
    """Breaks if rounding or the formula takes tau below its base, above 1, or down again."""
    taus = [target_decay(k, base=0.97, total_steps=50) for k in range(51)]
    assert taus[0] == pytest.approx(0.97, rel=1e-15)
    assert taus == sorted(taus)
    assert max(taus) <= 1.0


@pytest.mark.parametrize(("base", "share"), [(1.0, 0.7), (0.5, 0.3), (1.0, 1.0)])
def test_fading_against_a_transcription(base: float, share: float) -> None:
    """Breaks if beta waits for the warm-up, ends anywhere but at 0, comes back below 0, or is not a straight line."""
    end = share * 40
    expected = [base * (end - k) / end if k < end else 0.0 for k in range(41)]
    assert [fading(k, base=base, share=share, total_steps=40) for k in range(41)] == pytest.approx(expected, abs=1e-15)
    assert fading(math.ceil(end), base=base, share=share, total_steps=40) == 0.0


def test_nothing_fades_at_share_zero() -> None:
    """Breaks if the default touches beta, whose constant value is what the paper's tables vary."""
    assert {fading(k, base=0.3, share=0.0, total_steps=9) for k in range(10)} == {0.3}


@pytest.mark.parametrize(
    ("preset", "steps"), [("paper-40", 12_511), ("paper-100", 31_278), ("paper-300", 93_835), ("paper-1000", 312_784)]
)
def test_steps_on_imagenet(preset: str, steps: int) -> None:
    """Breaks if steps round up, or are whole epochs of whole batches (1000·312 = 312 000)."""
    plan = resolve(presets.PRESETS[preset](), IMAGENET)
    assert (plan.steps, plan.warmup_steps) == (steps, 3127)
    assert plan.steps_per_epoch == pytest.approx(312.785, abs=1e-3)


def with_optim(config: Config, **fields: float) -> Config:
    return replace(config, optim=replace(config.optim, **fields))


def test_steps_at_batch_1024() -> None:
    """Breaks if the warm-up does not scale with the batch (FACTS 4.1, item 2)."""
    plan = resolve(with_optim(presets.paper_300(), batch=1024), IMAGENET)
    assert (plan.steps, plan.warmup_steps) == (375_341, 12_511)
    assert plan.peak_lr == pytest.approx(1.2)


def test_steps_of_imagenette() -> None:
    """Breaks if the README recipe's 36 988 steps, 369 of warm-up and τ 0.996 change (FACTS 1.16)."""
    plan = resolve(presets.imagenette(), 9469)
    assert (plan.steps, plan.warmup_steps, plan.tau) == (36_988, 369, 0.996)
    assert plan.peak_lr == 2.0


def test_accumulation_changes_only_the_passes() -> None:
    """Breaks if steps or learning rate follow the micro-batch instead of the batch."""
    whole = resolve(presets.paper_300(), IMAGENET)
    split = resolve(with_optim(presets.paper_300(), accumulate=16), IMAGENET)
    assert split == replace(whole, accumulate=16, micro_batch=256)


def test_warmup_is_at_most_half_the_run() -> None:
    """Breaks if a short run is all warm-up, or a run of 20 epochs has less than the ten asked for."""
    for epochs, steps, warmup in ((2, 20, 10), (20, 200, 100), (40, 400, 100), (0.1, 1, 0)):
        plan = resolve(with_optim(Config(), epochs=epochs, batch=64), 640)
        assert (plan.steps, plan.warmup_steps) == (steps, warmup)


def test_looks_of_the_monitor() -> None:
    """Breaks if 0 no longer means twenty looks, or epochs are not turned into steps."""
    config = with_optim(Config(), epochs=40, batch=64)
    assert resolve(config, 640).monitor_steps == 20
    every = replace(config, run=replace(config.run, monitor_epochs=1.5))
    assert resolve(every, 640).monitor_steps == 15
    assert resolve(with_optim(config, epochs=0.2), 640).monitor_steps == 1


def test_no_step_is_refused() -> None:
    """Breaks if too few images or epochs for one batch give an empty run."""
    with pytest.raises(UsageError, match=r"1 epochs of 100 images give no step of 4096 images.*optim\.batch"):
        resolve(with_optim(Config(), epochs=1), 100)
    with pytest.raises(UsageError, match="0 epochs"):
        resolve(with_optim(Config(), epochs=0), IMAGENET)
