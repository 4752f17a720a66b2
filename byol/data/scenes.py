"""The embedded data set: seeded procedural scenes with known class, boxes, masks and depth, a source like any other."""

from __future__ import annotations

import math
from functools import lru_cache, partial
from typing import Literal, NamedTuple, TypeAlias, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from byol.config import Data
from byol.data.address import Address
from byol.data.shapes import DRAW, Field, Frame, step
from byol.data.source import Source
from byol.errors import UsageError, nearest

Rng: TypeAlias = np.random.Generator
Split: TypeAlias = Literal["train", "test"]

SPLITS: tuple[Split, ...] = get_args(Split)
KINDS: tuple[str, ...] = tuple(DRAW)
COUNT, MOST = 5000, 10_000_000
MIN_SIZE = 16
VERSION = 2  # goes up whenever the same arguments give other pixels

# Metres. Everything but the background plane is nearer than FAR, the plane is beyond it in every pixel.
FAR = 7.0
_HAZE = 0.05  # light lost per metre, so that depth can be read from the image
_HIDDEN = 0.25  # what stands in front may hide this much of the main object
_OCCLUDER = -1


class Scene(NamedTuple):
    """One image with its annotations; K visible objects, the first is the main one."""

    image: torch.Tensor  # uint8 (3, S, S) RGB
    label: int  # kind of the main object
    boxes: torch.Tensor  # float32 (K, 4) x0 y0 x1 y1 in pixels, x1 and y1 exclusive, tight around the masks
    kinds: torch.Tensor  # int64 (K,) index into KINDS
    masks: torch.Tensor  # bool (K, S, S) visible pixels, disjoint
    semantic: torch.Tensor  # uint8 (S, S): 0 background or occluder, 1 + kind elsewhere
    depth: torch.Tensor  # float32 (S, S) metres


class _Pose(NamedTuple):
    """Place and radius in units of half the image, turn in radians, distance in metres, height over width."""

    x: float
    y: float
    radius: float
    turn: float
    distance: float
    squash: float = 1.0


class _Layer(NamedTuple):
    kind: int
    distance: float
    cover: Field  # share of the pixel, 0..1
    colour: Field  # (3, S, S)
    depth: Field


