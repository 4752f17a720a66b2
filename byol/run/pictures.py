"""Pictures for people as PNG files: curves of a run, and sheets of images, views, neighbours and predictions."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from byol.errors import UsageError
from byol.run.files import write_atomically
from byol.run.progress import say

CELL = 64
GAP = 2
LINE = 14  # height of a line of the legend
Colour = tuple[int, int, int]


def sheet(
    path: Path,
    rows: Sequence[Sequence[Tensor]],
    titles: Sequence[str] = (),
    cell: tuple[int, int] = (CELL, CELL),
    legend: Sequence[tuple[str, Colour]] = (),
    captions: Sequence[Sequence[str]] = (),
    footnote: str = "",
) -> None:
    """A grid of images, uint8 or float in [0, 1] (3, H, W) each, one list a row, with a title above each column.

    Each image fills a cell of (width, height); `legend` names colours below the grid; `captions`, one list a row, stand
    below the images, in up to two lines each; the footnote stands at the end.
    """
    from PIL import Image, ImageDraw

    top, (wide, high) = 14 if titles else 0, cell
    tall = high + GAP + (2 * LINE if captions else 0)  # of a row
    width = max(len(row) for row in rows) * (wide + GAP) + GAP
    bottom = len(rows) * tall + GAP + top
    places = _places(legend, width)
    end = bottom + (places[-1][1] + LINE if places else 0)
    lines = textwrap.wrap(footnote, max(20, width // 6))
    canvas = Image.new("RGB", (width, end + LINE * len(lines)), "white")
    for y, row in enumerate(rows):
        for x, image in enumerate(row):
            pixels = image if image.dtype == torch.uint8 else (image.clamp(0, 1) * 255).round().to(torch.uint8)
            tile = Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy())
            grows = tile.size[0] <= wide and tile.size[1] <= high
            scaled = tile.resize(cell, Image.Resampling.NEAREST if grows else Image.Resampling.BICUBIC)
            canvas.paste(scaled, (GAP + x * (wide + GAP), top + GAP + y * tall))
    draw = ImageDraw.Draw(canvas)
    for y, line in enumerate(captions):
        for x, caption in enumerate(line):
            plain = caption.encode("ascii", "replace").decode()  # the font has few other letters
            draw.text((GAP + x * (wide + GAP), top + GAP + y * tall + high + 1), plain, fill="black", spacing=1)
    for x, title in enumerate(titles):
        draw.text((GAP + x * (wide + GAP), 1), title, fill="black")
    for (name, colour), (x, y) in zip(legend, places, strict=True):
        draw.rectangle((x, bottom + y + 2, x + 9, bottom + y + 11), fill=colour, outline="black")
        draw.text((x + 13, bottom + y + 1), name, fill="black")
    for number, words in enumerate(lines):
        draw.text((GAP, end + LINE * number), words, fill="black")
    content = io.BytesIO()
    canvas.save(content, "PNG")
    write_atomically(path, content.getvalue())


def _places(legend: Sequence[tuple[str, Colour]], width: int) -> list[tuple[int, int]]:
    """Where each entry of a legend begins, in as many lines as it takes."""
    places, x, y = list[tuple[int, int]](), GAP, 0
    for name, _ in legend:
        length = 13 + 7 * len(name) + 8
        if x > GAP and x + length > width:
            x, y = GAP, y + LINE
        places.append((x, y))
        x += length
    return places


def class_colour(number: int) -> Colour:
    """As VOC has it: the bits of the number dealt out to red, green and blue, the lowest three to their highest."""
    bits = [sum(((number >> (3 * turn + channel)) & 1) << (7 - turn) for turn in range(3)) for channel in range(3)]
    return bits[0], bits[1], bits[2]


def of_classes(mask: Tensor, void: int) -> Tensor:
    """Class numbers (H, W) as colours uint8 (3, H, W); void is white."""
    colours = torch.tensor([class_colour(number) for number in range(256)], dtype=torch.uint8)
    colours[void] = 255
    return colours[mask.long()].permute(2, 0, 1)


def boxed(image: Tensor, boxes: Tensor, labels: Tensor, words: Sequence[str], cell: tuple[int, int]) -> Tensor:
    """An image uint8 (3, H, W) at the (width, height) of a cell, with boxes (K, 4) in the colours of their classes.

    Class 0 has colour 1: colour 0 is black, the background's.
    """
    from PIL import Image, ImageDraw

    x, y = cell[0] / image.shape[2], cell[1] / image.shape[1]
    canvas = Image.fromarray(image.permute(1, 2, 0).contiguous().numpy()).resize(cell, Image.Resampling.BICUBIC)
    draw = ImageDraw.Draw(canvas)
    for box, label, word in zip(boxes.tolist(), labels.tolist(), words, strict=True):
        colour = class_colour(label + 1)
        left, top, right, bottom = box[0] * x, box[1] * y, box[2] * x, box[3] * y
        draw.rectangle((left, top, max(left, right - 1), max(top, bottom - 1)), outline=colour, width=2)
        if word:
            draw.rectangle(draw.textbbox((left + 3, top + 2), word), fill=colour)
            draw.text((left + 3, top + 2), word, fill="white")
    return torch.from_numpy(np.asarray(canvas).transpose(2, 0, 1).copy())


def of_depth(metres: Tensor, low: float, high: float) -> Tensor:
    """Metres (H, W) as colours uint8 (3, H, W), red near, then yellow and green, blue far; 0, no reading, is black."""
    share = ((metres - low) / max(high - low, 1e-9)).clamp(0, 1)
    stops = torch.tensor([[160, 0, 30], [250, 150, 50], [250, 250, 150], [90, 190, 160], [40, 40, 150]]).float()
    place = share * (len(stops) - 1)
    below = place.long().clamp(max=len(stops) - 2)
    part = (place - below)[..., None]
    colours = stops[below] * (1 - part) + stops[below + 1] * part
    return torch.where((metres > 0)[..., None], colours, 0.0).round().to(torch.uint8).permute(2, 0, 1)


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


def few_labels(out: Path | None, points: Sequence[tuple[str, float, float]], metric: str) -> None:
    """few_labels.png: accuracy against the share of labels (paper, appendix C.1) from points (method, share, accuracy).

    Without a second share there is nothing to draw; without matplotlib a line says that nothing was drawn, since the
    figures themselves are worth more than their picture.
    """
    if out is None or len({share for _, share, _ in points}) < 2:
        return
    try:
        figure, axis = pyplot().subplots(figsize=(6, 4.5), constrained_layout=True)
    except UsageError as error:
        say(str(error))
        return
    for method in dict.fromkeys(method for method, _, _ in points):
        own = sorted((share, accuracy) for name, share, accuracy in points if name == method)
        axis.plot([100 * share for share, _ in own], [100 * value for _, value in own], marker="o", label=method)
    axis.set_xscale("log")
    ticks = sorted({100 * share for _, share, _ in points})
    axis.set_xticks(ticks, [f"{t:.3g}%" for t in ticks])
    axis.minorticks_off()
    axis.set(xlabel="labels used", ylabel=f"{metric} on test, %")
    axis.grid(alpha=0.3)
    axis.legend()
    save(out / "few_labels.png", figure)


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
