"""The views against the reference code's recorded arrays, hand-computed cases, colorsys and torchvision."""

from __future__ import annotations

import colorsys
import dataclasses
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import interpolate
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as tv

from byol import crops, views
from byol.config import View, Views

RECORDED = Path(__file__).resolve().parents[2] / "shared" / "parity" / "augment_ops.npz"
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


@pytest.fixture(scope="module")
def recorded() -> dict[str, Tensor]:
    if not RECORDED.exists():
        pytest.skip("the reference code's recorded arrays (shared/parity/augment_ops.npz) are not beside the project")
    with np.load(RECORDED, allow_pickle=False) as arrays:
        return {name: torch.from_numpy(arrays[name]).permute(2, 0, 1)[None].contiguous() for name in arrays}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small tensors: on a busy machine, waiting for a second thread takes longer than the work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


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


@pytest.mark.parametrize("size", [32, 48, 96])
def test_bicubic_equals_tensorflow(size: int, recorded: dict[str, Tensor]) -> None:
    """Breaks with torch's a = -0.75, with antialiasing or with repeated border pixels."""
    close(crops.resize(recorded["input_u8"], size, size), recorded[f"tfbicubic_{size}x{size}"], 2e-3)


def test_crop_then_resize_equals_tensorflow(recorded: dict[str, Tensor]) -> None:
    """Breaks when taps reach outside the crop, which TensorFlow has cut off before it resizes."""
    expected = recorded["tfbicubic_crop_3_5_40_29_to_32"]
    box = (3, 5, 40, 29)
    close(crops.crop_resize(recorded["input_u8"], views.Box(*torch.tensor(box)[:, None]), 32), expected, 2e-3)
    close(crops.crop_resize_one(recorded["input_u8"][0], box, 32)[None], expected, 2e-3)


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
    ("op", "reference", "factors"),
    [
        (0, tv.adjust_brightness, (0.6, 1.4)),
        (1, tv.adjust_contrast, (0.6, 1.4)),
        (2, tv.adjust_saturation, (0.8, 1.2)),
        (3, tv.adjust_hue, (-0.1, 0.3)),
    ],
)
def test_torchvision_colour_equals_torchvision(
    op: int, reference: Callable[..., Tensor], factors: tuple[float, float]
) -> None:
    """Breaks when the variant keeps the reference code's formula, or the operations change places in COLOUR."""
    images = random_images(2, 3, 9, 7).float()
    expected = torch.stack([reference(image, factor) for image, factor in zip(images, factors, strict=True)])
    close(views.COLOUR["torchvision"][op](images, torch.tensor(factors)).clamp(0, 1), expected, 2e-6)


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


def test_bicubic_by_hand() -> None:
    """FACTS 4.1 (7). Breaks with a = -0.75, without half-pixel centres or without renormalisation at the border."""
    delta = torch.full((1, 3, 1, 8), 0.5)
    delta[..., 4] = 1.0
    expected = [-0.02344, -0.07031, 0.22656, 0.86719, 0.86719, 0.22656, -0.07031, -0.02344]
    close((crops.resize(delta, 1, 16)[0, 0, 0, 5:13] - 0.5) * 2, torch.tensor(expected), 6e-6)
    ramp = (torch.arange(4.0).view(1, 1, 4, 1) / 8 + 0.25).expand(1, 3, 4, 2)
    expected = [-0.08824, 0.16788, 0.70992, 1.25, 1.75, 2.29008, 2.83212, 3.08824]
    close((crops.resize(ramp, 8, 2)[0, 2, :, 1] - 0.25) * 8, torch.tensor(expected), 6e-6)


def test_bicubic_is_clipped() -> None:
    """Breaks when the overshoot at an edge is left in: views live in [0, 1]."""
    edge = torch.zeros(1, 3, 8, 8, dtype=torch.uint8)
    edge[..., 4:] = 255
    large = crops.resize(edge, 32, 32)
    assert large.min() == 0
    assert large.max() == 1


