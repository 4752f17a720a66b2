"""Representations of whole data sets by a frozen encoder, kept on disk so that they are computed once."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from byol.config import Data
from byol.crops import MARGIN, center_crop, scale_of
from byol.data import open_source
from byol.data.loader import worker_count
from byol.data.parts import Part, as_source
from byol.data.source import BadImage, Source
from byol.data.workers import loaded
from byol.errors import BadData, DiskError, UsageError
from byol.evals.encoder import Encoder, frozen, open_encoder
from byol.run import caution
from byol.run.files import (
    disk_error,
    followed,
    open_regular,
    placed,
    read_json,
    replacing,
    user_cache,
    write_atomically,
    write_json,
)
from byol.run.machine import give_back, represent
from byol.run.progress import bar, name_left_out, say, tell

CHUNK, CHUNK_BYTES = 256, 1 << 28  # images of a chunk, and their bytes where they are large
KEPT_CHUNKS = 32  # after which memory is given back
ROWS = 1 << 14  # that are looked at together
NOT_FINITE = "its features are not finite"
LARGEST_SQUARE = 1e36  # of a feature vector's length; float32 ends at 3e38


class Features(NamedTuple):
    """Representations float32 (N, D), memory-mapped when they come from the cache, and what is known of each."""

    values: np.ndarray
    targets: np.ndarray
    left_out: tuple[int, ...] = ()  # positions in the part of the images that could not be read


def finite_rows(values: np.ndarray) -> np.ndarray:
    """Which rows of (N, D) have a length that float32 can compute with: the others have no distance to anything."""
    squares = np.einsum("nd,nd->n", values, values, dtype=np.float64, casting="unsafe")
    return np.asarray(squares <= LARGEST_SQUARE)  # a NaN is not


class Chunk(NamedTuple):
    """Consecutive images as centre crops (n, C, S, S), uint8 or in [0, 1], their numbers, and the names of those left
    out."""

    pixels: Tensor
    indices: list[int]
    bad: list[str]


class Crops(torch.utils.data.Dataset[Chunk]):
    """Item i is the i-th chunk of centre crops."""

    def __init__(self, source: Source, config: Data, margin: float = MARGIN) -> None:
        self.source, self.resolution, self.margin = source, config.resolution, margin
        self.channels, self.scale = config.channels or 3, scale_of(config)
        each = self.channels * config.resolution**2 * (1 if self.scale is None else 4)
        self.at_once = max(1, min(CHUNK, CHUNK_BYTES // each))

    def __len__(self) -> int:
        return (len(self.source) + self.at_once - 1) // self.at_once

    def __getitem__(self, chunk: int) -> Chunk:
        crops, kept, bad = [], [], []
        for index in range(chunk * self.at_once, min((chunk + 1) * self.at_once, len(self.source))):
            try:
                image = self.source.read(index)
            except BadImage as error:
                bad.append(f"{self.source.describe(index)} ({error})")
                continue
            crop = center_crop(image, self.resolution, margin=self.margin, scale=self.scale)
            # 8-bit images in 8 bits, a quarter of the memory; deep ones keep their precision.
            crops.append((crop * 255).round().to(torch.uint8) if self.scale is None else crop)
            kept.append(index)
        none = torch.empty(0, self.channels, self.resolution, self.resolution, dtype=torch.uint8)
        return Chunk(torch.stack(crops) if crops else none, kept, bad)


def centre_crops(source: Source, config: Data, workers: int = 0, margin: float = MARGIN) -> Iterator[Chunk]:
    """All images in order; one that cannot be read is named and left out."""
    crops, left_out = Crops(source, config, margin), 0
    for chunk in loaded(crops, range(len(crops)), min(workers, len(crops))):
        name_left_out(chunk.bad, left_out)
        left_out += len(chunk.bad)
        yield chunk


def represented(encoder: Encoder, source: Source, margin: float = MARGIN) -> Iterator[tuple[np.ndarray, list[int]]]:
    """Chunks (n, D) with the images' numbers, with a progress bar; float32, as features are kept and used often.

    An image whose features are not finite is named and left out, as one that cannot be read is.
    """
    exact = encoder.place if encoder.place.precision == "float64" else replace(encoder.place, precision="float32")
    workers = worker_count(encoder.config) if len(source) > CHUNK else 0
    given = infinite = 0
    with frozen(encoder) as module, bar("Embedding", len(source), "images") as shown:
        for number, (pixels, indices, bad) in enumerate(centre_crops(source, encoder.config.data, workers, margin)):
            if indices:
                values = represent(module, pixels, encoder.config, exact).numpy()
                finite = finite_rows(values)
                wrong = [source.describe(i) for i, sound in zip(indices, finite, strict=True) if not sound]
                name_left_out([f"{name} ({NOT_FINITE})" for name in wrong], infinite)
                given, infinite = given + int(finite.sum()), infinite + len(wrong)
                yield values[finite], [i for i, sound in zip(indices, finite, strict=True) if sound]
            if number % KEPT_CHUNKS == 0:
                give_back()
            shown.advance(len(indices) + len(bad))
    if not given and infinite:
        raise BadData(f"{encoder.name} gives no usable features: those of all {infinite} images are not finite.")
    if not given:
        raise BadData(f"None of the {len(source)} images of {source.name} can be read.")


def extract(encoder: Encoder, source: Source) -> tuple[np.ndarray, list[int]]:
    """All representations (N, D) in memory, and the numbers of the images that could be read."""
    # One array from the start: chunks kept one by one would lie between the network's activations, whose room could
    # then not be used again, and memory would grow with the number of images.
    values, read = np.empty((len(source), encoder.num_features), np.float32), list[int]()
    for chunk, indices in represented(encoder, source):
        values[len(read) : len(read) + len(indices)] = chunk
        read += indices
    return values[: len(read)], read


def of_part(encoder: Encoder, part: Part, cache: Path, margin: float = MARGIN) -> Features:
    """The features of a part: from the cache when the same encoder has seen the same images, else computed and kept."""
    path = _path(cache, f"{_seen_by(encoder, margin)} {part.fingerprint()}")
    facts = path.with_suffix(".json")
    shape = (len(part), encoder.num_features)
    values, left_out = _mapped(path, shape), _left_out(facts, len(part))
    if values is None or left_out is None:
        kept = list[int]()
        _store(path, shape, _rows(encoder, part, margin, kept))
        left_out = sorted(set(range(len(part))) - set(kept))
        write_json(facts, {"left_out": left_out})
        values = _mapped(path, shape)
        assert values is not None
    targets = np.delete(part.targets, left_out, axis=0)
    return Features(values[: len(part) - len(left_out)], targets, tuple(left_out))


def of_both(encoder: Encoder, first: Part, second: Part, cache: Path, margin: float = MARGIN) -> Features:
    """Two parts one after the other, from their own features: no image is looked at twice."""
    one, two = (of_part(encoder, part, cache, margin) for part in (first, second))
    parts = f"{first.fingerprint()} {second.fingerprint()}"
    path = _path(cache, f"{_seen_by(encoder, margin)} {parts}")
    shape = (len(one.values) + len(two.values), encoder.num_features)
    found = _mapped(path, shape)
    if found is None:
        rows = (values[i : i + CHUNK] for values in (one.values, two.values) for i in range(0, len(values), CHUNK))
        _store(path, shape, rows)
        found = _mapped(path, shape)
        assert found is not None
    return Features(found, np.concatenate([one.targets, two.targets]))


def _seen_by(encoder: Encoder, margin: float) -> str:
    """All that features depend on besides the images; of the range of values only where it is not that of 8 bits."""
    told = f"{encoder.checksum()} {encoder.resolution} {margin:.6f}"
    return f"{told} {encoder.config.data.range}" if scale_of(encoder.config.data) else told


def _path(cache: Path, key: str) -> Path:
    return cache / f"{hashlib.sha256(key.encode()).hexdigest()[:24]}.npy"


def _mapped(path: Path, shape: tuple[int, int]) -> np.ndarray | None:
    """Writable for torch, which wants that, though what is written never reaches the file; None: not there, or not
    these features."""
    try:
        open_regular(path).close()  # a pipe would be waited for
        found = np.lib.format.open_memmap(path, mode="c", max_header_size=10_000)
    except FileNotFoundError:
        return None
    except Exception:  # numpy's parser of headers lets through whatever damage raises in it
        found = None
    if not isinstance(found, np.memmap) or not _sound(found, shape):
        say(f"{path} is damaged: the features are computed again.")
        return None
    return found


def _sound(found: np.ndarray, shape: tuple[int, int]) -> bool:
    if found.dtype != np.dtype("<f4") or found.shape != shape:
        return False
    return all(finite_rows(found[row : row + ROWS]).all() for row in range(0, shape[0], ROWS))


def _left_out(path: Path, count: int) -> list[int] | None:
    """The images that could not be read; None: not known, or damaged."""
    try:
        found: Any = read_json(path)["left_out"] if path.exists() else None
    except (DiskError, KeyError, TypeError):
        return None
    sound = isinstance(found, list) and all(type(i) is int and 0 <= i < count for i in found)
    return found if sound and len(set(found)) == len(found) < count else None


def _rows(encoder: Encoder, part: Part, margin: float, kept: list[int]) -> Iterator[np.ndarray]:
    """The readable images' features in order, then zeros where the unreadable ones would stand."""
    for values, indices in represented(encoder, as_source(part), margin):
        kept += indices
        yield values
    yield np.zeros((len(part) - len(kept), encoder.num_features), np.float32)


