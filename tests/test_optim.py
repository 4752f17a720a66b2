"""LARS against hand traces and a transcription in plain Python; the parameter groups against module types."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from byol import method, networks, optim
from byol.algorithm import Pass, update
from byol.config import Network, Optim
from byol.run.machine import Machine

Numbers = list[float]


def parameter(*values: float) -> nn.Parameter:
    return nn.Parameter(torch.tensor(values, dtype=torch.float64))


def lars(param: nn.Parameter, lr: float = 1.0, adapt: bool = True, **options: float) -> optim.LARS:
    return optim.LARS([{"params": [param], "adapt": adapt}], lr=lr, **options)


def step(optimizer: torch.optim.Optimizer, param: nn.Parameter, *grad: float, lr: float = 1.0) -> Numbers:
    for group in optimizer.param_groups:
        group["lr"] = lr
    param.grad = torch.tensor(grad, dtype=torch.float64)
    optimizer.step()
    return param.detach().tolist()


def test_hand_trace() -> None:
    """Breaks if weight decay leaves the trust ratio, an epsilon or Nesterov comes in, or lr enters the momentum."""
    w = parameter(3, 4)
    optimizer = lars(w, weight_decay=0.2)
    assert step(optimizer, w, 0.6, 0.8) == pytest.approx([2.997, 3.996], rel=1e-12)
    assert step(optimizer, w, 0.6, 0.8) == pytest.approx([2.991303, 3.988404], rel=1e-12)
    third = step(optimizer, w, 0.6, 0.8, lr=0.5)
    # g' is parallel to w, so s·g' = 1e-3·w: m = 0.9·(0.9·0.003 + 0.002997) + 0.002991303, w = 2.991303 − m/2.
    assert third == pytest.approx([2.9872436985, 3.982991598], rel=1e-12)
    assert third == pytest.approx([2.9872437, 3.9829917], abs=2e-7)  # FACTS 1.10, recorded in float32
    assert third[0] != pytest.approx(2.9846800, abs=1e-4)  # SimCLR's


def test_learning_rate_is_outside_the_momentum() -> None:
    """Breaks if the buffer holds lr·g, as SimCLR's does: a first step at lr 0 then leaves it empty."""
    w = parameter(3, 4)
    optimizer = lars(w, weight_decay=0.2)
    assert step(optimizer, w, 0.6, 0.8, lr=0.0) == [3, 4]
    assert optimizer.state[w]["momentum"].tolist() == pytest.approx([0.003, 0.004])
    # m = 0.9·0.003 + 0.003, and w = 3 − m
    assert step(optimizer, w, 0.6, 0.8) == pytest.approx([3 - 0.0057, 4 - 0.0076], rel=1e-12)


def test_zero_weight_is_not_scaled() -> None:
    """Breaks if a zero norm gives a trust ratio of 0 (the weight would never move) or NaN."""
    w = parameter(0)
    assert step(lars(w), w, 0.5) == [-0.5]
    assert step(lars(w := parameter(0, 0), weight_decay=0.1), w, 0.5, -0.5, lr=0.2) == pytest.approx([-0.1, 0.1])


def test_zero_gradient_decays_at_the_trust_coefficient() -> None:
    """Breaks if the ratio's norm is that of g rather than of g + wd·w: s·g' is 1e-3·2."""
    w = parameter(2)
    assert step(lars(w, weight_decay=0.1), w, 0.0) == pytest.approx([2 - 0.002], rel=1e-14)
    assert step(lars(w := parameter(2)), w, 0.0) == [2]


def test_bias_path() -> None:
    """Breaks if a group with adapt=False is scaled or decayed (FACTS 4.1, item 1)."""
    b = parameter(1, -2)
    optimizer = lars(b, adapt=False, weight_decay=0.2)
    assert step(optimizer, b, 0.5, 0.5) == pytest.approx([0.5, -2.5], rel=1e-14)
    assert step(optimizer, b, 0.5, 0.5) == pytest.approx([-0.45, -3.45], rel=1e-14)
    assert step(optimizer, b, 0.5, 0.5, lr=0.5) == pytest.approx([-1.1275, -4.1275], rel=1e-14)


