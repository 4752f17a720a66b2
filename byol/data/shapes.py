"""The ten kinds of objects in the embedded scenes, each an outline and a pattern as seen from its own middle."""

from __future__ import annotations

import cmath
import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

# Computed in float32; the stubs lose that wherever a Python float takes part.
Field: TypeAlias = NDArray[np.floating[Any]]  # (S, S), colours (3, S, S)
Surface: TypeAlias = tuple[Field, Field]  # signed distance to the outline, tone 0..1 between the two colours


class Frame(NamedTuple):
    """Pixel positions seen from an object: its radius is 1, a pixel is `pixel` wide."""

    u: Field
    v: Field
    rho: Field
    pixel: float


def step(field: Field, width: float) -> Field:
    """0 where the field is negative, 1 where positive, a ramp `width` wide between: the anti-aliasing."""
    ramp: Field = np.clip(field / width + 0.5, 0, 1)
    return ramp


def _waves(field: Field, frequency: float, pixel: float) -> Field:
    return step(np.sin(frequency * field), frequency * pixel)


def _fold(frame: Frame, arms: int) -> Field:
    """The angle from the middle of the nearest of `arms` equal sectors."""
    angle, sector = np.arctan2(frame.v, frame.u), 2 * math.pi / arms
    return angle - sector * np.round(angle / sector)


def _ball(frame: Frame) -> Surface:
    """A smooth highlight off the centre that fades to the rim."""
    glow = np.sqrt((frame.u - 0.3) ** 2 + frame.v**2)
    return frame.rho - 1, np.clip(1 - 0.85 * glow, 0, 1)


def _tile(frame: Frame) -> Surface:
    """A long tile with stripes across."""
    return np.maximum(np.abs(frame.u) - 1, np.abs(frame.v) - 0.6), _waves(frame.u, 11.0, frame.pixel)


def _board(frame: Frame) -> Surface:
    """A square of checkers."""
    edge = np.maximum(np.abs(frame.u), np.abs(frame.v)) - 0.82
    turns = math.pi / 0.41
    return edge, step(np.sin(turns * frame.u) * np.sin(turns * frame.v), 7.7 * frame.pixel)


def _dots(frame: Frame) -> Surface:
    """A disc with polka dots."""
    period = 0.56
    column, row = frame.u / period, frame.v / period
    away = np.sqrt((column - np.round(column)) ** 2 + (row - np.round(row)) ** 2) * period
    return frame.rho - 1, step(0.17 - away, frame.pixel)


def _ring(frame: Frame) -> Surface:
    """A ring wound like a rope."""
    angle = np.arctan2(frame.v, frame.u)
    return np.abs(frame.rho - 0.74) - 0.26, _waves(angle + frame.rho, 7.0, frame.pixel / 0.74)


def _star(frame: Frame) -> Surface:
    """A five-pointed star whose arms have a bright and a dark half."""
    bend = _fold(frame, 5)
    x, y = frame.rho * np.cos(bend), frame.rho * np.sin(bend)
    inner = cmath.rect(0.5, math.pi / 5)  # the corner between two arms
    edge = ((x - 1) * inner.imag + np.abs(y) * (1 - inner.real)) / abs(1 - inner)
    return edge, step(y, frame.pixel)


def _cross(frame: Frame) -> Surface:
    """A cross with a broad rim."""
    u, v, arm = np.abs(frame.u), np.abs(frame.v), 0.38
    edge = np.minimum(np.maximum(u - 1, v - arm), np.maximum(u - arm, v - 1))
    return edge, step(edge + 0.19, frame.pixel)


def _triangle(frame: Frame) -> Surface:
    """A triangle with chevrons."""
    bend = _fold(frame, 3)
    edge = frame.rho * np.cos(bend) - 0.55
    return edge, _waves(frame.u + np.abs(frame.v), 9.0, 1.4 * frame.pixel)


def _crescent(frame: Frame) -> Surface:
    """A crescent with irregular blotches."""
    bite = 0.72 - np.sqrt((frame.u - 0.5) ** 2 + frame.v**2)
    u, v = 6 * frame.u, 6 * frame.v
    blotch = np.sin(u + 2 * np.sin(v * 0.7)) + np.sin(v * 1.3 + 2 * np.sin(u * 0.6))
    return np.maximum(frame.rho - 1, bite), step(blotch, 9.0 * frame.pixel)


def _flower(frame: Frame) -> Surface:
    """A flower of six petals with rings around its heart."""
    angle = np.arctan2(frame.v, frame.u)
    petals = 0.82 + 0.18 * np.cos(6 * angle)
    return (frame.rho - petals) * 0.75, _waves(frame.rho / petals, 12.0, 1.3 * frame.pixel)


DRAW: dict[str, Callable[[Frame], Surface]] = {
    "ball": _ball,
    "tile": _tile,
    "board": _board,
    "dots": _dots,
    "ring": _ring,
    "star": _star,
    "cross": _cross,
    "triangle": _triangle,
    "crescent": _crescent,
    "flower": _flower,
}
