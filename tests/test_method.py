"""The method and one update: moving average, batch statistics, gradients, accumulation, divergence."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from byol import method, optim
from byol.algorithm import Pass, Step, update
from byol.config import Network, Optim
from byol.errors import Diverged
from byol.machine import Machine

HERE = Machine("cpu", "float64", 1)
TINY = {
    "encoder": "resnet18",
    "width": 1 / 16,
    "small_images": True,
    "projector_hidden": 8,
    "predictor_hidden": 6,
    "projection": 4,
}


def build(classes: int = 3, seed: int = 0, **fields: object) -> method.Method:
    torch.manual_seed(seed)
    return method.build(Network(**{**TINY, **fields}), classes).double().train()


def views(seed: int = 0, batch: int = 4, labels: bool = True) -> Pass:
    generator = torch.Generator().manual_seed(seed)
    view1, view2 = (torch.randn(batch, 3, 8, 8, generator=generator, dtype=torch.float64) for _ in range(2))
    return Pass(view1, view2, torch.randint(0, 3, (batch,), generator=generator) if labels else None)


def lars(model: method.Method) -> torch.optim.Optimizer:
    return optim.build(model, Optim(weight_decay=1e-3))


def step(model: method.Method, optimizer: torch.optim.Optimizer, *passes: Pass, tau: float = 0.9) -> Step:
    return update(model, optimizer, passes, lr=0.5, tau=tau, machine=HERE)


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
    model(*views()[:2])
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
        model(view1, view2)
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
    first, second, third = build()(view1, view2), build()(view1, other2), build()(other1, view2)
    for name in ("prediction1", "target1", "representation1"):
        assert torch.equal(getattr(first, name), getattr(second, name)), name
        assert not torch.equal(getattr(first, name), getattr(third, name)), name
    for name in ("prediction2", "target2"):
        assert torch.equal(getattr(first, name), getattr(third, name)), name
        assert not torch.equal(getattr(first, name), getattr(second, name)), name


def test_outputs_are_what_their_names_say() -> None:
    """Breaks if the predictor is applied to the target, or an output is taken from the wrong network or view."""
    model = build()
    view1, view2, _ = views()
    out = model(view1, view2)
    online, target = model.online, model.target
    torch.testing.assert_close(out.representation1, online.encoder(view1))
    torch.testing.assert_close(out.prediction1, model.predictor(online.projector(online.encoder(view1))))
    torch.testing.assert_close(out.prediction2, model.predictor(online.projector(online.encoder(view2))))
    torch.testing.assert_close(out.target1, target.projector(target.encoder(view1)))
    torch.testing.assert_close(out.target2, target.projector(target.encoder(view2)))


def cosine_loss(model: method.Method, seen: Pass) -> Tensor:
    """The symmetrized loss, 4 − 2·cos − 2·cos, from a fresh forward pass."""
    out = model(seen.view1, seen.view2)
    first = F.cosine_similarity(out.prediction1, out.target2)
    second = F.cosine_similarity(out.prediction2, out.target1)
    return (4 - 2 * first - 2 * second).mean()


def test_loss_and_probe_are_those_of_the_crossed_views() -> None:
    """Breaks if a prediction is compared with the target of its own view, or the loss is halved."""
    model, seen = build(), views()
    expected = cosine_loss(copy.deepcopy(model), seen).item()
    logits = copy.deepcopy(model).probe(model.online.encoder(seen.view1))
    found = step(model, lars(model), seen)
    assert found.loss == pytest.approx(expected, rel=1e-12)
    assert found.probe_loss == pytest.approx(F.cross_entropy(logits, seen.labels).item(), rel=1e-12)
    assert found.probe_accuracy == float((logits.argmax(1) == seen.labels).double().mean())


def test_target_gets_no_gradient() -> None:
    """Breaks if the target's forward pass records gradients, or its weights require them."""
    model = build()
    out = model(*views()[:2])
    assert not out.target1.requires_grad
    assert not out.target2.requires_grad
    step(model, lars(model), views())
    assert all(p.grad is None and not p.requires_grad for p in model.target.parameters())
    trained = [*model.online.parameters(), *model.predictor.parameters(), *model.classifier.parameters()]
    assert all(p.grad is not None for p in trained)


def test_labels_change_only_the_classifier() -> None:
    """Breaks if the stop-gradient before the classifier goes: labels would reach the encoder."""
    gradients = []
    for seen in (views(), views(labels=False)):
        model = build()
        found = step(model, lars(model), seen)
        assert (found.probe_loss is None) == (seen.labels is None)
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
    model = build(predictor=False)
    assert isinstance(model.predictor, nn.Identity)
    view1, view2, _ = views()
    torch.testing.assert_close(model(view1, view2).prediction1, model.online(view1)[1])


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


