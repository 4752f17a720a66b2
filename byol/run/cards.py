"""A run as Python shows it: a short card, as text or for a notebook."""

from __future__ import annotations

import html as escapes
from typing import TYPE_CHECKING

from byol.networks import has_width
from byol.run.progress import shown

if TYPE_CHECKING:
    from byol.pretraining import Run

COLOURS = {"learning": "#1a7f37", "collapsing": "#b42318", "collapsed data": "#b42318"}


def facts(run: Run) -> dict[str, str]:
    """What a card says, by its titles."""
    config, done = run.config, run.steps[-1]["step"] + 1 if run.steps else 0
    network = config.network
    width = f" width {network.width:g}" if has_width(network.encoder) else ""
    found = {
        "verdict": run.verdict.sentence,
        "images": f"{run.plan.images:,} at {config.data.resolution} px",
        "encoder": f"{network.encoder}{width}",
        "steps": f"{done:,} of {run.plan.steps:,}, {run.plan.batch} images each",
    }
    if run.steps:
        found["loss"] = f"{run.steps[0]['loss']:.3f} → {run.steps[-1]['loss']:.3f}"
    if run.looks and "knn" in run.looks[-1]:
        found["nearest"] = f"{run.looks[0]['knn']:.0%} → {run.looks[-1]['knn']:.0%} of neighbours have the right label"
    return found | {"tables": f"run.steps ({len(run.steps)} lines), run.looks ({len(run.looks)})"}


def text(run: Run) -> str:
    return "\n".join(
        [f"Run {shown(str(run.out))}", *(f"  {name:<8} {shown(said)}" for name, said in facts(run).items())]
    )


def html(run: Run) -> str:
    """A table without scripts; whatever a path or a name holds is text."""
    colour = COLOURS.get(run.verdict.word, "#9a6700")
    rows = "".join(
        f'<tr><td style="text-align:left;opacity:.6">{name}</td>'
        f'<td style="text-align:left">{escapes.escape(shown(said))}</td></tr>'
        for name, said in facts(run).items()
    )
    title = f'<b>{escapes.escape(shown(str(run.out)))}</b> <span style="color:{colour}">{run.verdict.word}</span>'
    return f"<div>{title}<table>{rows}</table></div>"
