"""The plan before the work, in words: what a run will do, how long it takes and what it needs.

`announce` shows the plan of a run that begins; what a run would cost on any devices is in `devices`.
"""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import NamedTuple

from byol import checkpoint, views
from byol.config import Config, Plan
from byol.data import loader
from byol.errors import UsageError
from byol.method import Method
from byol.networks import has_width
from byol.parallel import processes
from byol.presets import chooses
from byol.run import cost, files, machine
from byol.run.cost import Memory, Pace
from byol.run.directory import Setup
from byol.run.machine import SIDE_BY_SIDE, TOGETHER, Machine
from byol.run.progress import duration, say
from byol.run.record import Estimate

USABLE = 0.9  # of all memory, for a process that the system shall not end
SAFE = 0.8  # of what can be used, for suggested settings
WORTH_CHOOSING = 60.0  # seconds of a run from which on its threads are chosen by timing
CLEARLY = 1.1  # times as fast as all threads that one thread must be
FREE = 0.85  # of a core's time, for one that no other program uses
NOTHING_FITS = (
    "No batch of this network fits: a lower --data.resolution, a lower --network.width or another encoder needs less."
)
VIT_NOTE = "a ViT learns badly under lars; --preset vit has a recipe for it, with AdamW and clipped gradients"
WIDTH_FIELDS = ("network.width", "network.small_images")  # that only the ResNets of byol have
SHORT_SECONDS = 600.0  # of a run for those who do not want to wait
LOG_BYTES = 10_000_000  # of metrics.jsonl and the small files


def announce(setup: Setup, method: Method) -> None:
    """The plan, on the screen and in the run's record; refused where memory cannot hold it."""
    refuse_beyond_memory(setup, method)
    if setup.machine.passes == SIDE_BY_SIDE:
        from byol.run import ways  # only where it matters

        if reason := ways.against(method, setup.config, setup.machine):
            raise UsageError(f"The views cannot pass side by side, as {reason}. Use --run.passes auto.")
    needed, said = _timed(setup, method)
    for line in [*plan_lines(setup, method, needed), *said]:
        say(line)
    if processes.rank():
        return
    if setup.record_of_run.plan != setup.plan:  # a run that goes on for other epochs has another plan
        setup.record_of_run = replace(setup.record_of_run, plan=setup.plan, estimate=needed)
    there = len(checkpoint.found(setup.checkpoints))
    count = max(setup.config.run.keep + 1 - there, 1)  # the oldest goes when the newest is whole
    files.require_space(setup.out, count * needed.checkpoint_bytes + LOG_BYTES, f"{count} checkpoints and the log")


class Timed(NamedTuple):
    """A run as it was timed: as it will be trained, and as it is usual."""

    place: Machine
    needed: Estimate
    pace: Pace
    usual: Estimate


def timed(method: Method, config: Config, plan: Plan, place: Machine, held_bytes: int = 0) -> Timed:
    """The estimate of a run that begins; one long enough for it to matter is timed in the other ways too.

    On a machine that other programs use, threads wait for each other, and one alone is often several times as fast.
    On one that is free, views side by side keep cores busy that threads of one operation leave idle, and as one batch
    they take fewer operations.
    """
    usual, pace = estimate(method, config, plan, place, held_bytes)
    best = Timed(place, usual, pace, usual)
    if usual.seconds < WORTH_CHOOSING:
        return best
    from byol.run import ways  # only where there is time to choose

    for other in ways.others(method, config, place):
        machine.use(other, config.run.deterministic)
        needed, pace = estimate(method, config, plan, other, held_bytes)
        if needed.seconds * CLEARLY <= usual.seconds and needed.seconds < best.needed.seconds:
            best = Timed(other, needed, pace, usual)
    machine.use(best.place, config.run.deterministic)
    return best


def _timed(setup: Setup, method: Method) -> tuple[Estimate, list[str]]:
    """The estimate of a run and what there is to say of its threads, which are stored, so that it goes on with them."""
    config, place, held = setup.config, setup.machine, setup.images.held_bytes
    if setup.record_of_run.plan is not None:
        needed, pace = estimate(method, config, setup.plan, place, held)
        found = Timed(place, needed, pace, needed)
    else:
        found = timed(method, config, setup.plan, place, held)
    quiet = place.device.type != "cpu" or processes.world() > 1 or found.needed.seconds < WORTH_CHOOSING
    lines = [] if quiet else busy(found.pace)
    if found.place != place:
        setup.machine = found.place
        setup.record_of_run = replace(setup.record_of_run, machine=found.place)
        lines.insert(0, threads_in_words(found, place.threads))
    return found.needed, lines


