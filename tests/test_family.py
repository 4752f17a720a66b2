"""The family around BYOL: every variant as a whole tiny run, the optimal linear predictor, and equations (4) and (5)
checked in float64."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import byol
from byol import checkpoint, pretraining, schedules
from byol.algorithm import Pass, update
from byol.config import Objective
from byol.errors import Diverged, Interrupted
from byol.objectives import OBJECTIVES, regression
from byol.predictors import Isotropic, OptimalLinear
from byol.run import signals
from byol.run.machine import Machine
from tests.conftest import ALONE
from tests.test_method import HERE, both, build, lars, views
from tests.test_networks import images
from tests.test_pretraining import digest

NO_PREDICTOR = {"network.predictor": "none"}
NO_TARGET = {"network.target": "online"}
NEGATIVES = {"objective.name": "info-nce"}
FADING = NEGATIVES | {"objective.beta": 0.8, "objective.fade": 0.5, "optim.accumulate": 2}
SOLVED = {"network.predictor": "optimal-linear", "network.projection": 4}

VARIANTS: dict[str, dict[str, Any]] = {
    "simclr of the paper": NEGATIVES | NO_PREDICTOR | NO_TARGET,
    "simclr with a target": NEGATIVES | NO_PREDICTOR,
    "simclr with a predictor": NEGATIVES | NO_TARGET,
    "byol with negatives": NEGATIVES | {"objective.beta": 0.5, "objective.temperature": 0.3},
    "negatives that fade": FADING,
    "simclr that becomes byol": FADING | {"objective.name": "simclr-to-byol"},
    "byol by info-nce": NEGATIVES | {"objective.beta": 0.0},
    "mean teacher": NO_PREDICTOR,
    "no target": NO_TARGET,
    "neither": NO_PREDICTOR | NO_TARGET,
    "stop-gradient": {"network.target": "stop-gradient"},
    "fixed random target": {"network.target": "fixed"},
    "tau 0": {"optim.tau": 0.0, "optim.tau_schedule": "constant"},
    "tau 1": {"optim.tau": 1.0, "optim.tau_schedule": "constant"},
    "layer": {"objective.normalization": "layer"},
    "batch": {"objective.normalization": "batch"},
    "no normalization": {"objective.normalization": "none"},
    "lambda and mu": {"network.target": "stop-gradient", "optim.predictor_lr": 10.0, "optim.projector_lr": 2.0},
    "optimal predictor": SOLVED | {"network.target": "stop-gradient"},
    "optimal predictor, moving average": SOLVED,
    "depth 1": {"network.projector_depth": 1, "network.predictor_depth": 1},
    "depth 3": {"network.projector_depth": 3, "network.predictor_depth": 3, "network.projection": 16},
    "initialization": {"network.init_scale": 2.0},
    "smaller batches": NEGATIVES | {"optim.accumulate": 2},
}
VARIANTS |= {name: {"objective.name": name} for name in OBJECTIVES}


@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_trains(folder: Path, tmp_path: Path, tiny: dict[str, Any], name: str) -> None:
    """Breaks if a variant exists only in the config: no gradient reaches the encoder, or the logged tau or
    beta is not its."""
    run = byol.pretrain(folder, tmp_path / "run", "cifar10-cpu", tiny | ALONE | {"optim.epochs": 1} | VARIANTS[name])
    losses = [m["loss"] for m in run.metrics if "loss" in m]
    assert len(losses) == 3
    assert len(set(losses)) == 3
    taus = [m["tau"] for m in run.metrics if "tau" in m]
    target = VARIANTS[name].get("network.target", "moving-average")
    constant = {"stop-gradient": 0.0, "online": 0.0, "fixed": 1.0}
    if "optim.tau" in VARIANTS[name] or target in constant:
        assert taus == [constant.get(target, VARIANTS[name].get("optim.tau"))] * 3
    else:
        assert taus == [schedules.target_decay(k, base=run.config.optim.tau, total_steps=3) for k in range(3)]
    objective = run.config.objective
    beta = objective.beta if objective.contrasts else 0.0
    expected = [0.8, 0.8 / 3, 0.0] if objective.fade else [beta] * 3  # half of 3 steps are 1.5
    assert [m["beta"] for m in run.metrics if "beta" in m] == pytest.approx(expected, abs=1e-15)
    tensors = checkpoint.read(checkpoint.found(run.out / "checkpoints")[0])
    assert all(t.isfinite().all() for t in tensors.values())
    assert float(tensors["optimizer.online.encoder.conv1.weight.momentum"].norm()) > 0
    assert any(n.startswith("method.target.") for n in tensors) == (target in ("moving-average", "fixed"))


def test_the_simclr_preset_trains(folder: Path, tmp_path: Path, tiny: dict[str, Any]) -> None:
    """Breaks if the preset cannot be shrunk to a run, or its loss is not over 2B − 1 candidates for each order."""
    run = byol.pretrain(folder, tmp_path / "run", "simclr", tiny)
    first = next(m["loss"] for m in run.metrics if "loss" in m)
    assert 0 < first < 2 * (torch.tensor(15.0).log().item() + 2 / 0.1)
    assert run.config.objective.scale == 5


def test_constant_tau_zero_and_one_are_the_targets_they_name(
    folder: Path, tmp_path: Path, tiny: dict[str, Any]
) -> None:
    """Breaks if tau = 1 moves the target, or tau = 0 leaves it behind the online network."""
    fixed = {"optim.tau_schedule": "constant", "run.checkpoint_steps": 1, "run.keep": 10}
    for tau in (0.0, 1.0):
        out = tmp_path / str(tau)
        byol.pretrain(folder, out, "cifar10-cpu", tiny | fixed | {"optim.tau": tau})
        saved = [checkpoint.read(path) for path in checkpoint.found(out / "checkpoints")]
        last, first = saved[0], saved[-1]
        for name in (n for n in last if n.startswith("method.target.") and n.endswith("weight")):
            reference = first[name] if tau else last[name.replace("target", "online")]
            assert torch.equal(last[name], reference), (tau, name)


@pytest.mark.parametrize(
    "changes",
    [
        NEGATIVES | NO_PREDICTOR | NO_TARGET | {"optim.accumulate": 2},
        SOLVED,
        FADING,
        {"optim.optimizer": "adamw", "optim.lr": 0.01},
        {"optim.optimizer": "sgd", "optim.lr": 0.01},
    ],
    ids=["simclr", "solved", "fading", "adamw", "sgd"],
)
def test_an_interrupted_variant_ends_as_an_uninterrupted_one(
    folder: Path, tmp_path: Path, tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    """Breaks if a variant keeps anything between steps but weights and momentum, or cannot do without a target; or
    if an optimizer's buffers come back in another memory layout than their weights."""
    overrides = tiny | changes
    byol.pretrain(folder, tmp_path / "whole", "cifar10-cpu", overrides)
    real, calls = pretraining.update, []

    def update(*arguments: Any, **named: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            signals._state.requested = True
        return real(*arguments, **named)

    monkeypatch.setattr(pretraining, "update", update)
    with pytest.raises(Interrupted, match="saved"):
        byol.pretrain(folder, tmp_path / "cut", "cifar10-cpu", overrides)
    byol.pretrain(folder, tmp_path / "cut", "cifar10-cpu", overrides)
    assert digest(tmp_path / "cut") == digest(tmp_path / "whole")


def test_a_step_without_negatives_is_the_step_of_byol() -> None:
    """Breaks if temperature, scale or beta of an earlier step is left in the gradient once the negatives are gone, or
    the step's beta does not reach the loss: then a run whose negatives fade would not end as BYOL."""
    seen = views(batch=6)
    found = {}
    for name, objective, beta in (
        ("byol", Objective(scale=3.0), None),
        ("faded", Objective(name="info-nce", temperature=0.07, scale=3.0), 0.0),
        ("fading", Objective(name="info-nce", temperature=0.07, scale=3.0), 0.4),
        ("as configured", Objective(name="info-nce", temperature=0.07, scale=3.0, beta=0.4), None),
    ):
        model = build(objective=objective)
        loss = update(model, lars(model), [seen], lr=0.1, tau=0.9, beta=beta, machine=HERE).read().loss
        found[name] = loss, torch.cat([p.detach().flatten() for p in model.parameters()])
    assert found["faded"][0] == pytest.approx(found["byol"][0] - 3 * 4, rel=1e-12)
    torch.testing.assert_close(found["faded"][1], found["byol"][1], rtol=1e-9, atol=1e-11)
    assert torch.equal(found["fading"][1], found["as configured"][1])
    assert float((found["fading"][1] - found["byol"][1]).norm()) > 1e-3


def test_norms_over_training_are_those_of_the_figure(folder: Path, tmp_path: Path, tiny: dict[str, Any]) -> None:
    """Breaks if a look misses a norm: appendix F.6 plots those of representation and projection over training."""
    run = byol.pretrain(folder, tmp_path / "run", "cifar10-cpu", tiny)
    looks = [m for m in run.metrics if "norm_representation" in m]
    assert [m["step"] for m in looks] == [m["step"] for m in run.metrics if "spread" in m]
    assert len(looks) >= 2
    assert all(m["norm_representation"] > 0 and m["norm_projection"] > 0 for m in looks)
    assert len({m["norm_projection"] for m in looks}) == len(looks)


def online(images: Tensor, weights: Tensor) -> Tensor:
    """A small encoder z_θ(v), not linear in θ: (B, 5), (5, 3) → (B, 3)."""
    return torch.tanh(images @ weights) + 0.1 * (images @ weights) ** 2


def example(batch: int = 50) -> tuple[Tensor, Tensor, Tensor]:
    """Images, θ and target projections z', which depend on the images and on noise of their own."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    images = draw(batch, 5)
    targets = torch.sin(images @ draw(5, 3)) + 0.3 * draw(batch, 3)
    return images, draw(5, 3).requires_grad_(), targets


def input_gradient(predictor: OptimalLinear, images: Tensor, weights: Tensor, targets: Tensor) -> Tensor:
    """∇_θ E‖q*(z_θ) − z'‖² through the predictor's input alone, as training has it; both orders alike, so halved."""
    z = online(images, weights)
    prediction = predictor(z, targets)
    loss = regression(prediction, targets, targets, normalization="none")
    return torch.autograd.grad(loss, weights)[0]


def conditional_variance(z: Tensor, targets: Tensor) -> Tensor:
    """E Σ_i Var(z'_i | z) of jointly Gaussian, centred z' and z with the batch's moments: a Schur complement's trace.

    For these the best predictor of all is linear, which is what makes a closed form of both sides possible.
    """
    count = len(z)
    covariance, cross, own = z.T @ z / count, z.T @ targets / count, targets.T @ targets / count
    return torch.trace(own - cross.T @ torch.linalg.inv(covariance) @ cross)


def test_equation_5_gradient_is_that_of_the_conditional_variance() -> None:
    """Breaks if the gradient stops at the predictor's input, or the predictor is not the optimal one of the batch."""
    images, weights, targets = example()
    (expected,) = torch.autograd.grad(conditional_variance(online(images, weights), targets), weights)
    assert float(expected.norm()) > 1e-3
    found = input_gradient(OptimalLinear(1e-12), images, weights, targets)
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-11)
    spoiled = input_gradient(OptimalLinear(0.5), images, weights, targets)  # far from optimal, the two differ
    assert float((spoiled - expected).norm() / expected.norm()) > 0.05


def test_equation_5_against_finite_differences() -> None:
    """Breaks if the two sides agree only because both are autograd's: central differences of the variance itself."""
    images, weights, targets = example()
    found = input_gradient(OptimalLinear(1e-12), images, weights, targets)
    for i in range(5):
        for j in range(3):
            nudge = torch.zeros(5, 3, dtype=torch.float64)
            nudge[i, j] = 1e-5
            above, below = (
                conditional_variance(online(images, (weights + sign * nudge).detach()), targets) for sign in (1, -1)
            )
            assert float(found[i, j]) == pytest.approx(float(above - below) / 2e-5, rel=1e-5, abs=1e-8)


def test_equation_4_optimal_predictor_is_the_conditional_expectation() -> None:
    """Breaks if Q* is not argmin: of z that takes four values, as unit vectors, any predictor is linear, and the best
    gives E[z' | z], the mean of each value's targets; what is left is the conditional variance."""
    generator = torch.Generator().manual_seed(0)
    value = torch.arange(4).repeat(10)
    z = torch.eye(4, dtype=torch.float64)[value]
    targets = torch.randn(40, 4, generator=generator, dtype=torch.float64) + value[:, None]
    prediction = OptimalLinear(1e-12)(z, targets)
    variance = 0.0
    for v in range(4):
        group = targets[value == v]
        torch.testing.assert_close(prediction[value == v], group.mean(0).expand_as(group), rtol=1e-9, atol=1e-9)
        variance += float(group.var(0, correction=0).sum()) / 4
    left = regression(prediction, targets, targets, normalization="none")
    assert float(left) == pytest.approx(variance, rel=1e-9)


def test_equation_4_no_other_linear_predictor_is_better() -> None:
    """Breaks if a factor or a transpose of the normal equations is wrong."""
    images, weights, targets = example()
    z = online(images, weights).detach()
    best = OptimalLinear(1e-12).solve(z, targets)
    least = float((z @ best - targets).square().sum())
    generator = torch.Generator().manual_seed(1)
    for _ in range(20):
        other = best + 0.01 * torch.randn(3, 3, generator=generator, dtype=torch.float64)
        assert float((z @ other - targets).square().sum()) > least


def test_the_gradient_through_the_predictor_itself_vanishes() -> None:
    """Breaks if the envelope theorem's condition fails: E[∂L/∂q · ∂q*/∂θ] is 0 for q*, and only for it (appendix H)."""
    images, weights, targets = example()
    z = online(images, weights)

    def through_the_predictor(ridge: float) -> Tensor:
        penalty = ridge * torch.trace(z.T @ z) / 3 * torch.eye(3, dtype=torch.float64)
        q = torch.linalg.solve(z.T @ z + penalty, z.T @ targets)
        loss = (z.detach() @ q - targets).square().sum(1).mean()
        return torch.autograd.grad(loss, weights, retain_graph=True)[0]

    assert float(through_the_predictor(0.0).norm()) < 1e-12
    assert float(through_the_predictor(0.5).norm()) > 1e-3


def test_optimal_linear_against_numpy() -> None:
    """Breaks if Q* is not (Z^T·Z)^-1·Z^T·Z', as appendix I has it, or is found in single precision."""
    z, target = images(40, 6).double(), images(40, 6, seed=1).double()
    expected = np.linalg.solve(z.numpy().T @ z.numpy(), z.numpy().T @ target.numpy())
    found = OptimalLinear(1e-12).solve(z, target)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-9)
    single = OptimalLinear(1e-12).solve(z.float(), target.float())
    assert single.dtype == torch.float64
    np.testing.assert_allclose(single.numpy(), expected, rtol=1e-9)


