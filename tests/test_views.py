"""The views against the reference code's recorded arrays, hand-computed cases, colorsys and torchvision."""

from __future__ import annotations

import colorsys
import dataclasses
import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torchvision.transforms.v2 import functional as tv

from byol import views
from byol.config import View, Views

pytestmark = pytest.mark.usefixtures("one_thread")

TORCHVISION = Views(crop="torchvision", colour="torchvision")
# FACTS 4.1 (5): a 2x2 image of these pixels.
PIXELS = ((0.2, 0.4, 0.6), (0.8, 0.1, 0.3), (0.5, 0.5, 0.5), (1.0, 0.0, 0.25))


def image_of(pixels: Any) -> Tensor:
    """Four pixels as (1, 3, 2, 2), float64."""
    return torch.tensor(pixels, dtype=torch.float64).reshape(1, 2, 2, 3).permute(0, 3, 1, 2).contiguous()


def random_bytes(*shape: int, seed: int = 0) -> Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def random_images(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def close(actual: Tensor, expected: Tensor, tolerance: float) -> None:
    torch.testing.assert_close(actual, expected.to(actual.dtype), rtol=0, atol=tolerance)


@pytest.mark.parametrize(
    ("name", "operation"),
    [
        ("brightness_-0.4", lambda x: views.adjust_brightness(x, -0.4)),
        ("brightness_0.25", lambda x: views.adjust_brightness(x, 0.25)),
        ("contrast_0.6", lambda x: views.adjust_contrast(x, 0.6)),
        ("contrast_1.4", lambda x: views.adjust_contrast(x, 1.4)),
        ("saturation_0.8", lambda x: views.adjust_saturation(x, 0.8)),
        ("saturation_1.2", lambda x: views.adjust_saturation(x, 1.2)),
        ("hue_-0.1", lambda x: views.adjust_hue(x, -0.1)),
        ("hue_0.1", lambda x: views.adjust_hue(x, 0.1)),
        ("gray", views.to_grayscale),
        ("solarize_0.5", views.solarize),
        ("blur23taps_sigma0.1", lambda x: views.gaussian_blur(x, 0.1, taps=23)),
        ("blur23taps_sigma0.7", lambda x: views.gaussian_blur(x, 0.7, taps=23)),
        ("blur23taps_sigma2.0", lambda x: views.gaussian_blur(x, 2.0, taps=23)),
        ("blur_native48_5taps_sigma1.3", lambda x: views.gaussian_blur(x, 1.3)),
    ],
)
def test_colour_equals_the_reference_code(
    name: str, operation: Callable[[Tensor], Tensor], recorded: dict[str, Tensor]
) -> None:
    """Breaks when any colour formula, grey weight, blur border or kernel length departs from the reference code."""
    close(operation(recorded["input_u8"].float() / 255).clamp(0, 1), recorded[name], 1e-5)


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        (
            lambda x: views.adjust_saturation(x, 1.2),
            ((0.12, 0.36, 0.6), (0.8, 0, 0.22857), (0.5, 0.5, 0.5), (1, 0, 0.25)),
        ),
        (
            lambda x: views.adjust_saturation(x, 0.8),
            ((0.28, 0.44, 0.6), (0.8, 0.24, 0.4), (0.5, 0.5, 0.5), (1, 0.2, 0.4)),
        ),
        (lambda x: views.adjust_hue(x, 0.1), ((0.24, 0.2, 0.6), (0.8, 0.32, 0.1), (0.5, 0.5, 0.5), (1, 0.35, 0))),
        (lambda x: views.adjust_hue(x, -0.1), ((0.2, 0.6, 0.56), (0.8, 0.1, 0.72), (0.5, 0.5, 0.5), (1, 0, 0.85))),
        (
            lambda x: views.adjust_contrast(x, 1.4),
            ((0.03, 0.46, 0.675), (0.87, 0.04, 0.255), (0.45, 0.6, 0.535), (1.15, -0.1, 0.185)),
        ),
        (lambda x: views.adjust_brightness(x, -0.25), [[c - 0.25 for c in pixel] for pixel in PIXELS]),
        (views.to_grayscale, [[grey] * 3 for grey in (0.36298, 0.33202, 0.49995, 0.3274)]),
        (views.solarize, ((0.2, 0.4, 0.4), (0.2, 0.1, 0.3), (0.5, 0.5, 0.5), (0, 0, 0.25))),
    ],
)
def test_colour_of_four_pixels_by_hand(operation: Callable[[Tensor], Tensor], expected: Any) -> None:
    """FACTS 4.1 (5). Breaks when an adjust function clips, or the mean of contrast is taken over the grey image."""
    close(operation(image_of(PIXELS)), image_of(expected), 5e-6)


