"""The method and one update: moving average, batch statistics, gradients, accumulation, divergence."""

from __future__ import annotations

import copy
import weakref
from typing import Any, get_args, get_type_hints

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from byol import method, optim
from byol.algorithm import Pass, Step, update
from byol.config import Network, Objective, Optim
from byol.objectives import OBJECTIVES
from byol.run.machine import Machine

HERE = Machine("cpu", "float64", 1)
TINY = {
    "encoder": "resnet18",
    "width": 1 / 16,
    "small_images": True,
    "projector_hidden": 8,
    "predictor_hidden": 6,
    "projection": 4,
}


def build(
    classes: int = 3,
    seed: int = 0,
    objective: Objective = Objective(),
    **fields: object,
) -> method.Method:
    torch.manual_seed(seed)
    return method.build(Network(**{**TINY, **fields}), classes, objective).double().train()


def views(seed: int = 0, batch: int = 4, labels: bool = True) -> Pass:
    generator = torch.Generator().manual_seed(seed)
    view1, view2 = (torch.randn(batch, 3, 8, 8, generator=generator, dtype=torch.float64) for _ in range(2))
    return Pass(view1, view2, torch.randint(0, 3, (batch,), generator=generator) if labels else None)


def both(model: method.Method, view1: Tensor, view2: Tensor) -> tuple[method.Order, ...]:
    """Both orders, as a step gets them one after the other."""
    return tuple(order for orders in model.orders(view1, view2) for order in orders)


def lars(model: method.Method) -> torch.optim.Optimizer:
    return optim.build(model, Optim(weight_decay=1e-3))


def step(model: method.Method, optimizer: torch.optim.Optimizer, *passes: Pass, tau: float = 0.9) -> Step:
    return update(model, optimizer, passes, lr=0.5, tau=tau, machine=HERE).read()


def values(module: nn.Module) -> list[Tensor]:
    return [p.detach().clone() for p in module.parameters()]


def buffers(module: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in module.named_buffers()}


def same(left: list[Tensor], right: list[Tensor]) -> bool:
    return len(left) == len(right) and all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


def test_tau_one_freezes_the_target() -> None:
    """Breaks if the weight of the moving average is tau instead of 1 − tau."""
    model = build()
    before = values(model.target)
    model.update_target(1.0)
    assert same(values(model.target), before)
    assert not same(before, values(model.online))


def test_tau_zero_copies_the_new_online_weights() -> None:
    """Breaks if the target moves before the optimizer has stepped, or misses a parameter."""
    model = build()
    before = values(model.online)
    step(model, lars(model), views(), tau=0.0)
    assert same(values(model.target), values(model.online))
    assert not any(torch.equal(a, b) for a, b in zip(before, values(model.target), strict=True) if a.ndim > 1)


def test_moving_average_by_hand() -> None:
    """Breaks with any other average than tau·target + (1 − tau)·online, batch norms' weights and biases included."""
    model = build()
    for p in model.online.parameters():
        p.data.normal_()
    xi, theta = values(model.target), values(model.online)
    model.update_target(0.97)
    for old, online, new in zip(xi, theta, values(model.target), strict=True):
        torch.testing.assert_close(new, 0.97 * old + 0.03 * online, rtol=1e-12, atol=1e-14)
    assert same(values(model.online), theta)


def test_batch_statistics_are_each_networks_own() -> None:
    """Breaks if the moving average or a copy reaches the target's running statistics."""
    model = build()
    both(model, *views()[:2])
    before = buffers(model.target)
    model.update_target(0.5)
    model.update_target(0.0)
    after = buffers(model.target)
    online = buffers(model.online)
    assert before.keys() == online.keys()
    for name, value in before.items():
        assert torch.equal(after[name], value), name
        if not name.endswith("num_batches_tracked"):
            assert not torch.equal(online[name], value), name


