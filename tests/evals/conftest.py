"""The encoder that tests of evaluations share."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from byol import checkpoint, networks
from byol.config import Config, apply
from byol.evals.encoder import Encoder, open_encoder


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny encoder with statistics of its own, as a file."""
    config = apply(
        Config(),
        {
            "network.encoder": "resnet18",
            "network.width": 0.05,
            "network.small_images": True,
            "data.resolution": 32,
            "views.t.area_min": 0.3,
        },
    )
    torch.manual_seed(0)
    module = networks.encoder(config.network)
    module.train()(torch.rand(16, 3, 32, 32))
    file = tmp_path_factory.mktemp("run") / checkpoint.ENCODER
    checkpoint.save_encoder(file, module, config, {"step": 1})
    return file


@pytest.fixture
def encoder(path: Path) -> Encoder:
    return open_encoder(path, {"run.precision": "float32", "data.workers": 0})
