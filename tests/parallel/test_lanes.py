"""Views side by side, a thread each: the same step as one view after the other, and refused where it could not be."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
import torch
from torch import Tensor, nn

import byol
from byol import method, optim, pretraining
from byol.algorithm import Outcome, Pass, update
from byol.config import Network, Objective, Optim
from byol.errors import Interrupted, UsageError
from byol.objectives import OBJECTIVES
from byol.parallel import lanes
from byol.run import cost, planning, signals
from byol.run.files import read_metrics
from byol.run.machine import SIDE_BY_SIDE, TOGETHER, Machine
from byol.run.record import read_run
from tests.test_method import TINY, buffers, views

BESIDE = {"run.passes": SIDE_BY_SIDE, "run.threads": 2}


def built(target: str, name: str, **fields: Any) -> method.Method:
    torch.manual_seed(0)
    return method.build(Network(**{**TINY, "target": target, **fields}), 3, Objective(name=name)).double().train()


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("target", get_args(get_type_hints(Network)["target"]))
@pytest.mark.parametrize(
    "more", [{}, {"projection_norm": True}, {"predictor": "optimal-linear"}, {"predictor": "isotropic"}]
)
def test_side_by_side_is_in_turn(target: str, name: str, more: dict[str, Any]) -> None:
    """Breaks if a gradient is lost or counted twice where the threads part, a view sees the other's statistics, or the
    running averages follow one view alone, or both in the other order."""
    apart, beside = (built(target, name, **more) for _ in range(2))
    method.pass_side_by_side(beside, 1)
    ends = []
    for model, passes in ((apart, "in-turn"), (beside, SIDE_BY_SIDE)):
        optimizer, place = optim.build(model, Optim(weight_decay=1e-3)), Machine("cpu", "float64", 1, passes)
        steps = [[views(seed, batch=16), views(seed + 9, batch=16)] for seed in range(3)]  # two passes a step
        ends.append([update(model, optimizer, step, lr=0.5, tau=0.9, machine=place).read() for step in steps])
    for ours, theirs in zip(ends[1], ends[0], strict=True):
        assert ours == pytest.approx(theirs, rel=1e-9)
    for (path, value), expected in zip(beside.named_parameters(), apart.parameters(), strict=True):
        torch.testing.assert_close(value, expected, rtol=1e-6, atol=1e-9, msg=path)
    for path, statistic in buffers(beside).items():
        torch.testing.assert_close(statistic, buffers(apart)[path], rtol=1e-6, atol=1e-9, msg=path)


def test_the_same_bits_every_time() -> None:
    """Breaks if what one thread adds to a weight may come before or after what the other adds, and it matters; or if
    bf16 copies of weights that one thread makes are taken by the other."""
    ends = []
    place = Machine("cpu", "bf16", 2, SIDE_BY_SIDE)
    for _ in range(4):
        model = built("moving-average", "info-nce").float()
        method.pass_side_by_side(model, 1)
        optimizer = optim.build(model, Optim())
        for seed in range(4):
            view1, view2, _ = views(seed, batch=32, labels=False)
            seen = [Pass(view1.float(), view2.float(), None)]
            update(model, optimizer, seen, lr=0.5, tau=0.9, machine=place)
        ends.append(torch.cat([value.flatten().float() for value in model.state_dict().values()]))
    assert all(torch.equal(end, ends[0]) for end in ends)


def test_an_error_of_one_thread_ends_the_step() -> None:
    """Breaks if an error in a thread is lost, or raised while the other thread still changes something."""
    model = method.pass_side_by_side(built("moving-average", "byol"), 1)
    assert model.lanes is not None
    ended = []

    class Fails(nn.Module):
        def forward(self, view: Tensor) -> Tensor:
            raise ValueError("in the second view")

    class Slow(nn.Module):
        def forward(self, view: Tensor) -> tuple[Tensor, Tensor]:
            torch.randn(400, 400) @ torch.randn(400, 400)
            ended.append(True)
            return view.mean((1, 2, 3)), view.mean((2, 3))

    model.lanes.branches = (Slow(), None), (Fails(), None)
    with pytest.raises(ValueError, match="in the second view"):
        next(model.orders(*views(labels=False)[:2]))
    assert ended == [True]


def test_what_views_cannot_pass_side_by_side() -> None:
    """Breaks if dropout, whose numbers would come in any order, or a memory that is lost goes unnoticed, or batch norm
    or a fixed buffer is taken for one."""

    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(()))

        def forward(self, view: Tensor) -> Tensor:
            self.seen += len(view)
            return view

    class Fixed(Counts):
        def forward(self, view: Tensor) -> Tensor:
            return view + self.seen

    view = torch.randn(2, 3, 8, 8)
    assert "random numbers" in lanes.unsuited(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Dropout(0.1)), view)
    assert "0.seen" in lanes.unsuited(nn.Sequential(Counts()), view)
    assert lanes.unsuited(nn.Sequential(Fixed(), nn.BatchNorm2d(3), nn.Dropout(0.0)), view) == ""


def test_refused_in_words(folder: Path, tmp_path: Path, tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks if a way that was asked for is taken silently where it cannot be, or another one in its place."""
    with pytest.raises(UsageError, match=r"side by side, as run.compile is for one thread\. Use --run.passes auto"):
        byol.pretrain(folder, tmp_path / "run", "cifar10-cpu", tiny | BESIDE | {"run.compile": True})
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(UsageError, match=r"for threads of a CPU, and run.device is cuda"):
        byol.pretrain(folder, tmp_path / "run", "cifar10-cpu", tiny | BESIDE | {"run.device": "cuda"})
    monkeypatch.undo()
    monkeypatch.setattr(lanes, "unsuited", lambda *_: "draws random numbers")
    with pytest.raises(UsageError, match="side by side, as the encoder resnet18 draws random numbers"):
        byol.pretrain(folder, tmp_path / "run", "cifar10-cpu", tiny | BESIDE)


