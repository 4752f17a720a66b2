"""Small data and the smallest whole config, shared by the tests of runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

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