@pytest.mark.parametrize("antialias", [False, True])
def test_batched_and_single_crops_agree(antialias: bool) -> None:
    """Breaks when one of the two implementations changes alone."""
    images = random_bytes(40, 3, 37, 50)
    draw, _ = views.draw(3, 0, 40, Views())
    box = views.boxes(draw, 37, 50, Views())
    single = [
        crops.crop_resize_one(image, views.Box(*sides), 24, antialias)
        for image, *sides in zip(images, *box, strict=True)
    ]
    close(crops.crop_resize(images, box, 24, antialias), torch.stack(single), 2e-6)
    close(crops.crop_resize(images.double() / 255, box, 24, antialias), torch.stack(single), 2e-6)


def test_antialias_equals_torch() -> None:
    """Breaks when antialias is ignored, or does not widen the kernel by the scale of the crop."""
    image = random_bytes(3, 90, 120)
    crop = image[None, :, 10:80, 5:105].float() / 255
    expected = interpolate(crop, (32, 32), mode="bicubic", antialias=True).clamp(0, 1)[0]
    close(crops.crop_resize_one(image, (10, 5, 70, 100), 32, antialias=True), expected, 1e-5)


def test_single_crop_is_the_same_for_any_number_of_threads() -> None:
    """Breaks when a worker's crop goes through a matmul or a reduction: batches must not depend on the machine."""
    image = random_bytes(3, 375, 500)
    results = []
    for count in (1, 2):
        torch.set_num_threads(count)
        results.append([crops.crop_resize_one(image, (7, 11, 301, 402), 224), crops.center_crop(image, 224)])
    assert all(torch.equal(one, two) for one, two in zip(*results, strict=True))


def test_crop_of_one_pixel_is_flat() -> None:
    """Breaks when the renormalisation of a tiny crop divides by zero."""
    image = random_bytes(3, 5, 6)
    close(crops.crop_resize_one(image, (2, 3, 1, 1), 4), (image[:, 2:3, 3:4] / 255).expand(3, 4, 4), 1e-6)


def test_center_crop_of_the_paper() -> None:
    """Breaks with another short side than 256/224 of the size, an off-centre square, or the code's crop-then-resize."""
    images = random_bytes(2, 3, 96, 120)
    resized = crops.resize(images, 64, 80)  # 56 * 256 / 224 = 64
    expected = resized[..., 4:60, 12:68]
    close(crops.center_crops(images, 56), expected, 2e-6)
    close(crops.center_crop(images[1], 56), expected[1], 2e-6)
    close(
        crops.center_crops(random_bytes(1, 3, 256, 256), 224),
        random_bytes(1, 3, 256, 256)[..., 16:240, 16:240] / 255,
        1e-6,
    )


def test_small_images_are_evaluated_whole() -> None:
    """Breaks when a 32 px image is enlarged and cropped for an evaluation at 32 px."""
    images = random_bytes(2, 3, 32, 32)
    assert torch.equal(crops.center_crops(images, 32), images.float() / 255)
    assert torch.equal(crops.center_crop(images[0], 32), images[0].float() / 255)


def mean_area(config: Views, height: int, width: int) -> float:
    draw, _ = views.draw(0, 0, 40000, config)
    box = views.boxes(draw, height, width, config)
    return (box.height * box.width).double().mean().item() / (height * width)


@pytest.mark.parametrize(
    ("height", "width", "byol", "torchvision"),
    [(375, 500, 0.519, 0.434), (400, 400, 0.534, 0.479), (256, 1024, 0.348, 0.191)],
)
def test_mean_crop_area(height: int, width: int, byol: float, torchvision: float) -> None:
    """FACTS 1.2. Breaks when crops that do not fit are rejected (byol) or clipped (torchvision)."""
    assert mean_area(Views(), height, width) == pytest.approx(byol, abs=0.005)
    assert mean_area(Views(crop="torchvision"), height, width) == pytest.approx(torchvision, abs=0.005)


def test_crops_are_clipped_as_often_as_in_the_reference_code() -> None:
    """FACTS 1.2: 26 % at 375x500. Breaks when the ratio is uniform, or is height / width."""
    draw, _ = views.draw(1, 0, 40000, Views())
    box = views.boxes(draw, 375, 500, Views())
    clipped = ((box.height == 375) | (box.width == 500)).double().mean().item()
    assert clipped == pytest.approx(0.26, abs=0.01)