def _store(path: Path, shape: tuple[int, int], rows: Iterator[np.ndarray]) -> None:
    """A .npy file written row by row: a full disk is an error here, where a memory map would kill the process."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise disk_error(path, error, 0) from None
    with replacing(path, 4 * shape[0] * shape[1]) as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
        for values in rows:
            file.write(np.ascontiguousarray(values, "<f4").data)


def default_cache() -> Path:
    """Where features are kept when nothing else is asked for."""
    return followed(user_cache("features"))


def embed(path: str | Path, data: str | Path, split: str = "train") -> tuple[np.ndarray, list[str]]:
    """Features (N, D) and names of all images in `data`, by the encoder of a run or of any file that holds one."""
    source, values, kept = _embed(open_encoder(path), str(data), split)
    return values, [source.describe(i) for i in kept]


def _embed(encoder: Encoder, name: str, split: str) -> tuple[Source, np.ndarray, list[int]]:
    source = open_source(name, encoder.config.data, split)
    return source, *extract(encoder, source)


def write_features(path: Path, data: str, out: Path, split: str, settings: Mapping[str, Any] | None = None) -> None:
    """A .npz of features, names and, when there are any, labels and classes."""
    if out.suffix != ".npz":
        raise UsageError(f"--out should end in .npz, not be {out}.")
    encoder = open_encoder(path, settings)
    caution.repeat(path)
    source, values, kept = _embed(encoder, data, split)
    arrays: dict[str, Any] = {"features": values, "names": np.array([source.describe(i) for i in kept])}
    if source.labels is not None:
        arrays |= {"labels": source.labels[kept], "classes": np.array(source.classes)}
    if told := caution.sentence(path):
        arrays["verdict"] = np.array([told])
    content = io.BytesIO()
    np.savez(content, **arrays)
    out = placed(out)
    write_atomically(out, content.getvalue())
    left_out = f"; {len(source) - len(kept)} could not be read" if len(kept) < len(source) else ""
    tell(f"{out}: {values.shape[0]} images, {values.shape[1]} features each{left_out}")
