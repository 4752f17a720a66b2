"""The cost model against torch's own counter, published sizes, hand counts and the paper's times."""

from __future__ import annotations

import itertools
import shlex
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import byol
from byol import method, networks, optim, presets, pretraining
from byol.algorithm import Pass, update
from byol.cli import app
from byol.config import Config, apply, resolve
from byol.errors import Interrupted, UsageError
from byol.parallel import launching
from byol.run import cost, machine, signals
from byol.run.devices import ENCODERS, IMAGENET, device_lines, reckoned
from byol.run.record import read_run
from tests.conftest import TINY

# FACTS: exact counts of the encoders without classifier, which round to the paper's (24M, 94M, …, 522M).
PARAMETERS = {
    (50, 1): 23_508_032,
    (50, 2): 93_907_072,
    (50, 3): 211_197_120,
    (50, 4): 375_378_176,
    (101, 1): 42_500_160,
    (101, 2): 169_771_136,
    (101, 3): 381_812_928,
    (152, 1): 58_143_808,
    (152, 2): 232_253_568,
    (152, 3): 522_329_280,
    (200, 1): 62_624_832,
    (200, 2): 250_128_512,
}
TPU = cost.DEVICES["tpu-v3-core"]


def sized(depth: int, width: float, **overrides: Any) -> Config:
    changes = {"network.encoder": f"resnet{depth}", "network.width": width, "optim.batch": 8, **overrides}
    return apply(Config(), changes)


def test_every_encoder_of_the_paper_has_its_published_size() -> None:
    """Breaks if an encoder is left out of the table, or built otherwise than the paper's."""
    assert set(ENCODERS) == set(PARAMETERS)
    for (depth, width), expected in PARAMETERS.items():
        with torch.device("meta"):
            encoder = networks.encoder(sized(depth, width).network)
        assert sum(p.numel() for p in encoder.parameters()) == expected


@pytest.mark.parametrize(("depth", "width"), [(50, 1), (18, 0.5)])
def test_operations_are_those_that_torch_counts(depth: int, width: float) -> None:
    """Breaks if a layer is counted twice, left out or with the wrong size; a whole step with its gradient included."""
    config = sized(depth, width)
    model = cost.on_paper(config)
    one, step = cost.pass_flops(model, config)
    view = torch.empty(2, 3, 224, 224, device="meta")
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model.online(view)
    assert one * 2 == counter.get_total_flops()
    with FlopCounterMode(display=False) as counter:
        for orders in model.orders(view, view):
            model.loss(orders).backward()
    # Ours gives every layer two backward products; the first has no gradient for its input.
    first = 2.0 * 2 * 112 * 112 * (64 * width) * 3 * 49
    assert step * 2 == counter.get_total_flops() + 2 * first


def test_resnet50_by_hand() -> None:
    """Breaks if FLOPs are taken for multiplications: 4.09 G of those is the number that everybody quotes."""
    config = sized(50, 1)
    projector = 2048 * 4096 + 4096 * 256
    one, step = cost.pass_flops(cost.on_paper(config), config)
    assert one / 2 - projector == pytest.approx(4.09e9, rel=2e-3)
    predictor = 256 * 4096 + 4096 * 256
    assert step == pytest.approx(8 * one + 6 * 2 * predictor)
    # Without a target network there are six forward passes' worth, and recomputing adds one for each view.
    of = lambda **changes: cost.pass_flops(cost.on_paper(sized(50, 1, **changes)), sized(50, 1, **changes))[1]
    assert step - of(**{"network.target": "stop-gradient"}) == 2 * one
    assert of(**{"run.recompute": True}) - step == 2 * one


def test_every_predictor_is_counted() -> None:
    """Breaks if a plan cannot be made with a predictor, or counts what a trained one costs where there is none."""
    steps = {}
    for name in method.PREDICTORS:
        config = sized(18, 0.25, **{"network.predictor": name, "optim.batch": 512})
        steps[name] = cost.pass_flops(cost.on_paper(config), config)[1]
    weights = 2 * 256 * 4096  # of the two layers
    assert steps.pop("mlp") - steps["none"] == pytest.approx(2 * 3 * 2 * weights)  # views, passes, FLOPs a weight
    assert len(set(steps.values())) == 1