def transcribed(w: Numbers, g: Numbers, m: Numbers, lr: float, wd: float, adapt: bool) -> tuple[Numbers, Numbers]:
    """FACTS 1.10, one tensor as a flat list; eta 1e-3, mu 0.9."""
    if adapt:
        g = [gi + wd * wi for gi, wi in zip(g, w, strict=True)]
        w_norm = math.sqrt(math.fsum(wi * wi for wi in w))
        g_norm = math.sqrt(math.fsum(gi * gi for gi in g))
        s = 1e-3 * w_norm / g_norm if w_norm > 0 and g_norm > 0 else 1.0
        g = [s * gi for gi in g]
    m = [0.9 * mi + gi for mi, gi in zip(m, g, strict=True)]
    return [wi - lr * mi for wi, mi in zip(w, m, strict=True)], m


@pytest.mark.parametrize("weight_decay", [1.5e-6, 1e-2, 0.0])
def test_two_hundred_steps_against_a_transcription(weight_decay: float) -> None:
    """Breaks with any change to LARS, above all one that shows only when the learning rate changes."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    params = [nn.Parameter(draw(*shape)) for shape in ((3, 4), (2, 3, 2, 2), (1, 1), (5,))]
    params[2].data.zero_()
    adapted = [True, True, True, False]
    optimizer = optim.LARS(
        [
            {"params": params[:3], "weight_decay": weight_decay, "adapt": True},
            {"params": params[3:], "weight_decay": weight_decay, "adapt": False},
        ],
        lr=0.0,
    )
    ours = [p.detach().flatten().tolist() for p in params]
    momenta = [[0.0] * len(values) for values in ours]
    for k in range(200):
        lr = 3.2 * k / 20 if k < 20 else 1.6 * (1 + math.cos(math.pi * (k - 20) / 180))
        for group in optimizer.param_groups:
            group["lr"] = lr
        for i, p in enumerate(params):
            p.grad = draw(*p.shape)
            ours[i], momenta[i] = transcribed(
                ours[i], p.grad.flatten().tolist(), momenta[i], lr, weight_decay, adapted[i]
            )
        optimizer.step()
    for p, w, m in zip(params, ours, momenta, strict=True):
        assert relative(p, w) <= 1e-12
        assert relative(optimizer.state[p]["momentum"], m) <= 1e-12


def relative(found: Tensor, expected: Numbers) -> float:
    theirs = torch.tensor(expected, dtype=torch.float64)
    return float((found.detach().flatten() - theirs).norm() / theirs.norm())


def test_a_parameter_without_gradient_is_left_alone() -> None:
    """Breaks if a missing gradient counts as zero: the weight would decay, and its momentum appear."""
    still, moving = parameter(3, 4), parameter(3, 4)
    optimizer = optim.LARS([still, moving], lr=1.0, weight_decay=0.1)
    step(optimizer, moving, 0.6, 0.8)
    assert still.tolist() == [3, 4]
    assert still not in optimizer.state
    assert moving.tolist() != [3, 4]


def test_closure() -> None:
    """Breaks if the closure runs without gradients or its loss is lost."""
    w = parameter(3, 4)
    optimizer = lars(w, lr=0.1)

    def closure() -> float:
        optimizer.zero_grad()
        loss = w.square().sum()
        loss.backward()
        return loss.item()

    assert optimizer.step(closure) == 25.0
    assert w.tolist() == pytest.approx([3 - 0.1 * 0.003, 4 - 0.1 * 0.004])  # s·g' = 1e-3·(5/10)·2w


def test_momentum_survives_a_state_dict() -> None:
    """Breaks if the momentum is kept outside `state`: a resumed run would differ."""
    w = parameter(3, 4)
    optimizer = lars(w, weight_decay=0.2)
    step(optimizer, w, 0.6, 0.8)
    again = nn.Parameter(w.detach().clone())
    resumed = lars(again, weight_decay=0.2)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert step(resumed, again, 0.1, 0.2) == step(optimizer, w, 0.1, 0.2)


class Watched(nn.Module):
    """An encoder with a classifier, and a layer that is not trained."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = networks.resnet(50, 1 / 16)
        self.projector = networks.mlp(128, 8, 4)
        self.classifier = nn.Linear(128, 10)
        self.frozen = nn.Linear(3, 3).requires_grad_(False)


