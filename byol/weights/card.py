"""The model card and the config of an exported folder: which network was trained on which images, and its scores.

Everything in a card that comes from a file may be a stranger's, so every value passes through the escape of its place:
`prose` in text and table cells, `code` in a code span, `html.escape` inside the block of settings.
"""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import yaml

from byol.checkpoint import encoder_shape
from byol.config import Config, Network, flatten
from byol.crops import MARGIN
from byol.evals.metrics import shown
from byol.evals.record import EncoderFacts, Figure, read_all
from byol.run.record import NAME, RunRecord, read_run

FEW = ("data.resolution", "network.encoder", "network.width", "network.small_images", "network.padding")
MOST_CHARACTERS = 400  # of one value; a longer one is cut, as nobody reads it in a card
MARKUP = re.compile(r"[|<>&`*\[\]\\_~#!@:{}$\"]|(?<=www)\.", re.IGNORECASE)  # `www.` and `://` alone become links


class Weights(NamedTuple):
    """What tells whether a stored figure belongs to an encoder: the digest of its values, its network and input."""

    checksum: str
    network: Mapping[str, Any]
    resolution: int

    @classmethod
    def of(cls, checksum: str, settings: Config) -> Weights:
        return cls(checksum, shape(settings.network), settings.data.resolution)

    def relation(self, scored: EncoderFacts) -> Literal["own", "untrained", "other"]:
        """Whether the encoder that was scored is this one, the same network before training, or another one."""
        if scored.untrained:
            alike = (dict(scored.network), scored.resolution) == (dict(self.network), self.resolution)
            return "untrained" if alike else "other"
        return "own" if scored.checksum == self.checksum else "other"


def shape(network: Network) -> dict[str, Any]:
    """The fields of a network that its encoder depends on, as `byol evaluate` stores them."""
    return encoder_shape(network)


def config(settings: Config, features: int, plain: bool) -> dict[str, Any]:
    """config.json in timm's form, so that timm's `local-dir:` finds the network; our own fields are under `byol`."""
    size = settings.data.resolution
    own = {name: value for name, value in flatten(settings).items() if name in FEW}
    shared = {
        "num_classes": 0,
        "num_features": features,
        "pretrained_cfg": {
            "input_size": [settings.network.channels, size, size],
            "mean": list(settings.views.mean),
            "std": list(settings.views.std),
            "interpolation": "bicubic",
            "crop_pct": round(1 / MARGIN, 3),
            "crop_mode": "center",
            "num_classes": 0,
            "first_conv": "conv1",
            "classifier": "fc",
        },
        "byol": own,
    }
    return {"architecture": settings.network.encoder, **shared} if plain else shared


def text(run: Path, settings: Config, header: Mapping[str, Any], lines: Sequence[str], checksum: str) -> str:
    """Markdown with the front matter that the hub reads; results are those of the weights with this checksum."""
    record = read_run(run) if (run / NAME).exists() else None
    front = {
        "library_name": "byol",
        "pipeline_tag": "image-feature-extraction",
        "tags": ["byol", "self-supervised-learning", "image-feature-extraction"],
    }
    network = settings.network
    trained_how = "trained with labels" if header.get("trained") == "supervised" else "trained without labels"
    origin = f"imported from {prose(header['origin'])}" if "origin" in header else trained_how
    parts = [
        f"---\n{yaml.safe_dump(front, sort_keys=False)}---",
        f"# {prose(run.resolve().name)}: {prose(network.encoder)} pretrained by BYOL",
        f"An encoder of {prose(network.encoder)} at width {network.width:g}, for images of {settings.data.resolution} "
        f"px, {origin}.",
        "## Use\n" + fenced(lines, "python"),
        "## Results\n" + results(run, Weights.of(checksum, settings)),
    ]
    if record:
        parts += ["## Data\n" + _data(record), "## Training\n" + _training(record, header)]
        table = "\n".join(f"{visible(name)}: {visible(value)}" for name, value in record.config.items())
        parts.append(f"<details><summary>All settings</summary>\n\n<pre>\n{html.escape(table)}\n</pre>\n</details>")
    return "\n\n".join(parts) + "\n"


