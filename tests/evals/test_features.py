"""Encoders as evaluations see them, and their features: unmoved, computed once, and with no gap."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import byol
from byol import checkpoint, networks
from byol.config import Config, apply
from byol.data.folder import folder as folder_source
from byol.data.parts import whole
from byol.evals import features
from byol.evals.encoder import Encoder, checksum, frozen, open_encoder, random_encoder
from tests.conftest import write_images


def test_frozen_means_frozen(encoder: Encoder) -> None:
    """Breaks if a moved weight or batch statistic goes unnoticed."""
    with frozen(encoder) as module:
        module(torch.rand(4, 3, 32, 32))
    for name in ("conv1.weight", "layer3.0.bn1.running_mean", "bn1.num_batches_tracked"):
        with pytest.raises(AssertionError, match="changed"), frozen(encoder) as module:
            module.state_dict()[name].add_(1)


def test_checksum_sees_names_shapes_and_bytes() -> None:
    """Breaks if two different modules share a checksum, and with it their cached features."""
    one, two = nn.Linear(2, 3), nn.Linear(3, 2)
    with torch.no_grad():
        for part in (one, two):
            part.weight.fill_(1)
            part.bias.zero_()
    assert checksum(one) != checksum(two)
    assert checksum(one) != checksum(nn.Sequential(one))


@pytest.mark.parametrize("zero", [True, False])
def test_a_random_encoder_starts_as_the_run_did(zero: bool, tmp_path: Path) -> None:
    """Breaks if the baseline of a run is a network that starts in another way."""
    config = apply(Config(), {"network.encoder": "resnet18", "network.width": 0.05, "network.zero_init_last": zero}, "")
    checkpoint.save_encoder(tmp_path / "encoder.safetensors", networks.encoder(config.network), config, {})
    found = random_encoder(open_encoder(tmp_path), 0).module
    assert bool((found.layer1[0].bn2.weight == 0).all()) == zero


def test_features_are_computed_once(encoder: Encoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks if the cache is missed for the same images, or hit for a changed file or another encoder."""
    part = whole(folder_source(write_images(tmp_path / "images", 12)))
    first = features.of_part(encoder, part, tmp_path / "cache")
    calls = []
    original = features.represent
    monkeypatch.setattr(features, "represent", lambda *a: calls.append(1) or original(*a))
    again = features.of_part(encoder, part, tmp_path / "cache")
    assert not calls
    assert isinstance(again.values.base if again.values.base is not None else again.values, np.memmap)
    np.testing.assert_array_equal(first.values, again.values)
    features.of_part(random_encoder(encoder, 5), part, tmp_path / "cache")
    assert len(calls) == 1
    file = next((tmp_path / "images" / "class0").iterdir())
    file.write_bytes(file.read_bytes() + b" ")
    features.of_part(encoder, part, tmp_path / "cache")
    assert len(calls) == 2


def test_bad_images_leave_no_gap(encoder: Encoder, tmp_path: Path) -> None:
    """Breaks if features and targets slide against each other where an image cannot be read."""
    root = write_images(tmp_path / "images", 12)
    sound = features.of_part(encoder, whole(folder_source(root)), tmp_path / "cache")
    (root / "class0" / "004.jpg").write_bytes(b"no image")
    part = whole(folder_source(root))
    found = features.of_part(encoder, part, tmp_path / "cache")
    place = [part.source.describe(i) for i in range(12)].index("class0/004.jpg")
    np.testing.assert_array_equal(found.values, np.delete(sound.values, place, axis=0))
    assert found.targets.tolist() == np.delete(part.targets, place).tolist()
    both = features.of_both(encoder, part, part, tmp_path / "cache")
    np.testing.assert_array_equal(both.values, np.concatenate([found.values, found.values]))


def test_embed_takes_its_arguments_by_name(path: Path, tmp_path: Path) -> None:
    """Breaks if the names of the parameters change that other programs use."""
    folder = write_images(tmp_path / "images", 4)
    values, names = byol.embed(path=path, data=folder)
    assert values.shape == (4, open_encoder(path).num_features)
    assert len(names) == 4
