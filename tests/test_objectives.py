"""The loss against hand-computed cases (FACTS 4.1, item 3) and the cosine in float64."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from byol.objectives import regression_loss


def vectors(*rows: tuple[float, ...]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def random_vectors(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_hand_cases() -> None:
    """Breaks if the vectors are not normalized, the distance not squared, or the factor of 2 lost."""
    prediction = vectors((3, 4), (1, 0), (2, 2), (0, 5))
    target = vectors((4, 3), (-2, 0), (7, 7), (3, 0))
    assert regression_loss(prediction, target).tolist() == pytest.approx([0.08, 4, 0, 2], abs=1e-14)


def test_zero_vector_is_finite() -> None:
    """Breaks if the floor goes: a zero prediction is 1 away from any target, with a gradient of −√2·1e6."""
    zero = torch.zeros(1, 2, dtype=torch.float64, requires_grad=True)
    loss = regression_loss(zero, vectors((1, 1)))
    assert loss.tolist() == pytest.approx([1.0], rel=1e-14)
    loss.sum().backward()
    assert zero.grad is not None
    assert zero.grad[0].tolist() == pytest.approx([-math.sqrt(2) * 1e6] * 2, rel=1e-12)


def test_norm_is_floored_at_one_millionth() -> None:
    """Breaks with torch's own floor of 1e-12 (F.normalize): a norm of 1e-7 becomes 0.1, so (1 − 0.1)² is left."""
    assert regression_loss(vectors((1e-7, 0)), vectors((1, 0))).tolist() == pytest.approx([0.81], rel=1e-12)
    assert regression_loss(vectors((1, 0)), vectors((0, 1e-7))).tolist() == pytest.approx([1.01], rel=1e-12)
    assert regression_loss(vectors((2e-6, 0)), vectors((1, 0))).tolist() == pytest.approx([0], abs=1e-14)


def test_is_two_minus_two_cosines() -> None:
    """Breaks with any other distance, or a mean over the wrong axis."""
    p, t = random_vectors(64, 256, seed=0), random_vectors(64, 256, seed=1)
    t[:32] += p[:32]
    for i, loss in enumerate(regression_loss(p, t).tolist()):
        a, b = p[i].tolist(), t[i].tolist()
        dot = math.fsum(x * y for x, y in zip(a, b, strict=True))
        assert loss == pytest.approx(2 - 2 * dot / math.hypot(*a) / math.hypot(*b), rel=1e-12)


def test_scale_does_not_matter_and_order_neither() -> None:
    """Breaks if only one of the two is normalized."""
    p, t = random_vectors(8, 16, seed=0), random_vectors(8, 16, seed=1)
    torch.testing.assert_close(regression_loss(100 * p, 0.01 * t), regression_loss(t, p), rtol=1e-12, atol=1e-12)


def test_no_gradient_to_the_target() -> None:
    """Breaks if the stop-gradient goes."""
    p, t = (random_vectors(4, 8, seed=seed).requires_grad_() for seed in (0, 1))
    regression_loss(p, t).sum().backward()
    assert t.grad is None
    assert p.grad is not None
    assert float(p.grad.norm()) > 0.1


def test_gradient_is_that_of_the_cosine() -> None:
    """Breaks if the normalization is detached: the gradient is −2(t̂ − cos·p̂)/‖p‖, orthogonal to p."""
    p = random_vectors(4, 8, seed=0).requires_grad_()
    t = random_vectors(4, 8, seed=1)
    regression_loss(p, t).sum().backward()
    with torch.no_grad():
        length = p.norm(dim=1, keepdim=True)
        p_unit, t_unit = p / length, t / t.norm(dim=1, keepdim=True)
        cosine = (p_unit * t_unit).sum(1, keepdim=True)
    torch.testing.assert_close(p.grad, -2 * (t_unit - cosine * p_unit) / length, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_single(dtype: torch.dtype) -> None:
    """Breaks if the sum of squares runs in half precision: near agreement it would be 0 or off by a hundredth."""
    p, t = random_vectors(16, 256, seed=0), random_vectors(16, 256, seed=1)
    p, t = p.to(dtype), (p + 0.05 * t).to(dtype)
    loss = regression_loss(p, t)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss.double(), regression_loss(p.double(), t.double()), rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("batch", [1, 5])
def test_one_value_an_image(batch: int) -> None:
    """Breaks if the batch is averaged inside, or rows are mixed: row i is what it is alone."""
    p, t = random_vectors(batch, 8, seed=0), random_vectors(batch, 8, seed=1)
    loss = regression_loss(p, t)
    assert loss.shape == (batch,)
    for i in range(batch):
        torch.testing.assert_close(loss[i : i + 1], regression_loss(p[i : i + 1], t[i : i + 1]))
