"""Weights that a run is given: read when it begins, and known again when it goes on, which needs no file any more."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from byol.checkpoint import Given
from byol.config import Config, Network, apply, flatten
from byol.errors import OutputBusy, UsageError
from byol.run.record import RunRecord, WeightsFacts

INIT, TARGET = "network.init", "network.target_init"
SHAPE = {"network.encoder", "network.width", "network.small_images", "network.padding"}
Read = Callable[[str], Given]


@dataclass(frozen=True)
class Weights:
    """What a run was given, by config field."""

    facts: dict[str, WeightsFacts] = field(default_factory=dict)  # for its record
    given: dict[str, Given] = field(default_factory=dict)  # the tensors, unless a checkpoint has them
    settings: dict[str, Any] = field(default_factory=dict)  # config fields that follow

    @property
    def places(self) -> dict[str, str]:
        """Where the weights were when the run began; they may have moved since."""
        return {name: facts.place for name, facts in self.facts.items()}

    @property
    def resolution(self) -> int:
        """At which the weights to go on from were trained; 0: there are none."""
        return self.facts[INIT].resolution if INIT in self.facts else 0

    def refuse_contradictions(self, asked: Mapping[str, Any]) -> None:
        """A flag, or a line of the config file, that says otherwise than the weights."""
        said = flatten(apply(Config(), asked, "settings", check=False))
        for name, facts in self.facts.items():
            for settled in (*_shape(name), *([TARGET] if name == INIT else [])):
                fixed = self.settings.get(settled, said[settled])
                if settled in asked and said[settled] != fixed:
                    raise UsageError(
                        f"{settled} {said[settled]} contradicts the weights {facts.place} ({facts.origin}), with which "
                        f"it is {fixed}. Leave {settled} out, or {name}."
                    )


def places(network: Network) -> dict[str, str]:
    """Where the weights are that a config asks for."""
    named = {INIT: network.init, TARGET: "" if network.target_init in ("independent", "same") else network.target_init}
    return {name: place for name, place in named.items() if place}


def opened(asked: Config, stored: RunRecord | None, begun: bool, out: Path, read: Read | None) -> Weights:
    """The weights that a config asks for. A run that has `begun` holds them in its checkpoint: then the file is only
    looked at when another place is named, which may hold nothing but the same weights."""
    wanted, known = places(asked.network), stored.weights if stored else {}
    if stored and wanted.keys() != known.keys():
        missing = ", ".join(sorted(wanted.keys() ^ known.keys()))
        raise OutputBusy(
            f"{out} holds another run: it began {'with' if known else 'without'} given weights ({missing}). "
            "Choose another --out, or --overwrite to start again."
        )
    facts, given, settings = dict(known), dict[str, Given](), dict[str, Any]()
    for name, place in wanted.items():
        if name in known and begun and place == known[name].place:
            continue
        assert read, "the caller reads no weights"
        given[name] = read(place)
        facts.setdefault(name, _facts(given[name]))
        if facts[name].digest != given[name].digest:
            raise OutputBusy(
                f"{out} holds the run that began from {facts[name].place} ({facts[name].digest}), and {place} holds "
                f"other weights ({given[name].digest}). Choose another --out, or --overwrite to start again."
            )
        settings |= _settled(name, given[name], asked.network)
    if stored and known:  # what the weights settled then, they settle now
        then = flatten(apply(Config(), stored.config, str(out)))
        fields = [TARGET, *(field for name in known for field in (*_shape(name), *VIEWS[name]))]
        settings |= {field: then[field] for field in fields}
    return Weights(facts, given, settings)


def _facts(given: Given) -> WeightsFacts:
    return WeightsFacts(given.place, given.origin, given.digest, given.resolution)


def _shape(name: str) -> list[str]:
    """The config fields of the shape that the weights of a field settle."""
    prefix = "network." if name == INIT else "network.target_"
    return [field.replace("network.", prefix) for field in sorted(SHAPE)]


def _settled(name: str, given: Given, network: Network) -> dict[str, Any]:
    shape = {field: given.network[field.removeprefix("network.")] for field in SHAPE}
    if name == TARGET:
        return {field.replace("network.", "network.target_"): value for field, value in shape.items()}
    same = {TARGET: "same"} if network.target == "moving-average" else {}
    return {**shape, **given.views, **same}


VIEWS = {INIT: ("views.mean", "views.std"), TARGET: ()}