def open_source(address: Address, config: Data, split: str) -> Source:
    """`scenes[:COUNT]` in about the resolution of the views; the test part has a fifth as many."""
    count = scene_count(address)
    part: Split = "train" if split == "train" else "test"
    return scenes(count if part == "train" else max(count // 5, 1), size=scene_size(config), split=part)


def parts(address: Address) -> set[str]:
    return {"train", "test"}


def scene_count(address: Address) -> int:
    count = address.place or str(COUNT)
    if not count.isdecimal() or not 1 <= int(count[:12]) <= MOST:
        raise UsageError(
            f"'{address.text}' should be 'scenes' or 'scenes:COUNT', such as scenes:{COUNT}, with up to {MOST:,}."
        )
    return int(count)


def scene_size(config: Data) -> int:
    """Pixels along a side."""
    return min(max(config.resolution, 32), 96)


def scenes(count: int, *, size: int = 32, seed: int = 0, split: Split = "train") -> Source:
    """`count` scenes of `size` x `size` pixels, classes balanced within every ten; the splits share no randomness."""
    _check(size, seed, split)
    if count < 1:
        raise UsageError(f"scenes: count is {count}, it must be at least 1.")
    blocks = [_block(seed, split, block) for block in range(-(-count // len(KINDS)))]
    return Source(
        name="scenes",
        count=count,
        read=partial(_read, size=size, seed=seed, split=split),
        describe="scenes/{:06d}".format,
        labels=np.concatenate(blocks)[:count],
        classes=KINDS,
        stamp=partial(_stamp, f"version {VERSION}, {size} px, seed {seed}, {split}".encode()),
    )


def render(index: int, *, size: int = 32, seed: int = 0, split: Split = "train") -> Scene:
    """Scene `index`, a pure function of its arguments.

    Another size gives the same scene at another resolution, but for the grain and for objects on the edge of being
    left out because they hide too much or are hidden too much.
    """
    _check(size, seed, split)
    label = int(_block(seed, split, index // len(KINDS))[index % len(KINDS)])
    rng = _generator(seed, split, index, purpose=1)
    light = _uniform(rng, 0, 2 * math.pi)
    backdrop = _background(rng, size)
    layers = _keep(_arrange(rng, label, size, light), label)
    radiance, depth, owner = _compose(backdrop, layers)
    image = _expose(rng, radiance, depth, light)

    objects = [i for i, layer in enumerate(layers) if layer.kind != _OCCLUDER]
    objects.sort(key=lambda i: layers[i].kind != label)
    masks = np.stack([owner == i for i in objects])
    kinds = np.array([layers[i].kind for i in objects], dtype=np.int64)
    boxes = np.stack([_box(mask) for mask in masks])
    semantic = (masks * (1 + kinds)[:, None, None]).sum(0).astype(np.uint8)
    tensor = torch.from_numpy
    return Scene(tensor(image), label, tensor(boxes), tensor(kinds), tensor(masks), tensor(semantic), tensor(depth))


def _read(index: int, *, size: int, seed: int, split: Split) -> torch.Tensor:
    return render(index, size=size, seed=seed, split=split).image


def _stamp(stamp: bytes, index: int) -> bytes:
    return stamp


def _check(size: int, seed: int, split: str) -> None:
    if size < MIN_SIZE:
        raise UsageError(f"scenes: size is {size} pixels, it must be at least {MIN_SIZE}.")
    if seed < 0:
        raise UsageError(f"scenes: seed is {seed}, it must not be negative.")
    if split not in SPLITS:
        raise UsageError(f"scenes: there is no split {split!r}. {nearest(split, SPLITS)}")


def _generator(seed: int, split: Split, index: int, *, purpose: int) -> Rng:
    return np.random.default_rng((seed, SPLITS.index(split), index, purpose))


def _block(seed: int, split: Split, block: int) -> NDArray[np.int64]:
    """The labels of ten consecutive scenes: every kind once."""
    return np.argsort(_generator(seed, split, block, purpose=2).random(len(KINDS))).astype(np.int64)


def _uniform(rng: Rng, low: float, high: float) -> float:
    # NEP 19 lets numpy change its distributions; plain random() is the draw least likely to move.
    return low + (high - low) * float(rng.random())


def _pick(rng: Rng, count: int) -> int:
    return int(count * rng.random())


def _arrange(rng: Rng, label: int, size: int, light: float) -> list[_Layer]:
    """The main object, up to two smaller ones of other kinds, and often an occluder, in no order."""
    radius = _uniform(rng, 0.5, 0.95)
    main = _pose(rng, radius, 1.05 - radius, _uniform(rng, 1.6, 2.2))
    layers = [_object(rng, label, main, size, light)]
    others = [kind for kind in range(len(KINDS)) if kind != label]
    for _ in range((0, 0, 1, 1, 2)[_pick(rng, 5)]):
        radius = max(0.2, main.radius * _uniform(rng, 0.25, 0.4))
        pose = _pose(rng, radius, 0.85, _uniform(rng, 0.7, 1.2))
        layers.append(_object(rng, others.pop(_pick(rng, len(others))), pose, size, light))
    if rng.random() < 0.5:
        layers.append(_occluder(rng, main, size))
    return layers


def _pose(rng: Rng, radius: float, reach: float, length: float) -> _Pose:
    """Within `reach` of the centre and near upright; `length` is the true size, so what is nearer is larger."""
    x, y, turn = _uniform(rng, -reach, reach), _uniform(rng, -reach, reach), _uniform(rng, -0.4, 0.4)
    return _Pose(x, y, radius, turn, length / radius, _uniform(rng, 0.7, 1.0))


def _object(rng: Rng, kind: int, pose: _Pose, size: int, light: float) -> _Layer:
    frame = _frame(pose, size)
    distance, tone = DRAW[KINDS[kind]](frame)
    dark, bright = _colour(rng, 0.1, 0.45), _colour(rng, 0.55, 0.95)
    first, second = (dark, bright) if rng.random() < 0.5 else (bright, dark)
    lean = _uniform(rng, 0, 0.1)  # the face leans away along its own u axis
    facing = 1 - 3 * lean * math.cos(pose.turn - light) * frame.u
    depth = pose.distance * (1 + lean * np.clip(frame.u, -1, 1))
    if KINDS[kind] == "ball":
        depth = depth - 0.3 * np.sqrt(np.clip(1 - frame.rho**2, 0, 1))
    colour = (first + (second - first) * tone) * np.clip(facing, 0.6, 1.4)
    return _Layer(kind, pose.distance, step(-distance, frame.pixel), colour, depth)


def _occluder(rng: Rng, main: _Pose, size: int) -> _Layer:
    """A plain bar across the image or a plain box in front of the main object."""
    bearing, turn = _uniform(rng, 0, 2 * math.pi), _uniform(rng, 0, 2 * math.pi)
    offset = main.radius * _uniform(rng, 0.1, 0.9)
    x, y = main.x + offset * math.cos(bearing), main.y + offset * math.sin(bearing)
    width, height = main.radius * _uniform(rng, 0.1, 0.18), 3.0
    if rng.random() < 0.5:
        width, height = width * 2, main.radius * _uniform(rng, 0.2, 0.4)
    pose = _Pose(x, y, 1.0, turn, main.distance * _uniform(rng, 0.5, 0.8))
    frame = _frame(pose, size)
    distance = np.maximum(np.abs(frame.u) - width, np.abs(frame.v) - height)
    colour = np.broadcast_to(_colour(rng, 0.15, 0.85), (3, size, size))
    depth = np.full((size, size), pose.distance, np.float32)
    return _Layer(_OCCLUDER, pose.distance, step(-distance, frame.pixel), colour, depth)


def _keep(layers: list[_Layer], label: int) -> list[_Layer]:
    """Near to far, without what hides or rivals the main object and without what is itself nearly hidden."""
    main = layers[0].cover > 0.5
    kept: list[_Layer] = []
    taken = np.zeros(main.shape, dtype=bool)
    for layer in sorted(layers, key=lambda layer: layer.distance):
        mask = layer.cover > 0.5
        if layer.kind != label:
            hides = layer.distance < layers[0].distance and (main & (taken | mask)).sum() > _HIDDEN * main.sum()
            rivals = layer.kind != _OCCLUDER and mask.sum() > 0.6 * main.sum()
            hidden = (mask & ~taken).sum() <= max(4, 0.35 * mask.sum())
            if hides or rivals or hidden:
                continue
        kept.append(layer)
        taken |= mask
    return kept


def _compose(backdrop: tuple[Field, Field], layers: list[_Layer]) -> tuple[Field, Field, NDArray[np.int64]]:
    """Paint far to near: colours blend at the edges, depth and ownership switch at half cover."""
    image, depth = backdrop
    owner = np.full(depth.shape, len(layers))
    for i, layer in reversed(list(enumerate(layers))):
        image = image + (layer.colour - image) * layer.cover
        inside = layer.cover > 0.5
        # A leaning face may not reach behind what it covers.
        depth = np.where(inside, np.minimum(layer.depth, depth), depth)
        owner[inside] = i
    return image, depth.astype(np.float32), owner


def _expose(rng: Rng, image: Field, depth: Field, light: float) -> NDArray[np.uint8]:
    """Directional light, loss with depth, brightness and sensor grain, to uint8 (3, S, S)."""
    x, y = _grid(depth.shape[0])
    slope = _uniform(rng, 0, 0.25)
    gain = _uniform(rng, 0.8, 1.3)
    lit: Field = gain * np.exp(-_HAZE * depth) * (1 + slope * (x * math.cos(light) + y * math.sin(light)))
    grain = _uniform(rng, 0.0, 0.06) * (rng.random(image.shape, dtype=np.float32) - 0.5)
    exposed: Field = np.clip(image * lit + grain, 0, 1) * 255 + 0.5
    return exposed.astype(np.uint8)


def _background(rng: Rng, size: int) -> tuple[Field, Field]:
    """A slanted plane beyond FAR with a texture of low contrast; independent of the class."""
    x, y = _grid(size)
    slant_x, slant_y = _uniform(rng, -1.5, 1.5), _uniform(rng, -1.5, 1.5)
    depth = _uniform(rng, FAR + 3.2, FAR + 6) + slant_x * x + slant_y * y
    turn, phase = _uniform(rng, 0, 2 * math.pi), _uniform(rng, 0, 2 * math.pi)
    cos, sin = math.cos(turn), math.sin(turn)
    along, across = x * cos + y * sin, y * cos - x * sin
    frequency = _uniform(rng, 4, 14)
    texture = _pick(rng, 5)
    tone: Field
    if texture == 0:
        tone = (along + 1.4) / 2.8
    elif texture == 1:
        tone = 0.5 + 0.5 * np.sin(frequency * along + phase)
    elif texture == 2:
        tone = 0.5 + 0.25 * (np.sin(frequency * along + phase) + np.sin(frequency * across))
    else:
        cells = 5 if texture == 3 else 13
        weights = _interpolation(size, cells)
        tone = weights @ rng.random((cells, cells), dtype=np.float32) @ weights.T
    base = _colour(rng, 0.15, 0.9)
    contrast = _colour(rng, 0.1, 0.9) - 0.5
    return base + contrast * (tone - 0.5), depth


@lru_cache(maxsize=16)
def _interpolation(size: int, cells: int) -> Field:
    """(size, cells) linear interpolation weights from a coarse lattice to the pixel centres."""
    position = (np.arange(size) + 0.5) / size * (cells - 1)
    away: Field = np.abs(position[:, None] - np.arange(cells))
    return np.maximum(1 - away, 0).astype(np.float32)


@lru_cache(maxsize=16)
def _grid(size: int) -> tuple[Field, Field]:
    """Pixel centres, x (1, S) and y (S, 1), from -1 to 1."""
    centres = ((np.arange(size) + 0.5) * 2 / size - 1).astype(np.float32)
    return centres[None, :], centres[:, None]


def _colour(rng: Rng, low: float, high: float) -> Field:
    """(3, 1, 1): mean brightness between low and high, any hue, any saturation."""
    hue, saturation = _uniform(rng, 0, 1), _uniform(rng, 0.05, 0.3)
    wheel = np.cos(2 * math.pi * (hue + np.arange(3) / 3))
    return np.clip(_uniform(rng, low, high) + saturation * wheel, 0, 1).astype(np.float32)[:, None, None]


def _box(mask: NDArray[np.bool_]) -> Field:
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    return np.array([columns[0], rows[0], columns[-1] + 1, rows[-1] + 1], dtype=np.float32)


def _frame(pose: _Pose, size: int) -> Frame:
    x, y = _grid(size)
    dx, dy = (x - pose.x) / pose.radius, (y - pose.y) / pose.radius
    cos, sin = math.cos(pose.turn), math.sin(pose.turn)
    u, v = dx * cos + dy * sin, (dy * cos - dx * sin) / pose.squash
    return Frame(u, v, np.sqrt(u * u + v * v), 2 / size / pose.radius)
