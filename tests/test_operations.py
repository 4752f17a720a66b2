"""The operations of views that the paper does not have, against scipy, torch.rot90 and cases computed by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.ndimage
import scipy.stats
import torch
from torch import Tensor

from byol import operations, views
from byol.config import View, Views

pytestmark = pytest.mark.usefixtures("one_thread")

NONE = dict.fromkeys(views.OPERATIONS, 0.0)
BEYOND = tuple(operations.APPLY)


def images_of(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def as_is(channels: int, **fields: float) -> Views:
    """Both views with these operations alone, left in [0, 1]."""
    view = View(**{**NONE, **fields})
    plain: tuple[float, ...] = (0.0,) * channels
    return Views(t=view, t_prime=view, mean=plain, std=(1.0,) * channels)  # type: ignore[arg-type]


@pytest.mark.parametrize("degrees", [-137.0, -15.0, 3.7, 45.0, 180.0])
def test_rotation_equals_scipy(degrees: float) -> None:
    """Breaks when the angle has another sign or unit, corners are black, or the sides of a pixel are taken for 1."""
    images = images_of(2, 3, 21, 30)
    expected = [
        [scipy.ndimage.rotate(channel, degrees, order=1, mode="reflect", reshape=False) for channel in image]
        for image in images.numpy()
    ]
    turned = operations.rotate(images, torch.tensor([degrees, degrees], dtype=torch.float64))
    np.testing.assert_allclose(turned.numpy(), expected, atol=1e-9)


def test_a_rotation_by_quarters_equals_rot90() -> None:
    """Breaks when a rotation goes clockwise while quarter turns do not, or an image gets its neighbour's turn."""
    images = images_of(8, 5, 9, 9)
    quarters = torch.tensor([3, 0, 1, 2, 2, 1, 0, 3])
    expected = torch.stack([image.rot90(int(turns), (1, 2)) for image, turns in zip(images, quarters, strict=True)])
    assert torch.equal(operations.quarter_turn(images, quarters), expected)
    torch.testing.assert_close(operations.rotate(images, 90.0 * quarters), expected, rtol=0, atol=1e-9)


def test_quarters_are_as_likely() -> None:
    """Breaks when one of the four turns is never drawn, or more often than another."""
    draw, _ = views.draw(0, 0, 40_000, as_is(3, quarter_turn=1))
    counts = torch.bincount(draw["quarters"].long() % 4, minlength=4)
    assert counts.tolist() == pytest.approx([10_000] * 4, rel=0.04)


def test_channels_change_on_their_own() -> None:
    """Breaks when channels share their change, contrast moves the mean, or a change is larger than is asked for."""
    images = 0.3 + 0.4 * images_of(50, 4, 8, 8)
    keys, brightness, contrast = torch.arange(50.0) * 1001, torch.linspace(0, 0.3, 50), torch.linspace(0.5, 0, 50)
    changed = operations.channel_jitter(images, keys, brightness, contrast)
    moved = (changed.mean((2, 3)) - images.mean((2, 3))).numpy()  # by brightness alone
    factors = (changed.std((2, 3)) / images.std((2, 3))).numpy() - 1
    assert (np.abs(moved) <= brightness.numpy()[:, None] + 1e-6).all()
    assert (np.abs(factors) <= contrast.numpy()[:, None] + 1e-6).all()
    assert np.abs(np.corrcoef(moved[25:].T) - np.eye(4)).max() < 0.6
    shares = np.concatenate([(moved[1:] / brightness.numpy()[1:, None]), factors[:-1] / contrast.numpy()[:-1, None]])
    assert scipy.stats.kstest(shares.ravel(), "uniform", args=(-1, 2)).pvalue > 0.001
    residual = images - images.mean((2, 3), keepdim=True)
    again = torch.from_numpy(factors + 1)[..., None, None] * residual + torch.from_numpy(moved)[..., None, None]
    torch.testing.assert_close(changed, again + images.mean((2, 3), keepdim=True), rtol=0, atol=1e-6)


@pytest.mark.parametrize(("channels", "share", "dropped"), [(1, 1.0, 0), (2, 0.0, 1), (5, 0.5, 2), (13, 1.0, 12)])
def test_channels_are_dropped_but_never_all(channels: int, share: float, dropped: int) -> None:
    """Breaks when a single channel is blackened, none is, all are, or always the same ones."""
    images = 0.5 + images_of(400, channels, 4, 4) / 2
    changed = operations.channel_drop(images, torch.arange(400.0) * 977, share)
    black = changed.amax((2, 3)) == 0
    assert (black.sum(1) == dropped).all()
    assert torch.equal(changed[~black], images[~black])
    if 0 < dropped < channels:
        assert black.double().mean(0).tolist() == pytest.approx([dropped / channels] * channels, abs=0.1)


