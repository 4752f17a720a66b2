"""Which axes of an array are images, channels, rows and columns."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from byol.data.source import BadImage

LETTERS = "NCYX"


class Layout(NamedTuple):
    """Where the axes are in the array; None: there is no such axis."""

    images: int | None
    channels: int | None
    rows: int
    columns: int


def layout(shape: tuple[int, ...], axes: str = "auto", stack: bool = False) -> Layout:
    """By a letter an axis, or, `auto`, by a rule: (H, W) is one channel; of (A, B, C) the shorter of A and C are the
    channels; the first axis of four counts images. In a `stack` the first axis always counts images."""
    if axes != "auto":
        return _given(shape, axes)
    count = len(shape) - stack
    if not 2 <= count <= (3 if stack else 4):
        raise BadImage(f"an array of {len(shape)} dimensions: {_wanted(stack)}", f"an array of {len(shape)} dimensions")
    first = int(stack or count == 4)
    images = 0 if first else None
    if len(shape) - first == 2:
        return Layout(images, None, first, first + 1)
    last = first + 2
    if shape[first] <= shape[last]:
        return Layout(images, first, first + 1, last)
    return Layout(images, last, first, first + 1)


def _given(shape: tuple[int, ...], axes: str) -> Layout:
    if len(axes) != len(shape):
        raise BadImage(
            f"an array of {len(shape)} dimensions, not the {len(axes)} of data.axes={axes}", "other dimensions"
        )
    where = {letter: axes.find(letter) for letter in LETTERS}
    images, channels, rows, columns = (where[letter] for letter in LETTERS)
    return Layout(None if images < 0 else images, None if channels < 0 else channels, rows, columns)


def _wanted(stack: bool) -> str:
    return "three or four are read, images first" if stack else "two to four are read, or those of data.axes"


def planes(image: np.ndarray, places: Layout) -> np.ndarray:
    """An image cut out of the array, whose axis of images is gone, as (C, H, W)."""
    order = [place for place in (places.channels, places.rows, places.columns) if place is not None]
    ranks = [sorted(order).index(place) for place in order]
    turned = image.transpose(ranks)
    return turned if places.channels is not None else turned[None]


def sizes(shape: tuple[int, ...], places: Layout) -> tuple[int, int, int, int]:
    """Images, channels, height and width."""
    images, channels = (1 if place is None else int(shape[place]) for place in (places.images, places.channels))
    return images, channels, int(shape[places.rows]), int(shape[places.columns])
