"""Several processes are one run: the same weights, one writer, one end."""

from __future__ import annotations

import copy
import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from byol import checkpoint, data, networks, presets
from byol.config import apply, resolve
from byol.data import loader
from byol.errors import UsageError
from byol.parallel import norms, processes
from byol.run import directory, files
from byol.run.machine import versions
from tests.chaos import scale, several
from tests.chaos.scale import LONG
from tests.conftest import TINY

pytestmark = pytest.mark.timeout(2700)

# `make chaos`: more kills, the timeout as it is by default, and the figures are written to results/.
KILLS = min(scale.KILLS, 20) if LONG else 2
TIMEOUT = 60 if LONG else 20

SMALL = TINY | {
    "data.resolution": 16,
    "network.encoder": "small",
    "run.precision": "float64",
    "run.monitor_epochs": 100,
    "views.t.blur": 0.0,
}


# Without a ReLU: with one, a change of 1e-7 moves a unit across its edge, and even the weights of a single process end
# 3 % apart after 50 steps. Runs with ReLUs are compared in double precision, where rounding is too small for that.
SMOOTH = {"network.encoder": "smooth", "network.projector_depth": 1, "network.predictor_depth": 1}


def command(out: Path, overrides: dict[str, Any], images: int = 64) -> list[str]:
    flags = [f"--{name}" if value is True else f"--{name}={value}" for name, value in overrides.items()]
    return ["pretrain", f"scenes:{images}", "--preset", "cifar10-cpu", "--out", str(out), *flags]


def weights(out: Path) -> dict[str, torch.Tensor]:
    return checkpoint.read(checkpoint.found(out / "checkpoints")[0])


def distance(one: Path, other: Path) -> float:
    first, second = weights(one), weights(other)
    assert first.keys() == second.keys()
    return max(float((first[n].double() - second[n].double()).abs().max()) for n in first)


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """All jobs of this module in one go: loading torch takes longer than they do."""
    place = tmp_path_factory.mktemp("jobs")
    twenty = SMALL | {"optim.batch": 64, "optim.epochs": 20}
    twelve = SMALL | {"optim.epochs": 3, "optim.batch": 16, "run.checkpoint_steps": 2, "run.timeout": TIMEOUT}
    jobs: dict[str, dict[str, Any]] = {
        "norms": {"world": 4, "check": "norms_agree"},
        "losses": {"world": 2, "check": "losses_agree"},
        "exchanges": {"world": 2, "check": "exchanges_agree"},
        "gradients": {"world": 2, "check": "gradients_agree"},
        "shares": {"world": 2, "check": "weights_are_in_parts"},
    }
    for passes in (1, 2):
        for world in (1, 2, 4):
            out = place / f"{world}x{passes}"
            jobs[out.name] = {"world": world, "command": command(out, twenty | {"optim.accumulate": passes})}
    for passes in (1, 2):
        asked = command(place / f"together x{passes}", twenty | {"optim.accumulate": passes, "run.passes": "together"})
        jobs[f"together x{passes}"] = {"world": 2, "command": asked}
    jobs["whole"] = {"world": 2, "command": command(place / "whole", twelve)}
    for name, mischief, rank in (
        ("SIGKILL", "SIGKILL", 1),
        ("SIGSTOP", "SIGSTOP", 1),
        ("SIGSTOP of the first", "SIGSTOP", 0),
        ("raise", "raise", 1),
    ):
        asked = command(place / name, twelve)
        jobs[name] = {"world": 2, "command": asked, "mischief": mischief, "rank": rank, "step": 6, "seconds": 100}
        if name in ("SIGKILL", "SIGSTOP"):
            jobs[f"{name} again"] = {"world": 1 if name == "SIGSTOP" else 2, "command": asked}
    asked = command(place / "SIGTERM", twelve)
    jobs["SIGTERM"] = {"world": 2, "command": asked, "mischief": "SIGTERM", "rank": 1, "step": 6}
    jobs["SIGTERM again"] = {"world": 2, "command": asked}
    chance, chained = random.Random(0), twelve | {"optim.epochs": 2 * KILLS + 2}
    jobs["chain whole"] = {"world": 2, "command": command(place / "chain whole", chained), "seconds": 600}
    asked = command(place / "chain", chained)
    for number in range(KILLS):
        moment = {"rank": number % 2, "step": chance.randint(2, 5), "delay": chance.uniform(0, 0.05)}
        jobs[f"chain {number}"] = {"world": 2, "command": asked, "mischief": "SIGKILL", "seconds": 100, **moment}
    jobs["chain again"] = {"world": 2, "command": asked, "seconds": 600}
    grown = command(place / "grown", twelve)
    jobs["grown"] = {"world": 1, "command": grown, "mischief": "SIGTERM", "rank": 0, "step": 6}
    jobs["grown again"] = {"world": 2, "command": grown}
    single = SMALL | {"run.precision": "float32", "optim.batch": 16, "optim.epochs": 12.5} | SMOOTH
    for world in (1, 2):
        jobs[f"fifty {world}"] = {"world": world, "command": command(place / f"fifty {world}", single)}
    parts = twelve | {"run.shard": True}
    jobs["parts"] = {"world": 2, "command": command(place / "parts", parts)}
    killed = command(place / "parts killed", parts)
    jobs["parts killed"] = {"world": 2, "command": killed, "mischief": "SIGKILL", "rank": 1, "step": 6, "seconds": 100}
    jobs["parts killed again"] = {"world": 2, "command": killed}
    for name, first, then in (("parts left", 2, 1), ("parts begun", 1, 2)):
        begun, goes_on = (command(place / name, parts if world == 2 else twelve) for world in (first, then))
        jobs[name] = {"world": first, "command": begun, "mischief": "SIGTERM", "rank": 0, "step": 6}
        jobs[f"{name} again"] = {"world": then, "command": goes_on}
    if LONG:
        for passes in (1, 2):
            asked = command(place / f"parts 4x{passes}", twenty | {"optim.accumulate": passes, "run.shard": True})
            jobs[f"parts 4x{passes}"] = {"world": 4, "command": asked, "seconds": 300}
    jobs["odd"] = {"world": 3, "command": command(place / "odd", twelve)}
    results = several.run([job | {"place": str(place)} for job in jobs.values()], 2500 if LONG else 800)
    return dict(zip(jobs, results, strict=True)) | {"place": place}