def test_hue_and_saturation_equal_colorsys() -> None:
    """Breaks when the closed forms are not HSV's: ties, greys, black, white and primary colours included."""
    special = [[r, g, b] for r in (0.0, 0.5, 1.0) for g in (0.0, 0.5, 1.0) for b in (0.0, 0.5, 1.0)]
    pixels = np.concatenate([np.array(special), np.random.default_rng(0).random((999, 3))])
    images = torch.from_numpy(pixels.T.reshape(1, 3, 2, -1).copy())
    flat = images.reshape(3, -1).T.tolist()
    for strength in (-0.5, -0.1, 0.03, 0.5):
        hue, saturation = [], []
        for h, s, v in (colorsys.rgb_to_hsv(*pixel) for pixel in flat):
            hue.append(colorsys.hsv_to_rgb((h + strength) % 1, s, v))
            saturation.append(colorsys.hsv_to_rgb(h, min(s * (1 + strength), 1), v))
        for adjust, value, expected in (
            (views.adjust_hue, strength, hue),
            (views.adjust_saturation, 1 + strength, saturation),
        ):
            exact = torch.tensor(expected, dtype=torch.float64).T.reshape(images.shape)
            close(adjust(images, value), exact, 1e-12)
            close(adjust(images.float(), value), exact, 2e-6)


def test_hue_leaves_greys_exactly_as_they_are() -> None:
    """Breaks when a chroma of zero is divided by, or a grey is given a hue."""
    greys = torch.linspace(0, 1, 64).reshape(1, 1, 8, 8).expand(1, 3, 8, 8).contiguous()
    assert torch.equal(views.adjust_hue(greys, 0.37), greys)
    assert torch.equal(views.adjust_saturation(greys, 1.2), greys)


@pytest.mark.parametrize(
    ("name", "factors"),
    [("brightness", (0.6, 1.4)), ("contrast", (0.6, 1.4)), ("saturation", (0.8, 1.2)), ("hue", (-0.1, 0.3))],
)
def test_torchvision_colour_equals_torchvision(name: str, factors: tuple[float, float]) -> None:
    """Breaks when the variant keeps the reference code's formula, or two adjustments change names in COLOUR."""
    images = random_images(2, 3, 9, 7).float()
    reference = getattr(tv, f"adjust_{name}")
    expected = torch.stack([reference(image, factor) for image, factor in zip(images, factors, strict=True)])
    close(views.COLOUR["torchvision"][name](images, torch.tensor(factors)).clamp(0, 1), expected, 2e-6)


def test_blur_by_hand() -> None:
    """FACTS 1.4 and 4.1 (6). Breaks when borders are reflected, or the kernel is cut, widened or not normalised."""
    ones = torch.ones(1, 3, 224, 224, dtype=torch.float64)
    for sigma, corner, edge in ((2.0, 0.360, 0.600), (1.0, 0.489, 0.699)):
        blurred = views.gaussian_blur(ones, sigma)[0, 0]
        assert blurred[0, 0].item() == pytest.approx(corner, abs=6e-4)
        assert blurred[0, 100].item() == pytest.approx(edge, abs=6e-4)
        assert blurred[100, 0].item() == pytest.approx(edge, abs=6e-4)
        assert blurred[100, 100].item() == pytest.approx(1, abs=1e-12)
    delta = torch.zeros(1, 3, 64, 64, dtype=torch.float64)
    delta[..., 30, 30] = 1
    row = views.gaussian_blur(delta, 2.0, taps=23)[0, 1, 30, 30:35]
    close(row, torch.tensor([0.0397887, 0.0351134, 0.0241331, 0.0129175, 0.0053848]), 1e-7)


