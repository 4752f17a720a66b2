"""What `auto` goes by: measured on the images and the machine, without a trace."""

from __future__ import annotations

import math

import pytest
import torch

from byol.config import Config, apply
from byol.run import facts
from tests.conftest import TINY

CONFIG = apply(Config(), {**TINY, "data.resolution": 16, "run.threads": 1})


def images(*sides: tuple[int, int]) -> list[torch.Tensor]:
    return [torch.randint(0, 256, (3, *side), dtype=torch.uint8) for side in sides]


def test_facts_are_those_of_the_images() -> None:
    """Breaks if the side is the long one or the mean, or nothing readable ends in an error."""
    found = facts.facts(900, images((40, 60), (70, 50), (300, 80)), CONFIG)
    assert (found.images, found.side, found.cores, found.accelerator) == (900, 50, 1, False)
    assert facts.facts(3, [], CONFIG).side == 32


@pytest.mark.parametrize("sides", [[(40, 40)] * 3, [(40, 40), (30, 50)], []], ids=["alike", "mixed", "none"])
def test_timing_leaves_no_trace(sides: list[tuple[int, int]]) -> None:
    """Breaks if a kind of images cannot be timed, or timing draws from the random numbers that weights come from."""
    sample = images(*sides)
    torch.manual_seed(5)
    before = torch.get_rng_state()
    seconds = facts.facts(10, sample, CONFIG).seconds(CONFIG)
    assert math.isfinite(seconds)
    assert seconds > 0
    assert torch.equal(torch.get_rng_state(), before)


def test_views_are_timed_as_they_will_be_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks if views are timed on images that are larger than those that training cuts them from."""
    seen = []
    real = facts.views.make

    def make(batch: torch.Tensor, *arguments: object) -> torch.Tensor:
        seen.append(tuple(batch.shape))
        return real(batch, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(facts.views, "make", make)
    facts.seconds_of_views(images((64, 96), (64, 96)), apply(CONFIG, {"data.shrink": 32}))
    assert set(seen) == {(2, 3, 32, 48)}