@pytest.mark.parametrize("name", ["norms", "losses", "exchanges", "gradients", "shares"])
def test_what_processes_compute_together(ended: dict[str, Any], name: str) -> None:
    """Breaks if statistics, negatives, a solved predictor or their gradients are not those of the whole batch (G8)."""
    assert not any(ended[name]["codes"]), "\n".join(ended[name]["errors"])


@pytest.mark.parametrize("passes", [1, 2])
def test_the_number_of_processes_does_not_change_the_run(ended: dict[str, Any], passes: int) -> None:
    """Breaks if 2 × 32 or 4 × 16 images give other weights than 1 × 64, with or without accumulation."""
    one = ended["place"] / f"1x{passes}"
    for world in (1, 2, 4):
        out = ended["place"] / f"{world}x{passes}"
        assert ended[out.name]["codes"] == [0] * world, "\n".join(ended[out.name]["errors"])
        assert checkpoint.found(out / "checkpoints")[0].name.startswith("step-000000020")
        assert distance(one, out) < 1e-9
        assert files.read_json(out / "run.json")["processes"] == world
        lines, expected = (files.read_metrics(p / "metrics.jsonl") for p in (out, one))
        assert [line["step"] for line in lines] == [line["step"] for line in expected]
        for line, other in zip(lines, expected, strict=True):
            assert line == pytest.approx(other, rel=1e-5, abs=1e-8)
    assert distance(ended["place"] / "1x1", ended["place"] / "1x2") > 1e-3  # accumulation does, by its statistics


@pytest.mark.parametrize(
    ("cores", "count", "shares"), [(2, 2, "0 1"), (5, 2, "01 234"), (8, 3, "01 234 567"), (2, 4, "")]
)
def test_processes_of_a_machine_share_its_cores(cores: int, count: int, shares: str) -> None:
    """Breaks if two processes get the same core, one is nobody's, or some of too many processes are bound to one."""
    allowed = {10 + core for core in range(cores)}
    expected = [{10 + int(core) for core in part} for part in shares.split()]
    assert [processes.share(allowed, place, count) for place in range(count)] == (expected or [set()] * count)