@pytest.mark.parametrize("way", [SIDE_BY_SIDE, TOGETHER])
def test_a_run_stopped_and_continued_has_the_same_bits(
    folder: Path, tmp_path: Path, tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """Breaks if the second view's networks do not follow a checkpoint, or a way that was chosen by timing is not stored
    and taken."""
    asked = tiny | {"optim.epochs": 3, "run.threads": 2}
    monkeypatch.setattr(planning, "WORTH_CHOOSING", 0.0)
    monkeypatch.setattr(cost, "pace", lambda model, config, place, most: cost.Pace(1.0 + (place.passes != way), 1.0))
    whole = byol.pretrain(folder, tmp_path / "whole", "cifar10-cpu", asked)
    assert read_run(whole.out).machine == Machine("cpu", "float32", 2, way)
    count, original = 0, pretraining.update

    def stops(*arguments: Any, **named: Any) -> Outcome:
        nonlocal count
        count += 1
        if count == 4:
            monkeypatch.setattr(signals, "requested", lambda: True)
        return original(*arguments, **named)

    monkeypatch.setattr(pretraining, "update", stops)
    with pytest.raises(Interrupted):
        byol.pretrain(folder, tmp_path / "parts", "cifar10-cpu", asked)
    monkeypatch.undo()
    byol.pretrain(folder, tmp_path / "parts", "cifar10-cpu", asked)
    files = [out / "encoder.safetensors" for out in (tmp_path / "whole", tmp_path / "parts")]
    first, second = (byol.load_encoder(file).state_dict() for file in files)
    assert all(torch.equal(value, second[name]) for name, value in first.items())
    losses = [
        [line.get("loss") for line in read_metrics(out / "metrics.jsonl")]
        for out in (whole.out, whole.out.parent / "parts")
    ]
    assert losses[0] == losses[1]
