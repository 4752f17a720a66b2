"""Convolutions: those padded as in TensorFlow, thin shortcuts, and those computed as one product."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from byol import convolutions, networks
from tests.test_networks import images


def test_same_padding_at_224() -> None:
    """Breaks if the odd pixel goes to the top or left: FACTS 2.4 has (2, 3) for the stem and (0, 1) for a 3×3."""
    ones = torch.ones(1, 1, 224, 224)
    for kernel, before, after in ((7, 2, 3), (3, 0, 1)):
        padded = convolutions.same_padding(ones, kernel, 2)[0, 0]
        assert padded.shape == (224 + before + after,) * 2
        assert padded.sum() == 224 * 224
        inside = padded[before : before + 224, before : before + 224]
        assert inside.eq(1).all()
    assert convolutions.same_padding(ones, 1, 2) is ones


@torch.no_grad()
@pytest.mark.parametrize(("height", "width"), [(5, 8), (6, 7), (9, 4), (3, 2)])
@pytest.mark.parametrize("kernel", [3, 7])
def test_same_convolution_by_hand(height: int, width: int, kernel: int) -> None:
    """Breaks if height and width are exchanged, or the window of output i does not start at 2i − floor(total/2)."""
    layer = convolutions.SameConv2d(1, 1, kernel, 2, bias=False).double()
    x = images(1, 1, height, width).double()
    weight, image = layer.weight[0, 0].tolist(), x[0, 0].tolist()

    def first(size: int, index: int) -> int:
        outputs = -(-size // 2)
        return 2 * index - max(2 * (outputs - 1) + kernel - size, 0) // 2

    def at(row: int, column: int) -> float:
        total = 0.0
        for i in range(kernel):
            for j in range(kernel):
                y, z = first(height, row) + i, first(width, column) + j
                if 0 <= y < height and 0 <= z < width:
                    total += weight[i][j] * image[y][z]
        return total

    expected = [[at(row, column) for column in range(-(-width // 2))] for row in range(-(-height // 2))]
    torch.testing.assert_close(layer(x)[0, 0], torch.tensor(expected, dtype=torch.float64))


@torch.no_grad()
def test_same_pool_by_hand() -> None:
    """Breaks if the pool's windows start a pixel early: at an even size the first one is pixels 0, 1, 2."""
    x = torch.arange(36.0).reshape(1, 1, 6, 6)
    assert convolutions.SameMaxPool2d(3, 2)(x)[0, 0].tolist() == [[14, 16, 17], [26, 28, 29], [32, 34, 35]]


@pytest.mark.parametrize("size", [(48, 48), (7, 9)])
def test_thin_shortcuts_are_plain_convolutions(size: tuple[int, int]) -> None:
    """Breaks if the shortcut of a thin network is another function than torch's strided 1×1 convolution."""
    made = convolutions.conv(3, 6, 1, 2).double()
    assert type(made) is convolutions.SubsampledConv2d
    assert type(convolutions.conv(16, 32, 1, 2)) is convolutions.ProductConv2d
    plain = torch.nn.Conv2d(3, 6, 1, 2, bias=False).double()
    plain.load_state_dict(made.state_dict())
    x = torch.randn(2, 3, *size, dtype=torch.float64, requires_grad=True)
    y = x.detach().clone().requires_grad_()
    found, expected = made(x), plain(y)
    torch.testing.assert_close(found, expected)
    (found**2).sum().backward()
    (expected**2).sum().backward()
    torch.testing.assert_close(x.grad, y.grad)
    torch.testing.assert_close(made.weight.grad, plain.weight.grad)


# Kernel, stride, channels and map of every convolution that a small encoder has on maps of few places, and of others.
MAPS = [
    (3, 1, 256, (4, 4)),
    (3, 2, 256, (8, 7)),
    (3, 1, 256, (2, 3)),
    (3, 1, 16, (1, 1)),
    (3, 2, 16, (2, 1)),
    (3, 2, 16, (2, 2)),
    (3, 2, 256, (3, 4)),
    (1, 2, 256, (4, 4)),
    (1, 1, 256, (2, 2)),
    (7, 2, 3, (2, 2)),
]


def both_ways(made: convolutions.ProductConv2d, x: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """(output, gradient of the images, gradient of the weight) as a product and by torch's convolution."""
    found, calls = [], []
    product = convolutions.Product.apply
    monkeypatch.setattr(convolutions.Product, "apply", lambda *given: calls.append(1) or product(*given))
    for plain in (False, True):
        made.weight.grad, own = None, x.clone().requires_grad_()
        y = F.conv2d(own, made.weight, None, made.stride, made.padding) if plain else made(own)
        (y.float() * torch.arange(1.0, y.numel() + 1).view(y.shape).cos()).sum().backward()
        found.append((y, own.grad, made.weight.grad))
    assert len(calls) == 1  # or the test compares torch with itself
    return found


@pytest.mark.parametrize("memory", [torch.channels_last, torch.contiguous_format])
@pytest.mark.parametrize(("kernel", "stride", "channels", "size"), MAPS)
def test_a_product_is_the_convolution(
    kernel: int, stride: int, channels: int, size: tuple[int, int], memory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Breaks if a window starts a place early, taps that meet the map are left out, or gradients are misplaced."""
    torch.manual_seed(0)
    made = convolutions.conv(channels, 24, kernel, stride).double().to(memory_format=memory).train()
    x = torch.randn(3, channels, *size, dtype=torch.float64).to(memory_format=memory)
    for one, other in zip(*both_ways(made, x, monkeypatch), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_a_product_under_autocast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks if the product is taken in float32 under autocast, or the weight's gradient is not the weight's type."""
    torch.manual_seed(0)
    made = convolutions.conv(64, 64, 3).train()
    with torch.autocast("cpu", torch.bfloat16):
        found, expected = both_ways(made, torch.randn(16, 64, 2, 2), monkeypatch)
    assert found[0].dtype == torch.bfloat16
    assert found[2].dtype == torch.float32
    for one, other in zip(found, expected, strict=True):
        assert float((one - other).detach().float().norm() / other.detach().float().norm()) < 0.01


@pytest.mark.parametrize(
    ("channels", "size", "training", "dilation"),
    [(256, 5, True, 1), (128, 2, True, 1), (256, 2, False, 1), (256, 4, True, 2)],
)
def test_where_torchs_convolution_stays(
    channels: int, size: int, training: bool, dilation: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Breaks if larger or thinner maps, evaluation or dilation go through the product, slower or wrong there."""
    monkeypatch.setattr(convolutions.Product, "apply", lambda *_: pytest.fail("as a product"))
    made = convolutions.ProductConv2d(channels, 8, 3, padding=dilation, dilation=dilation, bias=False).train(training)
    x = torch.randn(2, channels, size, size)
    torch.testing.assert_close(made(x), F.conv2d(x, made.weight, None, 1, dilation, dilation))


def test_a_network_trains_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks if an encoder whose last maps are small has other gradients than with torch's convolutions."""
    torch.manual_seed(0)
    network, x = networks.resnet(18, 0.5).double().train(), images(16, 3, 24, 24).double()
    gradients = []
    for few in (convolutions.ProductConv2d.few, lambda *_: False):
        monkeypatch.setattr(convolutions.ProductConv2d, "few", few)
        network.zero_grad()
        network(x).square().sum().backward()
        gradients.append([part.grad.clone() for part in network.parameters()])
    for one, other in zip(*gradients, strict=True):
        assert float((one - other).norm() / other.norm()) < 1e-9