@pytest.mark.parametrize("passes", [1, 2])
def test_views_together_are_the_same_run(ended: dict[str, Any], passes: int) -> None:
    """Breaks if two processes that pass both views as one batch end with other weights, target or running statistics
    than one process that passes them one after the other, or exchange gradients before the last pass of a step."""
    assert ended[f"together x{passes}"]["codes"] == [0, 0], ended[f"together x{passes}"]["errors"]
    assert distance(ended["place"] / f"1x{passes}", ended["place"] / f"together x{passes}") < 1e-9


def test_weights_in_parts_are_the_same_run(ended: dict[str, Any]) -> None:
    """Breaks if FSDP2's processes end with other weights than whole ones, or a kill among them changes a bit."""
    assert ended["parts"]["codes"] == ended["parts killed again"]["codes"] == [0, 0], ended["parts"]["errors"]
    assert ended["parts killed"]["codes"] == [75, -signal.SIGKILL]
    assert distance(ended["place"] / "whole", ended["place"] / "parts") < 1e-9
    assert same_end(ended["place"] / "parts", ended["place"] / "parts killed")
    for passes in (1, 2) if LONG else ():
        assert ended[f"parts 4x{passes}"]["codes"] == [0] * 4
        assert distance(ended["place"] / f"1x{passes}", ended["place"] / f"parts 4x{passes}") < 1e-9


@pytest.mark.parametrize("name", ["parts left", "parts begun"])
def test_a_run_may_go_on_in_parts_or_whole(ended: dict[str, Any], name: str) -> None:
    """Breaks if a checkpoint of parts holds anything but whole tensors, or momentum is not handed out with them."""
    assert set(ended[name]["codes"]) == {75}, ended[name]["errors"]
    assert set(ended[f"{name} again"]["codes"]) == {0}, ended[f"{name} again"]["errors"]
    assert "Resuming at step 6 of 12" in ended[f"{name} again"]["errors"][0]
    assert distance(ended["place"] / "whole", ended["place"] / name) < 1e-9


def test_only_the_first_process_speaks(ended: dict[str, Any]) -> None:
    """Breaks if every process shows the plan, or an error that all find alike."""
    assert "Plan for" in ended["4x1"]["errors"][0]
    assert ended["4x1"]["errors"][1:] == ["", "", ""]
    assert ended["odd"]["codes"] == [2, 2, 2]
    assert "cannot be shared by 3 processes" in ended["odd"]["errors"][0]
    assert ended["odd"]["errors"][1:] == ["", ""]


@pytest.mark.parametrize("name", ["SIGKILL", "SIGTERM"])
def test_a_job_that_lost_a_process_goes_on_to_the_same_bits(ended: dict[str, Any], name: str) -> None:
    """Breaks if a rerun after a kill or a signal ends differently from an uninterrupted run (G9)."""
    assert ended["whole"]["codes"] == ended[f"{name} again"]["codes"] == [0, 0]
    assert "Resuming at step" in ended[f"{name} again"]["errors"][0]
    assert same_end(ended["place"] / "whole", ended["place"] / name)


def test_a_lost_process_ends_the_job_at_once(ended: dict[str, Any]) -> None:
    """Breaks if the others hang, or end without saying why."""
    killed = ended["SIGKILL"]
    assert killed["codes"] == [75, -signal.SIGKILL]
    assert "The same command continues" in killed["errors"][0]
    assert killed["since"] < TIMEOUT
    failed = ended["raise"]
    assert failed["codes"] == [1, 1]
    assert "Process 1 failed: RuntimeError: a wire was cut" in failed["errors"][0]
    assert "process 1: This should not happen: RuntimeError: a wire was cut" in failed["errors"][1]
    record = files.read_json(ended["place"] / "raise" / "run.json")
    assert [session["status"] for session in record["sessions"]] == ["interrupted"]


def test_a_stopped_process_ends_the_job_within_the_timeout(ended: dict[str, Any]) -> None:
    """Breaks if a process that hangs leaves the others hanging; and one process can go on with what two began."""
    stopped = ended["SIGSTOP"]
    assert stopped["codes"] == [75, None]
    assert "Process 1 has not answered" in stopped["errors"][0]
    assert ended["SIGSTOP again"]["codes"] == [0], ended["SIGSTOP again"]["errors"]
    assert distance(ended["place"] / "whole", ended["place"] / "SIGSTOP") < 1e-9


