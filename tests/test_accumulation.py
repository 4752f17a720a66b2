"""Several passes a step, steps that are refused, and precision: what a step is made of."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from byol import method
from byol.algorithm import Pass, gradients, update
from byol.config import Objective
from byol.errors import Diverged
from byol.run.machine import Machine
from tests.test_method import HERE, build, cosine_loss, lars, same, step, values, views


def test_accumulated_passes_have_their_own_negatives() -> None:
    """Breaks if negatives are shared over passes, or passes are summed: the gradient is the mean of each alone."""
    config = Objective(name="info-nce")
    passes = [views(seed, labels=False) for seed in range(2)]
    together = build(objective=config)
    found = step(together, lars(together), *passes)
    mean: dict[str, Tensor] = {}
    losses = []
    for seen in passes:
        alone = build(objective=config)
        losses.append(step(alone, lars(alone), seen).loss)
        for name, p in alone.named_parameters():
            if p.grad is not None:
                mean[name] = mean.get(name, 0) + p.grad / 2
    assert found.loss == pytest.approx(sum(losses) / 2, rel=1e-12)
    for name, gradient in mean.items():
        torch.testing.assert_close(together.get_parameter(name).grad, gradient, rtol=1e-8, atol=1e-12)


def test_gradients_keep_their_memory() -> None:
    """Breaks when every step allocates them anew, among activations: memory at 224 px grows by 5 %."""
    model = build()
    optimizer = lars(model)
    places = []
    for seed in range(2):
        step(model, optimizer, views(seed))
        places.append([gradient.data_ptr() for gradient in gradients(optimizer)])
    assert places[0] == places[1]


def test_kept_gradients_leave_no_trace() -> None:
    """Breaks when gradients are added to 0, which makes 0 of -0: a resumed run would differ in a checkpoint's bytes."""
    found = []
    for kept in (True, False):
        model = build()
        optimizer = lars(model)
        if kept:
            step(model, optimizer, views(1))
            model.load_state_dict(build().state_dict())
        model.online.projector[0].weight.register_hook(lambda gradient: torch.full_like(gradient, -0.0))
        step(model, optimizer, views(0))
        assert model.online.projector[0].weight.grad.signbit().all()
        found.append([gradient.view(torch.int64) for gradient in gradients(optimizer)])
    assert all(map(torch.equal, *found))


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


def test_a_long_gradient_is_shortened_whatever_the_labels_are() -> None:
    """Breaks if the gradient is not scaled as a whole, or the watching classifier's gradient counts, by which labels
    would reach the encoder."""
    seen = views(0)
    plain, clipped, other = build(), build(), build()
    step(plain, lars(plain), seen)

    def gradient(model: method.Method) -> Tensor:
        learned = (*model.online.parameters(), *model.predictor.parameters())
        return torch.cat([p.grad.flatten() for p in learned if p.grad is not None])

    whole = gradient(plain)
    clip = float(whole.norm()) / 2
    for model, labels in ((clipped, seen.labels), (other, seen.labels.flip(0))):
        update(model, lars(model), [seen._replace(labels=labels)], lr=0.1, tau=0.9, machine=HERE, clip=clip)
    torch.testing.assert_close(gradient(clipped), whole / 2, rtol=1e-5, atol=1e-12)
    assert torch.equal(gradient(clipped), gradient(other))


def test_equal_passes_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks if the target moves, or the optimizer steps, once a pass instead of once an update."""
    taus: list[float] = []
    update_target = method.Method.update_target

    def counted(self: method.Method, tau: float, finite: Tensor | None = None) -> None:
        taus.append(tau)
        update_target(self, tau, finite)

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
        found.append(update(model, optimizer, [seen], lr=0.1, tau=0.9, machine=machine).read().loss)
        assert {v.dtype for v in state(model, optimizer)} == {torch.float32}
    assert found[0] == pytest.approx(found[1], abs=0.1)
    assert found[0] != found[1]
