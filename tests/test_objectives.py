"""The losses against hand-computed cases (FACTS 4.1, item 3), float64 transcriptions and a second library.

The contracts at the end run over every entry of OBJECTIVES; a new one is picked up by itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import get_args, get_type_hints

import pytest
import torch
from torch import Tensor

from byol import objectives
from byol.config import Objective
from byol.errors import UsageError
from byol.objectives import BETWEEN, NORMALIZATIONS, OBJECTIVES, info_nce, regression, regression_loss
from tests.checks import Both, both

Rows = Sequence[Sequence[float]]


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


def four(batch: int = 6, size: int = 5, seed: int = 0) -> list[Tensor]:
    """φ1, ψ1, φ2, ψ2, all different."""
    return [random_vectors(batch, size, seed=4 * seed + i) for i in range(4)]


def cosine(a: Sequence[float], b: Sequence[float]) -> float:
    return math.fsum(x * y for x, y in zip(a, b, strict=True)) / math.hypot(*a) / math.hypot(*b)


def transcribed_info_nce(phi: Rows, same: Rows, other: Rows, alpha: float, beta: float) -> float:
    """InfoNCE^{α,β} of appendix F.4 for one order, term by term: S(v_i, v_j) is φ(v_i) with ψ(v_j)."""
    batch = len(phi)
    agreement = math.fsum(cosine(phi[i], other[i]) for i in range(batch))
    dispersion = 0.0
    for i in range(batch):
        negatives = math.fsum(math.exp(cosine(phi[i], same[j]) / alpha) for j in range(batch) if j != i)
        everything = math.fsum(math.exp(cosine(phi[i], other[j]) / alpha) for j in range(batch))
        dispersion += math.log(negatives + everything)
    return 2 / batch * agreement - beta * 2 * alpha / batch * dispersion


@pytest.mark.parametrize("beta", [0, 0.1, 0.5, 1])
@pytest.mark.parametrize("alpha", [0.01, 0.1, 1, 10])
def test_info_nce_against_a_transcription(alpha: float, beta: float) -> None:
    """Breaks if a negative is dropped or counted twice, φ and ψ or the views are exchanged, or a factor is lost."""
    vectors = four()
    phi1, psi1, phi2, psi2 = (v.tolist() for v in vectors)
    expected = transcribed_info_nce(phi1, psi1, psi2, alpha, beta) + transcribed_info_nce(phi2, psi2, psi1, alpha, beta)
    assert both(partial(info_nce, temperature=alpha, beta=beta))(*vectors).item() == pytest.approx(-expected, rel=1e-12)


def test_info_nce_by_hand() -> None:
    """Breaks if an image is its own negative within a view: two orthogonal images, all views alike."""
    eye = vectors((1, 0), (0, 1))
    each = 2 - 2 * 0.5 * 0.75 * math.log(math.exp(1 / 0.5) + 2)  # the positive, and one negative in each view
    assert info_nce(eye, eye, eye, temperature=0.5, beta=0.75).item() == pytest.approx(-each, rel=1e-14)
    one = [v[:1] for v in four()]
    assert both(partial(info_nce, temperature=0.5, beta=1))(*one).item() == pytest.approx(
        0, abs=1e-14
    )  # no negative at all


def gradients(loss: Tensor, inputs: Sequence[Tensor]) -> list[Tensor]:
    return list(torch.autograd.grad(loss, inputs))


def test_info_nce_without_negatives_is_the_byol_loss() -> None:
    """Breaks if β = 0 is anything but BYOL's loss less its constant of 4, in value or in any gradient."""
    inputs = [v.requires_grad_() for v in four()]
    ours, byol = both(partial(info_nce, temperature=0.1, beta=0))(*inputs), both(regression)(*inputs)
    assert ours.item() == pytest.approx(byol.item() - 4, rel=1e-12)
    for found, expected in zip(gradients(ours, inputs), gradients(byol, inputs), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-14)


def test_the_byol_loss_is_the_regression() -> None:
    """Breaks if a prediction meets its own view's target."""
    phi, psi, own, _ = four()
    assert torch.equal(regression(phi, psi, own), regression_loss(phi, psi).mean())


