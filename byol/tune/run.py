"""`byol tune` as a whole: what is searched is planned for the images and the machine, searched, told and written."""

from __future__ import annotations

import shlex
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import yaml

from byol import data
from byol.config import Config, apply, flatten
from byol.data import loader
from byol.data import values as image_values
from byol.data.source import Source
from byol.data.stored import fitted
from byol.errors import OutputBusy
from byol.evals.encoder import Encoder
from byol.networks import encoder as build_encoder
from byol.presets import compose
from byol.run import machine
from byol.run.facts import facts
from byol.run.files import only_writer, write_atomically
from byol.run.painting import painter
from byol.run.progress import duration, say, tell
from byol.tables import jobs
from byol.tables.cells import checksum
from byol.tables.forecast import at_a_time
from byol.tune import halving, judge, page, policies, search
from byol.tune.labelled import enough, labelled
from byol.tune.looks import Looks, looks
from byol.tune.trials import Labelled, Setting, values

MOVES, RATES = 4, 4  # changes of the best policy that are tried at the end: of its views, and of rate and tau if asked
START = 3.0  # seconds in which a trial begins and ends, beside reading images
YAML, PAGE = "tune.yaml", "tune.html"
# Views differ by what they teach in some hundred steps: trials on a CPU are as small as those of the calibration.
SMALL = {"data.resolution": "16", "network.small_images": "true", "network.width": "0.25", "optim.batch": "64"}
NONE = "none"  # of --labels: choose without


@dataclass(frozen=True)
class Request:
    """What was asked for."""

    data: str
    minutes: float
    out: Path
    labels: str = ""
    jobs: str = ""
    values: dict[str, Any] = field(default_factory=dict)
    policies: tuple[str, ...] = ()
    rates: bool = False
    began: float = field(default_factory=time.monotonic)  # when the command did: the budget holds for all of it


def tune(request: Request) -> str:
    """Searches, or goes on; writes tune.yaml, tune.html and tune.json, and gives the chosen policy's name."""
    jobs.check(request.jobs)
    refuse_foreign(request.out)
    with only_writer(request.out):
        known = search.read(request.out)
        first, _ = compose("auto", request.values, {})
        found = data.open_stored(request.data, first.data)
        config = apply(Config(), known.config, search.NAME) if known else _config(request, found, first)
        source = fitted(found, config.data)
        seen = looks(source, config)
        few = _labelled(request, config, source)
        asked = known or _record(request, source, config, seen, few)
        again = replace(asked, data=request.data, checksum=_checksum(request, first), asked=_asked(request))
        search.check(again, known, request.out)
        channels = len(config.views.mean)
        setting = Setting(request.data, asked.checksum, len(source), config, request.out, config.run.seed)
        going = search.Search(asked, setting, policies.fitting(channels, config.views), seen, few, request.jobs)
        going.note()
        for line in plan_lines(request, going, len(source)):
            say(line)
        chosen = search.run(going, channels)
        _write(request, going, source, chosen)
    return chosen


def refuse_foreign(out: Path) -> None:
    """A directory with anything in it but a search is somebody else's."""
    if out.is_dir() and not (out / search.NAME).exists() and any(not p.name.startswith(".") for p in out.iterdir()):
        raise OutputBusy(f"{out} exists and is not a search of byol tune. Choose another --out.")


def _asked(request: Request) -> dict[str, Any]:
    own = {"minutes": request.minutes, "labels": request.labels, "policies": list(request.policies)}
    return {**own, "rates": request.rates, **request.values}


def _checksum(request: Request, config: Config) -> str:
    return checksum(request.data, config.data.root)


