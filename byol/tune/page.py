"""One HTML page about a search: the choice in words, policies as rows with their measures, sheets of their views.

The page has no script and asks for nothing; every text of the user's is escaped.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from byol import views
from byol.config import Config
from byol.crops import scale_of
from byol.report.model import document, table, text
from byol.run.files import write_atomically
from byol.run.painting import Painter
from byol.tune import judge
from byol.tune.measures import MEASURES
from byol.tune.policies import Policy, made
from byol.tune.trials import LABELS, Measured

SHOWN, PAIRS = 4, 3  # images of a sheet, and pairs of views of each
SIDE = 64


class Shown(NamedTuple):
    """A finished search as its page shows it."""

    title: str
    said: Sequence[str]
    rungs: Sequence[Mapping[str, Measured]]
    policies: Mapping[str, Policy]
    chosen: str


def write(path: Path, shown: Shown, images: Sequence[Tensor], config: Config, paint: Painter) -> None:
    """The page of a finished search; `images` are shown under the views of each policy."""
    write_atomically(path, document(shown.title, "\n".join(_sections(shown, images, config, paint))))


def _sections(shown: Shown, images: Sequence[Tensor], config: Config, paint: Painter) -> Iterator[str]:
    title, said, rungs, policies, chosen = shown
    yield f"<h1>{text(title)}</h1>"
    yield "".join(f"<p>{text(line)}</p>" for line in said)
    for number, rung in reversed(list(enumerate(rungs, 1))):
        yield f"<h2>Rung {number}: {len(rung)} policies</h2>" + _rung(rung, policies, chosen)
    yield "<h2>What was measured</h2>" + _about()
    yield "<h2>Their views</h2>" + (f"<p>Colours: {text(paint.words)}.</p>" if paint.words else "")
    names = [chosen, *(name for name in dict.fromkeys(n for rung in reversed(rungs) for n in rung) if name != chosen)]
    for name in names:
        about = f"{name}: {policies[name].about}"
        sheet = _sheet(images, made(policies[name], config), paint)
        yield f'<h3>{text(about)}</h3><p><img alt="{text(about)}" src="{sheet}"></p>'


def _rung(rung: Mapping[str, Measured], policies: Mapping[str, Policy], chosen: str) -> str:
    """Policies as rows; the best of each column is marked, so that disagreement is seen."""
    columns = [name for name in (LABELS, *MEASURES) if any(name in one.values for one in rung.values())]
    best = judge.preferred({name: one.values for name, one in rung.items()})
    rows = []
    for name, one in rung.items():
        figures = [
            f"{one.values[column]:.3g}{'★' if best.get(column) == name else ''}" if column in one.values else "–"
            for column in columns
        ]
        how = one.error or policies[name].about
        rows.append([f"{name} (chosen)" if name == chosen else name, *figures, str(one.steps), how])
    return table(["policy", *columns, "steps", "views"], rows)


def _about() -> str:
    """Each measure with its source, and how well it chose in the calibration."""
    rows = []
    for name, about in ((LABELS, "a linear probe of the labelled images, five folds"), *_own()):
        found = judge.CALIBRATED.get(name)
        figures = [f"{found.correlation:+.2f}", f"{found.regret:.1f}", f"{found.worst:.1f}"] if found else ["–"] * 3
        rows.append([name, about, *figures])
    head = ["measure", "what it is", "rank correlation with linear accuracy", "mean points lost", "at worst"]
    return table(head, rows)


def _own() -> list[tuple[str, str]]:
    return [(name, measure.about) for name, measure in MEASURES.items()]


def _sheet(images: Sequence[Tensor], config: Config, paint: Painter) -> str:
    """Some images, each with pairs of its views, as a data URI."""
    import torch
    from PIL import Image

    visible = views.unnormalized(config.views)
    some = list(images[:SHOWN])
    draws = [draw for step in range(PAIRS) for draw in views.draw(0, step, len(some), visible)]
    columns = [views.make(some, draw, visible, SIDE, scale_of(config.data)) for draw in draws]
    rows = [torch.cat([paint.unit(view[place]) for view in columns], 2) for place in range(len(some))]
    pixels = torch.cat(rows, 1)
    content = io.BytesIO()
    Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy()).save(content, "JPEG", quality=80)
    return "data:image/jpeg;base64," + base64.b64encode(content.getvalue()).decode("ascii")
