"""Pictures of images of any channels: which channels are red, green and blue, how they are stretched, and the words."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from byol.config import Data
from byol.data.source import Source
from byol.errors import UsageError
from byol.run.painting import components, painter


def source_of(images: list[torch.Tensor]) -> Source:
    return Source("images", len(images), images.__getitem__, str)


def deep(channels: int) -> Source:
    random = np.random.default_rng(channels)
    planes = [random.normal(1000 * (c + 1), 100 * (c + 1), (6, 20, 20)) for c in range(channels)]
    return source_of([torch.from_numpy(np.stack([p[i] for p in planes]).astype(np.uint16)) for i in range(6)])


def test_8_bit_colours_are_shown_as_they_are() -> None:
    """Breaks if ordinary pictures are stretched."""
    image = torch.randint(0, 256, (3, 5, 5), dtype=torch.uint8)
    paint = painter(source_of([image]), Data())
    assert paint.words == ""
    assert paint.stored(image) is image


def test_chosen_bands_are_stretched_by_percentiles() -> None:
    """Breaks if bands are counted from 0, put in another order, or stretched other than from percentile 1 to 99."""
    source = deep(5)
    paint = painter(source, Data(channels=5, range="0,10000", bands="4,3,1"))
    assert paint.words == ("channel 4 is red, channel 3 is green, channel 1 is blue; stretched from percentile 1 to 99")
    every = np.stack([source.read(i).numpy() for i in range(6)]).astype(np.float64)
    low, high = np.percentile(every.transpose(1, 0, 2, 3).reshape(5, -1)[[3, 2, 0]], (1, 99), axis=1)
    ends = low[:, None, None], high[:, None, None]
    expected = (every[0][[3, 2, 0]] - ends[0]) / (ends[1] - ends[0])
    found = paint.stored(source.read(0)).numpy()
    assert np.abs(found - np.clip(expected, 0, 1) * 255).max() <= 0.6
    with pytest.raises(UsageError, match=r"data\.bands must be one channel, or three .* of the 5"):
        painter(source, Data(channels=5, range="0,10000", bands="4,3,6"))


@pytest.mark.parametrize(
    ("channels", "words"),
    [
        (1, "channel 1 is grey"),
        (2, "channel 1 is red, channel 2 is green"),
        (3, "channel 3 is blue"),
        (7, "7 channels"),
    ],
)
def test_any_number_of_channels_becomes_a_picture(channels: int, words: str) -> None:
    """Breaks if one, two or many channels have no picture, or if what its colours are is not said."""
    source = deep(channels)
    paint = painter(source, Data(channels=channels, range="0,10000"))
    assert words in paint.words
    picture = paint.stored(source.read(0))
    assert (picture.shape, picture.dtype) == ((3, 20, 20), torch.uint8)
    assert picture.float().std() > 20


def test_components_are_those_of_the_covariance() -> None:
    """Breaks if pixels are not centred, or the components come in another order: numpy's own singular vectors."""
    pixels = torch.from_numpy(
        np.random.default_rng(0).normal(5, 1, (6, 500)) * np.array([[1], [9], [2], [4], [1], [3]])
    )
    found, shares = components(pixels)
    rows = pixels.numpy() - pixels.numpy().mean(1, keepdims=True)
    left, values, _ = np.linalg.svd(rows, full_matrices=False)
    np.testing.assert_allclose(np.abs(found.numpy()), np.abs(left[:, :3].T), atol=1e-5)
    np.testing.assert_allclose(shares, (values**2 / (values**2).sum())[:3], rtol=1e-6)
    assert (found.sum(1) > 0).all()