def test_crop_box_by_hand() -> None:
    """Breaks when width and height are swapped, x and y are swapped, or rounding or placing changes."""
    box = views.crop_box(area=0.25, log_ratio=math.log(4 / 3), x=0.5, y=0.999, height=300, width=400)
    # A = 30000: w = sqrt(40000) = 200, h = sqrt(22500) = 150; left = floor(0.5 * 201), top = floor(0.999 * 151).
    assert [int(side) for side in box] == [150, 100, 150, 200]
    whole = views.crop_box(area=1.0, log_ratio=torch.tensor([0.2, -0.2]), x=0.7, y=0.7, height=100, width=100)
    # sqrt(exp(0.2)) = 1.1052: the long side is clipped to the image, the short one is 100 / 1.1052 = 90.48.
    assert whole.height.tolist() == [90, 100]
    assert whole.width.tolist() == [100, 90]
    assert whole.top.tolist() == [7, 0]
    assert whole.left.tolist() == [0, 7]
    assert all(side.dtype == torch.int64 and side.shape == (2,) for side in whole)
    # 2.5 rounds to the even 2; a crop is never empty.
    assert int(views.crop_box(area=0.0625, log_ratio=0.0, x=0, y=0, height=10, width=10).height) == 2
    assert int(views.crop_box(area=0.001, log_ratio=0.0, x=0, y=0, height=4, width=4).width) == 1


def test_crop_positions_are_uniform_and_inside() -> None:
    """Breaks when the last position is never taken, or crops leave the image."""
    x = torch.linspace(0, 1, 5001, dtype=torch.float64)
    box = views.crop_box(area=0.25, log_ratio=0.0, x=x, y=0.0, height=8, width=8)
    assert torch.bincount(box.left).tolist() == pytest.approx([1000] * 5, abs=2)
    for config in (Views(), TORCHVISION):
        for height, width in ((1, 1), (3, 200), (33, 31)):
            draw, _ = views.draw(0, 5, 500, config)
            box = views.boxes(draw, height, width, config)
            assert all(bool((side >= 0).all()) for side in box)
            assert bool((box.height >= 1).all())
            assert bool((box.width >= 1).all())
            assert bool((box.top + box.height <= height).all())
            assert bool((box.left + box.width <= width).all())


def test_torchvision_crop_has_torchvisions_statistics() -> None:
    """Breaks when fewer attempts are made or the fallback differs: mean box over 3000 of torchvision's own draws."""
    torch.manual_seed(0)
    for height, width in ((375, 500), (60, 400)):
        image = torch.empty(1, height, width)
        sampler = v2.RandomResizedCrop(32)
        drawn = [sampler.make_params([image]) for _ in range(3000)]
        expected = torch.tensor([[p["top"], p["left"], p["height"], p["width"]] for p in drawn]).double()
        draw, _ = views.draw(0, 0, 20000, TORCHVISION)
        actual = torch.stack(views.boxes(draw, height, width, TORCHVISION), 1).double()
        spread = expected.std(0) / math.sqrt(3000) + actual.std(0) / math.sqrt(20000)
        assert bool(((actual.mean(0) - expected.mean(0)).abs() < 4 * spread).all())
        close(actual.std(0) / expected.std(0), torch.ones(4), 0.06)


def test_torchvision_fallback_is_central() -> None:
    """Breaks when an image too narrow for every attempt is not cropped at its centre to the nearest ratio."""
    area, log_ratio = torch.ones(1, 10, dtype=torch.float64), torch.zeros(1, 10, dtype=torch.float64)
    wide = crops.crop_box_torchvision(area, log_ratio, 0.1, 0.1, height=30, width=101)
    assert [int(side) for side in wide] == [0, 30, 30, 40]
    tall = crops.crop_box_torchvision(area, log_ratio, 0.1, 0.1, height=101, width=30)
    assert [int(side) for side in tall] == [30, 0, 40, 30]


def test_boxes_of_images_of_different_sizes() -> None:
    """Breaks when sizes (B,) are not matched with their own image's draw."""
    for config in (Views(), TORCHVISION):
        draw, _ = views.draw(0, 0, 3, config)
        heights, widths = torch.tensor([300, 40, 500]), torch.tensor([200, 90, 333])
        together = views.boxes(draw, heights, widths, config)
        for i in range(3):
            alone = views.boxes(views.slice_draw(draw, i, i + 1), int(heights[i]), int(widths[i]), config)
            assert [int(side[i]) for side in together] == [int(side) for side in alone]