def test_noise_is_gaussian_and_independent() -> None:
    """Breaks when noise is uniform, of another deviation, or shared by pixels, channels or images."""
    grey = torch.full((40, 3, 25, 25), 0.5, dtype=torch.float64)
    deviation = torch.linspace(0.01, 0.1, 40)
    keys = torch.arange(40.0) + 7  # neighbours: the hash has to part them
    noise = (operations.add_noise(grey, keys, deviation) - grey) / deviation.double().view(-1, 1, 1, 1)
    assert scipy.stats.kstest(noise.flatten().numpy(), "norm").pvalue > 0.001
    rows = noise.flatten(1)
    assert (torch.corrcoef(rows) - torch.eye(40)).abs().max() < 0.13  # five deviations of 1875 numbers
    assert (torch.corrcoef(rows.T[:60]) - torch.eye(60)).abs().max() < 0.85
    assert torch.corrcoef(torch.stack([noise[..., 1:].flatten(), noise[..., :-1].flatten()]))[0, 1].abs() < 0.03


def transcribed(key: int, place: int) -> float:
    """`spread` in Python's own whole numbers."""

    def mixed(word: int) -> int:
        word %= 2**32
        word = (word ^ (word >> 16)) * 0x7FEB352D % 2**32
        word = (word ^ (word >> 15)) * 0x846CA68B % 2**32
        return word ^ (word >> 16)

    return ((mixed(mixed(key + 1) + place) >> 8) + 0.5) / 2**24


def test_spread_is_the_same_everywhere() -> None:
    """Breaks when a device's overflow or the batch's size gets into the numbers, which stored runs rest on."""
    keys = torch.tensor([0.0, 1.0, 12345.0, 2**24 - 1])
    found = operations.spread(keys, 1000)
    expected = [[transcribed(int(key), place) for place in range(1000)] for key in keys]
    np.testing.assert_array_equal(found.numpy(), np.array(expected, np.float32))
    assert torch.equal(operations.spread(keys[2:3], 10), found[2:3, :10])


@pytest.mark.parametrize("channels", [1, 2, 3, 5])
@pytest.mark.parametrize("name", BEYOND)
def test_operations_beyond_the_paper_take_any_channels(name: str, channels: int) -> None:
    """Breaks when an operation needs three channels, leaves [0, 1], or depends on an image's place in the batch."""
    config = as_is(channels, **{name: 1.0, "angle": 90.0})
    crops = images_of(6, channels, 16, 16).float()
    draw, _ = views.draw(0, 5, 6, config)
    made = views.finish_(crops.clone(), draw, config)
    assert made.shape == crops.shape
    assert 0 <= made.min() <= made.max() <= 1
    assert torch.equal(made, crops) == (name == "channel_drop" and channels == 1)
    alone = views.finish_(crops[3:4].clone(), views.slice_draw(draw, 3, 4), config)
    torch.testing.assert_close(alone, made[3:4], rtol=0, atol=1e-6)


def test_colour_operations_are_for_colours() -> None:
    """Breaks when bands are given a hue, colours lose theirs, or what is left out is not named."""
    for channels in (1, 3, 4):
        config = as_is(channels, jitter=1, grayscale=1)
        crops = images_of(4, channels, 8, 8).float()
        same = torch.equal(views.finish_(crops.clone(), views.draw(0, 0, 4, config)[0], config), crops)
        assert same == (channels != 3)
        assert views.left_out(config, channels) == ([] if channels == 3 else ["jitter", "grayscale"])
    assert views.left_out(as_is(1, blur=1, flip=1), 1) == []


def test_the_paper_has_none_of_them() -> None:
    """Breaks when an operation beyond the paper is on by default, or takes numbers from those of the paper."""
    default = Views()
    assert all(getattr(view, name) == 0 for name in BEYOND for view in (default.t, default.t_prime))
    plain = views.draw(3, 4, 64, default)
    on: dict[str, Any] = dict.fromkeys(BEYOND, 1.0)
    every = Views(t=replace(default.t, **on), t_prime=replace(default.t_prime, **on))
    beyond = {s for name in BEYOND for s in (name, *views.OPERATIONS[name].strengths(every.t, default))}
    for before, after in zip(plain, views.draw(3, 4, 64, every), strict=True):
        assert {name for name in before if not torch.equal(before[name], after[name])} == beyond


def test_the_meta_device_takes_them() -> None:
    """Breaks when a device is asked for what was drawn, and so waited for."""
    config = as_is(4, **dict.fromkeys(BEYOND, 0.5))
    draw, _ = views.draw(0, 0, 8, config)
    assert views.finish_(torch.empty(8, 4, 20, 20, device="meta"), draw, config).device.type == "meta"