@pytest.mark.parametrize("alpha", [0.07, 0.1, 0.5])
def test_info_nce_of_simclr_against_pytorch_metric_learning(alpha: float) -> None:
    """Breaks if β = 1 without predictor and target network is not SimCLR's NT-Xent, or 2α is lost (appendix F.5).

    That library takes the mean over the 2B anchors; SimCLR's code, like ours, sums the means of the two orders.
    """
    from pytorch_metric_learning.losses import NTXentLoss

    z1, z2 = (random_vectors(8, 16, seed=seed).requires_grad_() for seed in (0, 1))
    images = torch.arange(8)
    theirs = 2 * alpha * 2 * NTXentLoss(temperature=alpha)(torch.cat([z1, z2]), torch.cat([images, images]))
    ours = both(partial(info_nce, temperature=alpha, beta=1))(z1, z1, z2, z2)
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-10)
    for found, expected in zip(gradients(ours, [z1, z2]), gradients(theirs, [z1, z2]), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-12)


def test_the_scale_of_the_original_simclr() -> None:
    """Breaks if objective.scale does not reach the loss: 1/(2α) makes it cross-entropy over 2B − 1 candidates."""
    z1, z2 = random_vectors(5, 8, seed=0), random_vectors(5, 8, seed=1)
    loss = both(objectives.build(Objective(name="info-nce", temperature=0.1, scale=5.0)))(z1, z1, z2, z2)
    unit = torch.cat([z1, z2]) / torch.cat([z1, z2]).norm(dim=1, keepdim=True)
    logits = (unit @ unit.T / 0.1).fill_diagonal_(-torch.inf)
    twin = torch.arange(10).roll(5)
    assert loss.item() == pytest.approx(2 * torch.nn.functional.cross_entropy(logits, twin).item(), rel=1e-12)


def transcribed_normalization(name: str, x: Rows) -> list[list[float]]:
    """n_ℓ2, n_LN, n_BN and n_Id of appendix F.6, as written there."""
    images, d = len(x), len(x[0])
    if name == "none":
        return [list(row) for row in x]
    if name == "l2":
        return [[v / math.hypot(*row) for v in row] for row in x]
    if name == "layer":
        means = [sum(row) / d for row in x]
        sigmas = [math.hypot(*(v - mean for v in row)) / math.sqrt(d) for row, mean in zip(x, means, strict=True)]
        return [[(v - m) / (s * math.sqrt(d)) for v in row] for row, m, s in zip(x, means, sigmas, strict=True)]
    means = [sum(row[j] for row in x) / images for j in range(d)]
    sigmas = [math.sqrt(sum(row[j] ** 2 for row in x) / images - means[j] ** 2) for j in range(d)]
    return [[(row[j] - means[j]) / (sigmas[j] * math.sqrt(d)) for j in range(d)] for row in x]


@pytest.mark.parametrize("name", NORMALIZATIONS)
def test_normalizations_against_a_transcription(name: str) -> None:
    """Breaks if a statistic runs over the wrong axis, is unbiased, or √d is lost; or the loss uses another one."""
    phi1, psi1, phi2, psi2 = vectors = [3 * v + 1 for v in four(7, 5)]
    n = [transcribed_normalization(name, v.tolist()) for v in vectors]
    for found, expected in zip(vectors, n, strict=True):
        normalized = NORMALIZATIONS[name](found)
        torch.testing.assert_close(normalized, torch.tensor(expected, dtype=torch.float64), rtol=1e-11, atol=1e-13)
        if name != "none":  # the paper's reason for √d: the scale is that of unit vectors
            assert normalized.square().sum(1).mean().item() == pytest.approx(1, rel=1e-12)
    distance = sum(
        (a - b) ** 2
        for p, t in ((n[0], n[3]), (n[2], n[1]))
        for r, s in zip(p, t, strict=True)
        for a, b in zip(r, s, strict=True)
    )
    found = both(partial(regression, normalization=name))(phi1, psi1, phi2, psi2)
    assert found.item() == pytest.approx(distance / 7, rel=1e-11)


def test_the_config_offers_every_normalization() -> None:
    """Breaks if one exists only in the config or only in the code."""
    assert set(get_args(get_type_hints(Objective)["normalization"])) == set(NORMALIZATIONS)


