"""Pictures of one run: views T and T′ of its images with what was drawn for each view, nearest neighbours at each look
of the monitor, and what the encoder tells apart within an image."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from byol import views
from byol.config import Config, Views
from byol.crops import scale_of
from byol.data.loader import readable
from byol.data.source import Source
from byol.errors import DiskError
from byol.evals import maps
from byol.evals.encoder import Encoder
from byol.report.gallery import choose, found_by_name
from byol.report.tiles import sheets, side_for, tile
from byol.run import monitor
from byol.run.files import read_json
from byol.run.painting import AS_IT_IS, Painter
from byol.run.progress import bar

IMAGES, PAIRS = 6, 3
QUERIES, NEAREST = 8, 6
LARGEST_VIEW, LARGEST_NEIGHBOUR = 96, 64
BUDGET = 900_000  # characters of each kind of picture


def drawn_views(source: Source, config: Config, paint: Painter = AS_IT_IS) -> dict[str, Any] | None:
    """A row for each image: itself, then pairs of T and T′ as steps 0, 1, … of a run would draw them."""
    images = _few(source)
    if not images:
        return None
    size = config.data.resolution
    side = side_for(size, LARGEST_VIEW)
    tiles: list[Tensor] = []
    rows = []
    visible = views.unnormalized(config.views)
    draws = [views.draw(config.run.seed, step, len(images), visible) for step in range(PAIRS)]
    for place, (index, image) in enumerate(images):
        tiles.append(tile(paint.stored(image), side))
        row = [{"kind": "image", "tile": len(tiles) - 1, "text": source.describe(index)}]
        for both in draws:
            for kind, draw in zip(("T", "T′"), both, strict=True):
                own = views.slice_draw(draw, place, place + 1)
                view = views.make([image], own, visible, size, scale_of(config.data))[0]
                tiles.append(tile(paint.unit(view), side))
                row.append({"kind": kind, "tile": len(tiles) - 1, "text": in_words(own, image, visible)})
        rows.append(row)
    return {"sheet": sheets(tiles, BUDGET), "rows": rows}


def _few(source: Source) -> list[tuple[int, Tensor]]:
    """From all classes, not the first few."""
    spread = choose(source, 4 * IMAGES)
    order = [int(i) for start in range(4) for i in spread[start::4]]
    return list(islice(readable(source, order), IMAGES))


def drawn_maps(source: Source, encoder: Encoder, paint: Painter = AS_IT_IS) -> dict[str, Any] | None:
    """A row for each image: itself, the first three principal components of its feature map, and these over it."""
    images = _few(source)
    shown = maps.few(encoder, [image for _, image in images])
    if not all(bool(found.isfinite().all()) for _, found in shown) or not shown:
        return None
    side = side_for(encoder.resolution, LARGEST_VIEW)
    tiles: list[Tensor] = []
    rows = []
    for (index, _), pictures in zip(images, maps.overlaid(shown, paint), strict=True):
        rows.append(
            [
                {"kind": kind, "tile": len(tiles) + place, "text": source.describe(index)}
                for place, kind in enumerate(maps.COLUMNS)
            ]
        )
        tiles += [tile((picture * 255).round().to(torch.uint8), side) for picture in pictures]
    _, _, height, width = shown[0][1][None].shape
    return {"sheet": sheets(tiles, BUDGET), "rows": rows, "places": [height, width]}


def in_words(draw: views.Draw, image: Tensor, config: Views) -> str:
    """What was drawn for one view of one image: `crop 31 × 40 of 64 × 64 px, flip, blur (sigma 1.20)`."""
    height, width = image.shape[1:]
    box = views.boxes(draw, height, width, config)
    parts = [f"crop {int(box.width)} × {int(box.height)} of {width} × {height} px"]
    for name, operation in views.OPERATIONS.items():
        if bool(draw[name]):
            drawn = [kind for kind in operation.strengths(config.t, config) if not kind.endswith("_key")]
            strengths = [f"{kind} {float(draw[kind]):.2f}" for kind in drawn]
            parts.append(f"{name} ({', '.join(strengths)})" if strengths else name)
    return ", ".join(parts)


def drawn_neighbours(path: Path, source: Source, paint: Painter = AS_IT_IS) -> dict[str, Any] | None:
    """The looks of neighbours.json with a tile for each image in them; None without looks, or without their images."""
    try:
        record = read_json(path / monitor.NEIGHBOURS)
        names = [str(name) for name in record["names"]]
        looks = [_shortened(look) for look in record["looks"]]
        queries = range(len(looks[0]["nearest"]))
        used = sorted({i for look in looks for row in look["nearest"] for i in row} | set(queries))
        images, sheet = _images([names[i] for i in used], source, paint)
    except (DiskError, KeyError, TypeError, ValueError, IndexError):
        return None
    if sheet is None:
        return None
    place = {i: number for number, i in enumerate(used)}
    for look in looks:
        look["nearest"] = [[place[i] for i in row] for row in look["nearest"]]
    return {
        "sheet": sheet,
        "images": images,
        "queries": [place[i] for i in queries],
        "looks": looks,
        "searched": len(names),
    }


def _shortened(look: dict[str, Any]) -> dict[str, Any]:
    """The look, cut to the rows and columns that the page shows."""
    rows = {name: [row[:NEAREST] for row in look[name][:QUERIES]] for name in ("nearest", "cosines")}
    return {"step": int(look["step"]), **rows}


def _images(names: Sequence[str], source: Source, paint: Painter) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
    """Name, label and tile of each image, with tile -1 for an image that is gone; no sheet when all are gone."""
    where = found_by_name(source, names)
    images: list[dict[str, Any]] = []
    tiles: list[Tensor] = []
    with bar("Reading neighbours", len(names), "images") as shown:
        for name in names:
            entry: dict[str, Any] = {"name": name, "tile": -1}
            for index, image in readable(source, [where[name]] if name in where else []):
                entry["tile"] = len(tiles)
                if source.labels is not None and source.labels.ndim == 1:
                    entry["label"] = source.classes[int(source.labels[index])]
                side = tiles[0].shape[1] if tiles else side_for(min(image.shape[1:]), LARGEST_NEIGHBOUR)
                tiles.append(tile(paint.stored(image), side))
            images.append(entry)
            shown.advance()
    return images, sheets(tiles, BUDGET) if tiles else None