def test_running_statistics_of_both_views() -> None:
    """Breaks if a view does not reach the statistics: after one step they are 0.9(0.9·0 + 0.1·m1) + 0.1·m2."""
    for branch in ("online", "target"):
        model = build()
        view1, view2, _ = views()
        network = getattr(model, branch).encoder
        means = [network.conv1(view).mean((0, 2, 3)).detach() for view in (view1, view2)]
        both(model, view1, view2)
        torch.testing.assert_close(network.bn1.running_mean, 0.9 * 0.1 * means[0] + 0.1 * means[1])


def test_two_batches_a_step() -> None:
    """Breaks if the views are concatenated into one pass or the target is in evaluation mode."""
    model = build()
    optimizer = lars(model)
    for steps in (1, 2):
        step(model, optimizer, views(steps))
        counts = {name: int(b) for name, b in model.named_buffers() if name.endswith("num_batches_tracked")}
        assert set(counts.values()) == {2 * steps}
        assert {name.split(".")[0] for name in counts} == {"online", "target", "predictor"}


def test_views_do_not_mix() -> None:
    """Breaks if both views share batch statistics."""
    view1, view2, _ = views(0)
    other1, other2, _ = views(1)
    first, second, third = (both(build(), *pair) for pair in ((view1, view2), (view1, other2), (other1, view2)))
    for order, same, changed in ((0, second, third), (1, third, second)):
        for name in ("prediction", "own", "representation"):
            assert torch.equal(getattr(first[order], name), getattr(same[order], name)), name
            assert not torch.equal(getattr(first[order], name), getattr(changed[order], name)), name


def test_outputs_are_what_their_names_say() -> None:
    """Breaks if the predictor is applied to the target, or an output is taken from the wrong network or view."""
    model = build()
    view1, view2, _ = views()
    out = both(model, view1, view2)
    online, target = model.online, model.target
    torch.testing.assert_close(out[0].representation, online.encoder(view1))
    torch.testing.assert_close(out[0].prediction, model.predictor(online.projector(online.encoder(view1))))
    torch.testing.assert_close(out[1].prediction, model.predictor(online.projector(online.encoder(view2))))
    torch.testing.assert_close(out[1].target, target.projector(target.encoder(view1)))
    torch.testing.assert_close(out[0].target, target.projector(target.encoder(view2)))


def cosine_loss(model: method.Method, seen: Pass) -> Tensor:
    """The symmetrized loss, 4 − 2·cos − 2·cos, from a fresh forward pass."""
    out = both(model, seen.view1, seen.view2)
    first = F.cosine_similarity(out[0].prediction, out[0].target)
    second = F.cosine_similarity(out[1].prediction, out[1].target)
    return (4 - 2 * first - 2 * second).mean()


def test_loss_and_probe_are_those_of_the_crossed_views() -> None:
    """Breaks if a prediction is compared with the target of its own view, or the loss is halved."""
    model, seen = build(), views()
    expected = cosine_loss(copy.deepcopy(model), seen).item()
    logits = copy.deepcopy(model).probe(model.online.encoder(seen.view1))
    measured = step(model, lars(model), seen)
    assert measured.loss == pytest.approx(expected, rel=1e-12)
    assert measured.probe_loss == pytest.approx(F.cross_entropy(logits, seen.labels).item(), rel=1e-12)
    assert measured.probe_accuracy == float((logits.argmax(1) == seen.labels).double().mean())


def test_target_gets_no_gradient() -> None:
    """Breaks if the target's forward pass records gradients, or its weights require them."""
    model = build()
    out = both(model, *views()[:2])
    assert not out[1].target.requires_grad
    assert not out[0].target.requires_grad
    step(model, lars(model), views())
    assert all(p.grad is None and not p.requires_grad for p in model.target.parameters())
    trained = [*model.online.parameters(), *model.predictor.parameters(), *model.classifier.parameters()]
    assert all(p.grad is not None for p in trained)


def test_labels_change_only_the_classifier() -> None:
    """Breaks if the stop-gradient before the classifier goes: labels would reach the encoder."""
    gradients = []
    for seen in (views(), views(labels=False)):
        model = build()
        measured = step(model, lars(model), seen)
        assert (measured.probe_loss is None) == (seen.labels is None)
        gradients.append({name: p.grad for name, p in model.named_parameters()})
    with_labels, without = gradients
    for name, gradient in with_labels.items():
        if name.startswith("classifier."):
            assert without[name] is None
            assert float(gradient.norm()) > 0
        elif not name.startswith("target."):
            assert torch.equal(gradient, without[name]), name


