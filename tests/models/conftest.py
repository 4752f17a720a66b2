"""A tiny encoder and labelled images whose classes a linear classifier mostly tells apart."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from byol import networks
from byol.checkpoint import save_encoder
from byol.config import Config, apply

NARROW = {"network.encoder": "resnet18", "network.width": 0.1, "network.small_images": True, "data.resolution": 32}
COLOURS = {"blue": (60, 80, 170), "green": (70, 150, 80), "red": (170, 70, 70)}


def write_classes(root: Path, each: int, seed: int = 0, spread: int = 90) -> Path:
    """Noisy images of the colours' names; some are nearer to another colour."""
    random = np.random.default_rng(seed)
    for name, colour in COLOURS.items():
        (root / name).mkdir(parents=True, exist_ok=True)
        for number in range(each):
            shift = random.integers(-spread, spread + 1, 3)
            noise = random.integers(-30, 31, (6, 6, 3))
            coarse = np.clip(np.array(colour) + shift + noise, 0, 255).astype(np.uint8)
            Image.fromarray(coarse).resize((40, 36)).save(root / name / f"{number:03d}.png")
    return root


@pytest.fixture(scope="session")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = apply(Config(), NARROW)
    torch.manual_seed(3)
    path = tmp_path_factory.mktemp("encoder") / "encoder.safetensors"
    save_encoder(path, networks.encoder(config.network), config, {"step": 0})
    return path


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Features are kept for all tests of the room, but not in the user's cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "models-cache"))


@pytest.fixture(scope="session")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 images of three classes."""
    return write_classes(tmp_path_factory.mktemp("classes") / "images", 20)
