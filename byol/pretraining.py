"""Pretraining: build the parts, run Algorithm 1 of the paper, log, checkpoint, resume."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, astuple, dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch.optim import Optimizer

from byol import checkpoint, method, networks, optim, schedules, views
from byol.algorithm import Late, Pass, update
from byol.checkpoint import Given, State
from byol.config import Config, Plan
from byol.crops import sent
from byol.data import loader
from byol.errors import BadData, ByolError, DiskError, Diverged, Interrupted, LoaderLost
from byol.parallel import collectives, processes
from byol.run import files, monitor, planning, signals
from byol.run.directory import DIVERGED, Request, Setup, open_run
from byol.run.machine import SIDE_BY_SIDE, TOGETHER, alone, give_back
from byol.run.progress import bar, say, silent
from byol.run.record import Verdict
from byol.run.verdict import best_look, judge, tell_best

Listener = Callable[[dict[str, Any]], object]  # is given a line of metrics.jsonl


@dataclass(frozen=True, repr=False)
class Run:
    """A run: where it is, what it was asked, what was measured, and the verdict."""

    out: Path
    config: Config
    plan: Plan
    metrics: list[dict[str, Any]]  # of steps and looks, as they came
    verdict: Verdict

    @property
    def encoder(self) -> Path:
        return self.out / checkpoint.ENCODER

    @property
    def steps(self) -> list[dict[str, Any]]:
        """What the steps measured: a table without empty cells."""
        return [line for line in self.metrics if "loss" in line]

    @property
    def looks(self) -> list[dict[str, Any]]:
        """What the looks at the representation measured."""
        return [line for line in self.metrics if "spread" in line]

    def frame(self, what: str = "steps") -> Any:
        """`steps` or `looks` as a table of pandas, or of polars where only that is there."""
        return cards().frame(self, what)

    def plot(self) -> Any:
        """Curves of what was measured, as a picture that a notebook shows."""
        return cards().plot(self)

    def __repr__(self) -> str:
        return str(cards().text(self))

    def _repr_html_(self) -> str:
        return str(cards().html(self))


def cards() -> ModuleType:
    """How Python shows a run; a room of its own, entered when somebody looks."""
    return import_module("byol.run.cards")


class Watch(NamedTuple):
    """The monitor, which only the first of several processes has, and the log of what it and the loop measure."""

    monitor: monitor.Monitor | None
    metrics: files.Metrics
    on_step: Listener | None = None
    on_look: Listener | None = None

    def note(self, line: dict[str, Any], setup: Setup) -> None:
        """What a step measured: to those who listen, and into the log where its turn has come."""
        if line["step"] % setup.config.run.log_every == 0 or line["step"] + 1 == setup.plan.steps:
            self.metrics.add(line)
        if self.on_step:
            self.on_step(dict(line))


def pretrain(
    data: str | Path,
    out: str | Path | None = None,
    preset: str = "auto",
    overrides: Mapping[str, Any] | None = None,
    *,
    config_file: str | Path | None = None,
    overwrite: bool = False,
    plugin: str | Path | None = None,
    on_step: Listener | None = None,
    on_look: Listener | None = None,
) -> Run:
    """Pretrains on `data` into the directory `out`; called again with the same arguments, it goes on where it was.

    `on_step` and `on_look` are called after every step and every look with what was measured, in the first process.
    When every process of a torchrun or Slurm job calls it, all of them train one network together.
    """
    if plugin:
        from byol import plugins  # not when a module of the loop is loaded

        plugins.load(plugin)
    request = Request.make(data, out, preset, overrides or {}, config_file)
    cuda = request.config.run.device in ("auto", "cuda") and torch.cuda.is_available()
    with (
        alone(),
        signals.handled(),
        processes.joined(cuda, request.config.run.timeout),
        silent(processes.rank() > 0),
        open_run(request, overwrite, read_weights) as setup,
    ):
        return _run(setup, on_step, on_look)


def read_weights(place: str) -> Given:
    """An encoder to begin with, of any format that `byol import` knows."""
    from byol.weights.given import read  # formats of others are loaded when a run is given weights

    return read(place)


def _run(setup: Setup, on_step: Listener | None, on_look: Listener | None) -> Run:
    config, plan = setup.config, setup.plan
    state = build(setup)
    if setup.finished and state.step == plan.steps:
        return _finished(state, setup)
    if setup.finished:  # but its last checkpoint is damaged
        setup.write("running")
    first = processes.rank() == 0
    watcher = monitor.Monitor(setup.images, config, plan, setup.machine, setup.out, state.step) if first else None
    setup.open_logs(state.step)
    metrics = files.Metrics(setup.out / "metrics.jsonl" if first else None, state.step, setup.logs)
    give_back()  # the memory that timing a step and choosing images to watch took
    processes.meet()
    try:
        with signals.deferred():
            train(state, setup, Watch(watcher, metrics, on_step if first else None, on_look))
    except Diverged as error:
        setup.finish("diverged")
        last = checkpoint.found(setup.checkpoints)
        good = f"the last good checkpoint is {last[0]}" if last else "no checkpoint was written yet"
        raise Diverged(f"Training diverged: {error}; {good}. A lower optim.lr is the first thing to try.") from None
    except (ByolError, Interrupted):
        with contextlib.suppress(DiskError):  # the error already says what is wrong with the disk
            setup.finish("interrupted")
        raise
    finally:
        metrics.close()
    verdict = Verdict(*processes.from_first(lambda: astuple(judge(metrics.history, config))))
    setup.finish("finished", verdict)
    say(f"Finished {plan.steps} steps. {verdict.sentence}\nEncoder: {setup.out / checkpoint.ENCODER}")
    tell_best(setup.out, metrics.history, plan.steps)
    return Run(setup.out, config, plan, metrics.history, verdict)


def _finished(state: State, setup: Setup) -> Run:
    """A run that has ended before: nothing is written but an encoder that somebody removed."""
    verdict, out = setup.record_of_run.verdict, setup.out
    assert verdict
    if processes.rank() == 0 and not (out / checkpoint.ENCODER).exists():
        write_encoder(state, setup, verdict)
    say(f"Finished {setup.plan.steps} steps. {verdict.sentence}\nEncoder: {out / checkpoint.ENCODER}")
    return Run(out, setup.config, setup.plan, files.read_metrics(out / "metrics.jsonl"), verdict)


def build(setup: Setup) -> State:
    """Networks and optimizer on their device, as the newest checkpoint has them or as they begin; shows the plan."""
    config = setup.config
    torch.manual_seed(config.run.seed)
    model = method.build(config.network, setup.classes, config.objective, config.data.resolution)
    given = {name: weights.tensors for name, weights in setup.given.items()}
    method.begin_from(model, given.get("network.init"), given.get("network.target_init"))
    model = model.to(**setup.machine.placement(config))
    if processes.world() > 1:
        from byol.parallel import norms

        cuda = setup.machine.device.type == "cuda"
        norms.synchronize(model, config.network.norm_group, cuda, setup.machine.passes == TOGETHER)
    if config.run.recompute:
        networks.use_recompute(model.online.encoder)
    optimizer = optim.build(model, config.optim)
    planning.announce(setup, model)
    if setup.machine.passes == TOGETHER:
        method.pass_together(model)
    setup.begin()
    step = resume(setup, model, optimizer)
    if config.run.shard and processes.world() > 1 and step < setup.plan.steps:
        from byol.parallel import engines  # not when one process trains alone

        optimizer, setup.whole = engines.shard(model, optimizer, config, setup.machine)
    if setup.machine.passes == SIDE_BY_SIDE:
        method.pass_side_by_side(model, setup.machine.at_a_time)
    if config.run.compile:
        for branch in filter(None, (model.online, model.target)):
            networks.use_compile(branch.encoder)
    return State(model, optimizer, step)


def resume(setup: Setup, model: method.Method, optimizer: Optimizer) -> int:
    """Reads the newest checkpoint that is whole; returns the step to begin with.

    The first process decides which checkpoint that is, and the others read the same one.
    """
    step = processes.from_first(lambda: checkpoint.load_newest(setup.checkpoints, model, optimizer))
    if step and processes.rank():
        again = checkpoint.load_newest(setup.checkpoints, model, optimizer, step)
        if again != step:
            raise DiskError(f"Process {processes.rank()} does not see {setup.checkpoints}: all processes must.")
    collectives.broadcast(model.state_dict().values())  # machines of different kinds may draw the last bit differently
    if step:
        say(f"Resuming at step {step} of {setup.plan.steps}.")
    return step


def train(state: State, setup: Setup, watch: Watch) -> None:
    """THE LOOP. Everything random in step k follows from (seed, k), so that training can begin at any k."""
    config, plan = setup.config, setup.plan
    model, optimizer, first = state
    saved = time.monotonic()
    crops = loader.batches(setup.images, config, plan, first, setup.machine.device)
    model.train()
    if first == 0:
        processes.from_first(partial(look, as_a_whole(state, setup), setup, watch))
    engine = engine_of(state, setup)
    late = Late(config.run.log_every)
    with contextlib.closing(crops), bar("Pretraining", plan.steps, "images", first, plan.batch, setup.pace) as shown:
        for k in range(first, plan.steps):
            lr = schedules.learning_rate(k, peak=plan.peak_lr, warmup_steps=plan.warmup_steps, total_steps=plan.steps)
            tau, beta = schedules.tau(k, config, plan), schedules.beta(k, config, plan)
            torch.manual_seed(config.run.seed + k + (processes.rank() << 40))  # for encoders with dropout
            if plan.head_steps and k in (first, plan.head_steps):
                optim.learn(model, config.optim, heads_only=k < plan.head_steps)
                engine = engine_of(state, setup)
            with guarded(State(model, optimizer, k), setup, late, watch), processes.together():
                how: dict[str, Any] = {"clip": config.optim.clip, "machine": setup.machine, "engine": engine}
                outcome = update(model, optimizer, augmented(crops, setup), lr=lr, tau=tau, beta=beta, **how)
            late.add(k, outcome, lr=lr, tau=tau, beta=beta)
            shown.text = settle(late, setup, watch) or shown.text
            shown.advance()
            state = State(model, optimizer, k + 1)
            if state.step % plan.monitor_steps == 0 or state.step == plan.steps:
                settle(late, setup, watch, wait=True)
                processes.from_first(partial(look, as_a_whole(state, setup), setup, watch))
            due = save_is_due(state.step, saved, setup)
            due, stop, wrong = processes.any_of(due, signals.requested(), late.wrong)
            if due or stop or wrong:
                settle(late, setup, watch, wait=True)
            if due or stop:
                processes.from_first(partial(save, state, setup, checkpoint.listed(state)))
                saved = time.monotonic()
            if stop and state.step < plan.steps:
                done = f"Interrupted after step {state.step} of {plan.steps}, saved"
                raise Interrupted(f"{done}; the same command continues.")


def save_is_due(step: int, saved: float, setup: Setup) -> bool:
    """Whether to write a checkpoint after this many steps; the last one was written at the time `saved`."""
    config = setup.config.run
    by_steps = bool(config.checkpoint_steps) and step % config.checkpoint_steps == 0
    return by_steps or step == setup.plan.steps or time.monotonic() - saved > config.checkpoint_seconds


def settle(late: Late, setup: Setup, watch: Watch, wait: bool = False) -> str:
    """Notes what the steps measured whose numbers have arrived, or, `wait`, of all; returns the last in words.

    A step whose numbers are not finite has changed nothing; its images are written down, and it is left out where that
    is allowed. The processes do this together, since one of them may hear of it before another does.
    """
    text = ""
    for k, outcome, values in late.all() if wait else late.good():
        try:
            step = outcome.read()
        except Diverged as error:
            leave_out(k, error, setup)
            continue
        watch.note(setup.metrics_line(k, step, **values), setup)
        text = f"loss {step.loss:.3f} lr {values['lr']:.3g} tau {values['tau']:.4f}"
    return text


def leave_out(k: int, error: Diverged, setup: Setup) -> None:
    """Writes down the images of step k, whose numbers are not finite, and ends the run unless it may go on."""
    count = processes.from_first(partial(setup.note_diverged, k, str(error)))
    if setup.config.run.on_nan != "skip" or count > setup.config.run.max_skips:
        allowed = f" after {count - 1} steps that were left out" if count > 1 else ""
        raise Diverged(f"at step {k} {error}{allowed}; its images are listed in {setup.out / DIVERGED}")
    say(f"Step {k} is left out: {error}; its images are listed in {setup.out / DIVERGED}.")


@contextlib.contextmanager
def guarded(state: State, setup: Setup, late: Late, watch: Watch) -> Iterator[None]:
    """Around a step: if its images are bad, saves what was trained before."""
    try:
        yield
    except (BadData, LoaderLost):
        settle(late, setup, watch, wait=processes.world() == 1)
        if state.step and processes.rank() == 0 and not in_parts(setup):  # parts need all processes
            checkpoint.save(setup.checkpoints, state, setup.config.run.keep)
        raise


def augmented(passes: Iterator[loader.Crops], setup: Setup) -> Iterator[Pass]:
    """The next optimizer step's passes: crops to views, on the device, in the network's type and layout."""
    config, place = setup.config, setup.machine
    for _ in range(setup.plan.accumulate):
        batch = next(passes)
        setup.bad.add(batch.bad)
        both = [
            place.images(views.finish_(sent(crops, place.device), draw, config.views), config)
            for crops, draw in zip(batch.crops, batch.draws, strict=True)
        ]
        labels = None if batch.labels is None else sent(batch.labels, place.device)
        yield Pass(both[0], both[1], labels)


def engine_of(state: State, setup: Setup) -> method.Engine | None:
    """What exchanges the gradients of several processes, for the parameters that learn now."""
    if processes.world() == 1:
        return None
    from byol.parallel import engines

    return engines.engine(state.method, state.optimizer, setup.config, setup.machine)


def in_parts(setup: Setup) -> bool:
    return setup.config.run.shard and processes.world() > 1


def as_a_whole(state: State, setup: Setup) -> State:
    """The state that the first process looks at: where weights are in parts, all processes bring them together."""
    if not in_parts(setup):
        return state
    tensors = checkpoint.whole(state.method.online.state_dict())
    if setup.whole is None:
        return state
    setup.whole.online.load_state_dict(tensors)
    return state._replace(method=setup.whole)


def save(state: State, setup: Setup, tensors: dict[str, torch.Tensor]) -> None:
    """Writes a checkpoint; only then asks whether the other processes have met too many bad images."""
    files.require_there(setup.out)
    checkpoint.save(setup.checkpoints, state, setup.config.run.keep, tensors)
    setup.collect_bad()


def look(state: State, setup: Setup, watch: Watch) -> None:
    """Measures the representation, writes the encoder as it is now, and says so when it collapses."""
    assert watch.monitor
    files.require_there(setup.out)
    step = state.step - 1
    seen = {"step": step, **watch.monitor.look(state.method, step)}
    watch.metrics.add(seen)
    verdict = judge(watch.metrics.history, setup.config)
    write_encoder(state, setup, verdict)
    if best_look(watch.metrics.history) is watch.metrics.history[-1]:
        write_encoder(state, setup, verdict, checkpoint.BEST)
    if setup.logs:
        setup.logs.verdict(step, verdict)
    if watch.on_look:
        watch.on_look(dict(seen))
    give_back()
    if verdict.word == "collapsing":
        if judge(watch.metrics.history[:-1]).word != "collapsing":  # said once, and again only after it had ended
            say(f"At step {step + 1}: {verdict.sentence}")
        if setup.config.run.on_collapse == "stop":
            raise Diverged(f"at step {step} {verdict.sentence}")


def write_encoder(state: State, setup: Setup, verdict: Verdict, name: str = checkpoint.ENCODER) -> None:
    """The encoder as it is now, with the run that it comes from and the verdict on it."""
    run = {"steps": setup.plan.steps, "seed": setup.config.run.seed, "images": setup.images.fingerprint}
    facts = {"step": state.step, **run, "verdict": asdict(verdict)}
    checkpoint.save_encoder(setup.out / name, state.method.online.encoder, setup.config, facts)