def test_isotropic_against_numpy() -> None:
    """Breaks if the prediction is not ẑ·(C/‖C‖ + ε), or its gradient passes the predictor as a matrix, not as 1."""
    z, weights = images(40, 6).double().requires_grad_(), images(40, 6, seed=1).double()
    lengths = z.detach().norm(dim=1, keepdim=True).numpy()
    unit = z.detach().numpy() / lengths
    correlation = unit.T @ unit
    found = Isotropic(0.3)(z, weights)
    expected = unit @ (correlation / np.sqrt((correlation**2).sum()) + 0.3 * np.eye(6))
    np.testing.assert_allclose(found.detach().numpy(), expected, rtol=1e-9)
    (found * weights).sum().backward()
    along = unit * (unit * weights.numpy()).sum(1, keepdims=True)  # what changes the length alone changes nothing
    assert z.grad is not None
    np.testing.assert_allclose(z.grad.numpy(), (weights.numpy() - along) / lengths, rtol=1e-9, atol=1e-12)


def test_isotropic_of_projections_that_vanish() -> None:
    """Breaks if a batch whose projections are all 0 gives numbers that are not finite, in the loss or its gradient."""
    z = torch.zeros(4, 3, requires_grad=True)
    regression(Isotropic(0.1)(z, images(4, 3)), images(4, 3), images(4, 3)).backward()
    assert z.grad is not None
    assert z.grad.isfinite().all()