def test_classifier_gradient_by_hand() -> None:
    """Breaks if the probe sees another view, or its loss is weighted: dL/db is the mean of softmax − one-hot."""
    model, seen = build(), views()
    logits = copy.deepcopy(model).probe(copy.deepcopy(model).online.encoder(seen.view1))
    step(model, lars(model), seen)
    expected = (logits.softmax(1) - F.one_hot(seen.labels, 3)).mean(0)
    torch.testing.assert_close(model.classifier.bias.grad, expected)


def test_target_init() -> None:
    """Breaks if the default changes, or 'same' copies only a part."""
    assert same(values(build(target_init="same").target), values(build(target_init="same").online))
    for model in (build(), build(target_init="independent")):
        pairs = zip(values(model.online), values(model.target), strict=True)
        assert not any(torch.equal(a, b) for a, b in pairs if a.ndim > 1)


def test_without_predictor() -> None:
    """Breaks if the switch leaves a layer: predictions are then the projections."""
    model = build(predictor="none")
    assert isinstance(model.predictor, nn.Identity)
    view1, view2, _ = views()
    torch.testing.assert_close(both(model, view1, view2)[0].prediction, model.online(view1)[1])


def test_config_reaches_the_heads() -> None:
    """Breaks if a size, depth or bias of the heads is not the config's."""
    model = build(projector_depth=3, predictor_depth=1, head_bias=True)
    for branch in (model.online, model.target):
        sizes = [(m.in_features, m.out_features) for m in branch.projector if isinstance(m, nn.Linear)]
        assert sizes == [(32, 8), (8, 8), (8, 4)]
        assert branch.projector[-1].bias is not None
    assert [type(m) for m in model.predictor] == [nn.Linear]
    default = build(classes=0)
    assert default.classifier is None
    assert [m.out_features for m in default.predictor if isinstance(m, nn.Linear)] == [6, 4]
    assert default.predictor[-1].bias is None


def test_config_offers_every_predictor_and_target() -> None:
    """Breaks if a choice exists only in the config."""
    kinds = get_type_hints(Network)
    assert set(get_args(kinds["predictor"])) == set(method.PREDICTORS)
    for target in get_args(kinds["target"]):
        model = build(target=target)
        assert (model.target is None) == (target in ("stop-gradient", "online"))
        assert any(name.startswith("target.") for name in model.state_dict()) == (model.target is not None)


