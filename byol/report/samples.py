"""Pictures of one run: views T and T′ of its images with what was drawn for each, and neighbours look by look."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from byol import moments, views
from byol.config import Config, Views
from byol.data.source import BadImage, Source
from byol.errors import DiskError
from byol.progress import bar
from byol.records import read_json
from byol.report.gallery import choose, found_by_name
from byol.report.tiles import sheets, side_for, tile

IMAGES, PAIRS = 6, 3
QUERIES, NEAREST = 8, 6
LARGEST_VIEW, LARGEST_NEIGHBOUR = 96, 64
BUDGET = 900_000  # characters of each kind of picture


def readable(source: Source, indices: Sequence[int], most: int) -> list[tuple[int, Tensor]]:
    """The first of these images that can be read."""
    found: list[tuple[int, Tensor]] = []
    for index in indices:
        if len(found) == most:
            break
        try:
            found.append((index, source.read(index)))
        except BadImage:
            continue
    return found


def drawn_views(source: Source, config: Config) -> dict[str, Any] | None:
    """A row an image: itself, then pairs of T and T′ as step 0, 1, … of a run would draw them."""
    spread = choose(source, 4 * IMAGES)
    order = [int(i) for start in range(4) for i in spread[start::4]]  # over all classes, not the first few
    images = readable(source, order, IMAGES)
    if not images:
        return None
    size = config.data.resolution
    side = side_for(size, LARGEST_VIEW)
    tiles: list[Tensor] = []
    rows = []
    draws = [views.draw(config.run.seed, step, len(images), config.views) for step in range(PAIRS)]
    for place, (index, image) in enumerate(images):
        tiles.append(tile(image, side))
        row = [{"kind": "image", "tile": len(tiles) - 1, "text": source.describe(index)}]
        for both in draws:
            for kind, draw in zip(("T", "T′"), both, strict=True):
                own = views.slice_draw(draw, place, place + 1)
                crop = views.crop_one(image, draw, place, config.views, size)
                seen = views.augment(crop[None], own, config.views)[0]
                tiles.append(tile((seen * 255).round().to(torch.uint8), side))
                row.append({"kind": kind, "tile": len(tiles) - 1, "text": in_words(own, image, config.views)})
        rows.append(row)
    return {"sheet": sheets(tiles, BUDGET), "rows": rows}


def in_words(draw: views.ViewDraw, image: Tensor, config: Views) -> str:
    """What was drawn for one view: `crop 31 × 40 of 64 × 64, flipped, hue +0.05, blur 1.2 px`."""
    height, width = image.shape[1:]
    box = views.boxes(draw, height, width, config)
    parts = [f"crop {int(box.width)} × {int(box.height)} of {width} × {height} px"]
    if bool(draw.flip):
        parts.append("flipped")
    if bool(draw.jitter):
        sign = "×" if config.colour == "torchvision" else ""
        parts.append(f"brightness {sign}{float(draw.brightness):{'.2f' if sign else '+.2f'}}")
        parts += [f"contrast ×{float(draw.contrast):.2f}", f"saturation ×{float(draw.saturation):.2f}"]
        parts.append(f"hue {float(draw.hue):+.2f} turns")
    if bool(draw.grayscale):
        parts.append("grey")
    if bool(draw.blur):
        parts.append(f"blur {float(draw.sigma):.1f} px")
    if bool(draw.solarize):
        parts.append("solarized")
    return ", ".join(parts)


def drawn_neighbours(path: Path, source: Source) -> dict[str, Any] | None:
    """The looks of neighbours.json with tiles for the images in them; nothing when none was kept or is left."""
    try:
        record = read_json(path / moments.FILE)
        names = [str(name) for name in record["names"]]
        looks = [_shortened(look) for look in record["looks"]]
        queries = range(len(looks[0]["nearest"]))
        used = sorted({i for look in looks for row in look["nearest"] for i in row} | set(queries))
        images, sheet = _images([names[i] for i in used], source)
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
    """As many rows and columns as are shown."""
    rows = {name: [row[:NEAREST] for row in look[name][:QUERIES]] for name in ("nearest", "cosines")}
    return {"step": int(look["step"]), **rows}


def _images(names: Sequence[str], source: Source) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
    """Name, label and tile of each; tile -1 for those that are gone, and no sheet when all are."""
    where = found_by_name(source, names)
    images: list[dict[str, Any]] = []
    tiles: list[Tensor] = []
    with bar("Reading neighbours", len(names), "images") as shown:
        for name in names:
            found = readable(source, [where[name]], 1) if name in where else []
            entry = {"name": name, "tile": len(tiles) if found else -1}
            if found and source.labels is not None and source.labels.ndim == 1:
                entry["label"] = source.classes[int(source.labels[where[name]])]
            for _, image in found:
                side = tiles[0].shape[1] if tiles else side_for(min(image.shape[1:]), LARGEST_NEIGHBOUR)
                tiles.append(tile(image, side))
            images.append(entry)
            shown.advance()
    return images, sheets(tiles, BUDGET) if tiles else None
