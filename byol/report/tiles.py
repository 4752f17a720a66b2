"""Images as the page carries them: square tiles on JPEG sheets, many to a sheet, within a number of bytes."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import interpolate

SIDES = (96, 64, 48, 32)  # multiples of JPEG's blocks of 16, so that tiles do not bleed into each other
QUALITIES = (84, 74, 62, 50, 36, 22)
COLUMNS, ROWS = 24, 24


def tile(image: Tensor, side: int) -> Tensor:
    """The central square of a uint8 image (3, H, W), as uint8 (3, side, side)."""
    height, width = image.shape[1:]
    short = min(height, width)
    top, left = (height - short) // 2, (width - short) // 2
    square = image[:, top : top + short, left : left + short]
    if short == side:
        return square.contiguous()
    small = interpolate(square[None].float(), size=(side, side), mode="bicubic", antialias=short > side)
    return small[0].clamp(0, 255).round().to(torch.uint8)


def side_for(pixels: int, most: int) -> int:
    """The largest tile that does not blow images of so many pixels up, up to `most`."""
    return next((side for side in SIDES if side <= min(pixels, most)), SIDES[-1])


def sheets(tiles: Sequence[Tensor], budget: int) -> dict[str, Any]:
    """What the page's script unpacks; quality, then size, gives way until the sheets fit in `budget` characters."""
    assert tiles
    side = tiles[0].shape[1]
    for smaller in (s for s in SIDES if s <= side):
        scaled = list(tiles) if smaller == side else [tile(t, smaller) for t in tiles]
        for quality in QUALITIES:
            pages = [_sheet(scaled[i : i + COLUMNS * ROWS], quality) for i in range(0, len(scaled), COLUMNS * ROWS)]
            if sum(map(len, pages)) <= budget:
                return {"side": smaller, "columns": COLUMNS, "each": COLUMNS * ROWS, "pages": pages}
    return {"side": smaller, "columns": COLUMNS, "each": COLUMNS * ROWS, "pages": pages}


def _sheet(tiles: Sequence[Tensor], quality: int) -> str:
    from PIL import Image

    side, rows = tiles[0].shape[1], (len(tiles) + COLUMNS - 1) // COLUMNS
    canvas = torch.zeros(3, rows * side, min(len(tiles), COLUMNS) * side, dtype=torch.uint8)
    for place, pixels in enumerate(tiles):
        row, column = divmod(place, COLUMNS)
        canvas[:, row * side : (row + 1) * side, column * side : (column + 1) * side] = pixels
    content = io.BytesIO()
    Image.fromarray(canvas.permute(1, 2, 0).contiguous().numpy()).save(content, "JPEG", quality=quality, optimize=True)
    return base64.b64encode(content.getvalue()).decode("ascii")