# Recorded once: a change of the generator or of a column would silently change every run.
RECORDED_HUE = (0.0780296, -0.0371586, 0.0048240, -0.0300588)


def test_draws_follow_from_seed_and_step() -> None:
    """Breaks when the draw reads global random state, the batch's size, or not both of seed and step."""
    first = views.draw(7, 11, 64, Views())
    torch.manual_seed(123)
    torch.rand(5)
    for one, two in zip(first, views.draw(7, 11, 64, Views()), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))
    for whole, part in zip(views.draw(7, 11, 100, Views()), first, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(views.slice_draw(whole, 0, 64), part, strict=True))
    for other in (views.draw(8, 11, 64, Views()), views.draw(7, 12, 64, Views())):
        assert not torch.equal(first[0].area, other[0].area)
    assert not torch.equal(first[0].area, first[1].area)
    assert views.draw(0, 0, 4, Views())[0].hue.tolist() == pytest.approx(RECORDED_HUE, abs=2e-7)


def test_slices_of_a_draw_give_slices_of_the_views() -> None:
    """Breaks when an image's result depends on its place in the batch: processes each keep their slice."""
    images, config = random_bytes(24, 3, 32, 32), Views()
    draws = views.draw(0, 0, 24, config)
    whole = views.views(images, draws, config, 32)
    part = views.views(images[8:20], tuple(views.slice_draw(d, 8, 20) for d in draws), config, 32)  # type: ignore[arg-type]
    for all_views, some in zip(whole, part, strict=True):
        close(some, all_views[8:20], 2e-5)


def test_choices_stay_on_the_cpu() -> None:
    """Breaks when float64 is sent to a device (mps has none) or a device is asked what was chosen, and so waited for.

    The meta device stands for any other: nothing can be read from it.
    """
    for draw in views.draw(0, 0, 8, Views()):
        finished = views.finish(torch.empty(8, 3, 40, 40, device="meta"), draw, Views())
        assert finished.device.type == "meta"
        assert finished.dtype == torch.float32


def test_gate_frequencies() -> None:
    """FACTS 1.4: grey 20 %, neither jittered nor grey 16 %. Breaks when gates share a number or are inverted."""
    for draw, view in zip(views.draw(0, 0, 40000, Views()), (Views().t, Views().t_prime), strict=True):
        for gate in ("flip", "jitter", "grayscale", "blur", "solarize"):
            assert getattr(draw, gate).double().mean().item() == pytest.approx(getattr(view, gate), abs=0.01)
        untouched = (~draw.jitter & ~draw.grayscale).double().mean().item()
        assert untouched == pytest.approx(0.16, abs=0.01)
        orders = torch.unique(draw.order, dim=0, return_counts=True)
        assert orders[1].tolist() == pytest.approx([40000 / 24] * 24, rel=0.12)
        for one, two in (("flip", "jitter"), ("jitter", "grayscale"), ("flip", "grayscale")):
            both = (getattr(draw, one) & getattr(draw, two)).double().mean().item()
            assert both == pytest.approx(getattr(view, one) * getattr(view, two), abs=0.01)


def test_choices_are_independent() -> None:
    """Breaks when two choices, or the two views, share a random number."""
    skipped = {"ratio_range", "order"}
    draws = views.draw(0, 0, 20000, Views(t_prime=View(blur=0.5, solarize=0.5), t=View(blur=0.5, solarize=0.5)))
    rows = [value.double() for draw in draws for name, value in draw._asdict().items() if name not in skipped]
    correlation = torch.corrcoef(torch.stack(rows))
    close(correlation, torch.eye(len(rows)), 0.035)  # five deviations


