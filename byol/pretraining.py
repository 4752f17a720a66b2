"""Pretraining: build the parts, run Algorithm 1 of the paper, log, checkpoint, resume."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from byol import (
    checkpoint,
    collectives,
    distributed,
    estimate,
    interrupt,
    method,
    moments,
    monitor,
    networks,
    norms,
    optim,
    records,
    schedules,
    views,
)
from byol.algorithm import Pass, update
from byol.checkpoint import State
from byol.config import Config, Plan
from byol.data import loader
from byol.errors import ByolError, DiskError, Diverged, Interrupted
from byol.machine import give_back
from byol.progress import bar, say, silent
from byol.rundir import DIVERGED, Request, Setup, open_run


@dataclass(frozen=True)
class Run:
    """A finished run."""

    out: Path
    config: Config
    plan: Plan
    metrics: list[dict[str, Any]]
    verdict: monitor.Verdict

    @property
    def encoder(self) -> Path:
        return self.out / checkpoint.ENCODER


class Watch(NamedTuple):
    """What looks at the run, in the first of several processes alone, and where that is kept."""

    monitor: monitor.Monitor | None
    moments: moments.Moments | None
    metrics: records.Metrics


def pretrain(
    data: str | Path = "scenes",
    out: str | Path | None = None,
    preset: str = "auto",
    overrides: Mapping[str, Any] | None = None,
    *,
    config_file: str | Path | None = None,
    overwrite: bool = False,
) -> Run:
    """Pretrains on `data` into the directory `out`; called again with the same arguments, it goes on where it was.

    Called by every process of a torchrun or Slurm job, all of them train one network together.
    """
    request = Request.make(data, out, preset, overrides or {}, config_file)
    cuda = request.device in ("auto", "cuda") and torch.cuda.is_available()
    with (
        interrupt.handled(),
        distributed.joined(cuda, request.timeout),
        silent(distributed.rank() > 0),
        open_run(request, overwrite) as setup,
    ):
        return _run(setup)


def _run(setup: Setup) -> Run:
    config, plan = setup.config, setup.plan
    torch.manual_seed(config.run.seed)
    model = method.build(config.network, setup.classes, config.objective).to(**setup.machine.placement(config))
    norms.synchronize(model, config.network.norm_group, setup.machine.device.type == "cuda")
    if config.run.recompute:
        networks.use_recompute(model.online.encoder)
    optimizer = optim.build(model, config.optim, config.run.shard_optimizer)
    estimate.announce(setup, model)
    step = resume(setup, model, optimizer)
    if config.run.compile:
        for branch in filter(None, (model.online, model.target)):
            networks.use_compile(branch.encoder)
    first = distributed.rank() == 0
    watcher = monitor.Monitor(setup.images, config, plan, setup.machine) if first else None
    kept = moments.Moments(setup.images, config, plan, setup.machine, setup.out, step) if first else None
    metrics = records.Metrics(setup.out / "metrics.jsonl" if first else None, step, config.run.tensorboard)
    give_back()  # what timing a step and choosing images to watch took
    distributed.meet()
    try:
        with interrupt.deferred():
            train(State(model, optimizer, step), setup, Watch(watcher, kept, metrics))
    except Diverged as error:
        setup.finish("diverged")
        last = checkpoint.found(setup.checkpoints)
        good = f"the last good checkpoint is {last[0]}" if last else "no checkpoint was written yet"
        raise Diverged(f"Training diverged: {error}; {good}. A lower optim.lr is the first thing to try.") from None
    except (ByolError, Interrupted):
        with contextlib.suppress(DiskError):  # what was wrong with the disk is said already
            setup.finish("interrupted")
        raise
    finally:
        metrics.close()
    found = monitor.Verdict(*distributed.from_first(lambda: monitor.verdict(metrics.history, config)))
    setup.finish("finished", found)
    say(f"Finished {plan.steps} steps. {found.sentence}\nEncoder: {setup.out / checkpoint.ENCODER}")
    return Run(setup.out, config, plan, metrics.history, found)


def resume(setup: Setup, model: method.Method, optimizer: Optimizer) -> int:
    """The step to begin with: the first process finds the newest checkpoint that is whole, the others read the same."""
    step = distributed.from_first(lambda: checkpoint.load_newest(setup.checkpoints, model, optimizer))
    if step and distributed.rank():
        again = checkpoint.load_newest(setup.checkpoints, model, optimizer, step)
        if again != step:
            raise DiskError(f"Process {distributed.rank()} does not see {setup.checkpoints}: all processes must.")
    collectives.broadcast(model.state_dict().values())  # machines of different kinds may draw the last bit differently
    if step:
        say(f"Resuming at step {step} of {setup.plan.steps}.")
    return step


def train(state: State, setup: Setup, watch: Watch) -> None:
    """THE LOOP. Everything random in step k follows from (seed, k), so it can begin at any k."""
    config, plan, place = setup.config, setup.plan, setup.machine
    model, optimizer, first = state
    saved = time.monotonic()
    passes = loader.batches(setup.images, config, plan, first, place.device)
    model.train()
    with contextlib.closing(passes), bar("Pretraining", plan.steps, "images", first, plan.batch) as shown:
        for k in range(first, plan.steps):
            lr = schedules.learning_rate(k, peak=plan.peak_lr, warmup_steps=plan.warmup_steps, total_steps=plan.steps)
            tau = target_decay(k, config, plan)
            torch.manual_seed(config.run.seed + k + (distributed.rank() << 40))  # for encoders with dropout
            with guarded(k, model, setup):
                step = update(model, optimizer, augmented(passes, setup), lr=lr, tau=tau, machine=place)
                if k % config.run.log_every == 0 or k + 1 == plan.steps:
                    watch.metrics.add(setup.record(k, step, lr, tau))
                shown.text = f"loss {step.loss:.3f} lr {lr:.3g} tau {tau:.4f}"
            shown.advance()
            done = k + 1
            now = State(model, optimizer, done)
            if done % plan.monitor_steps == 0 or done == plan.steps or done == 1:
                distributed.from_first(partial(look, now, setup, watch))
            due = time.monotonic() - saved > config.run.checkpoint_seconds or done == plan.steps
            due |= bool(config.run.checkpoint_steps) and done % config.run.checkpoint_steps == 0
            due, stop = distributed.any_of(due, interrupt.requested())
            if due or stop:
                distributed.from_first(partial(save, now, setup, optim.whole_state(optimizer)))
                saved = time.monotonic()
            if stop and done < plan.steps:
                raise Interrupted(f"Interrupted after step {done} of {plan.steps}, saved; the same command continues.")


@contextlib.contextmanager
def guarded(k: int, model: method.Method, setup: Setup) -> Iterator[None]:
    """Around step k: if its numbers are not finite, its images are written down, and it is left out where that is
    allowed. The weights never saw it; the statistics of its batch norms did, so they are put back."""
    skip = setup.config.run.on_nan == "skip"
    before = [buffer.clone() for buffer in model.buffers()] if skip else []
    try:
        yield
    except Diverged as error:
        count = distributed.from_first(partial(setup.note_diverged, k, str(error)))
        if not skip or count > setup.config.run.max_skips:
            allowed = f" after {count - 1} steps that were left out" if count > 1 else ""
            raise Diverged(f"at step {k} {error}{allowed}; its images are listed in {setup.out / DIVERGED}") from None
        for buffer, value in zip(model.buffers(), before, strict=True):
            buffer.copy_(value)
        say(f"Step {k} is left out: {error}; its images are listed in {setup.out / DIVERGED}.")


def target_decay(k: int, config: Config, plan: Plan) -> float:
    """tau of step k; a target that is the online network itself follows at once, a fixed one never."""
    if config.network.target != "moving-average":
        return 1.0 if config.network.target == "fixed" else 0.0
    if config.optim.tau_schedule == "constant":
        return config.optim.tau
    return schedules.target_decay(k, base=config.optim.tau, total_steps=plan.steps)


def augmented(passes: Iterator[loader.Crops], setup: Setup) -> Iterator[Pass]:
    """The next optimizer step's passes: crops to views, on the device, in the network's type and layout."""
    config, place = setup.config, setup.machine
    for _ in range(setup.plan.accumulate):
        batch = next(passes)
        setup.bad.add(batch.bad)
        both = [
            place.images(views.finish_(crops.to(place.device), draw, config.views), config)
            for crops, draw in zip(batch.crops, batch.draws, strict=True)
        ]
        labels = None if batch.labels is None else batch.labels.to(place.device)
        yield Pass(both[0], both[1], labels)


def save(state: State, setup: Setup, slots_of: dict[Tensor, dict[str, Any]]) -> None:
    records.require_there(setup.out)
    setup.collect_bad()
    checkpoint.save(setup.checkpoints, state, setup.config.run.keep, slots_of)


def look(state: State, setup: Setup, watch: Watch) -> None:
    """Measures the representation, keeps the encoder of this moment, and says so when it collapses."""
    assert watch.monitor
    assert watch.moments
    records.require_there(setup.out)
    record = watch.monitor.look(state.method)
    watch.metrics.add({"step": state.step - 1, **record})
    watch.moments.keep(state.method, state.step - 1)
    checkpoint.save_encoder(
        setup.out / checkpoint.ENCODER, state.method.online.encoder, setup.config, {"step": state.step}
    )
    give_back()
    found = monitor.verdict(watch.metrics.history, setup.config)
    if found.word == "collapsing":
        say(found.sentence)
        if setup.config.run.on_collapse == "stop":
            raise Diverged(f"at step {state.step - 1} {found.sentence}")