def test_memory_of_weights_and_activations() -> None:
    """Breaks if a copy of the weights is forgotten, recomputing saves nothing, or AdamW's second slot is left out."""
    config = sized(50, 1)
    online = 23_508_032 + 9_449_472 + 2_109_440
    target = 23_508_032 + 9_449_472
    plain = cost.cost(config, TPU, 4)
    assert plain.weights == 4 * (3 * online + target)
    assert cost.cost(sized(50, 1, **{"optim.optimizer": "adamw"}), TPU, 4).weights == 4 * (4 * online + target)
    less = cost.cost(sized(50, 1, **{"run.recompute": True}), TPU, 4)
    assert less.activations < 0.4 * plain.activations
    assert cost.cost(sized(50, 1, **{"optim.accumulate": 2}), TPU, 4).activations == plain.activations / 2
    # A linear layer keeps its input, once, whatever else reads it.
    assert cost.cost(sized(50, 1, **{"run.precision": "float32"}), TPU, 4).activations == 2 * plain.activations


@pytest.mark.parametrize("objective", ["byol", "simclr-to-byol"])
def test_activations_are_what_autograd_keeps(objective: str) -> None:
    """Breaks if the estimate on paper differs from the bytes that a real step holds: of one view, or, where the loss
    compares both, of both; and of both side by side, however it is."""
    config = apply(presets.cifar10_cpu(), TINY | {"run.precision": "float32", "objective.name": objective})
    expected = cost.activation_bytes(cost.on_paper(config), config) * 2
    beside = cost.memory(cost.on_paper(config), config, "float32", machine.SIDE_BY_SIDE).an_image
    assert beside == pytest.approx(expected * (1 if objective == "simclr-to-byol" else 2) / 2)
    model = method.build(config.network, objective=config.objective)
    weights = {p.data_ptr() for p in model.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in weights:
            kept[tensor.untyped_storage().data_ptr()] = tensor.numel() * tensor.element_size()
        return tensor

    view = torch.randn(2, 3, 32, 32)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        out = next(model.orders(view, view))  # alive, so that no address is used twice
    assert sum(kept.values()) == pytest.approx(expected, rel=0.02)
    del out


def test_exchange_by_hand() -> None:
    """Breaks if gradients travel once a pass, or statistics of one process are counted as exchanged."""
    one = cost.cost(sized(18, 0.5), TPU, 1)
    assert (one.traffic, one.exchanges, one.efficiency) == (0.0, 0, 1.0)
    own = cost.cost(sized(18, 0.5, **{"network.norm_group": 1}), TPU, 4)
    model = cost.on_paper(sized(18, 0.5))
    online = sum(p.numel() for part in (model.online, model.predictor) for p in part.parameters())
    assert own.traffic == 2 * 4 * online * 3 / 4
    twice = cost.cost(sized(18, 0.5, **{"network.norm_group": 1, "optim.accumulate": 2}), TPU, 4)
    assert twice.traffic == own.traffic
    # 20 norms in a ResNet-18 and one in each head: two views, online forward and back, target forward.
    together = cost.cost(sized(18, 0.5), TPU, 4)
    assert together.exchanges - own.exchanges == 2 * (2 * 22 + 21)
    assert together.traffic > own.traffic


@pytest.mark.parametrize(("preset", "devices", "hours"), [("paper-1000", 512, 8), ("paper-512", 64, 96)])
def test_the_papers_times(preset: str, devices: int, hours: float) -> None:
    """Breaks if the model leaves the paper's two times, 8 h on 512 cores and 4 days on 64, by more than a quarter."""
    config, _ = presets.compose(preset, {}, {})
    step = cost.cost(config, TPU, devices)
    steps = resolve(config, IMAGENET).steps
    predicted = steps * step.seconds / 3600
    assert 0.75 < predicted / hours < 1.26
    text = "\n".join(device_lines(config, reckoned(config, "tpu-v3-core", devices, IMAGENET), "tpu-v3-core", devices))
    assert f"{devices} TPU v3 cores" in text
    assert "8.0% utilization" in text


def test_what_does_not_fit_is_said() -> None:
    """Breaks if a plan that cannot run looks like one that can, or a wrong name is a crash."""
    config, _ = presets.compose("paper-1000", {"network.width": 4.0}, {})
    text = "\n".join(device_lines(config, reckoned(config, "v100", 16, IMAGENET), "v100", 16))
    assert "does not fit, these would: --optim.accumulate" in text
    with pytest.raises(UsageError, match="Did you mean a100"):
        cost.named("a10", config)
    with pytest.raises(UsageError, match="cannot be shared by 3 devices"):
        cost.cost(config, TPU, 3)


def test_this_machine_is_timed() -> None:
    """Breaks if the prediction from half the images misses a step of all of them by far.

    The best of turns, and a wide margin, since other work goes on meanwhile: benchmarks/scaling.py measures it well.
    """
    config = apply(presets.cifar10_cpu(), TINY | {"network.width": 0.125, "optim.batch": 64})
    place = machine.choose(config)
    model = method.build(config.network).to(**place.placement(config))
    optimizer = optim.build(model, config.optim)
    view = place.images(torch.rand(64, 3, 32, 32), config)
    planned, measured = [], []
    for _ in range(3):
        device = cost.here(apply(config, {"optim.batch": 32}))
        planned.append(cost.cost(config, device, 1).compute_seconds)
        began = time.perf_counter()
        update(model, optimizer, [Pass(view, view, None)], lr=0.1, tau=0.99, machine=place)
        measured.append(time.perf_counter() - began)
    assert 0.5 < min(planned) / min(measured) < 2


@pytest.mark.parametrize("changes", [{}, {"run.recompute": True}, {"run.precision": "float64", "optim.accumulate": 2}])
def test_both_plans_agree_on_the_same_run(
    folder: Path, tmp_path: Path, tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    """Breaks if `byol plan` and the plan of `byol pretrain` count memory or time by different rules.

    The clock stands still but for 10 s at each reading, so that both time the same step.
    """
    ticks = itertools.count()
    monkeypatch.setattr(cost.time, "perf_counter", lambda: 10.0 * next(ticks))
    asked = tiny | {"data.in_memory": "never", "data.workers": 0, "optim.probe": False, "optim.batch": 8} | changes
    run = byol.pretrain(folder, tmp_path / "run", "cifar10-cpu", asked)
    expected = read_run(run.out).estimate
    assert expected is not None
    config = apply(presets.cifar10_cpu(), asked)
    step = cost.cost(config, cost.named("here", config), 1)
    assert expected.memory_gb == round((step.weights + step.activations) / 1e9, 2)
    assert expected.fixed_bytes == step.weights
    assert expected.bytes_an_image == round(step.activations / run.plan.micro_batch)
    assert expected.seconds == pytest.approx(step.seconds * run.plan.steps, abs=0.1)
    assert expected.images_per_second == pytest.approx(run.plan.batch / step.seconds, rel=1e-3)


def test_views_together_are_planned() -> None:
    """Breaks if the plan forgets the second view's activations, or counts exchanges of statistics for each view."""
    config = apply(presets.cifar10_cpu(), TINY | {"optim.batch": 64, "objective.name": "byol"})
    apart, together = (cost.cost(apply(config, {"run.passes": how}), TPU, 2) for how in ("in-turn", "together"))
    assert 1.9 < together.activations / apart.activations < 2.1
    assert together.traffic == apart.traffic
    assert together.flops == apart.flops
    norms = 20 + 1  # of a ResNet-18 and its projector; the predictor has one more, which the target has not
    assert apart.exchanges - together.exchanges == 2 * norms + norms + 2


def test_processes_of_this_machine_share_its_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks if four processes on two cores are planned to be as fast as four machines, or each to have all threads."""
    used = list[int]()
    monkeypatch.setattr(cost.processes, "cores", lambda: 2)
    monkeypatch.setattr(cost.machine, "use", lambda place: used.append(place.threads))
    monkeypatch.setattr(cost, "pace", lambda *_: cost.Pace(0.5, 1.0))
    config = apply(presets.cifar10_cpu(), TINY | {"run.threads": 0})
    one, two, four = (cost.here(config, count).peak for count in (1, 2, 4))
    assert one == two == 2 * four
    assert used[1:] == [1, 1]


def test_ratios_of_the_scaling_benchmark() -> None:
    """Breaks if a ratio is upside down or of the wrong pair, a variant that failed hides the others, or the page
    shows other figures."""
    from benchmarks import render_processes, scaling

    rounds = {"1 process": [80.0, 100.0], "2 processes": [150.0], "recompute": [90.0, 60.0], "compile": []}
    rounds["plan of 2"] = [120.0]
    found = scaling.summary(rounds)
    ratios = {(each["of"], each["to"]): each["ratio"] for each in found["ratios"]}
    assert ratios == {("2 processes", "1 process"): 1.5, ("recompute", "1 process"): 0.9}
    assert found["failed"] == ["compile"]
    wanted = {"1 process": 0.8, "2 processes": 1.0, "recompute": 2 / 3, "plan of 2": 1.0}
    assert found["worst_over_best"] == pytest.approx(wanted)
    text = render_processes.scaling(found | {"batch": 128, "cores": 2, "load_before": 0.1})
    assert "| recompute | 90 | 0.67 | 0.90 of 1 process: blocks computed again for their gradients |" in text
    assert "best of up to 2 rounds" in text
    assert "measured step, by processes: 1.25 with 2." in text  # it reckons with 120 images/s, and there are 150
    assert "plan of" not in text


def test_the_script_of_a_launch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Breaks if the job does not ask for its machines, is not queued again, or waits for a task that has ended."""
    pytest.importorskip("submitit", reason="needs submitit, which queues jobs")
    command = ["launch", "scenes", "--preset", "paper-300", "--out", str(tmp_path / "run"), "--nodes", "4"]
    flags = ["--gpus", "8", "--partition", "big", "--hours", "12", "--dry-run", "--optim.epochs", "100"]
    with pytest.raises(UsageError, match="every process has a GPU"):
        app([*command, *flags, "--processes", "2"], exit_on_error=False, result_action="return_value")
    app([*command, *flags], exit_on_error=False, result_action="return_value")
    lines = capsys.readouterr().out.splitlines()
    asked = [
        "nodes=4",
        "ntasks-per-node=8",
        "gpus-per-node=8",
        "partition=big",
        "time=720",
        "signal=USR2@120",
        "requeue",
    ]
    for line in asked:
        assert f"#SBATCH --{line}" in lines
    run = next(shlex.split(line) for line in lines if line.startswith("srun"))
    assert "--kill-on-bad-exit=1" in run
    assert not list(tmp_path.iterdir())
    app(
        [*command, "--gpus", "0", "--processes", "2", "--dry-run"],
        exit_on_error=False,
        result_action="return_value",
    )
    text = capsys.readouterr().out
    assert "#SBATCH --ntasks-per-node=2" in text
    assert "gpus" not in text


def test_a_warned_job_saves_before_it_is_queued_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks if Slurm's warning ends the process before the step is saved, or a job out of time is not requeued."""
    happened: list[str] = []

    def pretrain(*arguments: Any, **more: Any) -> None:
        with signals.handled(), signals.deferred():
            signal.raise_signal(signal.SIGUSR2)
            assert signals.requested()
            happened.append("saved")
        raise Interrupted("saved")

    monkeypatch.setattr(pretraining, "pretrain", pretrain)
    queued: Callable[..., None] = lambda number, frame: happened.append("queued again")
    before = signal.signal(signal.SIGUSR2, queued)
    try:
        job = launching.Job(launching.Request("scenes", "cifar10-cpu", tmp_path, {}, launching.Tasks()))
        with pytest.raises(SystemExit) as ending:
            job()
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert happened == ["saved", "queued again"]
    assert ending.value.code == 75