def test_small_directions_grow_behind_an_isotropic_predictor() -> None:
    """Breaks if what images hardly differ in is lost: with targets that are the projections themselves, a step makes
    the weak direction stronger; behind the optimal predictor nothing is left to learn."""
    before = torch.tensor([[1.0, 0.2], [1.0, -0.2], [-1.0, 0.2], [-1.0, -0.2]], dtype=torch.float64)

    def gradient(predictor: OptimalLinear | Isotropic) -> Tensor:
        z = before.clone().requires_grad_()
        regression(predictor(z, before), before, before).backward()
        assert z.grad is not None
        return z.grad

    after = before - gradient(Isotropic(0.1))
    assert ((after[:, 1] / after[:, 0]).abs() > 1.05 * 0.2).all()
    torch.testing.assert_close(gradient(OptimalLinear(1e-12)), torch.zeros_like(before), rtol=0, atol=1e-9)


def test_ridge_by_hand() -> None:
    """Breaks if the ridge is not relative to the mean eigenvalue: Z^T·Z = diag(1, 9), mean 5, ridge 0.2 adds 1."""
    z = torch.tensor([[1.0, 0.0], [0.0, 3.0]], dtype=torch.float64)
    target = torch.tensor([[4.0, 2.0], [10.0, 20.0]], dtype=torch.float64)
    for scale in (1.0, 1e3):  # projections that grow, as without normalization, change nothing
        found = OptimalLinear(0.2).solve(scale * z, scale * target)
        torch.testing.assert_close(found, torch.tensor([[2.0, 1.0], [3.0, 6.0]], dtype=torch.float64))