def test_a_stopped_online_target_is_tau_zero() -> None:
    """Breaks if the stop-gradient goes, or the target is another network or an older one than tau = 0 gives."""
    copied, itself = build(target_init="same"), build(target="stop-gradient")
    itself.load_state_dict({n: v for n, v in copied.state_dict().items() if not n.startswith("target.")})
    optimizers = lars(copied), lars(itself)
    for seed in range(3):
        losses = [step(m, o, views(seed), tau=0.0).loss for m, o in zip((copied, itself), optimizers, strict=True)]
        assert losses[0] == pytest.approx(losses[1], rel=1e-12)
    for a, b in zip(values(copied.online), values(itself.online), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


def test_gradient_flows_into_the_target_only_when_it_is_online() -> None:
    """Breaks if the online target is detached: without predictor its two orders then give half the gradient."""
    norms = {}
    for target in ("stop-gradient", "online"):
        model = build(classes=0, predictor="none", target=target)
        out = both(model, *views()[:2])
        assert out[1].target.requires_grad == out[0].target.requires_grad == (target == "online")
        torch.testing.assert_close(out[1].target, model.online(views().view1)[1])
        norms[target] = step(model, lars(model), views()).grad_norm
    # ‖a − sg(b)‖² + ‖b − sg(a)‖² has the gradient of ‖a − b‖², and without the stop that of 2‖a − b‖².
    assert norms["online"] == pytest.approx(2 * norms["stop-gradient"], rel=1e-10)


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("target", get_args(get_type_hints(Network)["target"]))
def test_only_the_online_target_gets_a_gradient(target: str, name: str) -> None:
    """Breaks for an objective or target through which a gradient reaches what should stand still, or none flows."""
    model = build(target=target, objective=Objective(name=name))
    out = both(model, *views()[:2])
    model.loss(out).backward()
    assert all(p.grad is not None for p in [*model.online.parameters(), *model.predictor.parameters()])
    assert out[1].target.requires_grad == (target == "online")
    if model.target is not None:
        assert all(p.grad is None for p in model.target.parameters())


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("target", get_args(get_type_hints(Network)["target"]))
def test_orders_alone_give_the_gradient_of_both(target: str, name: str) -> None:
    """Breaks if an order is counted twice or left out, or one reads what the one before has freed."""
    whole, parted = (build(target=target, objective=Objective(name=name)) for _ in range(2))
    view1, view2, _ = views()
    out = both(whole, view1, view2)
    loss = whole.loss(out)
    loss.backward()
    terms = []
    for part in parted.orders(view1, view2):
        terms.append(parted.loss(part))
        terms[-1].backward()
    assert sum(terms).item() == pytest.approx(loss.item(), rel=1e-12)
    for (path, ours), theirs in zip(parted.named_parameters(), whole.parameters(), strict=True):
        assert (ours.grad is None) == (theirs.grad is None), path
        if ours.grad is not None:
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-10, atol=1e-13)
    assert all(torch.equal(value, buffers(whole)[path]) for path, value in buffers(parted).items())


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("target", get_args(get_type_hints(Network)["target"]))
@pytest.mark.parametrize(
    "more", [{}, {"projection_norm": True}, {"predictor": "optimal-linear"}, {"predictor": "isotropic"}]
)
def test_views_together_are_two_passes(target: str, name: str, more: dict[str, Any]) -> None:
    """Breaks if a view has statistics, a target or a gradient of both views, or they reach running averages in another
    order than view 1, view 2; and if evaluation takes a batch for two views."""
    apart, together = (build(target=target, objective=Objective(name=name), **more) for _ in range(2))
    method.pass_together(together)
    for seed in range(2):
        view1, view2, _ = views(seed, batch=16)
        losses = []
        for model in (apart, together):
            groups = list(model.orders(view1, view2))
            losses.append(sum(model.loss(group) for group in groups))
            losses[-1].backward()
            model.update_target(0.9)
        assert losses[1].item() == pytest.approx(losses[0].item(), rel=1e-12)
    for (path, ours), theirs in zip(together.named_parameters(), apart.parameters(), strict=True):
        assert (ours.grad is None) == (theirs.grad is None), path
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)
        if ours.grad is not None:
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-9, atol=1e-12)
    for path, value in buffers(together).items():
        torch.testing.assert_close(value, buffers(apart)[path], rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(together.eval().online(view1)[1], apart.eval().online(view1)[1], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("passes", ["in-turn", "together", "side-by-side"])
def test_simclr_becomes_byol(passes: str) -> None:
    """Breaks if the two losses do not change places: with weight 1 every gradient is that of the paper's SimCLR, which
    has neither predictor nor target, with weight 0 that of BYOL, and between them their mixture."""
    view1, view2, _ = views(batch=16)
    found: dict[float | str, dict[str, Tensor]] = {}
    for key in (1.0, 0.25, 0.0, "simclr", "byol"):
        alone = isinstance(key, str)
        fields = {"target": "online", "predictor": "none"} if key == "simclr" else {}
        name = {"simclr": "info-nce", "byol": "byol"}.get(str(key), "simclr-to-byol")
        model = build(objective=Objective(name=name, beta=1.0), **fields)
        model.online.load_state_dict(build().online.state_dict())
        if passes == "together":
            method.pass_together(model)
        elif passes == "side-by-side":
            method.pass_side_by_side(model, 1)
        beta = None if alone else float(key)
        for group in model.orders(view1, view2, beta=beta):
            model.loss(group, beta).backward()
        found[key] = {path: p.grad for path, p in model.named_parameters() if p.grad is not None}
    for path, simclr in found["simclr"].items():
        byol = found["byol"][path]
        torch.testing.assert_close(found[1.0][path], simclr, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(found[0.0][path], byol, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(found[0.25][path], 0.25 * simclr + 0.75 * byol, rtol=1e-9, atol=1e-12)
    assert len(found["byol"]) > len(found["simclr"])  # by the predictor
    for path in found["byol"].keys() - found["simclr"].keys():
        torch.testing.assert_close(found[0.25][path], 0.75 * found["byol"][path], rtol=1e-9, atol=1e-12)


def test_one_view_is_held_at_a_time() -> None:
    """Breaks if the second view's activations are computed while autograd still holds the first's."""
    model = build(classes=0)
    view1, view2, _ = views()
    held: weakref.WeakSet[Tensor] = weakref.WeakSet()

    def keep(tensor: Tensor) -> Tensor:
        copied = tensor.clone()
        held.add(copied)
        return copied

    most = []
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        for part in model.orders(view1, view2):
            most.append(len(held))
            model.loss(part).backward()
    assert len(most) == 2
    assert 0 < most[1] <= most[0]


def test_a_fixed_target_never_moves() -> None:
    """Breaks if tau reaches a fixed target; at tau = 1 the moving average, too, stands still."""
    fixed, still = build(target="fixed"), build()
    before = values(fixed.target)
    assert not same(before, values(fixed.online))
    for model, tau in ((fixed, 0.0), (still, 1.0)):
        optimizer = lars(model)
        for seed in range(2):
            step(model, optimizer, views(seed), tau=tau)
        assert same(values(model.target), before)
    assert same(values(fixed.online), values(still.online))


def test_mean_teacher_compares_projections_with_the_moving_average() -> None:
    """Breaks if without a predictor anything but the projection is compared with the target (section 5)."""
    model, seen = build(predictor="none"), views()
    z1, z2 = (copy.deepcopy(model).online(view)[1] for view in seen[:2])
    t1, t2 = (copy.deepcopy(model).target(view)[1] for view in seen[:2])
    expected = (4 - 2 * F.cosine_similarity(z1, t2) - 2 * F.cosine_similarity(z2, t1)).mean().item()
    before = values(model.target)
    assert step(model, lars(model), seen, tau=0.9).loss == pytest.approx(expected, rel=1e-12)
    for old, new, online in zip(before, values(model.target), values(model.online), strict=True):
        torch.testing.assert_close(new, 0.9 * old + 0.1 * online, rtol=1e-12, atol=1e-14)


def test_initialization_scale_is_that_of_the_variance() -> None:
    """Breaks if a weight is missed, a bias or batch norm is scaled, or the deviation is multiplied by the scale."""
    plain, scaled = build(), build(init_scale=4.0)
    weights = {f"{n}.weight" for n, m in plain.named_modules() if isinstance(m, nn.Conv2d | nn.Linear)}
    for name, value in plain.named_parameters():
        factor = 2 if name in weights and not name.startswith("classifier") else 1
        torch.testing.assert_close(scaled.get_parameter(name), factor * value, rtol=1e-14, atol=0)
    assert same(values(build(init_scale=1.0)), values(plain))


def test_projection_norm_is_that_of_simclr() -> None:
    """Breaks if the projection is not normalized over the batch, or the norm has an offset (FACTS 1.14)."""
    model = build(projection_norm=True, objective=Objective(name="info-nce"))
    _, projection = model.online(views(batch=16).view1)
    torch.testing.assert_close(projection.mean(0), torch.zeros(4).double(), rtol=0, atol=1e-12)
    torch.testing.assert_close(projection.square().mean(0), torch.ones(4).double(), rtol=1e-2, atol=0)
    assert [n for n, _ in model.online.projector[-1].named_parameters()] == ["weight"]
    assert [type(m) for m in model.predictor][-1] is nn.Linear
