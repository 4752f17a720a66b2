"""Dense tasks on images that are no 8-bit colours: five channels of 16 bits in files of NumPy and TIFF, and grey."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from byol import networks
from byol.config import apply
from byol.data.source import BadImage
from byol.evals.dense import depth, geometry
from byol.evals.encoder import Encoder
from byol.evals.evaluation import open_data, run_protocol
from byol.evals.protocol import Session
from byol.evals.spec import PROTOCOLS, Depth, Segmentation
from tests.evals.dense.shared import encoder_of, write_map
from tests.evals.dense.test_dense import TINY
from tests.evals.dense.test_detection import ANNOTATION, thing

LOW, HIGH = 500.0, 4000.0


def encoder_for(channels: int, range_: str) -> Encoder:
    """Random weights for other images."""
    fields: dict[str, Any] = {
        **{"data.channels": channels, "data.range": range_, "network.channels": channels},
        **{"views.mean": (0.4,) * channels, "views.std": (0.2,) * channels},
    }
    base = encoder_of()
    config = apply(base.config, fields)
    torch.manual_seed(0)
    return Encoder("random", networks.encoder(config.network).eval(), config, base.place)


def five(seed: int) -> np.ndarray:
    """uint16 (16, 24, 5), of which the last channel is bright in the left half."""
    values = np.random.default_rng(seed).integers(0, 3000, (16, 24, 5)).astype(np.uint16)
    values[:, :12, 4] += 2000
    return values


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Images in NumPy files beside masks, depth maps and, as a tree of VOC, boxes."""
    for index in range(12):
        for place in ("seg/images", "depth/images", "voc/JPEGImages"):
            (tmp_path / place).mkdir(parents=True, exist_ok=True)
            np.save(tmp_path / place / f"{index}.npy", five(index))
        halves = np.repeat([[0, 1]], 12, 1).repeat(16, 0).astype(np.uint8)
        write_map(tmp_path / f"seg/masks/{index}.png", halves)
        write_map(tmp_path / f"depth/depth/{index}.png", halves.astype(np.uint16) * 1000 + 500)
        (tmp_path / "voc/Annotations").mkdir(exist_ok=True)
        (tmp_path / f"voc/Annotations/{index}.xml").write_text(ANNOTATION.format(thing(2, 2, 12, 14)))
    return tmp_path


PLACES = {"segmentation": "seg", "depth": "depth", "detection": "voc"}


@pytest.mark.parametrize("protocol", PLACES)
def test_five_channels_of_sixteen_bits(protocol: str, folder: Path) -> None:
    """Breaks if a dense task rounds values to 8 bits, mixes channels, or draws them as if they were colours."""
    encoder, spec = encoder_for(5, f"{LOW:g},{HIGH:g}"), getattr(TINY, PROTOCOLS[protocol])
    task = open_data(protocol, str(folder / PLACES[protocol]), encoder.config.data, spec)
    image = task.train.read(0).image
    stored = five(int(Path(task.train.describe(0)).stem)).transpose(2, 0, 1)
    np.testing.assert_allclose(image.numpy(), ((stored - LOW) / (HIGH - LOW)).clip(0, 1), atol=1e-6)
    result = run_protocol(protocol, encoder, task, spec, Session(out=folder / "out"))
    assert 0 <= result.test[task.metric] <= 1
    with Image.open(folder / "out" / "predictions.png") as picture:
        assert np.asarray(picture.convert("RGB")).std() > 30
    open_data(protocol, str(folder / PLACES[protocol]), encoder.config.data, spec).again().test.open().read(0)


def test_segmentation_learns_from_a_band_that_no_colour_shows(folder: Path) -> None:
    """Breaks if any but the first three channels are lost on the way: the fifth one alone tells the halves apart."""
    encoder = encoder_for(5, f"{LOW:g},{HIGH:g}")
    spec = Segmentation(
        steps=60, batch=4, lrs=(0.05,), channels=8, scales=(1.0, 1.0), crop=16, test_crop=24, shrink=1.0, dilation=1
    )
    task = open_data("segmentation", str(folder / "seg"), encoder.config.data, spec)
    result = run_protocol("segmentation", encoder, task, spec, Session())
    assert result.test["mIoU"] > 0.6  # half the pixels by chance: a third


def test_grey_encoders_see_pictures_in_grey() -> None:
    """Breaks if an encoder of one channel is refused colours, which it is not elsewhere, or is shown three."""
    encoder = encoder_for(1, "8-bit")
    task = open_data("segmentation", "scenes:20", encoder.config.data, TINY.segmentation)
    image = task.train.read(0).image
    assert (image.dtype, len(image)) == (torch.uint8, 1)
    assert 0 <= run_protocol("segmentation", encoder, task, TINY.segmentation, Session()).test["mIoU"] <= 1


def test_a_file_of_several_images_is_bad(folder: Path) -> None:
    """Breaks if the first image of a stack is silently taken for all of it."""
    encoder = encoder_for(5, f"{LOW:g},{HIGH:g}")
    task = open_data("segmentation", str(folder / "seg"), encoder.config.data, TINY.segmentation)
    stack = folder / "seg" / task.train.describe(0)
    np.save(stack, np.zeros((3, 16, 24, 5), np.uint16))
    with pytest.raises(BadImage, match="3 images in a file"):
        task.train.read(0)


def test_other_channels_than_colours_change_their_brightness_alone() -> None:
    """Breaks if hue or saturation is made of measurements, or nothing changes at all."""
    images = torch.rand(4, 5, 6, 6) * 0.5 + 0.25
    found = depth.recolour(images, Depth(), 0, 0)
    moved = (found - images).flatten(1)
    assert (moved.std(1) < 1e-6).all()
    assert (moved.abs().mean(1) > 1e-4).all()


def test_what_lies_beyond_an_image_has_the_mean_colour() -> None:
    """Breaks if the padding of images in [0, 1] is written in 8-bit values, or that of 8-bit images in [0, 1]."""
    drawn = geometry.draw(0, 0, 1)
    for image, value in ((torch.zeros(2, 4, 4), 0.4), (torch.zeros(2, 4, 4, dtype=torch.uint8), 102)):
        cut, _ = geometry.apply(image, torch.zeros(4, 4), drawn, 0, 8, geometry.Fill([0.4, 0.4], 9))
        assert sorted(cut.unique().tolist()) == pytest.approx([0, value])