def threads_in_words(found: Timed, threads: int) -> str:
    rate, usual = (f"{each.images_per_second:,.0f}" for each in (found.needed, found.usual))
    if found.place.passes == SIDE_BY_SIDE:
        return (
            f"  threads   views side by side, a part of the {threads} each: {rate} images/s here and now, {usual} one "
            "after the other; --run.passes in-turn does that nevertheless"
        )
    if found.place.passes == TOGETHER:
        count = f"{found.place.threads} thread{'s' * (found.place.threads > 1)}"
        return (
            f"  threads   {count}, both views as one batch: {rate} images/s here and now, {usual} one after the other; "
            "--run.passes in-turn does that nevertheless"
        )
    return (
        f"  threads   1: one trains {rate} images/s here and now, {threads} train {usual}, as on a machine that is "
        f"busy with other programs; --run.threads {threads} takes them nevertheless"
    )


def busy(pace: Pace) -> list[str]:
    """Says that other programs are using this machine, by the time that they took from the steps just timed."""
    if pace.share > FREE:
        return []
    return [
        f"  busy      other programs took {1 - pace.share:.0%} of the time on this machine while it was measured; "
        "the time left is estimated anew as training goes on"
    ]


def estimate(method: Method, config: Config, plan: Plan, place: Machine, held_bytes: int) -> tuple[Estimate, Pace]:
    """Time, memory and disk of a run, from a copy of its method; `held_bytes` are those of images held in memory."""
    world, share = processes.world(), plan.micro_batch // processes.world()
    memory = _memory(method, config, place)
    pace = cost.pace(copy.deepcopy(method), config, place, share)
    seconds = pace.seconds / world
    return Estimate(
        seconds=round(seconds * plan.batch * plan.steps, 1),
        images_per_second=round(1 / seconds, 1),
        memory_gb=round((memory.of(share) + held_bytes) / 1e9, 2),
        fixed_bytes=memory.weights + held_bytes,
        bytes_an_image=round(memory.an_image),
        checkpoint_bytes=memory.checkpoint,
    ), pace


def _memory(method: Method, config: Config, place: Machine) -> Memory:
    classes = 0 if method.classifier is None else method.classifier.out_features
    needed = cost.memory(cost.on_paper(config, classes), config, place.precision, place.passes)  # type: ignore[arg-type]
    return cost.in_parts(needed, processes.world()) if config.run.shard else needed


def refuse_beyond_memory(setup: Setup, method: Method) -> None:
    """A `UsageError` that names settings that would fit: the system would end the process without a word."""
    config, plan, place = setup.config, setup.plan, setup.machine
    on_cpu = place.device.type == "cpu"
    held, sharing = (setup.images.held_bytes, processes.local_world()) if on_cpu else (0, 1)
    total, free = machine.memory(place) * 1e9 / sharing, machine.free_memory(place) * 1e9 / sharing
    room = min(USABLE * total - held, free)  # the images that are held are not free any more
    memory = _memory(method, config, place)
    needed = memory.of(plan.micro_batch / processes.world())
    if needed <= room:
        return
    begun = setup.record_of_run.plan is not None
    settings = fitting(config, memory, room, processes.world(), place.precision, begun)
    fits = f"Each of these would fit: {', '.join(settings)}." if settings else NOTHING_FITS
    raise UsageError(
        f"A step of {plan.micro_batch} images at {config.data.resolution} px needs about {needed / 1e9:.1f} GB of "
        f"memory, and of {total / 1e9:.1f} GB here {max(room, 0) / 1e9:.1f} can be used now. {fits}"
    )