def test_accumulated_gradient_is_the_mean() -> None:
    """Breaks if passes are summed, or a pass's gradient is lost."""
    passes = [views(seed) for seed in range(3)]
    model = build()
    gradients: dict[str, Tensor] = {}
    losses = []
    for seen in passes:
        alone = copy.deepcopy(model)
        loss = cosine_loss(alone, seen)
        probe = F.cross_entropy(alone.classifier(alone.online.encoder(seen.view1).detach()), seen.labels)
        (loss + probe).backward()
        losses.append(loss.item())
        for name, p in alone.named_parameters():
            if p.grad is not None:
                gradients[name] = gradients.get(name, 0) + p.grad / 3
    found = step(model, lars(model), *passes)
    assert found.loss == pytest.approx(sum(losses) / 3, rel=1e-12)
    total = torch.cat([g.flatten() for g in gradients.values()]).norm()
    assert found.grad_norm == pytest.approx(float(total), rel=1e-10)
    for name, gradient in gradients.items():
        torch.testing.assert_close(model.get_parameter(name).grad, gradient, rtol=1e-8, atol=1e-12)


def test_equal_passes_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks if the target moves, or the optimizer steps, once a pass instead of once an update."""
    taus: list[float] = []
    update_target = method.Method.update_target

    def counted(self: method.Method, tau: float) -> None:
        taus.append(tau)
        update_target(self, tau)

    monkeypatch.setattr(method.Method, "update_target", counted)
    once, often = build(), build()
    step(once, lars(once), views(), tau=0.9)
    step(often, lars(often), *[views()] * 4, tau=0.8)
    assert taus == [0.9, 0.8]
    for a, b in zip(values(once.online), values(often.online), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


def test_passes_may_be_drawn_one_by_one() -> None:
    """Breaks if the update needs all views at once: memory is what accumulation saves."""
    model = build()
    alive: list[int] = []

    def draw() -> Iterator[Pass]:
        for seed in range(2):
            alive.append(sum(p.grad is not None for p in model.parameters()))
            yield views(seed)

    update(model, lars(model), draw(), lr=0.1, tau=0.9, machine=HERE)
    assert alive[0] == 0
    assert alive[1] > 0  # the first pass has gone backward before the second is drawn


def test_a_zero_learning_rate_fills_the_momentum_and_moves_the_target() -> None:
    """Breaks if the first step, at learning rate 0, is skipped (FACTS 1.11)."""
    model = build()
    optimizer = lars(model)
    online, target = values(model.online), values(model.target)
    update(model, optimizer, [views()], lr=0.0, tau=0.9, machine=HERE)
    assert same(values(model.online), online)
    assert not same(values(model.target), target)
    assert all(float(optimizer.state[p]["momentum"].norm()) > 0 for p in model.online.encoder.parameters())


def state(model: method.Method, optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return values(model) + [optimizer.state[p]["momentum"].clone() for p in optimizer.state]


@pytest.mark.parametrize("bad_value", [float("nan"), float("inf")])
def test_divergence_leaves_everything_as_it_was(bad_value: float) -> None:
    """Breaks if the loss is looked at only after the optimizer or the target has moved."""
    model = build()
    optimizer = lars(model)
    step(model, optimizer, views(0))
    before = state(model, optimizer)
    assert len(before) > len(values(model)) + 60
    bad = views(1)
    bad.view2[0, 0, 0, 0] = bad_value
    with pytest.raises(Diverged, match="the loss is nan"):
        step(model, optimizer, views(2), bad)
    assert same(state(model, optimizer), before)


def test_divergence_of_a_gradient_alone() -> None:
    """Breaks if only the loss is checked: a finite loss can have a gradient that is not."""
    model = build()
    optimizer = lars(model)
    step(model, optimizer, views(0))
    before = state(model, optimizer)
    model.predictor[-1].weight.register_hook(lambda gradient: gradient * float("inf"))
    with pytest.raises(Diverged, match=r"the loss is \d.*the gradient's norm (inf|nan)"):
        step(model, optimizer, views(1))
    assert same(state(model, optimizer), before)


def test_bf16_autocast_keeps_the_weights_and_loss_single() -> None:
    """Breaks if autocast covers the loss, or weights or momentum become half: agrees with float32 to 0.1."""
    found = []
    for precision in ("bf16", "float32"):
        model = build().float()
        optimizer = lars(model)
        seen = Pass(*(v.float() for v in views()[:2]), views().labels)
        machine = Machine("cpu", precision, 1)
        found.append(update(model, optimizer, [seen], lr=0.1, tau=0.9, machine=machine).loss)
        assert {v.dtype for v in state(model, optimizer)} == {torch.float32}
    assert found[0] == pytest.approx(found[1], abs=0.1)
    assert found[0] != found[1]