def test_gates_at_the_ends_always_and_never_fire() -> None:
    """Breaks when a probability of 0 can fire (u <= p) or one of 1 can fail."""
    names = ("flip", "jitter", "grayscale", "blur", "solarize")
    never, always = View(**dict.fromkeys(names, 0.0)), View(**dict.fromkeys(names, 1.0))
    draws = views.draw(0, 0, 20000, Views(t=never, t_prime=always))
    for name in names:
        assert not getattr(draws[0], name).any()
        assert getattr(draws[1], name).all()


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
            values = getattr(draw, name)
            margin = (high - low) * 1e-3
            assert low - 1e-6 <= values.min() < low + margin
            assert high - margin < values.max() <= high + 1e-6
            assert values.double().mean().item() == pytest.approx((low + high) / 2, abs=(high - low) * 0.01)


def by_hand(image: Tensor, draw: views.ViewDraw, i: int, config: Views) -> Tensor:
    """FACTS 1.4 for one image, operation by operation."""
    if draw.flip[i]:
        image = image.flip(-1)
    if draw.jitter[i]:
        strengths = (draw.brightness, draw.contrast, draw.saturation, draw.hue)
        for op in draw.order[i].tolist():
            image = views.COLOUR[config.colour][op](image, strengths[op][i].item()).clamp(0, 1)
    if draw.grayscale[i]:
        image = views.to_grayscale(image)
    if draw.blur[i]:
        image = views.gaussian_blur(image, draw.sigma[i].item(), border=config.border)
    if draw.solarize[i]:
        image = views.solarize(image)
    return image.clamp(0, 1)


@pytest.mark.parametrize("config", [Views(), dataclasses.replace(TORCHVISION, border="reflect")])
def test_chain_of_each_image(config: Views) -> None:
    """Breaks when operations swap places, a clip is missing, a gate is ignored or parameters go to another image."""
    crops = random_images(48, 3, 40, 40).float()
    kept = crops.clone()
    for draw in views.draw(5, 0, 48, config):
        expected = torch.cat([by_hand(crops[i : i + 1].double(), draw, i, config) for i in range(48)])
        close(views.augment(crops, draw, config), expected, 3e-5)
        mean, std = (torch.tensor(numbers).view(3, 1, 1) for numbers in (config.mean, config.std))
        close(views.finish(crops, draw, config), (expected - mean) / std, 2e-4)
    assert torch.equal(crops, kept)


def test_views_are_the_finished_crops() -> None:
    """Breaks when the in-memory path and the loader's path part ways, or the images in memory are written to."""
    images, config = random_bytes(12, 3, 40, 50), Views()
    kept = images.clone()
    draws = views.draw(0, 3, 12, config)
    for draw, view in zip(draws, views.views(images, draws, config, 32), strict=True):
        box = views.boxes(draw, 40, 50, config)
        cut = [crops.crop_resize_one(images[i], views.Box(*(side[i] for side in box)), 32) for i in range(12)]
        close(view, views.finish(torch.stack(cut), draw, config), 5e-5)
        assert view.dtype == torch.float32
        assert view.is_contiguous()
    assert torch.equal(images, kept)


def test_each_image_has_its_own_result() -> None:
    """Breaks when statistics or parameters leak between images: one image or one draw changes one output."""
    images, config = random_bytes(16, 3, 32, 32), Views()
    draw, other = views.draw(0, 0, 16, config)
    before = views.views(images, (draw, other), config, 32)[0]
    changed = images.clone()
    changed[5] = 255 - changed[5]
    fields = []
    for mine, theirs in zip(draw, other, strict=True):
        mixed = mine.clone()
        mixed[9] = theirs[9]
        fields.append(mixed)
    for after, index in (
        (views.views(changed, (draw, other), config, 32)[0], 5),
        (views.views(images, (views.ViewDraw(*fields), other), config, 32)[0], 9),
    ):
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
    view1, _ = views.views(images, views.draw(0, 0, 4, Views()), Views(), 32)
    convolution = torch.nn.Conv2d(3, 2, 3)
    convolution(view1).sum().backward()
    assert convolution.weight.grad is not None


def test_draw_is_cheap() -> None:
    """Breaks when choices are drawn image by image: 256 images take 0.3 ms (best of many: load is no matter)."""
    best = math.inf
    for step in range(50):
        start = time.perf_counter()
        views.draw(0, step, 256, Views())
        best = min(best, time.perf_counter() - start)
    assert best < 2e-3
