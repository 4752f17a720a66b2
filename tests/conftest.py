"""Small data and the smallest whole config, shared by the tests of runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from byol.data import sharding
from tests.zygote import Zygote

TINY = {
    "data.resolution": 32,
    "data.holdout": 0.0,
    "network.encoder": "resnet18",
    "network.width": 0.05,
    "network.small_images": True,
    "network.projector_hidden": 16,
    "network.predictor_hidden": 16,
    "network.projection": 8,
    "optim.batch": 8,
    "optim.epochs": 2,
    "optim.warmup_epochs": 0.5,
    "run.precision": "float32",
    "run.monitor_images": 16,
    "run.log_every": 1,
    "run.threads": 1,
}


@pytest.fixture
def tiny() -> dict[str, object]:
    """Overrides of a run that takes a second."""
    return dict(TINY)


def write_images(root: Path, count: int, classes: int = 2, sides: tuple[int, ...] = (40, 48)) -> Path:
    """JPEG files of smooth colours in class folders, of varying size."""
    random = np.random.default_rng(0)
    for index in range(count):
        folder = root / f"class{index % classes}"
        folder.mkdir(parents=True, exist_ok=True)
        height, width = sides[index % len(sides)], sides[(index // 2) % len(sides)]
        coarse = random.integers(0, 255, (4, 4, 3), dtype=np.uint8)
        Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC).save(folder / f"{index:03d}.jpg")
    return root


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """24 JPEG images of two classes."""
    return write_images(tmp_path / "images", 24)


@pytest.fixture(scope="session")
def zygote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zygote]:
    """Commands that begin at once."""
    found = Zygote(tmp_path_factory.mktemp("zygote"))
    yield found
    found.close()


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Small tensors: on a busy machine, waiting for a second thread takes longer than the work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def recorded() -> dict[str, torch.Tensor]:
    """What the reference code's augmentations gave for images that are in it too."""
    file = Path(__file__).resolve().parents[2] / "shared" / "parity" / "augment_ops.npz"
    if not file.exists():
        pytest.skip("the reference code's recorded arrays (shared/parity/augment_ops.npz) are not beside the project")
    with np.load(file, allow_pickle=False) as arrays:
        return {name: torch.from_numpy(arrays[name]).permute(2, 0, 1)[None].contiguous() for name in arrays}


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing is kept in the user's cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def shards(folder: Path, tmp_path: Path) -> Path:
    """The 24 images of `folder` in six shards or so, of four each."""
    sharding.shard(folder, tmp_path / "shards", 20_000)
    assert len(list((tmp_path / "shards").glob("*.tar"))) >= 5
    return tmp_path / "shards"