@pytest.mark.parametrize(("height", "width", "taps"), [(97, 61, 23), (33, 64, 5), (5, 200, 3), (224, 224, 23)])
def test_blur_equals_a_convolution(height: int, width: int, taps: int) -> None:
    """Breaks when a stripe is lost, shifted or blurred with another image's sigma, whatever the sides are."""
    images, sigma = random_images(3, 3, height, width), torch.tensor([0.3, 1.1, 2.0])
    offset = torch.arange(taps, dtype=torch.float64) - taps // 2
    for image, own, blurred in zip(images, sigma, views.gaussian_blur(images, sigma, taps), strict=True):
        kernel = torch.exp(-(offset**2) / (2 * own.double() ** 2))
        kernel = torch.outer(kernel, kernel) / kernel.sum() ** 2
        expected = torch.nn.functional.conv2d(image[:, None], kernel[None, None], padding=taps // 2)[:, 0]
        close(blurred, expected, 1e-7)


def test_reflected_blur_equals_torchvision() -> None:
    """Breaks when `border` is ignored or the edge pixel is counted twice."""
    images = random_images(2, 3, 40, 30)
    sigma = torch.tensor([0.5, 1.9])
    expected = torch.stack([tv.gaussian_blur(x, [9, 9], [s, s]) for x, s in zip(images, sigma.tolist(), strict=True)])
    close(views.gaussian_blur(images, sigma, taps=9, border="reflect"), expected, 1e-6)
    close(views.gaussian_blur(torch.ones(1, 3, 224, 224), 2.0, border="reflect"), torch.ones(1, 3, 224, 224), 1e-6)


@pytest.mark.parametrize(("height", "taps"), [(224, 23), (160, 17), (128, 13), (96, 9), (32, 3), (16, 1)])
def test_blur_length_follows_the_height(height: int, taps: int) -> None:
    """Breaks when the kernel is a fixed 23 taps, or a tenth of the height is rounded another way."""
    delta = torch.zeros(1, 3, height, height)
    delta[..., height // 2, height // 2] = 1
    assert (views.gaussian_blur(delta, 1e3)[0, 0, height // 2] > 0).sum() == taps


# Recorded once: a change of the generator or of a column would silently change every run.
RECORDED = {
    "area": [0.255619, 0.3158553, 0.7463679, 0.8800508],
    "log_ratio": [0.0903353, 0.0061019, -0.0498049, -0.106212],
    "x": [0.9562721, 0.3538331, 0.860596, 0.7087431],
    "y": [0.3685546, 0.1226203, 0.8367849, 0.9447369],
    "flip": [False, False, True, False],
    "jitter": [True, True, False, True],
    "brightness": [0.2062629, -0.2250507, 0.3985098, -0.2777059],
    "contrast": [0.6489123, 1.3332235, 0.9720701, 1.1522629],
    "saturation": [1.0925869, 1.1850902, 0.9468424, 1.0890187],
    "hue": [0.0780296, -0.0371586, 0.004824, -0.0300588],
    "grayscale": [False, False, False, False],
    "blur": [True, True, True, True],
    "sigma": [1.575828, 1.6890539, 0.4537169, 1.5879174],
    "solarize": [False, False, False, False],
}
RECORDED_ORDER = [[0, 1, 3, 2], [3, 2, 0, 1], [1, 3, 0, 2], [0, 1, 2, 3]]


def test_draws_follow_from_seed_and_step() -> None:
    """Breaks when the draw reads global random state, the batch's size, or not both of seed and step."""
    first = views.draw(7, 11, 64, Views())
    torch.manual_seed(123)
    torch.rand(5)
    for part, again, whole in zip(first, views.draw(7, 11, 64, Views()), views.draw(7, 11, 100, Views()), strict=True):
        assert equal(part, again)
        assert equal(part, views.slice_draw(whole, 0, 64))
    for other in (views.draw(8, 11, 64, Views()), views.draw(7, 12, 64, Views())):
        assert not torch.equal(first[0]["area"], other[0]["area"])
    assert not torch.equal(first[0]["area"], first[1]["area"])
    draw, _ = views.draw(0, 0, 4, Views())
    for name, values in RECORDED.items():
        assert draw[name].tolist() == pytest.approx(values, abs=2e-7), name
    assert draw["order"].tolist() == RECORDED_ORDER


def equal(one: views.Draw, other: views.Draw) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_a_new_operation_leaves_all_other_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks when an operation that is added takes its numbers from the columns of others, the other view or step."""
    before = [views.draw(seed, step, 5000, Views()) for seed, step in ((0, 3), (1, 3), (0, 4))]
    turn = views.Operation(lambda images, choices, config: images, lambda view, config: {"angle": (-90.0, 90.0)})
    monkeypatch.setattr(views, "OPERATIONS", {"turn": turn, **views.OPERATIONS})
    monkeypatch.setattr(View, "turn", 0.3, raising=False)
    new = []
    for (seed, step), old in zip(((0, 3), (1, 3), (0, 4)), before, strict=True):
        for draw, known in zip(views.draw(seed, step, 5000, Views()), old, strict=True):
            assert equal({name: draw[name] for name in known}, known)
            assert draw.keys() - known.keys() == {"turn", "angle"}
            assert draw["turn"].double().mean().item() == pytest.approx(0.3, abs=0.03)
            assert (draw["angle"].min().item(), draw["angle"].max().item()) == pytest.approx((-90, 90), abs=0.5)
            new += [draw["turn"].double(), draw["angle"].double(), draw["hue"].double()]
    close(torch.corrcoef(torch.stack(new)), torch.eye(len(new)), 0.07)  # five deviations


def test_slices_of_a_draw_give_slices_of_the_views() -> None:
    """Breaks when an image's result depends on its place in the batch: processes each keep their slice."""
    images, config = random_bytes(24, 3, 32, 32), Views()
    for draw in views.draw(0, 0, 24, config):
        part = views.make(images[8:20], views.slice_draw(draw, 8, 20), config, 32)
        close(part, views.make(images, draw, config, 32)[8:20], 2e-5)


def test_choices_stay_on_the_cpu() -> None:
    """Breaks when float64 is sent to a device (mps has none) or a device is asked what was chosen, and so waited for.

    The meta device stands for any other: nothing can be read from it.
    """
    for draw in views.draw(0, 0, 8, Views()):
        finished = views.finish_(torch.empty(8, 3, 40, 40, device="meta"), draw, Views())
        assert finished.device.type == "meta"
        assert finished.dtype == torch.float32


def test_gate_frequencies() -> None:
    """FACTS 1.4: grey 20 %, neither jittered nor grey 16 %. Breaks when gates share a number or are inverted."""
    for draw, view in zip(views.draw(0, 0, 40000, Views()), (Views().t, Views().t_prime), strict=True):
        for gate in views.OPERATIONS:
            assert draw[gate].double().mean().item() == pytest.approx(getattr(view, gate), abs=0.01)
        untouched = (~draw["jitter"] & ~draw["grayscale"]).double().mean().item()
        assert untouched == pytest.approx(0.16, abs=0.01)
        orders = torch.unique(draw["order"], dim=0, return_counts=True)
        assert orders[1].tolist() == pytest.approx([40000 / 24] * 24, rel=0.12)
        for one, two in (("flip", "jitter"), ("jitter", "grayscale"), ("flip", "grayscale")):
            both = (draw[one] & draw[two]).double().mean().item()
            assert both == pytest.approx(getattr(view, one) * getattr(view, two), abs=0.01)


def test_choices_are_independent() -> None:
    """Breaks when two choices, or the two views, share a random number."""
    skipped = {"ratio_range", "order"}
    even = View(**dict.fromkeys(views.OPERATIONS, 0.5))
    draws = views.draw(0, 0, 20000, Views(t=even, t_prime=even))
    rows = [value.double() for draw in draws for name, value in draw.items() if name not in skipped]
    correlation = torch.corrcoef(torch.stack(rows))
    close(correlation, torch.eye(len(rows)), 0.035)  # five deviations


def test_gates_at_the_ends_always_and_never_fire() -> None:
    """Breaks when a probability of 0 can fire (u <= p) or one of 1 can fail."""
    never, always = (View(**dict.fromkeys(views.OPERATIONS, probability)) for probability in (0.0, 1.0))
    draws = views.draw(0, 0, 20000, Views(t=never, t_prime=always))
    for name in views.OPERATIONS:
        assert not draws[0][name].any()
        assert draws[1][name].all()


@pytest.mark.parametrize("config", [Views(), TORCHVISION])
def test_strengths_fill_their_ranges(config: Views) -> None:
    """Breaks when a strength is drawn from another range; torchvision's brightness is a factor, byol's is added."""
    middle = float(config.colour == "torchvision")
    ranges = {
        "brightness": (middle - 0.4, middle + 0.4),
        "contrast": (0.6, 1.4),
        "saturation": (0.8, 1.2),
        "hue": (-0.1, 0.1),
        "sigma": (0.1, 2.0),
        "area": (0.08, 1.0),
        "log_ratio": (math.log(3 / 4), math.log(4 / 3)),
    }
    for draw in views.draw(0, 0, 20000, config):
        for name, (low, high) in ranges.items():
            values = draw[name]
            margin = (high - low) * 1e-3
            assert low - 1e-6 <= values.min() < low + margin
            assert high - margin < values.max() <= high + 1e-6
            assert values.double().mean().item() == pytest.approx((low + high) / 2, abs=(high - low) * 0.01)


def by_hand(image: Tensor, draw: views.Draw, i: int, config: Views) -> Tensor:
    """FACTS 1.4 for one image, operation by operation."""
    if draw["flip"][i]:
        image = image.flip(-1)
    if draw["jitter"][i]:
        names = ("brightness", "contrast", "saturation", "hue")
        for name in (names[number] for number in draw["order"][i].tolist()):
            image = views.COLOUR[config.colour][name](image, draw[name][i].item()).clamp(0, 1)
    if draw["grayscale"][i]:
        image = views.to_grayscale(image)
    if draw["blur"][i]:
        image = views.gaussian_blur(image, draw["sigma"][i].item(), border=config.border)
    if draw["solarize"][i]:
        image = views.solarize(image)
    return image.clamp(0, 1)


@pytest.mark.parametrize("config", [Views(), dataclasses.replace(TORCHVISION, border="reflect")])
def test_chain_of_each_image(config: Views) -> None:
    """Breaks when operations swap places, a clip is missing, a gate is ignored or parameters go to another image."""
    crops = random_images(48, 3, 40, 40).float()
    for draw in views.draw(5, 0, 48, config):
        expected = torch.cat([by_hand(crops[i : i + 1].double(), draw, i, config) for i in range(48)])
        close(views.finish_(crops.clone(), draw, views.unnormalized(config)), expected, 3e-5)
        mean, std = (torch.tensor(numbers).view(3, 1, 1) for numbers in (config.mean, config.std))
        close(views.finish_(crops.clone(), draw, config), (expected - mean) / std, 2e-4)


@pytest.mark.parametrize("config", [Views(), dataclasses.replace(TORCHVISION, antialias=True)])
def test_images_in_memory_and_images_of_any_size_have_the_same_views(config: Views) -> None:
    """Breaks when the two ways of cropping part ways, a crop is another image's, or the images are written to."""
    images = random_bytes(12, 3, 40, 50)
    kept = images.clone()
    mixed = [image[:, :30] if i % 2 else image for i, image in enumerate(images)]
    for draw in views.draw(0, 3, 12, config):
        view, other = views.make(images, draw, config, 32), views.make(mixed, draw, config, 32)
        close(view[::2], other[::2], 5e-5)
        close(views.make(list(images), draw, config, 32), view, 5e-5)
        alone = [views.make([image], views.slice_draw(draw, i, i + 1), config, 32) for i, image in enumerate(mixed)]
        close(torch.cat(alone), other, 5e-5)
        assert view.dtype == torch.float32
        assert view.is_contiguous()
    assert torch.equal(images, kept)


def test_each_image_has_its_own_result() -> None:
    """Breaks when statistics or parameters leak between images: one image or one draw changes one output."""
    images, config = random_bytes(16, 3, 32, 32), Views()
    draw, other = views.draw(0, 0, 16, config)
    before = views.make(images, draw, config, 32)
    changed = images.clone()
    changed[5] = 255 - changed[5]
    mixed = {name: torch.cat([values[:9], other[name][9:10], values[10:]]) for name, values in draw.items()}
    for after, index in ((views.make(changed, draw, config, 32), 5), (views.make(images, mixed, config, 32), 9)):
        differs = (before - after).abs().amax((1, 2, 3)) > 2e-5
        assert differs.nonzero().flatten().tolist() == [index]


@pytest.mark.parametrize("operation", ["brightness", "contrast", "saturation", "hue"])
def test_operations_keep_their_input_and_dtype(operation: str) -> None:
    """Breaks when an operation writes into its argument, or float64 is computed in float32."""
    for images in (random_images(3, 3, 8, 8), random_images(3, 3, 8, 8).float()):
        kept = images.clone()
        changed = getattr(views, f"adjust_{operation}")(images, torch.tensor([0.3, 0.9, 0.2]))
        others = (views.to_grayscale(images), views.gaussian_blur(images, 1.0, taps=3), views.solarize(images))
        assert all(result.dtype == images.dtype and result is not images for result in (changed, *others))
        assert torch.equal(images, kept)
        for i, value in enumerate((0.3, 0.9, 0.2)):
            close(getattr(views, f"adjust_{operation}")(images[i : i + 1], value), changed[i : i + 1], 1e-6)


def test_views_can_be_trained_on() -> None:
    """Breaks when views are made in inference mode: such tensors cannot be saved for the backward pass."""
    images = random_bytes(4, 3, 32, 32)
    view = views.make(images, views.draw(0, 0, 4, Views())[0], Views(), 32)
    convolution = torch.nn.Conv2d(3, 2, 3)
    convolution(view).sum().backward()
    assert convolution.weight.grad is not None


def test_draw_is_cheap() -> None:
    """Breaks when choices are drawn image by image: 256 images take 0.3 ms (best of many: load is no matter)."""
    best = math.inf
    for step in range(50):
        start = time.perf_counter()
        views.draw(0, step, 256, Views())
        best = min(best, time.perf_counter() - start)
    assert best < 2e-3