def _config(request: Request, stored: Source, first: Config) -> Config:
    """What `auto` chooses for runs of a tenth of the time, on a CPU in small; with threads that stay."""
    together = at_a_time(request.jobs)
    settled = image_values.settle(stored, first, request.values, {}).fields
    source = fitted(stored, apply(first, settled, "images").data)
    known = facts(len(source), loader.sample(source), first, loader.names_of(source), settled)
    small = {} if known.accelerator else SMALL
    asked = {"run.budget": f"{request.minutes * 6:g}s", **small, **request.values}
    config = apply(compose("auto", asked, {}, facts=known)[0], settled, "images")
    threads = config.run.threads or max(1, torch.get_num_threads() // together)
    return replace(config, run=replace(config.run, threads=threads, budget=""))


def _labelled(request: Request, config: Config, source: Source) -> Labelled | None:
    """The judge's images: those of --labels, or of the classes that the images themselves are sorted by."""
    if request.labels == NONE or (not request.labels and not enough(source)):
        return None
    return labelled(data.open_source(request.labels, config.data) if request.labels else source, config.data)


def _record(request: Request, source: Source, config: Config, seen: Looks, few: Labelled | None) -> search.Record:
    """The plan of a new search: its cost is timed, and the budget dealt out."""
    found = list(policies.fitting(len(config.views.mean), config.views))
    names = [name for name in found if not request.policies or name in request.policies]
    cost = _cost(request, source, config, seen, few)
    elapsed = spent_on(request)
    moves = (0 if request.policies else MOVES) + RATES * request.rates
    fits = halving.schedule(len(names), moves, cost, request.minutes * 60 - elapsed)
    usual = flatten(Config())
    return search.Record(
        data=request.data,
        checksum=_checksum(request, config),
        asked=_asked(request),
        config={name: value for name, value in flatten(config).items() if value != usual[name]},
        judge=judge.judge(few is not None),
        seconds=request.minutes * 60,
        cost=[round(number, 5) for number in cost],
        setup=round(elapsed, 1),
        policies=names[: fits.policies],
        steps=fits.steps,
        moves=fits.moves,
    )


def spent_on(request: Request) -> float:
    """Seconds since the command began."""
    return time.monotonic() - request.began


def _cost(request: Request, source: Source, config: Config, seen: Looks, few: Labelled | None) -> halving.Cost:
    """Timed with the network before training, whose measures take as long as a trained one's."""
    sample = loader.sample(source)
    step = facts(len(source), sample, config).seconds(config) * config.optim.batch
    began = time.monotonic()
    read = len([image for _, image in loader.readable(source, range(min(16, len(source))))])
    reading = (time.monotonic() - began) / max(read, 1) * len(source) / config.run.threads
    start = START + (search.JOB_START if request.jobs else 0.0)
    began = time.monotonic()
    values(untrained(config), seen, few)
    return halving.Cost(step, time.monotonic() - began + reading + start, at_a_time(request.jobs))


def untrained(config: Config) -> Encoder:
    """The network that all trials begin from."""
    torch.manual_seed(config.run.seed)
    module = build_encoder(config.network, config.data.resolution).eval()
    return Encoder("untrained", module, config, machine.choose(config), True)


def plan_lines(request: Request, going: search.Search, images: int) -> list[str]:
    """The plan before the work, a line each."""
    asked, cost = going.record, going.cost
    sizes = halving.sizes(len(asked.policies))
    rungs = ", ".join(f"{size} for {steps} steps" for size, steps in zip(sizes, asked.steps, strict=True))
    moves = f", then up to {asked.moves} changes of the best" if asked.moves else ""
    whole = halving.spent(len(asked.policies), asked.moves, cost, asked.steps[0])
    config = going.setting.config
    many = len(going.policies)
    left = f" of {many} (more minutes try all)" if len(asked.policies) < many and not request.policies else ""
    return [
        f"Plan for {request.out}",
        f"  images    {images} from {request.data}, {len(config.views.mean)} channels; no label is trained on",
        f"  network   {config.network.encoder} width {config.network.width:g} at {config.data.resolution} px, steps of "
        f"{config.optim.batch}, every run from the same weights",
        f"  policies  {len(asked.policies)}{left}: {', '.join(asked.policies)}",
        f"  runs      {rungs}{moves}",
        f"  judge     {judged(asked.judge, request.labels)}",
        f"  time      about {duration(whole + asked.setup)} of {duration(asked.seconds)}; {cost.step:.2g} s a step",
    ]


def judged(name: str, labels: str) -> str:
    """Who chooses, and how well that one chose in the calibration."""
    found, few, many = (judge.CALIBRATED[each] for each in (name, judge.LABELS, judge.MANY))
    if name != judge.LABELS:
        lost = f"in the calibration its choice lost {found.regret:.1f} points on average and {found.worst:.1f} at worst"
        return f"{name}, without labels: {lost}; with fifty labels a class, --labels FOLDER, {many.regret:.1f}"
    whose = labels or f"the images' own folders, taken for classes; --labels {NONE} chooses without"
    lost = f"its choice lost {few.regret:.1f} points with ten a class, {many.regret:.1f} with fifty"
    return f"probes of labelled images ({whose}): in the calibration {lost}"


def _write(request: Request, going: search.Search, source: Source, chosen: str) -> None:
    last = {name: one.values for name, one in going.rungs[-1].items()}
    means = {name: policy.means for name, policy in going.policies.items()}
    said = judge.words(last, chosen, means, going.record.judge)
    policy = going.policies[chosen]
    file = request.out / YAML
    comments = [f"views for {request.data}, chosen by byol tune", *said]
    write_atomically(
        file, in_yaml(policy, policies.made(policy, going.setting.config), request.rates, comments).encode()
    )
    images = [image for _, image in loader.readable(source, range(min(page.SHOWN, len(source))))]
    shown = page.Shown(f"Views for {request.data}", said, going.rungs, going.policies, chosen)
    page.write(request.out / PAGE, shown, images, going.setting.config, painter(source, going.setting.config.data))
    for line in said:
        tell(line)
    say(f"Written: {file}, {request.out / PAGE}")
    say(f"Next: {shlex.join(['byol', 'pretrain', request.data, '--config', str(file)])}")


def in_yaml(policy: policies.Policy, config: Config, rates: bool, comments: list[str]) -> str:
    """What the policy changes in both views, and rate and tau where they were chosen, for `byol pretrain --config`: all
    else is left to `auto`, whose run may be larger than the trials were."""
    both = {side: dict(policy.fields) for side in ("t", "t_prime")} if policy.fields else {}
    head = "".join(f"# {' '.join(line.split())}\n" for line in comments)
    optim = {"optim": {"lr": config.optim.lr, "tau": config.optim.tau}} if rates else {}
    return head + yaml.safe_dump({"views": both, **optim}, sort_keys=False)
