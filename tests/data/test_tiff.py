"""A sound file whose numbers do not all reach the training is told apart from a damaged one, and says why."""

from __future__ import annotations

import io
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from byol import data
from byol.config import Data
from byol.data import tiff
from byol.data.decode import decode, facts
from byol.data.source import BadImage
from byol.errors import BadData
from byol.explore import doctor


def written(values: np.ndarray, order: str = "<", photometric: int = 1, extra: int | None = None) -> bytes:
    """An uncompressed TIFF of (H, W, C) numbers in one strip, by hand."""
    height, width, count = values.shape
    body = values.astype(values.dtype.newbyteorder(order)).tobytes()
    kind = {"u": 1, "i": 2, "f": 3}[values.dtype.kind]
    bits = [8 * values.dtype.itemsize] * count
    short, long = "H", "I"
    tags = {256: (long, [width]), 257: (long, [height]), 258: (short, bits), 259: (short, [1])}
    tags |= {262: (short, [photometric]), 273: (long, [0]), 277: (short, [count]), 278: (long, [height])}
    tags |= {279: (long, [len(body)]), 339: (short, [kind] * count)}
    if extra is not None:
        tags[338] = (short, [extra])
    place, beyond, entries = 8 + 2 + 12 * len(tags) + 4, b"", b""
    after = place + sum(len(v) * struct.calcsize(k) for k, v in tags.values() if len(v) * struct.calcsize(k) > 4)
    for tag, (letter, numbers) in sorted(tags.items()):
        raw = struct.pack(f"{order}{len(numbers)}{letter}", *([after] if tag == 273 else numbers))
        entries += struct.pack(f"{order}HHI", tag, {short: 3, long: 4}[letter], len(numbers))
        entries += raw.ljust(4, b"\0") if len(raw) <= 4 else struct.pack(f"{order}I", place + len(beyond))
        beyond += raw if len(raw) > 4 else b""
    start = {"<": b"II*\0", ">": b"MM\0*"}[order] + struct.pack(f"{order}IH", 8, len(tags))
    return start + entries + struct.pack(f"{order}I", 0) + beyond + body


def ramp(count: int, kind: str, most: float) -> np.ndarray:
    """(32, 32, count) numbers that rise to `most`."""
    return (np.linspace(0, most, 32 * 32 * count).reshape(32, 32, count)).astype(kind)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize(
    ("count", "kind", "words"),
    [
        (4, "u2", "4 channels of 16 bits"),
        (2, "u2", "2 channels of 16 bits"),
        (13, "u1", "13 channels of 8 bits"),
        (3, "f4", "3 floating-point channels of 32 bits"),
        (4, "i2", "4 signed channels of 16 bits"),
    ],
)
def test_channels_that_are_not_read_are_named(count: int, kind: str, words: str, order: str) -> None:
    """Breaks if a sound TIFF of other channels is called damaged, or its channels are counted or measured wrongly."""
    with pytest.raises(BadImage, match=f"^a TIFF of {words}, which are not read here: write them as 3 channels"):
        decode(written(ramp(count, kind, 100), order))


def test_what_is_read_is_read_and_what_is_damaged_is_called_so() -> None:
    """Breaks if the files above are not sound but for their channels, or a damaged file is blamed on its channels."""
    deep = decode(written(ramp(3, "u2", 65535), photometric=2))
    assert deep.shape == (3, 32, 32)
    assert int(deep.max()) == 255
    cut = written(ramp(4, "u2", 100))[:60]  # in the middle of the directory
    no_width = bytearray(written(ramp(3, "u1", 255), photometric=2))
    no_width[10:12] = b"\xff\xff"
    for damaged in (cut, bytes(no_width)):
        with pytest.raises(BadImage, match=r"^damaged or unfinished header$"):
            decode(damaged)
    with pytest.raises(BadImage, match=r"^a BigTIFF, which is not read here"):
        decode(b"II+\0" + b"\0" * 40)


@given(st.binary(max_size=200), st.sampled_from([b"", *tiff.MAGIC]))
def test_any_bytes_end_in_words(rest: bytes, magic: bytes) -> None:
    """Breaks if a directory that leads out of the file, or endless tags, end in anything but text."""
    assert isinstance(tiff.channels(magic + rest), str)


def folder_of(root: Path, files: dict[str, bytes]) -> Path:
    root.mkdir()
    for name, content in files.items():
        (root / name).write_bytes(content)
    return root


def png(values: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(values).save(buffer, "PNG")
    return buffer.getvalue()


def said(root: Path) -> str:
    """What the doctor warns of, one line."""
    source = data.open_source(str(root), Data())
    looks = doctor.scan(source, doctor.presets.compose("cifar10", {}, {})[0])
    return " ".join(doctor.channel_warnings([look for look in looks if not look.reason]))


def test_a_fourth_channel_is_not_lost_without_a_word(tmp_path: Path) -> None:
    """Breaks if the doctor says nothing of a channel that training does not see, or speaks of one that is not there."""
    four, three = ramp(4, "u1", 255), ramp(3, "u1", 255)
    spare = written(ramp(4, "u2", 65535), photometric=2, extra=0)  # a band that is no transparency
    root = folder_of(tmp_path / "rgba", {"a.png": png(four), "b.tif": spare, "c.png": png(three)})
    assert said(root).startswith("2 images have a fourth channel, which is taken for transparency")
    assert facts(io.BytesIO(spare)).fourth
    assert said(folder_of(tmp_path / "rgb", {"c.png": png(three)})) == ""


@pytest.mark.parametrize(("most", "factor"), [(1023, 64), (4095, 16), (16383, 4), (65535, 0), (20000, 0)])
def test_few_bits_in_deep_files_are_told(tmp_path: Path, most: int, factor: int) -> None:
    """Breaks if 12-bit values in 16-bit files, which come out nearly black, go without a word, or the factor is off."""
    root = folder_of(tmp_path / "deep", {f"{n}.png": png(ramp(1, "u2", most)[..., 0]) for n in range(2)})
    text = said(root)
    assert (f"multiply their values by {factor} before" in text) == bool(factor)
    assert bool(text) == bool(factor)


def test_a_folder_that_cannot_be_read_is_not_to_be_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Breaks if the doctor advises to leave every image out, or its error does not say why they cannot be read."""
    root = folder_of(tmp_path / "bands", {f"{n}.tif": written(ramp(4, "u2", 9)) for n in range(3)})
    with pytest.raises(BadData, match=r"None of the 3 images .* the first is a TIFF of 4 channels of 16 bits"):
        doctor.doctor(doctor.Request(str(root), tmp_path / "out", speed=False))
    told = capsys.readouterr().out
    assert "3 of 4 channels of 16 bits, not read here" in told
    assert "leave out" not in told
