"""The images of the runs' data: which go on the map, their tiles, and each encoder's representations of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from byol.crops import center_crop
from byol.data.loader import sample_sizes, worker_count
from byol.data.source import BadImage, Source
from byol.data.workers import loaded
from byol.evals.encoder import Encoder, frozen
from byol.report import embedding
from byol.report.tiles import sheets, side_for, tile
from byol.run.machine import represent
from byol.run.monitor import compact
from byol.run.painting import AS_IT_IS, Painter
from byol.run.progress import bar, name_left_out

CHUNK = 64
LARGEST_TILE = 64
NEAREST = 8


class Chunk(NamedTuple):
    """Consecutive images: tiles, centre crops at each resolution, positions, and the names of those left out."""

    tiles: list[Tensor]
    crops: dict[int, Tensor]
    positions: list[int]
    bad: list[str]


class Reader(Dataset[Chunk]):
    """Item i is the i-th chunk of the chosen images; each is decoded once, however many encoders look at it."""

    def __init__(
        self, source: Source, chosen: np.ndarray, resolutions: Sequence[int], side: int, paint: Painter
    ) -> None:
        self.source, self.chosen, self.resolutions, self.side, self.paint = source, chosen, resolutions, side, paint

    def __getitem__(self, number: int) -> Chunk:
        tiles, positions, bad = [], [], []
        crops: dict[int, list[Tensor]] = {resolution: [] for resolution in self.resolutions}
        for position in range(number * CHUNK, min((number + 1) * CHUNK, len(self.chosen))):
            index = int(self.chosen[position])
            try:
                image = self.source.read(index)
            except BadImage as error:
                bad.append(f"{self.source.describe(index)} ({error})")
                continue
            tiles.append(tile(self.paint.stored(image), self.side))
            for resolution, found in crops.items():
                found.append(compact(center_crop(image, resolution, scale=self.paint.scale), self.paint.scale))
            positions.append(position)
        stacked = {resolution: torch.stack(found) for resolution, found in crops.items() if found}
        return Chunk(tiles, stacked, positions, bad)


@dataclass(frozen=True)
class Gallery:
    """What was read of one data set, and the representations (N, D) of each encoder that looked at it."""

    names: list[str]
    labels: list[int] | None
    classes: tuple[str, ...]
    tiles: list[Tensor]
    features: list[Tensor]
    total: int


def choose(source: Source, most: int) -> np.ndarray:
    """Which images: all, or a fair choice of them that stays the same."""
    if len(source) <= most:
        return np.arange(len(source))
    return np.sort(np.random.default_rng(0).choice(len(source), most, replace=False))


def look(source: Source, encoders: Sequence[Encoder], most: int, paint: Painter = AS_IT_IS) -> Gallery:
    """Reads the chosen images once and shows them to every encoder, all of which map values by one scale."""
    chosen = choose(source, most)
    sizes = sample_sizes(source) or [(32, 32)]
    side = side_for(int(np.median([min(size) for size in sizes])), LARGEST_TILE)
    resolutions = sorted({encoder.resolution for encoder in encoders})
    tiles: list[Tensor] = []
    positions: list[int] = []
    left_out = 0
    features: list[list[Tensor]] = [[] for _ in encoders]
    with ExitStack() as stack, bar("Looking at images", len(chosen), "images") as shown:
        modules = [stack.enter_context(frozen(encoder)) for encoder in encoders]
        for chunk in _chunks(Reader(source, chosen, resolutions, side, paint), encoders):
            name_left_out(chunk.bad, left_out)
            left_out += len(chunk.bad)
            for encoder, module, found in zip(encoders, modules, features, strict=True):
                if chunk.positions:
                    crops = chunk.crops[encoder.resolution]
                    found.append(represent(module, crops, encoder.config, encoder.place))
            tiles += chunk.tiles
            positions += chunk.positions
            shown.advance(len(chunk.positions) + len(chunk.bad))
    kept = chosen[positions]
    labels = None if source.labels is None or source.labels.ndim != 1 else source.labels[kept].tolist()
    names = [source.describe(int(index)) for index in kept]
    return Gallery(names, labels, source.classes, tiles, [torch.cat(f) for f in features if f], len(source))


def _chunks(reader: Reader, encoders: Sequence[Encoder]) -> Iterator[Chunk]:
    count = (len(reader.chosen) + CHUNK - 1) // CHUNK
    workers = min(worker_count(encoders[0].config), count) if count > 4 and encoders else 0
    yield from loaded(reader, range(count), workers)


def drawn(gallery: Gallery, budget: int) -> dict[str, Any]:
    """The gallery as the page has it."""
    return {
        "names": gallery.names,
        "labels": gallery.labels,
        "classes": list(gallery.classes) if gallery.labels is not None else [],
        "total": gallery.total,
        "sheet": sheets(gallery.tiles, budget),
    }


def drawn_map(features: Tensor, gallery: int) -> dict[str, Any]:
    """Places, neighbours and clusters of one encoder's representations."""
    if len(features) < 2:
        return {"gallery": gallery, "places": [0, 0], "nearest": [[]], "cosines": [[]], "clusters": [0]}
    near = embedding.neighbours(features, NEAREST)
    places = embedding.layout(features)
    scaled = places / places.abs().max().clamp_min(1e-9)
    return {
        "gallery": gallery,
        "places": [round(value, 4) for value in scaled.reshape(-1).tolist()],
        "nearest": near.rows.tolist(),
        "cosines": [[round(value, 3) for value in row] for row in near.cosines.tolist()],
        "clusters": embedding.clusters(features).tolist(),
    }


def found_by_name(source: Source, names: Sequence[str]) -> Mapping[str, int]:
    """Where the named images are in the source, as far as they are still there."""
    wanted = set(names)
    found: dict[str, int] = {}
    for index in range(len(source)):
        name = source.describe(index)
        if name in wanted:
            found.setdefault(name, index)
    return found