def test_the_first_process_may_be_the_stopped_one(ended: dict[str, Any]) -> None:
    """Breaks if the others wait for the process that keeps the store, which then answers nobody (G9)."""
    stopped = ended["SIGSTOP of the first"]
    assert stopped["codes"] == [None, 75]
    assert "has not answered" in stopped["errors"][1]
    assert max(stopped["since"], ended["SIGSTOP"]["since"]) < TIMEOUT


def test_kills_of_either_process_at_random_moments(ended: dict[str, Any]) -> None:
    """Breaks if a kill leaves the other process hanging, says nothing, or changes a bit of the end (G9)."""
    for number in range(KILLS):
        job, rank = ended[f"chain {number}"], number % 2
        assert job["codes"][rank] == -signal.SIGKILL, job
        assert job["codes"][1 - rank] == 75, job
        assert "The same command continues" in job["errors"][1 - rank]
        assert job["since"] < TIMEOUT
    assert ended["chain again"]["codes"] == [0, 0], ended["chain again"]["errors"]
    assert ended["chain whole"]["codes"] == [0, 0], ended["chain whole"]["errors"]
    assert same_end(ended["place"] / "chain whole", ended["place"] / "chain")


def same_end(one: Path, other: Path) -> bool:
    """Whether two runs have the same bits in their last checkpoints and metrics."""
    first, second = weights(one), weights(other)
    texts = [(out / "metrics.jsonl").read_text() for out in (one, other)]
    return (
        first.keys() == second.keys() and texts[0] == texts[1] and all(torch.equal(first[n], second[n]) for n in first)
    )


def test_one_process_may_become_two(ended: dict[str, Any]) -> None:
    """Breaks if a run cannot go on with more processes, or then sees other images (G8)."""
    assert ended["grown"]["codes"] == [75]
    assert ended["grown again"]["codes"] == [0, 0], ended["grown again"]["errors"]
    assert "Resuming at step 6 of 12" in ended["grown again"]["errors"][0]
    assert distance(ended["place"] / "whole", ended["place"] / "grown") < 1e-9


def test_fifty_steps_in_single_precision(ended: dict[str, Any]) -> None:
    """Breaks if rounding grows into something else: weights within 1e-4 of a single process's after 50 steps (G8)."""
    assert ended["fifty 1"]["codes"] + ended["fifty 2"]["codes"] == [0, 0, 0], ended["fifty 2"]["errors"]
    assert weights(ended["place"] / "fifty 2")["method.online.encoder.0.weight"].dtype == torch.float32
    assert apart(ended["place"], statistics=False) <= 1e-4
    assert apart(ended["place"], statistics=True) <= 5e-6  # those of one pass, with equal weights: 1e-6, in checks.py


def apart(place: Path, statistics: bool) -> float:
    """Relative distance of the weights, or running statistics, of one and two processes after 50 steps."""
    one, two = (weights(place / f"fifty {world}") for world in (1, 2))
    names = [n for n in one if n.startswith("method.") and ("running" in n) == statistics and "tracked" not in n]
    ours, expected = (torch.cat([tensors[n].double().reshape(-1) for n in names]) for tensors in (two, one))
    return float((ours - expected).norm() / expected.norm())


def short(figure: float) -> str:
    """Two digits, such as 1.8e-6."""
    digits, exponent = f"{figure:.1e}".split("e")
    return f"{digits}e{int(exponent)}"


