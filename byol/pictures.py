"""Pictures for people: curves of a run, sheets of views and of nearest neighbours, as PNG files."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from byol.errors import UsageError
from byol.records import write_atomically

CELL = 64
GAP = 2


def sheet(path: Path, rows: Sequence[Sequence[Tensor]], titles: Sequence[str] = ()) -> None:
    """A grid of images, uint8 or float in [0, 1] (3, H, W) each, one list a row, with a title above each column."""
    from PIL import Image, ImageDraw

    top = 14 if titles else 0
    width = max(len(row) for row in rows) * (CELL + GAP) + GAP
    canvas = Image.new("RGB", (width, len(rows) * (CELL + GAP) + GAP + top), "white")
    for y, row in enumerate(rows):
        for x, image in enumerate(row):
            pixels = image if image.dtype == torch.uint8 else (image.clamp(0, 1) * 255).round().to(torch.uint8)
            tile = Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy())
            scaled = tile.resize(
                (CELL, CELL), Image.Resampling.NEAREST if max(tile.size) <= CELL else Image.Resampling.BICUBIC
            )
            canvas.paste(scaled, (GAP + x * (CELL + GAP), top + GAP + y * (CELL + GAP)))
    for x, title in enumerate(titles):
        ImageDraw.Draw(canvas).text((GAP + x * (CELL + GAP), 1), title, fill="black")
    content = io.BytesIO()
    canvas.save(content, "PNG")
    write_atomically(path, content.getvalue())


class Nearest(NamedTuple):
    """Of each query (Q), the positions of the images most similar to it and their cosines, both (Q, count)."""

    positions: np.ndarray
    cosines: np.ndarray


def nearest(vectors: Tensor, queries: Tensor, count: int) -> Nearest:
    """Among the rows of `vectors` (N, D), each query row left out of its own answer."""
    normalized = torch.nn.functional.normalize(vectors.float(), dim=1)
    cosines = normalized[queries] @ normalized.T
    cosines[torch.arange(len(queries)), queries] = -2
    values, positions = cosines.topk(min(count, len(vectors) - 1), dim=1)
    return Nearest(positions.numpy(), values.numpy())


def neighbours(features: np.ndarray, queries: Sequence[int], count: int) -> np.ndarray:
    """Indices (len(queries), count) of the rows most similar to each query row, itself left out."""
    return nearest(torch.from_numpy(features), torch.tensor(list(queries)), count).positions


def pyplot() -> Any:
    """matplotlib's, drawing into files only."""
    try:
        import matplotlib
    except ImportError:
        raise UsageError("Curves need matplotlib: pip install 'byol[plots]'.") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def save(path: Path, figure: Any) -> None:
    """The figure as a PNG file, whole or not at all."""
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=110)
    pyplot().close(figure)
    write_atomically(path, content.getvalue())


def few_labels(path: Path, lines: Mapping[str, Sequence[tuple[float, float]]], metric: str) -> None:
    """Accuracy against the share of labels, a line a method, as (share, accuracy) points (paper, appendix C.1)."""
    figure, axis = pyplot().subplots(figsize=(6, 4.5), constrained_layout=True)
    for title, points in lines.items():
        shares, values = zip(*sorted(points), strict=True)
        axis.plot([100 * s for s in shares], [100 * v for v in values], marker="o", label=title)
    axis.set_xscale("log")
    ticks = sorted({100 * share for points in lines.values() for share, _ in points})
    axis.set_xticks(ticks, [f"{t:.3g}%" for t in ticks])
    axis.minorticks_off()
    axis.set(xlabel="labels used", ylabel=f"{metric} on test, %")
    axis.grid(alpha=0.3)
    axis.legend()
    save(path, figure)


def curves(path: Path, metrics: Sequence[Mapping[str, Any]], lines: Mapping[str, float] | None = None) -> None:
    """Loss, schedules and the monitor's measures over the steps; `lines` are levels drawn beside the kNN accuracy."""
    figure, axes = pyplot().subplots(2, 3, figsize=(13, 6.5), constrained_layout=True)
    panels = [
        ("loss", ["loss"]),
        ("learning rate and 1 − tau", ["lr", "tau"]),
        ("spread of projections (healthy near 1)", ["spread"]),
        ("effective rank", ["rank_representation", "rank_projection"]),
        ("a view finds its twin", ["retrieval"]),
        ("accuracy", ["knn", "probe_accuracy"]),
    ]
    for axis, (title, names) in zip(axes.flat, panels, strict=True):
        for name in names:
            points = [(m["step"], m[name]) for m in metrics if name in m]
            if points:
                steps, values = zip(*points, strict=True)
                if name == "tau":
                    axis.twinx().plot(steps, [1 - v for v in values], color="tab:orange", label="1 − tau")
                else:
                    axis.plot(steps, values, label=name.replace("_", " "))
        axis.set(title=title, xlabel="step")
        axis.grid(alpha=0.3)
    for place, (name, level) in enumerate((lines or {}).items()):
        axes.flat[-1].axhline(level, linestyle="--", color=f"C{place + 2}", label=name)
    for axis in (axes.flat[3], axes.flat[5]):
        if axis.get_legend_handles_labels()[0]:
            axis.legend(fontsize=8)
    save(path, figure)
