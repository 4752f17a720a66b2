"""The card of a model: what it answers, how good it is on unseen images, how its input is made, how to use it."""

from __future__ import annotations

from collections.abc import Mapping

import yaml

from byol.evals.metrics import shown
from byol.models.model import ModelRecord
from byol.weights.card import code, fenced, prose

NAME = "README.md"
MOST_CLASSES = 200


def text(facts: ModelRecord, name: str) -> str:
    """Markdown with the front matter that the hub reads; the same for the same model."""
    front = {
        "library_name": "byol",
        "pipeline_tag": "image-classification",
        "tags": ["byol", "image-classification"],
    }
    how = "logistic regression on a frozen encoder" if facts.how == "logistic" else "a fine-tuned encoder and its head"
    kind = "any number of these labels" if facts.several else "one of these classes"
    shown_classes = ", ".join(map(code, facts.classes[:MOST_CLASSES]))
    more = f" and {len(facts.classes) - MOST_CLASSES} more" if len(facts.classes) > MOST_CLASSES else ""
    made = facts.preprocessing
    parts = [
        f"---\n{yaml.safe_dump(front, sort_keys=False)}---",
        f"# {prose(name)}: {len(facts.classes)} classes",
        f"A model that answers with {kind}: {shown_classes}{more}. It is {how}, fitted to "
        f"{facts.images.get('train', 0):,} labelled images.",
        "## Use\n" + fenced(use(name), "python"),
        "## Figures\n" + figures(facts),
        "## Input\n"
        f"Images are resized by bicubic interpolation so that the short side is {prose(made.get('short_side'))} px, "
        f"the central {prose(made.get('resolution'))} px are cut out, and colours in [0, 1] have the mean "
        f"{prose(made.get('mean'))} and the deviation {prose(made.get('std'))} taken off and divided out.",
        "## Answers\n" + answers(facts),
        f"The encoder is {code(facts.encoder)}, digest {code(facts.weights)}.",
    ]
    return "\n\n".join(parts + [prose(note) for note in facts.notes]) + "\n"


def use(folder: str) -> list[str]:
    return ["import byol", f"model = byol.load_model({folder!r})", 'print(model.predict("images").labels)']


def figures(facts: ModelRecord) -> str:
    """Validation figures are of weights that had not seen those images; test figures are of the model itself."""
    lines = ["| figure | validation | test |", "|---|---|---|"]
    for name in dict.fromkeys([*facts.validation, *facts.test]):
        lines.append(f"| {prose(name)} | {_cell(facts.validation, name)} | {_cell(facts.test, name)} |")
    return "\n".join(lines) if len(lines) > 2 else "No image could be spared to measure on."


def _cell(found: Mapping[str, float], name: str) -> str:
    if name not in found:
        return "–"
    return f"{found[name]:.3f}" if name == "log loss" else prose(shown(name, found[name]))


def answers(facts: ModelRecord) -> str:
    calibrated = f"Probabilities are calibrated by a temperature of {facts.temperature:g}, chosen on validation images."
    if not facts.precision:
        return calibrated
    return (
        f"{calibrated} The model answers only where at least {facts.precision:.1%} of such answers were right on "
        "validation images; where it does not, the label is empty."
    )