@pytest.mark.skipif(not LONG, reason="writes the figures of the long version: needs BYOL_CHAOS=20")
def test_figures_are_kept(ended: dict[str, Any]) -> None:
    """Writes what the other tests have held against their limits."""
    place = ended["place"]
    kills = [ended[f"chain {number}"] for number in range(KILLS)]
    figures: dict[str, Any] = {
        "gradient_and_statistics_of_2_processes": [
            json.loads(line) for line in ended["gradients"]["errors"][0].splitlines() if line.startswith("{")
        ],
        "weights_after_20_steps_float64": {w: distance(place / "1x1", place / f"{w}x1") for w in (2, 4)},
        "weights_after_50_steps_float32": apart(place, statistics=False),
        "statistics_after_50_steps_float32": apart(place, statistics=True),
        "resumed_2_to_1": distance(place / "whole", place / "SIGSTOP"),
        "resumed_1_to_2": distance(place / "whole", place / "grown"),
        "kills": {"tries": KILLS, "ended": sum(75 in job["codes"] for job in kills), "timeout": TIMEOUT},
        "seconds_from_kill_to_end": sorted(round(job["since"], 2) for job in kills),
        "seconds_from_stop_to_end": [round(ended[name]["since"], 1) for name in ("SIGSTOP", "SIGSTOP of the first")],
        "bit_identical_after_kills": same_end(place / "chain whole", place / "chain"),
    }
    single = next(line for line in figures["gradient_and_statistics_of_2_processes"] if "32" in line["type"])
    double = max(line["gradient"] for line in figures["gradient_and_statistics_of_2_processes"] if "64" in line["type"])
    figures["G8"] = {
        "reached": f"gradients differ by {short(double)} in float64 and {short(single['gradient'])} in float32, "
        f"statistics of one pass by {short(single['statistics'])}; after 50 float32 steps weights by "
        f"{short(figures['weights_after_50_steps_float32'])} and statistics by "
        f"{short(figures['statistics_after_50_steps_float32'])}; 2 → 1 and 1 → 2 processes in float64 by "
        f"{short(max(figures['resumed_2_to_1'], figures['resumed_1_to_2']))}"
    }
    command = "BYOL_CHAOS=20 python -m pytest tests/parallel/test_processes.py"
    found = {"command": command, "versions": versions(), "commit": directory.commit(), "figures": figures}
    files.write_json(several.ROOT / "results" / "guarantees-processes.json", found)


def test_a_signal_to_one_process_saves_the_step_of_all(ended: dict[str, Any]) -> None:
    """Breaks if SIGTERM loses a step, or only the process that had it stops (G3)."""
    assert ended["SIGTERM"]["codes"] == [75, 75]
    assert "Interrupted after step 6 of 12, saved" in ended["SIGTERM"]["errors"][0]
    assert "Resuming at step 6 of 12" in ended["SIGTERM again"]["errors"][0]


def test_torchrun_restarts_what_was_killed(tmp_path: Path, ended: dict[str, Any]) -> None:
    """Breaks if `torchrun -m byol` needs anything else, or its restart does not end with the same bits."""
    asked = command(tmp_path / "run", SMALL | {"optim.epochs": 3, "optim.batch": 16, "run.checkpoint_steps": 2})
    flags = ["--standalone", "--nproc-per-node=2", "--max-restarts=2", "--monitor-interval=0.1"]
    environment = os.environ | {"PYTHONPATH": str(several.ROOT), "OMP_NUM_THREADS": "1"}
    start = [sys.executable, "-m", "torch.distributed.run", *flags, "-m", "tests.chaos.dying"]
    done = subprocess.run([*start, *asked], env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert "Resuming at step 4" in done.stderr
    first, second = weights(ended["place"] / "whole"), weights(tmp_path / "run")
    assert all(torch.equal(first[n], second[n]) for n in first)


def test_norms_with_an_activation_keep_it() -> None:
    """Breaks if timm's norms, which end in an activation, lose it or their names when statistics are shared."""

    class WithActivation(torch.nn.BatchNorm2d):
        def __init__(self, features: int) -> None:
            super().__init__(features)
            self.drop, self.act = torch.nn.Identity(), torch.nn.SiLU()

        def forward(self, input: torch.Tensor) -> torch.Tensor:
            output: torch.Tensor = self.act(super().forward(input))
            return output

    plain = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), WithActivation(4)).double()
    shared = norms._replaced(copy.deepcopy(plain), 0)
    images = torch.randn(5, 3, 6, 6, dtype=torch.float64)
    for part in (plain, shared):
        part(images).square().sum().backward()
    torch.testing.assert_close(shared(images), plain(images), rtol=1e-12, atol=1e-12)
    for one, other in zip(plain.parameters(), shared.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-10, atol=1e-10)
    assert list(shared.state_dict()) == list(plain.state_dict())


