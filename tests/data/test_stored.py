"""What a file stores and what a config makes of it: deep pictures keep their bits, others become 8-bit colours."""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from byol import data
from byol.config import Config, Data, apply
from byol.data import values
from byol.data.decode import decode
from byol.data.source import BadImage, Source
from byol.data.stored import fit, fitted, grey, read_stored, require_channels
from byol.errors import BadData
from tests.data.test_decode import png

DEEP = (np.arange(48).reshape(6, 8) * 1365).astype(np.uint16)  # up to 64155


def write_deep(folder: Path, count: int, suffix: str = "png") -> Path:
    folder.mkdir(exist_ok=True)
    for number in range(count):
        Image.fromarray(DEEP + np.uint16(number)).save(folder / f"{number}.{suffix}")
    return folder


@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_deep_grey_keeps_16_bits(tmp_path: Path, suffix: str) -> None:
    """Breaks if a 16-bit picture is rounded to 8 bits on its way to the views, or made three channels."""
    folder = write_deep(tmp_path / "deep", 4, suffix)
    found = data.open_stored(str(folder), Data())
    settled = apply(Config(), values.settle(found, Config(), {}, {}).fields)
    assert (settled.data.channels, settled.network.channels) == (1, 1)
    source = fitted(found, settled.data)
    for number in range(4):
        np.testing.assert_array_equal(source.read(number)[0].numpy(), DEEP + number)


def test_deep_colours_keep_16_bits(tmp_path: Path) -> None:
    """Breaks if one byte of a 16-bit colour is lost or taken for the other: the file is written by hand."""
    colours = np.random.default_rng(3).integers(0, 65536, (6, 9, 3)).astype(np.uint16)
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in colours)
    (tmp_path / "deep.png").write_bytes(png(9, 6, 16, 2, zlib.compress(rows)))
    with open(tmp_path / "deep.png", "rb") as file:
        np.testing.assert_array_equal(read_stored(file, 64.0, "deep.png").numpy(), colours.transpose(2, 0, 1))
    shown = data.open_source(str(tmp_path), Data()).read(0)
    assert int((shown.int() - decode((tmp_path / "deep.png").read_bytes()).int()).abs().max()) <= 1


def test_deep_grey_among_pictures_becomes_8_bit_colours(tmp_path: Path) -> None:
    """Breaks if one deep file turns a folder of pictures into one of deep values, or is read other than before."""
    folder = write_deep(tmp_path / "mixed", 1)
    random = np.random.default_rng(0)
    for number in range(5):
        Image.fromarray(random.integers(0, 255, (9, 9, 3), np.uint8)).save(folder / f"colour{number}.png")
    found = data.open_stored(str(folder), Data())
    assert values.settle(found, Config(), {}, {}).fields == {}
    source = data.open_source(str(folder), Data())
    for number in range(6):
        image = source.read(number)
        assert torch.equal(image, decode((folder / source.describe(number)).read_bytes()))
    forced = data.open_source(str(write_deep(tmp_path / "deep", 2)), Data(range="8-bit"))
    assert torch.equal(forced.read(0), decode((tmp_path / "deep" / "0.png").read_bytes()))


def test_colours_become_grey_as_pillow_has_it() -> None:
    """Breaks with other weights, or without rounding to the nearest."""
    pixels = np.random.default_rng(1).integers(0, 256, (40, 50, 3)).astype(np.uint8)
    expected = np.asarray(Image.fromarray(pixels).convert("L"))
    np.testing.assert_array_equal(grey(torch.from_numpy(pixels.transpose(2, 0, 1).copy()))[0].numpy(), expected)


def test_an_image_of_other_channels_is_bad() -> None:
    """Breaks if channels are dropped or invented: only grey and colours have an agreed way to each other."""
    assert fit(torch.ones(1, 2, 2, dtype=torch.uint16), 3, False).shape == (3, 2, 2)
    for there, wanted in ((5, 3), (3, 5), (2, 1), (4, 3)):
        with pytest.raises(BadImage, match=f"{there} channels, where {wanted} are wanted"):
            fit(torch.ones(there, 2, 2, dtype=torch.uint8), wanted, True)
    source = Source("those", 3, lambda index: torch.ones(4, 2, 2), str)
    with pytest.raises(BadData, match="images of those have 4 channels, and 2 are wanted"):
        require_channels(source, Data(channels=2))
    require_channels(source, Data(channels=4, range="0,1"))


def test_a_stored_type_survives_the_way_from_its_file(tmp_path: Path) -> None:
    """Breaks if a type is widened, narrowed or read with its bytes in the wrong order."""
    for name in ("uint8", "uint16", "int16", "float32", ">u2", ">f4"):
        array = (np.arange(24).reshape(2, 3, 4) * 997 % 251).astype(name)
        np.save(tmp_path / "one.npy", array)
        with open(tmp_path / "one.npy", "rb") as file:
            found = read_stored(file, 64.0, "one.npy").numpy()
        assert found.dtype == array.dtype.newbyteorder("=")
        np.testing.assert_array_equal(found, array)