def test_optimal_linear_of_degenerate_projections() -> None:
    """Breaks if features that repeat or vanish end in an error, infinity or NaN."""
    z, target = images(20, 3), images(20, 4, seed=1)
    solve = OptimalLinear(1e-6).solve
    for degenerate in (torch.cat([z, z[:, :1]], 1), torch.cat([z, 0 * z[:, :1]], 1)):
        prediction = degenerate.double() @ solve(degenerate, target)
        best = z.double() @ torch.linalg.lstsq(z.double(), target.double()).solution
        torch.testing.assert_close(prediction, best, rtol=1e-3, atol=1e-4)
    assert solve(0 * target, target).eq(0).all()


def test_optimal_predictor_is_fitted_for_each_order() -> None:
    """Breaks if it is fitted to the view's own target or to both orders at once, or its fit is differentiated."""
    model = build(predictor="optimal-linear", projection=3, ridge=1e-12)
    view1, view2, _ = views(batch=8)
    out = both(model, view1, view2)
    z1, z2 = (copy.deepcopy(model).online(view)[1] for view in (view1, view2))
    for prediction, z, target in ((out[0].prediction, z1, out[0].target), (out[1].prediction, z2, out[1].target)):
        torch.testing.assert_close(prediction, z @ torch.linalg.lstsq(z, target).solution, rtol=1e-8, atol=1e-10)
    assert not list(model.predictor.parameters())
    z = torch.randn(8, 3, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(model.predictor(z, out[0].target).sum(), z)
    torch.testing.assert_close(gradient, model.predictor.solve(z, out[0].target).sum(1).expand(8, 3))


def test_optimal_predictor_under_autocast_and_nan() -> None:
    """Breaks if the fit runs in bf16, or NaN ends in an error of the solver instead of a divergence."""
    model = build(classes=0, predictor="optimal-linear", projection=3).float()
    seen = Pass(*(v.float() for v in views(batch=8)[:2]), None)
    with torch.autocast("cpu", torch.bfloat16):
        out = both(model, seen.view1, seen.view2)
    assert out[0].target.dtype == torch.bfloat16
    assert out[0].prediction.dtype == torch.float32
    seen.view1[0, 0, 0, 0] = float("nan")
    with pytest.raises(Diverged, match="the loss is nan"):
        update(model, lars(model), [seen], lr=0.1, tau=0.9, machine=Machine("cpu", "float32", 1)).read()
