"""`byol views`: a picture of what the two distributions of augmentations, T and T′, make of a user's images."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from byol import data, presets
from byol.config import Config, apply
from byol.data import loader, values
from byol.data.source import Source
from byol.data.stored import fitted
from byol.errors import BadData, UsageError
from byol.run import pictures
from byol.run.facts import facts
from byol.run.files import placed
from byol.run.painting import painter, view_rows
from byol.run.progress import tell


def sheet(name: str, out: Path, preset: str, asked: dict[str, Any], images: int = 8, pairs: int = 4) -> None:
    """Write a PNG with one row an image: the image itself, then pairs of T and T′ as training would see them."""
    if out.suffix != ".png":
        raise UsageError(f"--out should end in .png, not be {out}.")
    first, _ = presets.compose(preset, asked, {})
    found = data.open_stored(name, first.data)
    settled = values.settle(found, first, asked, {}).fields
    source = fitted(found, apply(first, settled).data)
    config = _recipe(source, preset, asked, settled)
    shown, paint = _some(source, images), painter(source, config.data)
    out = placed(out)
    cell = min(max(config.data.resolution, 64), 128)
    rows = view_rows(shown, config, pairs, paint)
    pictures.sheet(out, rows, ["image", *["T", "T'"] * pairs], (cell, cell), footnote=paint.words)
    tell(f"{out}: {len(shown)} images, {pairs} draws of T and T' at {config.data.resolution} px")
    if paint.words:
        tell(f"Colours: {paint.words}.")


def _recipe(source: Source, preset: str, asked: dict[str, Any], settled: dict[str, Any]) -> Config:
    first, _ = presets.compose(preset, asked, {})
    if presets.chooses(preset):
        seen = facts(len(source), loader.sample(source), first, loader.names_of(source), settled)
        first = presets.compose(preset, asked, {}, "", seen)[0]
    return apply(first, settled)


def _some(source: Source, count: int) -> list[Tensor]:
    """Readable images, spread over the source."""
    places = np.linspace(0, len(source) - 1, min(count, len(source))).astype(int)
    nearby = (range(place, min(place + 5, len(source))) for place in places)  # past a few that cannot be read
    images = [image for indices in nearby for _, image in itertools.islice(loader.readable(source, indices), 1)]
    if not images:
        raise BadData(f"None of the images of {source.name} that were tried can be read.")
    return images