def results(run: Path, weights: Weights) -> str:
    """A row for each test figure of these weights, with the same network's figure before training beside it.

    Figures that `byol evaluate` measured on other weights, such as those of an earlier checkpoint, are left out.
    """
    notes: list[str] = []
    records = [(weights.relation(record.encoder), record) for _, record in read_all(run, notes)]
    own = [record for relation, record in records if relation == "own"]
    untrained = {
        (record.data.name, record.protocol, figure): in_words(figure, value)
        for relation, record in records
        if relation == "untrained"
        for figure, value in record.test.items()
    }
    lines = ["| data | protocol | figure | test | untrained network | seeds |", "|---|---|---|---|---|---|"]
    for record in own:
        for figure, value in record.test.items():
            before = untrained.get((record.data.name, record.protocol, figure), "–")
            cells = (record.data.name, record.protocol, figure, in_words(figure, value), before, value.seeds)
            lines.append("| " + " | ".join(map(prose, cells)) + " |")
    table = "\n".join(lines)
    text = table if own else "These weights have not been evaluated: `byol evaluate RUN --on DATA` does that."
    return "\n\n".join([text, *(f"Not read: {prose(note)}" for note in notes)])


def in_words(figure: str, value: Figure) -> str:
    """The mean with half the range over the seeds."""
    spread = f" ± {shown(figure, value.half_range).removesuffix('%')}" if value.seeds > 1 else ""
    return shown(figure, value.mean) + spread


def trained(header: Mapping[str, Any]) -> str:
    """How far the weights of an encoder file are trained, in the words of its own header; empty if it does not say."""
    step, steps = (header.get(name) for name in ("step", "steps"))
    if not _count(step) or "origin" in header:
        return ""
    return f"step {step:,} of {steps:,}" if _count(steps) else f"step {step:,}"


def contradictions(header: Mapping[str, Any], record: RunRecord) -> list[str]:
    """Where the header of an encoder and the run.json beside it tell of different trainings, a sentence each."""
    plan = record.plan
    stored = {
        "steps": ("steps in its plan", plan.steps if plan else None),
        "seed": ("run.seed", record.config.get("run.seed")),
        "images": ("images with the fingerprint", record.data.fingerprint),
    }
    sentences = [
        f"The encoder's header says {what} {header[name]}, run.json says {value}"
        for name, (what, value) in stored.items()
        if name in header and value is not None and header[name] != value
    ]
    if plan and _count(header.get("step")) and header["step"] > plan.steps:
        sentences.append(f"The encoder is of step {header['step']:,}, and the plan in run.json ends at {plan.steps:,}")
    return [f"{sentence}: the encoder is of another training, or of an earlier plan." for sentence in sentences]


def _count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _data(record: RunRecord) -> str:
    data = record.data
    labels = f", in {data.classes} classes that training did not look at" if data.classes else ""
    return (
        f"Training saw {prose(f'{data.images:,}')} images of {prose(Path(data.name).name)}{prose(labels)}; "
        f"{prose(data.bad)} could not be read. Fingerprint of their names: {code(data.fingerprint)}."
    )


def _training(record: RunRecord, header: Mapping[str, Any]) -> str:
    versions = ", ".join(f"{name} {value}" for name, value in record.versions.items() if name != "platform")
    batch = f", {prose(record.plan.batch)} images each" if record.plan else ""
    steps = f"The weights are those of {prose(trained(header))}{batch}." if trained(header) else ""
    verdict = f"Judged by the monitor: {prose(record.verdict.sentence)}" if record.verdict else ""
    against = [f"Contradiction: {prose(sentence)}" for sentence in contradictions(header, record)]
    made = f"Made with the preset {code(record.request.preset)}; versions: {prose(versions)}."
    return "\n\n".join(part for part in (steps, verdict, *against, made) if part)


def visible(value: object) -> str:
    """A value on one line: characters that move, hide or reverse text are spelled out, and what is long is cut."""
    words = " ".join(str(value).split())
    words = words if len(words) <= MOST_CHARACTERS else f"{words[:MOST_CHARACTERS]}…"
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in words)


def prose(value: object) -> str:
    """A value in text or in a cell of a table, where it can neither end the cell nor begin markup or a link."""
    return MARKUP.sub(lambda letter: f"&#{ord(letter[0])};", visible(value))


def code(value: object) -> str:
    """A value as a code span; inside one entities are not read, so letters that could end it or be HTML are named."""
    return "`" + re.sub("[`<>&|]", lambda letter: f"\\x{ord(letter[0]):02x}", visible(value)) + "`"


def fenced(lines: Sequence[str], language: str) -> str:
    """Lines of a program between fences that are longer than any in the lines."""
    text = "\n".join(lines)
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}{language}\n{text}\n{fence}"
