"""`byol embed --map`: the last feature map of every image, written as it is computed, and a picture of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from byol import data
from byol.crops import center_crop, scale_of
from byol.data.loader import worker_count
from byol.data.source import Source
from byol.errors import BadData, UsageError
from byol.evals.encoder import Encoder, frozen, open_encoder
from byol.evals.features import CHUNK, centre_crops
from byol.networks import ResNet
from byol.run import pictures
from byol.run.files import placed, replacing, write_json
from byol.run.machine import represent
from byol.run.monitor import compact
from byol.run.painting import AS_IT_IS, Painter, painter
from byol.run.progress import bar, tell

SHOWN = 12  # images of the picture
CELL = 128  # px
COLUMNS = ("image", "components", "over it")
TAILS = 0.01  # of the places whose components may be cut off, at either end


def write_maps(
    path: Path, name: str, out: Path, split: str, settings: Mapping[str, Any] | None = None, sheet: Path | None = None
) -> None:
    """OUT.npy with maps float16 (N, features, h, w) of the images that can be read, and OUT.json with their names.

    `sheet` is a .png of some images beside the first three principal components of their maps.
    """
    if out.suffix != ".npy":
        raise UsageError(f"--out of feature maps should end in .npy, not be {out}.")
    if sheet and sheet.suffix != ".png":
        raise UsageError(f"--sheet should end in .png, not be {sheet}.")
    encoder = open_encoder(path, settings)
    if not isinstance(encoder.module, ResNet):
        raise UsageError(f"--map is for the ResNets of byol; {encoder.config.network.encoder} has no map it knows.")
    source, out = data.open_source(name, encoder.config.data, split), placed(out)
    kept, shown = list[int](), list[tuple[Tensor, Tensor]]()
    wanted = set(np.linspace(0, len(source) - 1, min(SHOWN, len(source))).astype(int).tolist())
    shape = _shape(encoder)
    with replacing(out, 2 * len(source) * int(np.prod(shape))) as file:
        _header(file, 0, shape)
        for maps, pixels, indices in mapped(encoder, source):
            file.write(np.ascontiguousarray(maps.numpy(), "<f2").data)
            shown += [(pixels[row], maps[row]) for row, index in enumerate(indices) if index in wanted]
            kept += indices
        if not kept:
            raise BadData(f"None of the {len(source)} images of {source.name} can be read.")
        file.seek(0)
        _header(file, len(kept), shape)  # as long as the first: numpy leaves room for any number of rows
    write_json(out.with_suffix(".json"), _facts(source, kept))
    if sheet and shown:
        paint = painter(source, encoder.config.data)
        rows = overlaid(shown, paint)
        pictures.sheet(placed(sheet), rows, list(COLUMNS), (CELL, CELL), footnote=paint.words)
    left_out = f"; {len(source) - len(kept)} could not be read" if len(kept) < len(source) else ""
    tell(f"{out}: {len(kept)} maps of {shape[0]} features at {shape[1]} x {shape[2]} places{left_out}")


def few(encoder: Encoder, images: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Centre crops of a few images (C, H, W), and their maps; none for an encoder that has no map."""
    if not isinstance(encoder.module, ResNet) or not images:
        return []
    scale = scale_of(encoder.config.data)
    pixels = torch.stack([compact(center_crop(i, encoder.resolution, scale=scale), scale) for i in images])
    with frozen(encoder) as module:
        assert isinstance(module, ResNet)
        maps = represent(module.features, pixels, encoder.config, replace(encoder.place, precision="float32"))
    return list(zip(pixels, maps, strict=True))


def mapped(encoder: Encoder, source: Source) -> Iterator[tuple[Tensor, Tensor, list[int]]]:
    """Maps float32 (n, features, h, w), centre crops (n, C, S, S) and the images' numbers, a chunk at a time."""
    exact = replace(encoder.place, precision="float32")
    workers = worker_count(encoder.config) if len(source) > CHUNK else 0
    with frozen(encoder) as module, bar("Embedding", len(source), "images") as shown:
        assert isinstance(module, ResNet)
        for pixels, indices, bad in centre_crops(source, encoder.config.data, workers):
            if indices:
                yield represent(module.features, pixels, encoder.config, exact), pixels, indices
            shown.advance(len(indices) + len(bad))


def _shape(encoder: Encoder) -> tuple[int, int, int]:
    """(features, h, w) of a map, by one empty image."""
    size = encoder.resolution
    blank = torch.zeros(1, encoder.config.network.channels, size, size, dtype=torch.uint8)
    exact = replace(encoder.place, precision="float32")
    with frozen(encoder) as module:
        assert isinstance(module, ResNet)
        _, features, height, width = represent(module.features, blank, encoder.config, exact).shape
    return features, height, width


def _header(file: BinaryIO, count: int, shape: tuple[int, int, int]) -> None:
    told = {"descr": "<f2", "fortran_order": False, "shape": (count, *shape)}
    np.lib.format.write_array_header_1_0(file, told)


def _facts(source: Source, kept: list[int]) -> dict[str, Any]:
    facts: dict[str, Any] = {"names": [source.describe(index) for index in kept]}
    if source.labels is not None:
        facts |= {"labels": source.labels[kept].tolist(), "classes": list(source.classes)}
    return facts


def components(maps: Tensor) -> Tensor:
    """Maps (n, features, h, w) → their first three principal components over all places, in [0, 1]: (n, 3, h, w).

    The sign of each component is the one that makes its mean cube positive, so that the same maps look the same.
    """
    count, features, height, width = maps.shape
    rows = maps.permute(0, 2, 3, 1).reshape(-1, features).double()
    rows = rows - rows.mean(0)
    basis = torch.linalg.svd(rows, full_matrices=False)[2][:3]
    found = torch.zeros(len(rows), 3, dtype=torch.float64)
    found[:, : len(basis)] = rows @ basis.T
    found = found * torch.where(found.pow(3).mean(0) < 0, -1.0, 1.0)
    low, high = found.quantile(TAILS, 0), found.quantile(1 - TAILS, 0)
    scaled = ((found - low) / (high - low).clamp(min=1e-12)).clamp(0, 1)
    return scaled.reshape(count, height, width, 3).permute(0, 3, 1, 2).float()


def overlaid(shown: Sequence[tuple[Tensor, Tensor]], paint: Painter = AS_IT_IS) -> list[list[Tensor]]:
    """Centre crops (C, S, S), uint8 or in [0, 1], and their maps → a row each, in [0, 1]: the image as the painter
    shows it, the components as red, green and blue, and these laid over it."""
    colours = components(torch.stack([maps for _, maps in shown]))
    rows = []
    for (pixels, _), colour in zip(shown, colours, strict=True):
        unit = pixels.float() / 255 if pixels.dtype == torch.uint8 else pixels
        image = paint.unit(unit).float() / 255
        large = F.interpolate(colour[None], size=image.shape[-2:], mode="nearest")[0]
        rows.append([image, large, 0.4 * image + 0.6 * large])
    return rows