def test_parameter_groups() -> None:
    """Breaks if a batch norm or bias is adapted or decayed, a weight is not, or one is lost, doubled or frozen."""
    module = Watched()
    adapted, plain = optim.parameter_groups(module, 1e-3)
    assert (adapted["adapt"], adapted["weight_decay"]) == (True, 1e-3)
    assert (plain["adapt"], plain["weight_decay"]) == (False, 0.0)
    names = {id(p): name for name, p in module.named_parameters()}
    found = [[names[id(p)] for p in group["params"]] for group in (adapted, plain)]
    weighted = (nn.Conv2d, nn.Linear)
    expected = [name + ".weight" for name, m in module.named_modules() if isinstance(m, weighted) and name != "frozen"]
    assert sorted(found[0]) == sorted(expected)
    everything = [name for name in names.values() if not name.startswith("frozen")]
    assert sorted(found[0] + found[1]) == sorted(everything)
    assert {"classifier.bias", "projector.1.weight", "encoder.bn1.bias"} <= set(found[1])
    assert {"classifier.weight", "encoder.layer1.0.downsample.0.weight"} <= set(found[0])


def test_parameter_groups_by_name_of_the_reference() -> None:
    """Breaks if the rule departs from the reference's: not adapted is what ends in a bias or lies in a norm."""
    module = Watched()
    plain = {id(p) for p in optim.parameter_groups(module, 0.1)[1]["params"]}
    for name, p in module.named_parameters():
        is_norm = ".bn" in name or name.startswith("encoder.bn") or "downsample.1" in name or "projector.1." in name
        if p.requires_grad:
            assert (id(p) in plain) == (is_norm or name.endswith(".bias")), name


def test_a_shared_weight_is_listed_once() -> None:
    """Breaks if a weight that two layers share is updated twice a step."""
    pair = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    pair[1].weight = pair[0].weight
    assert len(optim.parameter_groups(pair, 0.1)[0]["params"]) == 1


@pytest.mark.parametrize("norm", [nn.GroupNorm(2, 4), nn.LayerNorm((4, 4)), nn.RMSNorm((4, 4))], ids=repr)
def test_other_norms_are_plain(norm: nn.Module) -> None:
    """Breaks if a norm that other encoders have, matrix-shaped ones too, is adapted."""
    adapted, plain = optim.parameter_groups(nn.Sequential(nn.Conv2d(4, 4, 1), norm), 0.1)
    assert len(adapted["params"]) == 1
    assert len(plain["params"]) == 1 + len(list(norm.parameters()))


def test_other_vectors_are_plain() -> None:
    """Breaks if only names decide: the scale of a layer, a vector in other encoders, is not adapted either."""
    layer = nn.Linear(4, 4)
    layer.scale = nn.Parameter(torch.ones(4))
    adapted, plain = optim.parameter_groups(layer, 0.1)
    assert [id(p) for p in adapted["params"]] == [id(layer.weight)]
    assert {id(p) for p in plain["params"]} == {id(layer.bias), id(layer.scale)}