@pytest.mark.parametrize("name", ["l2", "layer", "batch"])
def test_normalization_is_differentiated(name: str) -> None:
    """Breaks if a statistic is detached: scaling a vector, or moving it along the mean, would then change the loss."""
    x = random_vectors(6, 5, seed=0).requires_grad_()
    loss = (NORMALIZATIONS[name](x) * random_vectors(6, 5, seed=1)).sum()
    (gradient,) = torch.autograd.grad(loss, x)
    axis = 0 if name == "batch" else 1
    torch.testing.assert_close((gradient * x).sum(axis), torch.zeros(30 // x.shape[axis]).double(), rtol=0, atol=1e-12)
    if name != "l2":
        torch.testing.assert_close(gradient.sum(axis), torch.zeros(30 // x.shape[axis]).double(), rtol=0, atol=1e-12)


def test_an_unknown_objective_offers_the_nearest() -> None:
    """Breaks if a typo is a KeyError."""
    with pytest.raises(UsageError, match=r"no objective 'infonce'. Did you mean info-nce"):
        objectives.build(Objective(name="infonce"))


CASES = [Objective(name=name, beta=0.5 if name in BETWEEN else 1.0) for name in OBJECTIVES]
CASES += [Objective(name="byol", normalization=name) for name in NORMALIZATIONS if name != "l2"]
CASES += [Objective(name="info-nce", beta=0.5, temperature=0.3)]


@pytest.fixture(params=CASES, ids=lambda c: f"{c.name}-{c.normalization}-{c.beta}")
def loss(request: pytest.FixtureRequest) -> Both:
    return both(objectives.build(request.param))


def test_contract_scalar_and_finite(loss: Both) -> None:
    """Breaks for an objective that is not a finite scalar, also for images that are equal, or zero."""
    zeros, equal = torch.zeros(4, 5), torch.ones(4, 5)
    for inputs in (four(), [zeros] * 4, [equal] * 4, [zeros, equal, equal, zeros], [equal[:1]] * 4):
        inputs = [v.clone().requires_grad_() for v in inputs]
        found = loss(*inputs)
        assert found.shape == ()
        assert found.isfinite()
        found.backward()
        assert all(v.grad is None or v.grad.isfinite().all() for v in inputs)


def test_contract_gradient(loss: Both) -> None:
    """Breaks for an objective whose gradient does not reach the predictions, or is not that of its value."""
    inputs = [v.requires_grad_() for v in four(4, 3)]
    assert torch.autograd.gradcheck(loss, inputs)
    for gradient in gradients(loss(*inputs), [inputs[0], inputs[2]]):
        assert (gradient.norm(dim=1) > 1e-6).all()


def test_contract_stop_gradient_is_not_the_objective_s(loss: Both) -> None:
    """Breaks if an objective stops the gradient to ψ by itself: network.target = online would have no effect."""
    inputs = [v.requires_grad_() for v in four()]
    assert all(float(g.norm()) > 1e-6 for g in gradients(loss(*inputs), [inputs[1], inputs[3]]))
    phi1, psi1, phi2, psi2 = inputs
    loss(phi1, psi1.detach(), phi2, psi2.detach()).backward()
    assert psi1.grad is None
    assert psi2.grad is None


def test_contract_order_of_images_and_views(loss: Both) -> None:
    """Breaks if the order of the images in the batch, or which view is called the first, matters."""
    phi1, psi1, phi2, psi2 = inputs = four()
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    expected = loss(*inputs)
    torch.testing.assert_close(loss(*(v[order] for v in inputs)), expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(loss(phi2, psi2, phi1, psi1), expected, rtol=1e-12, atol=1e-12)
    assert abs(float(loss(phi1[order], psi1, phi2, psi2) - expected)) > 1e-6  # but which target is whose does


def test_contract_agreement_is_better(loss: Both) -> None:
    """Breaks if the sign is wrong: predictions equal to their targets have a lower loss than others."""
    _, psi1, _, psi2 = four(6, 16)
    assert loss(psi2, psi1, psi1, psi2) < loss(*four(6, 16)) - 0.5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_contract_half_precision_is_computed_in_single(loss: Both, dtype: torch.dtype) -> None:
    """Breaks if a sum or a product runs in half precision."""
    inputs = [v.to(dtype) for v in four(16, 64)]
    found = loss(*inputs)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), loss(*(v.double() for v in inputs)), rtol=1e-4, atol=1e-5)
