"""A run as Python shows it: a short card, as text or for a notebook, tables, and a picture of its curves."""

from __future__ import annotations

import html as escapes
import io
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from byol.errors import UsageError
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


@dataclass(frozen=True, repr=False)
class Plot:
    """A picture that a notebook shows; `save` writes it elsewhere."""

    png: bytes

    def save(self, path: str | Path) -> Path:
        from byol.run.files import write_atomically

        write_atomically(Path(path), self.png)
        return Path(path)

    def __repr__(self) -> str:
        return f"Plot of {len(self.png):,} bytes: .save(path) writes it"

    def _repr_png_(self) -> bytes:
        return self.png


def frame(run: Run, what: str) -> Any:
    """What steps or looks measured, as a table of whichever library of tables is there."""
    if what not in ("steps", "looks"):
        raise UsageError(f"run.frame takes 'steps' or 'looks', not {what!r}.")
    lines = run.steps if what == "steps" else run.looks
    try:
        import pandas

        return pandas.DataFrame(lines)
    except ImportError:
        pass
    try:
        import polars
    except ImportError:
        raise UsageError("run.frame needs pandas or polars: pip install pandas.") from None
    return polars.DataFrame(lines, infer_schema_length=None)


# Title of an axis → the measures on it, with their names; those that no look has are left out.
AXES = {
    "loss": {"loss": "loss"},
    "found again": {"knn": "class by neighbours", "twins": "the other view"},
    "rank": {"rank_representation": "representation", "rank_projection": "projection"},
}


def plot(run: Run) -> Plot:
    """Loss, what is found again, and the rank, over the steps."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UsageError("run.plot needs matplotlib: pip install 'byol[plots]'.") from None

    figure = Figure(figsize=(9.6, 2.7), layout="constrained")
    for axis, (title, measures) in zip(figure.subplots(1, len(AXES)), AXES.items(), strict=True):
        for name, label in measures.items():
            points = [(line["step"] + 1, line[name]) for line in run.metrics if name in line]
            if points:
                axis.plot(*zip(*points, strict=True), label=label, linewidth=1.4)
        axis.set_title(title, fontsize=10, loc="left")
        axis.set_xlabel("step", fontsize=8)
        axis.tick_params(labelsize=8)
        axis.spines[["top", "right"]].set_visible(False)
        if len(measures) > 1 and axis.lines:
            axis.legend(frameon=False, fontsize=8)
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=110)
    return Plot(drawn.getvalue())