def test_the_target_is_not_optimized() -> None:
    """Breaks if the target's parameters reach the optimizer."""
    model = method.build(Network(encoder="resnet18", width=1 / 16, projector_hidden=4, predictor_hidden=4), classes=3)
    optimizer = optim.build(model, Optim())
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    assert held == {id(p) for part in (model.online, model.predictor, model.classifier) for p in part.parameters()}


def test_lars_takes_the_config() -> None:
    """Breaks if momentum, trust coefficient or weight decay of the config is not the optimizer's."""
    config = Optim(momentum=0.5, trust_coefficient=0.01, weight_decay=0.3)
    optimizer = optim.build(nn.Linear(2, 2), config)
    assert isinstance(optimizer, optim.LARS)
    groups: list[dict[str, Any]] = optimizer.param_groups
    assert [g["momentum"] for g in groups] == [0.5, 0.5]
    assert groups[0]["trust_coefficient"] == 0.01
    assert [g["weight_decay"] for g in groups] == [0.3, 0.0]
    assert [g["adapt"] for g in groups] == [True, False]


def one_step(optimizer_name: str) -> tuple[Numbers, Numbers]:
    layer = nn.Linear(1, 1).double()
    layer.weight.data.fill_(2)
    layer.bias.data.fill_(2)
    optimizer = optim.build(layer, Optim(optimizer=optimizer_name, weight_decay=0.1))
    for _ in range(2):
        layer.weight.grad = torch.full((1, 1), 0.5, dtype=torch.float64)
        layer.bias.grad = torch.full((1,), 0.5, dtype=torch.float64)
        for group in optimizer.param_groups:
            group["lr"] = 0.1
        optimizer.step()
    return layer.weight.flatten().tolist(), layer.bias.tolist()


def test_sgd() -> None:
    """Breaks if sgd decays biases, or loses its momentum: 2 steps of lr 0.1 with g = 0.5, wd 0.1."""
    weight, bias = one_step("sgd")
    assert bias == pytest.approx([2 - 0.05 - 0.1 * (0.9 * 0.5 + 0.5)])
    first = 2 - 0.1 * 0.7
    assert weight == pytest.approx([first - 0.1 * (0.9 * 0.7 + 0.5 + 0.1 * first)])


def test_adamw() -> None:
    """Breaks if adamw decays biases or not the weights: with a constant gradient each step is lr, after decay lr·wd."""
    weight, bias = one_step("adamw")
    assert bias == pytest.approx([2 - 0.1 - 0.1], rel=1e-6)
    assert weight == pytest.approx([(2 * 0.99 - 0.1) * 0.99 - 0.1], rel=1e-6)


@pytest.mark.parametrize(("predictor", "projector"), [(10.0, 1.0), (1.0, 5.0), (10.0, 0.5), (0.0, 2.0)])
def test_heads_learn_at_their_own_rates(predictor: float, projector: float) -> None:
    """Breaks if a multiplier reaches another part, one undoes the other, or it is applied other than to the rate."""
    torch.manual_seed(0)
    small = Network(encoder="resnet18", width=0.05, projector_hidden=8, predictor_hidden=8, projection=4)
    plain = method.build(small).double()
    scaled = copy.deepcopy(plain)
    views = torch.randn(2, 6, 3, 32, 32, dtype=torch.float64)
    before = {name: value.clone() for name, value in plain.named_parameters()}
    for model, config in ((plain, Optim()), (scaled, Optim(predictor_lr=predictor, projector_lr=projector))):
        optimizer = optim.build(model, config)
        place = Machine("cpu", "float64", torch.get_num_threads())
        update(model, optimizer, [Pass(views[0], views[1], None)], lr=0.1, tau=1.0, machine=place)
    moved = dict(scaled.named_parameters())
    for name, value in plain.named_parameters():
        factor = {"predictor": predictor, "online.projector": projector}
        expected = (value - before[name]) * next((f for part, f in factor.items() if name.startswith(part + ".")), 1)
        torch.testing.assert_close(moved[name] - before[name], expected, rtol=1e-6, atol=1e-12)
