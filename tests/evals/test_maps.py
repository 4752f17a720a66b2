"""Feature maps on disk and their principal components."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import byol
from byol import networks
from byol.checkpoint import save_encoder
from byol.config import Config, apply
from byol.errors import BadData, UsageError
from byol.evals import maps
from tests.conftest import write_images

NARROW = {"network.encoder": "resnet18", "network.width": 0.05, "network.small_images": True, "data.resolution": 32}


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = apply(Config(), NARROW)
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("maps") / "encoder.safetensors"
    save_encoder(path, networks.encoder(config.network), config, {"step": 0})
    return path


def test_the_mean_of_a_map_is_the_representation(encoder: Path, folder: Path, tmp_path: Path) -> None:
    """Breaks if maps and names are not in the same order, an unreadable image shifts them, the header keeps the wrong
    number of rows, or the maps are not the encoder's last ones."""
    (folder / "class0" / "000.jpg").write_bytes(b"no image")
    settings = {"run.precision": "float32", "data.workers": 0}
    maps.write_maps(encoder, str(folder), tmp_path / "maps.npy", "train", settings, tmp_path / "sheet.png")
    stored = np.load(tmp_path / "maps.npy")
    features, names = byol.embed(encoder, folder)
    told = json.loads((tmp_path / "maps.json").read_text())
    assert told["names"] == names
    assert len(names) == 23
    assert stored.shape == (23, features.shape[1], 4, 4)
    assert np.abs(stored.astype(np.float32).mean((2, 3)) - features).max() <= 2e-3 * np.abs(features).max()
    assert Image.open(tmp_path / "sheet.png").size[0] > 3 * 100


def test_components_are_those_of_an_eigendecomposition() -> None:
    """Breaks if the maps are not centred, places and features are mixed up, or a sign follows chance."""
    generator = torch.Generator().manual_seed(0)
    scale = torch.tensor([5.0, 3.0, 2.0, 0.1, 0.1])[:, None, None]
    given = torch.randn(4, 5, 3, 3, generator=generator) * scale + 7
    rows = given.permute(0, 2, 3, 1).reshape(-1, 5).double()
    _, vectors = torch.linalg.eigh(torch.cov(rows.T))
    expected = (rows - rows.mean(0)) @ vectors.flip(1)[:, :3]
    found = maps.components(given).permute(0, 2, 3, 1).reshape(-1, 3).double()
    for number in range(3):
        pair = torch.corrcoef(torch.stack([found[:, number], expected[:, number]]))[0, 1]
        assert abs(float(pair)) > 0.99
    assert torch.equal(maps.components(given), maps.components(given))
    assert float(found.min()) == 0
    assert float(found.max()) == 1


def test_maps_that_cannot_be_written(encoder: Path, tmp_path: Path) -> None:
    """Breaks if a wrong name is found out after the work, or a folder without a readable image leaves a file."""
    images = write_images(tmp_path / "images", 3)
    with pytest.raises(UsageError, match=r"\.npy"):
        maps.write_maps(encoder, str(images), tmp_path / "maps.npz", "train")
    for path in images.rglob("*.jpg"):
        path.write_bytes(b"no image")
    with pytest.raises(BadData, match="None of the 3 images"):
        maps.write_maps(encoder, str(images), tmp_path / "maps.npy", "train")
    assert not (tmp_path / "maps.npy").exists()
