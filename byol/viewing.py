"""`byol views`: what the two distributions of augmentations make of one's own images, as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from byol import data, pictures, presets, views
from byol.config import Config
from byol.data import loader
from byol.data.source import BadImage, Source
from byol.errors import BadData, UsageError
from byol.rundir import facts


def sheet(name: str, out: Path, preset: str, values: dict[str, Any], images: int = 8, pairs: int = 4) -> None:
    """A PNG: a row an image, the image itself and then pairs of T and T′ as training would see them."""
    if out.suffix != ".png":
        raise UsageError(f"--out should end in .png, not be {out}.")
    first, _ = presets.compose(preset, values, {})
    source = data.open_source(name, first.data)
    config = _recipe(source, preset, values)
    shown = _some(source, images)
    out.parent.mkdir(parents=True, exist_ok=True)
    cell = min(max(config.data.resolution, 64), 128)
    pictures.sheet(out, view_rows(shown, config, pairs), ["image", *["T", "T'"] * pairs], (cell, cell))
    print(f"{out}: {len(shown)} images, {pairs} draws of T and T' at {config.data.resolution} px")


def _recipe(source: Source, preset: str, values: dict[str, Any]) -> Config:
    first, _ = presets.compose(preset, values, {})
    if preset != "auto":
        return first
    sides = [min(size) for size in loader.sample_sizes(source)]
    return presets.compose(preset, values, {}, "", facts(len(source), sides, first))[0]


def _some(source: Source, count: int) -> list[Tensor]:
    """Readable images, spread over the source."""
    found: list[Tensor] = []
    for place in np.linspace(0, len(source) - 1, min(count, len(source))).astype(int):
        for index in range(int(place), min(int(place) + 5, len(source))):  # past a few that cannot be read
            try:
                found.append(source.read(index))
                break
            except BadImage:
                continue
    if not found:
        raise BadData(f"None of the images of {source.name} that were tried can be read.")
    return found


def view_rows(images: list[Tensor], config: Config, pairs: int = 4) -> list[list[Tensor]]:
    """For each image: itself, then several draws of T and T′, before normalization."""
    rows: list[list[Tensor]] = [[image] for image in images]
    for step in range(pairs):
        for draw in views.draw(config.run.seed, step, len(images), config.views):
            for place, image in enumerate(images):
                crop = views.crop_one(image, draw, place, config.views, config.data.resolution)
                rows[place].append(views.augment(crop[None], views.slice_draw(draw, place, place + 1), config.views)[0])
    return rows
