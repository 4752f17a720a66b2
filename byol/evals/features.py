"""Representations of whole data sets by a frozen encoder."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from byol import data, views
from byol.checkpoint import encoder_header, load_encoder
from byol.config import Config, apply
from byol.crops import center_crop
from byol.data.loader import quiet_worker, worker_count
from byol.data.source import BadImage, Source
from byol.errors import BadData, UsageError
from byol.machine import Machine, choose
from byol.progress import bar, say
from byol.records import write_atomically

CHUNK = 256


class Features(NamedTuple):
    """Representations float32 (N, D) of the images that could be read, with their names and, if any, labels."""

    values: np.ndarray
    names: list[str]
    labels: np.ndarray | None
    classes: tuple[str, ...]


class Crops(torch.utils.data.Dataset[Any]):
    """Item i is a chunk of centre crops uint8 and the indices of those that could be read."""

    def __init__(self, source: Source, resolution: int) -> None:
        self.source, self.resolution = source, resolution

    def __getitem__(self, chunk: int) -> tuple[Tensor, list[int], list[str]]:
        crops, kept, bad = [], [], []
        for index in range(chunk * CHUNK, min((chunk + 1) * CHUNK, len(self.source))):
            try:
                image = self.source.read(index)
            except BadImage as error:
                bad.append(f"{self.source.describe(index)} ({error})")
                continue
            crops.append((center_crop(image, self.resolution) * 255).round().to(torch.uint8))
            kept.append(index)
        size = self.resolution
        return torch.stack(crops) if crops else torch.empty(0, 3, size, size, dtype=torch.uint8), kept, bad


def centre_crops(source: Source, resolution: int, workers: int = 0) -> Iterator[tuple[Tensor, list[int], list[str]]]:
    """All images in order, as chunks of centre crops uint8 (n, 3, S, S)."""
    chunks = range((len(source) + CHUNK - 1) // CHUNK)
    workers = min(workers, len(chunks))
    loader: DataLoader[Any] = DataLoader(
        Crops(source, resolution),
        batch_size=None,
        sampler=chunks,
        num_workers=workers,
        worker_init_fn=quiet_worker if workers else None,
    )
    yield from loader


@torch.inference_mode()
def represent(encoder: nn.Module, pixels: Tensor, config: Config, place: Machine) -> Tensor:
    """Representations float32 (N, D) of uint8 images (N, 3, S, S)."""
    found = []
    for chunk in pixels.split(CHUNK):
        scaled = views.normalize(chunk.to(place.device).float() / 255, config.views.mean, config.views.std)
        with place.autocast():
            found.append(encoder(place.images(scaled, config)).float().cpu())
    return torch.cat(found) if found else torch.empty(0, 0)


def extract(encoder: nn.Module, source: Source, config: Config, place: Machine, workers: int = 0) -> Features:
    """The frozen encoder's representation of every image's centre crop, with a progress bar; bad images are named."""
    was_training = encoder.training
    encoder.eval().to(**place.placement(config))
    values, kept = [], []
    with bar("Embedding", len(source), "images") as shown:
        for pixels, indices, bad in centre_crops(source, config.data.resolution, workers):
            for name in bad:
                say(f"Left out: {name}")
            if indices:
                values.append(represent(encoder, pixels, config, place).numpy())
            kept += indices
            shown.advance(len(indices) + len(bad))
    encoder.train(was_training)
    if not kept:
        raise BadData(f"None of the {len(source)} images of {source.name} can be read.")
    labels = None if source.labels is None else source.labels[kept]
    return Features(np.concatenate(values), [source.describe(i) for i in kept], labels, source.classes)


def open_encoder(path: str | Path) -> tuple[nn.Module, Config]:
    """An encoder with the part of the config that its input depends on."""
    header = encoder_header(path)
    config = apply(
        Config(),
        {
            "views.mean": header["mean"],
            "views.std": header["std"],
            "data.resolution": header["resolution"],
            "run.precision": "float32",  # features are kept, so exact ones are worth twice the time
        },
        str(path),
    )
    return load_encoder(path), config


def embed(path: str | Path, data_name: str | Path, split: str = "train") -> tuple[np.ndarray, list[str]]:
    """Features (N, D) and names of all images in `data_name`, by the encoder of a run."""
    features = _embed(path, data_name, split)
    return features.values, features.names


def _embed(path: str | Path, data_name: str | Path, split: str) -> Features:
    encoder, config = open_encoder(path)
    source = data.open_source(str(data_name), config.data, split)
    return extract(encoder, source, config, choose(config), worker_count(config))


def write_features(path: Path, data_name: str, out: Path, split: str) -> None:
    """A .npz of features, names and, when there are any, labels and classes."""
    if out.suffix != ".npz":
        raise UsageError(f"--out should end in .npz, not be {out}.")
    features = _embed(path, data_name, split)
    arrays: dict[str, Any] = {"features": features.values, "names": np.array(features.names)}
    if features.labels is not None:
        arrays |= {"labels": features.labels, "classes": np.array(features.classes)}
    content = io.BytesIO()
    np.savez(content, **arrays)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, content.getvalue())
    print(f"{out}: {features.values.shape[0]} images, {features.values.shape[1]} features each")