def fitting(
    config: Config, memory: Memory, room: float, devices: int, precision: str, begun: bool = False
) -> list[str]:
    """Flags that would make a run fit into `room` bytes of each device; a run that has begun may change few."""
    batch, room = config.optim.batch, SAFE * room
    found, ways = [], [(memory, "")]
    if not config.run.recompute and config.network.encoder.startswith("resnet"):
        leaner = replace(config, run=replace(config.run, recompute=True))
        ways.append((cost.memory(cost.on_paper(leaner), leaner, precision), "--run.recompute "))
    for needed, flag in ways:
        if flag and needed.of(batch / config.optim.accumulate / devices) <= room:
            found.append(flag.strip())
            continue
        splits = [k for k in range(1, batch // 2 + 1) if batch % k == 0 and batch // k % devices == 0]
        split = next((k for k in splits if needed.of(batch / k / devices) <= room), 0)
        if split and not begun:
            found.append(f"{flag}--optim.accumulate {split}")
    most = (room - memory.weights) / max(memory.an_image, 1) * devices * config.optim.accumulate
    smaller = 2 ** int(math.log2(most)) if most >= 2 * devices else 0
    if smaller >= 2 * config.optim.accumulate * devices and not begun:
        found.append(f"--optim.batch {min(smaller, batch)}")
    return found


def plan_lines(setup: Setup, method: Method, needed: Estimate) -> list[str]:
    """The plan of a run, a line each."""
    config, plan, images, place = setup.config, setup.plan, setup.images, setup.machine
    workers = loader.worker_count(config)
    by = "this process" if not workers else f"{workers} worker" + "s" * (workers > 1)
    where = f"read by {by} while training" if not images.held_bytes else "in memory"
    if images.held_bytes and images.pixels is None:
        where += f", cropped by {by}"
    encoder = sum(p.numel() for p in method.online.encoder.parameters())
    left_out = f"{plan.held_out} held out, {len(images.bad) + images.source.excluded} left out"
    left_out += f" ({images.source.excluded} by data.exclude)" if images.source.excluded else ""
    split = f" in {plan.accumulate} passes of {plan.micro_batch}" if plan.accumulate > 1 else ""
    labels = f"{len(images.source.classes)} classes (watched, never trained on)" if setup.classes else "no labels used"
    together = f"{processes.world()} processes, each: " if processes.world() > 1 else ""
    threads = f"{place.threads} thread{'s' * (place.threads > 1)}"
    free = () if has_width(config.network.encoder) else WIDTH_FIELDS
    lines = [f"  auto: {reason}" for reason in setup.record_of_run.reasons if reason.field not in free]
    lines += notes(config, plan)
    return [
        f"Plan for {setup.out}",
        *lines,
        f"  images    {plan.images} from {images.source.name}, {where}; {left_out}; {labels}",
        f"  encoder   {encoder_in_words(config)}, {encoder:,} parameters, {config.data.resolution} px",
        *start_lines(setup),
        f"  steps     {plan.steps} of {plan.batch} images{split} = {config.optim.epochs:g} epochs, "
        f"{plan.warmup_steps} of warm-up",
        f"  optimizer {config.optim.optimizer}, peak learning rate {plan.peak_lr:g} "
        f"({config.optim.lr:g} x {plan.batch}/256), weight decay {config.optim.weight_decay:g}"
        + f", gradient clipped at {config.optim.clip:g}"
        * (config.optim.clip > 0),
        f"  target    {target_in_words(config)}",
        f"  objective {objective_in_words(config)}",
        f"  machine   {together}{place.device_name}, {place.precision}, {threads}, about {needed.memory_gb:.1f} GB",
        f"  time      about {duration(needed.seconds)} ({needed.images_per_second:.0f} images/s without loading)",
        *shorter(setup, needed.seconds),
    ]


def notes(config: Config, plan: Plan) -> list[str]:
    """What a user may not expect of this plan."""
    lines = []
    if plan.batch > plan.images:
        lines.append(f"  note: the batch of {plan.batch} is larger than the {plan.images} images")
    if config.network.encoder.startswith("timm:vit") and config.optim.optimizer == "lars":
        lines.append(f"  note: {VIT_NOTE}")
    channels = len(config.views.mean)
    if skipped := views.left_out(config.views, channels):
        has = "1 channel is no colour" if channels == 1 else f"{channels} channels are no colours"
        lines.append(f"  note: the views leave {' and '.join(skipped)} out: {has}")
    return lines


def start_lines(setup: Setup) -> list[str]:
    """Which weights a run begins from, and what of them learns when."""
    config, plan = setup.config, setup.plan
    lines = [
        f"  {'start' if name == 'network.init' else 'target':<9} {facts.place} ({facts.origin}; digest {facts.digest})"
        for name, facts in setup.record_of_run.weights.items()
    ]
    how = [f"heads alone for {plan.head_steps} steps"] if plan.head_steps else []
    if config.optim.encoder_lr != 1 or config.optim.layer_decay != 1:
        decay = f", {config.optim.layer_decay:g} times that a block deeper" if config.optim.layer_decay != 1 else ""
        how.append(f"encoder at {config.optim.encoder_lr:g} of the rate{decay}")
    how += ["normalization alone"] if config.optim.norm_only else []
    return lines + ([f"  learns    {'; '.join(how)}"] if how else [])


def shorter(setup: Setup, seconds: float) -> list[str]:
    """How to end a long run that `auto` chose earlier."""
    asked = setup.record_of_run.request
    if (
        not chooses(asked.preset)
        or asked.overrides.keys() & {"optim.epochs", "run.budget"}
        or seconds < 2 * SHORT_SECONDS
    ):
        return []
    return [f"  shorter   --budget {SHORT_SECONDS / 60:g}m plans for {duration(SHORT_SECONDS)}"]


def encoder_in_words(config: Config) -> str:
    """Its name, and its width where it has one."""
    network = config.network
    return f"{network.encoder} width {network.width:g}" if has_width(network.encoder) else network.encoder


def target_in_words(config: Config) -> str:
    end = "to 1" if config.optim.tau_schedule == "cosine" else "constant"
    return {
        "moving-average": f"tau from {config.optim.tau:g} {end}",
        "stop-gradient": "the online network, its gradient stopped",
        "online": "the online network, its gradient flowing",
        "fixed": "a fixed random network" if config.network.target_init in ("independent", "same") else "fixed",
    }[config.network.target]


def objective_in_words(config: Config) -> str:
    objective = config.objective
    contrastive = f"temperature {objective.temperature:g}, beta {objective.beta:g}"
    if objective.fade:
        contrastive += f" falling to 0 over the first {objective.fade:.0%} of the run"
    how = contrastive if objective.contrasts else f"normalization {objective.normalization}"
    return f"{objective.name}, {how}; predictor {config.network.predictor}"