def test_recomputing_changes_memory_and_nothing_else() -> None:
    """Breaks if a block's second forward pass moves running statistics, or a bit of a gradient differs."""
    torch.manual_seed(0)
    plain = networks.resnet(18, 0.1, small_images=True)
    again = copy.deepcopy(plain)
    networks.use_recompute(again)
    images = torch.randn(4, 3, 16, 16)
    kept = []
    for encoder in (plain, again):
        saved: list[int] = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t, saved=saved: (saved.append(t.numel()), t)[1], lambda t: t
        ):
            output = encoder(images)
        output.square().sum().backward()
        kept.append(sum(saved))
    assert all(torch.equal(p.grad, q.grad) for p, q in zip(plain.parameters(), again.parameters(), strict=True))
    assert all(torch.equal(p, q) for p, q in zip(plain.buffers(), again.buffers(), strict=True))
    assert kept[1] < kept[0] / 3
    with pytest.raises(UsageError, match="ResNets"):
        networks.use_recompute(torch.nn.Linear(2, 2))


def test_a_compiled_encoder_keeps_its_names() -> None:
    """Breaks if compiling renames weights, or changes what the encoder computes."""
    torch.manual_seed(0)
    plain = several.small()
    compiled = copy.deepcopy(plain)
    networks.use_compile(compiled, backend="eager")
    images = torch.randn(2, 3, 8, 8)
    torch.testing.assert_close(compiled(images), plain(images))
    assert list(compiled.state_dict()) == list(plain.state_dict())


@pytest.mark.parametrize("in_memory", ["always", "never"])
def test_slices_of_a_step_are_the_step(folder: Path, monkeypatch: pytest.MonkeyPatch, in_memory: str) -> None:
    """Breaks if processes see an image twice, leave one out, or crop it otherwise than a single process does."""
    overrides = TINY | {"optim.accumulate": 2, "data.in_memory": in_memory, "data.workers": 0}
    config = apply(presets.cifar10_cpu(), overrides)
    images = loader.prepare(data.open_source(str(folder), config.data), config)
    plan = resolve(config, len(images.train))

    def passes(seat: processes.Seat | None) -> list[loader.Crops]:
        monkeypatch.setattr(processes, "_job", seat and processes.Job(seat, None, 1.0))
        return list(loader.batches(images, config, plan, 1, torch.device("cpu")))

    whole = passes(None)
    halves = [passes(processes.Seat(rank, 2, rank, 2)) for rank in range(2)]
    assert len(whole) == len(halves[0]) == 2 * (plan.steps - 1)
    for one, first, second in zip(whole, *halves, strict=True):
        assert all(
            torch.equal(a, torch.cat([b, c])) for a, b, c in zip(one.crops, first.crops, second.crops, strict=True)
        )
        for draw, of_first, of_second in zip(one.draws, first.draws, second.draws, strict=True):
            assert all(torch.equal(draw[name], torch.cat([of_first[name], of_second[name]])) for name in draw)
        assert torch.equal(one.labels, torch.cat([first.labels, second.labels]))


def test_where_a_process_sits() -> None:
    """Breaks if torchrun's or Slurm's variables are read wrongly."""
    torchrun = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4", "SLURM_STEP_NUM_TASKS": "2"}
    assert processes.seat(torchrun) == (5, 8, 1, 4)
    slurm = {
        "SLURM_STEP_NUM_TASKS": "16",
        "SLURM_PROCID": "9",
        "SLURM_LOCALID": "1",
        "SLURM_STEP_TASKS_PER_NODE": "8(x2)",
        "SLURM_STEP_NODELIST": "gpu[003-004]",
        "SLURM_JOB_ID": "12345",
        "SLURM_STEP_ID": "0",
    }
    assert processes.seat(slurm) == (9, 16, 1, 8)
    assert processes.address(slurm) == ("gpu003", "32345")
    # In a batch script, and in a step of one task, there is nobody to meet.
    assert processes.seat({"SLURM_NTASKS": "16", "SLURM_PROCID": "0"}) == (0, 1, 0, 1)
    assert processes.seat({}) == (0, 1, 0, 1)
    hosts = {"a": "a", "a,b": "a", "n[1-3]": "n1", "gpu[03-07,9]-ib,cpu1": "gpu03-ib", "rack1n2,rack1n3": "rack1n2"}
    assert {nodes: processes.first_host(nodes) for nodes in hosts} == hosts
