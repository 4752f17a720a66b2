"""Which config and machine a run gets: the stored ones where it goes on, or what preset, images and flags settle."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from byol import objectives, presets
from byol.config import Config, apply, flatten, resolve
from byol.data import loader, values
from byol.data.source import Source
from byol.networks import check_encoder
from byol.parallel import processes
from byol.presets import Reason
from byol.run import machine, record
from byol.run.machine import Machine
from byol.run.record import RunRecord

if TYPE_CHECKING:
    from byol.run.directory import Request
    from byol.run.given import Weights


def choose(
    request: Request, found: Source, stored: RunRecord | None, weights: Weights
) -> tuple[Config, list[Reason], Machine, Source]:
    """Config and machine of the run: the stored ones if the same is asked again, so that `auto` stays with its choice.
    And the images, `found` as they are stored, with the channels and the range of that config.

    Where a run of `auto` is to go on for other epochs, `auto` keeps all that it chose at first.
    """
    asked = request.asked
    before = _config(request.out, stored) if stored else Config()
    if stored and stored.request == asked:
        return before, stored.reasons, _machine(stored, before), values.fitted(found, before.data)
    weights.refuse_contradictions(asked.overrides)
    began = values.Began(before, stored.request.overrides, stored.reasons) if stored else None
    images = values.settle(found, request.config, asked.overrides, weights.settings, began)
    source = values.fitted(found, apply(request.config, images.fields, "images").data)
    overrides, seen, kept = asked.overrides | weights.places, None, dict[str, Any]()
    if presets.chooses(asked.preset):
        from byol.run.facts import facts  # only here is anything measured

        if stored and stored.request.preset == asked.preset:
            kept = {name: value for name, value in flatten(before).items() if name not in stored.request.overrides}
        sample, names = loader.sample(source), loader.names_of(source)
        seen = facts(len(source), sample, request.config, names, images.fields)
        seen = replace(seen, weights=weights.resolution, began=request.began)
    given = values.suited(weights.settings, images.fields.get("network.channels", 3))
    config, reasons = presets.compose(asked.preset, overrides, kept, record.NAME, seen, given)
    config = apply(config, images.fields, "images")
    place = _machine(stored, config) if stored else machine.choose(config)
    return config, [*images.reasons, *reasons], place, source


def _config(out: Path, stored: RunRecord) -> Config:
    """The config of a run that is to go on, as its record has it; one that cannot be trained is the record's fault."""
    with record.blamed(out / record.NAME):
        config = apply(Config(), stored.config, "config")
        check_encoder(config.network.encoder)
        objectives.check(config.objective.name)
        resolve(config, stored.data.images)
    return config


def _machine(stored: RunRecord, config: Config) -> Machine:
    """As it began; among another number of processes its threads are counted anew, as nothing is bit-exact then."""
    here = machine.choose(apply(config, {"run.device": stored.machine.device_name}))  # unless the device is not here
    if stored.processes != processes.world():
        return replace(stored.machine, threads=here.threads, passes=here.passes)
    return stored.machine if config.run.passes == "auto" else replace(stored.machine, passes=here.passes)
