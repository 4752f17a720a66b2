"""Kinds of images: what is recognized, what each kind switches, and that photographs keep their views."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from byol import kinds, presets
from byol.config import View, Views
from byol.presets import KINDS, Facts, compose, small_views
from byol.run.facts import look_at

FACTS = Facts(images=2000, side=64, cores=2, memory=8.0, accelerator=False, seconds=lambda config: 1e-3)


def noise(*shape: int, kind: torch.dtype = torch.uint8, high: int = 256) -> Tensor:
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(0)).to(kind)


def cells(*shape: int, kind: torch.dtype) -> Tensor:
    """A few bright pixels on an empty ground."""
    return noise(*shape, kind=kind, high=200) * (noise(*shape, high=10) == 0).to(kind)


@pytest.mark.parametrize(
    ("images", "names", "kind"),
    [
        ([noise(3, 20, 30)] * 4, ["a.jpg"], ""),
        ([noise(1, 20, 30).expand(3, 20, 30)] * 4, ["a.jpg"], ""),  # grey photographs in three channels
        ([cells(3, 20, 30, kind=torch.uint8)] * 4, ["a.png"], ""),
        ([noise(1, 20, 30)] * 4, ["a.png"], "grey"),
        ([noise(1, 20, 30, kind=torch.int32, high=60_000)] * 4, ["a.tif"], "grey"),
        ([cells(1, 20, 30, kind=torch.int32)] * 4, ["a.tif"], "microscopy"),
        ([cells(5, 20, 30, kind=torch.uint8)] * 4, ["a.tif"], "microscopy"),
        ([noise(13, 20, 30)] * 4, ["a.tif"], "satellite"),
        ([noise(13, 20, 30)] * 4, ["a.npy"], "bands"),
        ([noise(13, 20, 30)] * 4, ["a.npy", "b.tif"], "bands"),
        ([noise(1, 20, 30)] * 4, ["scan/a.1.DCM", "b.dcm#7"], "medical"),
        ([noise(1, 20, 30)] * 4, ["a.nii.gz"], "medical"),
        ([noise(3, 20, 30)] * 4, ["a.dcm", "b.jpg"], ""),
        ([], [], ""),
    ],
)
def test_the_kind_is_recognized(images: list[Tensor], names: list[str], kind: str) -> None:
    """Breaks when three channels are taken for anything but colours, or a rule looks at another figure."""
    found = kinds.recognized(look_at(images, names))
    assert found.kind == kind
    assert found.why


def test_photographs_keep_their_views() -> None:
    """Breaks when `auto` changes the views of photographs, or speaks of their kind."""
    config, reasons = compose("auto", {}, {}, facts=FACTS)
    assert config.views == small_views()
    assert not [reason for reason in reasons if reason.field == "views"]


@pytest.mark.parametrize("channels", [1, 3, 5])
@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_is_a_preset_that_says_what_it_switches(kind: str, channels: int) -> None:
    """Breaks when a preset's views are not those of its kind, a switch is not told with its reason, or a flag loses."""
    from dataclasses import replace

    facts = replace(FACTS, channels=channels)
    config, reasons = compose(kind, {"views.t.flip": 0.25}, {}, facts=facts)
    told = [reason for reason in reasons if reason.field == "views"]
    assert str(told[0]) == f"views of {kind} images: as the preset says"
    assert config.views.t.flip == 0.25
    said = {word.split()[0]: float(word.split()[1]) for reason in told[1:] for word in str(reason.value).split(", ")}
    assert said
    base = small_views()
    for name in View.__dataclass_fields__:
        expected = said.get(name, getattr(base.t_prime, name))
        assert getattr(config.views.t_prime, name) == expected, name
    assert all(reason.why for reason in told)


def test_what_each_kind_must_not_do() -> None:
    """Breaks when a medical image is mirrored, bands are dropped where there is one, or stains are turned in hue."""
    medical, _ = kinds.views("medical", Views(), 1)
    assert (medical.t.flip, medical.t_prime.flip, medical.t.flip_vertical, medical.t.quarter_turn) == (0, 0, 0, 0)
    for kind in ("microscopy", "satellite"):
        one, many = (kinds.views(kind, Views(), channels)[0].t for channels in (1, 5))
        assert (one.channel_drop, many.channel_drop, one.quarter_turn, one.solarize) == (0, 0.2, 1, 0)
        colours = kinds.views(kind, Views(), 3)[0].t
        assert (colours.channel_jitter, colours.grayscale, colours.jitter) == (0, 0, 0.8)
        assert colours.hue < Views().t.hue
    assert kinds.SWITCHES.keys() == KINDS.keys()


def test_a_kind_is_no_fixed_recipe() -> None:
    """Breaks when a preset of a kind stops choosing for the images, or a mistyped one is not offered."""
    assert presets.chooses("satellite")
    assert not presets.chooses("paper-300")
    with pytest.raises(presets.UsageError, match="Did you mean satellite"):
        compose("satelite", {}, {})
