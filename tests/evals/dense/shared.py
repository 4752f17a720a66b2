"""Encoders and folders for the tests of dense tasks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image

from byol import networks
from byol.config import Config, apply
from byol.evals.encoder import Encoder
from byol.run.machine import choose


def encoder_of(depth: int = 18, width: float = 0.125, small: bool = True, padding: str = "symmetric") -> Encoder:
    """Random weights, float32, no loader workers."""
    config = apply(
        Config(),
        {
            "network.encoder": f"resnet{depth}",
            "network.width": width,
            "network.small_images": small,
            "network.padding": padding,
            "data.resolution": 32,
            "data.workers": 0,
            "run.precision": "float32",
        },
    )
    torch.manual_seed(0)
    return Encoder("random", networks.encoder(config.network).eval(), config, choose(config))


def write_image(path: Path, width: int = 24, height: int = 16, seed: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 255, (height, width, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)


def write_map(path: Path, values: np.ndarray) -> None:
    """uint8 as grey, uint16 as 16-bit grey, (H, W, 3) as colours."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(values).save(path)
