"""Crops and their resizing: the reference code's arrays, torchvision's statistics, arithmetic by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn.functional import interpolate
from torchvision.transforms import v2

from byol import crops, views
from byol.config import Views
from tests.test_views import TORCHVISION, close, random_bytes

pytestmark = pytest.mark.usefixtures("one_thread")


def whole(images: Tensor, size: int) -> Tensor:
    """The whole images, resized to squares."""
    sides = torch.tensor([0, 0, *images.shape[2:]])
    return crops.crop_resize(images, views.Box(*sides[:, None].expand(4, len(images))), size)


@pytest.mark.parametrize("size", [32, 48, 96])
def test_bicubic_equals_tensorflow(size: int, recorded: dict[str, Tensor]) -> None:
    """Breaks with torch's a = -0.75, with antialiasing or with repeated border pixels."""
    close(whole(recorded["input_u8"], size), recorded[f"tfbicubic_{size}x{size}"], 2e-3)


def test_crop_then_resize_equals_tensorflow(recorded: dict[str, Tensor]) -> None:
    """Breaks when taps reach outside the crop, which TensorFlow has cut off before it resizes."""
    expected = recorded["tfbicubic_crop_3_5_40_29_to_32"]
    box = (3, 5, 40, 29)
    close(crops.crop_resize(recorded["input_u8"], views.Box(*torch.tensor(box)[:, None]), 32), expected, 2e-3)
    close(crops.crop_resize_one(recorded["input_u8"][0], box, 32)[None], expected, 2e-3)


def test_bicubic_by_hand() -> None:
    """FACTS 4.1 (7). Breaks with a = -0.75, without half-pixel centres or without renormalisation at the border."""
    delta = torch.full((1, 3, 1, 8), 0.5)
    delta[..., 4] = 1.0
    expected = [-0.02344, -0.07031, 0.22656, 0.86719, 0.86719, 0.22656, -0.07031, -0.02344]
    close((whole(delta, 16)[0, 0, 0, 5:13] - 0.5) * 2, torch.tensor(expected), 6e-6)
    ramp = (torch.arange(4.0).view(1, 1, 4, 1) / 8 + 0.25).expand(1, 3, 4, 2)
    expected = [-0.08824, 0.16788, 0.70992, 1.25, 1.75, 2.29008, 2.83212, 3.08824]
    close((whole(ramp, 8)[0, 2, :, 1] - 0.25) * 8, torch.tensor(expected), 6e-6)


def test_bicubic_is_clipped() -> None:
    """Breaks when the overshoot at an edge is left in: views live in [0, 1]."""
    edge = torch.zeros(1, 3, 8, 8, dtype=torch.uint8)
    edge[..., 4:] = 255
    large = whole(edge, 32)
    assert large.min() == 0
    assert large.max() == 1


@pytest.mark.parametrize("antialias", [False, True])
def test_batched_and_single_crops_agree(antialias: bool) -> None:
    """Breaks when one of the two implementations changes alone."""
    images = random_bytes(40, 3, 37, 50)
    draw, _ = views.draw(3, 0, 40, Views())
    config = Views(antialias=antialias)
    single = views.crop(list(images), draw, config, 24)
    close(views.crop(images, draw, config, 24), single, 2e-6)
    close(views.crop(images.double() / 255, draw, config, 24), single, 2e-6)


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
    """Breaks with another short side than 256/224 of the size, an off-centre square, or the code's crop-then-resize.

    torch's bicubic has the same kernel when it antialiases, which changes nothing where an image is enlarged.
    """
    for scale, antialias in ((0.75, False), (1.5, True)):
        image = random_bytes(3, round(64 * scale), round(80 * scale))
        resized = interpolate(
            image[None].float() / 255, (64, 80), mode="bicubic", antialias=True
        )  # 56 * 256 / 224 = 64
        close(crops.center_crop(image, 56, antialias), resized.clamp(0, 1)[0, :, 4:60, 12:68], 1e-5)
    image = random_bytes(3, 256, 256)
    close(crops.center_crop(image, 224), image[:, 16:240, 16:240] / 255, 1e-6)


def test_small_images_are_evaluated_whole() -> None:
    """Breaks when a 32 px image is enlarged and cropped for an evaluation at 32 px."""
    image = random_bytes(3, 32, 32)
    assert torch.equal(crops.center_crop(image, 32), image.float() / 255)


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


@pytest.mark.parametrize(("height", "width", "side"), [(40, 64, 20), (65, 48, 31), (30, 30, 7)])
def test_shrinking_against_torch(height: int, width: int, side: int) -> None:
    """Breaks if the short side is not the one that is asked for, the axes are exchanged, or there is no low pass."""
    image = torch.randint(0, 256, (3, height, width), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    scale = side / min(height, width)
    sizes = [round(height * scale), round(width * scale)]
    expected = interpolate(image[None].double(), sizes, mode="bicubic", antialias=True)[0].round().clamp(0, 255)
    found = crops.shrink(image, side)
    assert found.dtype == torch.uint8
    assert min(found.shape[1:]) == side
    assert float((found.double() - expected).abs().max()) <= 1


def test_smaller_images_are_not_enlarged() -> None:
    """Breaks if an image at or below the side is resized, or 0 shrinks to nothing."""
    image = torch.randint(0, 256, (3, 9, 12), dtype=torch.uint8)
    for side in (0, 9, 100):
        assert crops.shrink(image, side) is image
