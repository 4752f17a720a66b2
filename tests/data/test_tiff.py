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

from byol.data import tiff
from byol.data.decode import decode
from byol.data.source import BadImage
from byol.data.stored import read_stored
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
    ("count", "kind", "photometric", "extra", "left"),
    [
        (1, "u1", 1, None, True),
        (3, "u1", 2, None, True),
        (4, "u1", 2, 2, True),  # transparency
        (4, "u1", 5, None, True),  # inks
        (4, "u1", 2, 0, False),  # a band
        (2, "u1", 1, None, False),
        (13, "u1", 1, None, False),
        (1, "u2", 1, None, False),
        (3, "u2", 2, None, False),
        (3, "f4", 2, None, False),
        (1, "i1", 1, None, False),
    ],
)
def test_only_pictures_are_left_to_pillow(
    count: int, kind: str, photometric: int, extra: int | None, left: bool, order: str
) -> None:
    """Breaks if a TIFF of 8-bit colours is read otherwise than before, or other numbers are made 8-bit colours."""
    values = ramp(count, kind, 100)
    content = written(values, order, photometric, extra)
    assert tiff.is_picture(io.BytesIO(content)) == left
    found = read_stored(content, 1.0, "a.tif").numpy()
    if left:
        assert np.array_equal(found, decode(content).numpy())
    else:
        assert np.array_equal(found, values.transpose(2, 0, 1))


def test_damage_is_called_so() -> None:
    """Breaks if a damaged file is blamed on its channels, or what is no picture is called damaged by a reader of
    pictures."""
    cut = written(ramp(3, "u1", 100), photometric=2)[:60]  # in the middle of the directory
    no_width = bytearray(written(ramp(3, "u1", 255), photometric=2))
    no_width[10:12] = b"\xff\xff"
    for damaged in (cut, bytes(no_width)):
        for look in (decode, lambda content: read_stored(content, 1.0, "a.tif")):
            with pytest.raises(BadImage, match=r"^damaged or unfinished header$"):
                look(damaged)
    with pytest.raises(BadImage, match=r"^a TIFF that is no picture of 8-bit colours"):
        decode(written(ramp(4, "u2", 100)))
    with pytest.raises(BadImage, match=r"^truncated$"):
        read_stored(b"II+\0" + b"\0" * 3, 1.0, "a.tif")


@given(st.binary(max_size=200), st.sampled_from([b"", *tiff.MAGIC]))
def test_any_bytes_are_told_apart(rest: bytes, magic: bytes) -> None:
    """Breaks if a directory that leads out of the file, or endless tags, end in anything but yes or no."""
    file = io.BytesIO(magic + rest)
    assert tiff.is_picture(file) in (True, False)
    assert tiff.is_grey(file) in (True, False)
    assert tiff.pages_of(file) in (1, 2)
    assert file.tell() == 0


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
    found = doctor.doctor(doctor.Request(str(root), root.parent / "out", "cifar10-cpu", speed=False))
    return " ".join(sentence for sentence in found.warnings if "channel" in sentence or "16 bits" in sentence)


def test_a_fourth_channel_is_not_lost_without_a_word(tmp_path: Path) -> None:
    """Breaks if the doctor says nothing of a channel that training does not see, or speaks of one that is not there."""
    four, three = ramp(4, "u1", 255), ramp(3, "u1", 255)
    root = folder_of(tmp_path / "rgba", {"a.png": png(four), "b.png": png(four), "c.png": png(three)})
    assert said(root).startswith("2 images have a fourth channel, which is taken for transparency")
    assert said(folder_of(tmp_path / "rgb", {"c.png": png(three)})) == ""
    spare = written(ramp(4, "u2", 65535), photometric=2, extra=0)  # a band that is no transparency
    assert said(folder_of(tmp_path / "bands", {"a.tif": spare, "b.tif": spare})) == ""
    mixed = folder_of(tmp_path / "mixed", {"a.tif": spare, "b.tif": spare, "c.png": png(three)})
    assert "1 images do not have the 4 channels of the others" in said(mixed)


@pytest.mark.parametrize(("most", "factor"), [(1023, 64), (4095, 16), (16383, 4), (65535, 0), (20000, 0)])
def test_few_bits_among_pictures_are_told(tmp_path: Path, most: int, factor: int) -> None:
    """Breaks if 12-bit values, which come out nearly black where most images have 8 bits, go without a word, or the
    factor is off; or if there is advice where all images are deep and their range is measured."""
    deep = {f"{n}.png": png(ramp(1, "u2", most)[..., 0]) for n in range(2)}
    pictures = {f"p{n}.png": png(ramp(3, "u1", 200 + n)) for n in range(3)}
    text = said(folder_of(tmp_path / "both", deep | pictures))
    assert (f"multiply their values by {factor} before" in text) == bool(factor)
    assert bool(text) == bool(factor)
    assert said(folder_of(tmp_path / "deep", deep)) == ""


def test_a_folder_that_cannot_be_read_is_not_to_be_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Breaks if the doctor advises to leave every image out, or its error does not say why they cannot be read."""
    root = folder_of(tmp_path / "bands", {f"{n}.tif": written(ramp(4, "u2", 9))[:-90] for n in range(3)})
    with pytest.raises(BadData, match=r"None of the 3 images .* the first is a damaged TIFF"):
        doctor.doctor(doctor.Request(str(root), tmp_path / "out", speed=False))
    told = capsys.readouterr().out
    assert "3 damaged TIFF" in told
    assert "leave out" not in told
