"""Numbers of .mat files: scipy writes them, we read them."""

from __future__ import annotations

import io

import numpy as np
import pytest

from byol.data.benchmarks import matlab

scipy_io = pytest.importorskip("scipy.io", reason="needs scipy, which writes .mat files")


def written(values: dict[str, np.ndarray], packed: bool) -> bytes:
    content = io.BytesIO()
    scipy_io.savemat(content, values, do_compression=packed)
    return content.getvalue()


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("kind", ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f4", "f8"])
def test_what_was_written_is_read(kind: str, packed: bool) -> None:
    """Breaks if a type, a small element, padding or compression is misread."""
    for count in (1, 3, 4, 5, 100):
        values = np.arange(count, dtype=kind).reshape(-1, 1)
        content = written({"a name": np.ones((2, 2)), "x": values, "text": np.array("x")}, packed)
        found = matlab.numbers(content, "x")
        assert found.tolist() == values.ravel().tolist()
        assert matlab.numbers(content, "a name").tolist() == [1.0] * 4


def test_the_other_byte_order() -> None:
    """Breaks if a file of a big-endian machine is misread; made by hand from the format's description."""
    part = lambda kind, content: kind.to_bytes(4, "big") + len(content).to_bytes(4, "big") + content
    sizes = part(5, (1).to_bytes(4, "big") + (2).to_bytes(4, "big"))
    inner = part(6, bytes(8)) + sizes + part(1, b"x") + bytes(7) + part(4, b"\x01\x02\x00\x05") + bytes(4)
    assert matlab.numbers(bytes(124) + b"\x01\x00MI" + part(14, inner), "x").tolist() == [258, 5]


@pytest.mark.parametrize("packed", [False, True])
def test_what_is_not_there_or_damaged_is_said(packed: bool) -> None:
    """Breaks if anything but a ValueError comes out, or a file can unpack to gigabytes."""
    content = written({"x": np.arange(50)}, packed)
    with pytest.raises(ValueError, match="no numbers called y"):
        matlab.numbers(content, "y")
    with pytest.raises(ValueError, match=r"no \.mat file"):
        matlab.numbers(b"MATLAB 7.3", "x")
    with pytest.raises(ValueError, match=r"cut short|incomplete|no numbers"):
        matlab.numbers(content[:-30], "x")
    bomb = written({"x": np.zeros(10**7)}, True)
    assert len(bomb) < 100_000
    with pytest.raises(ValueError, match="cut short"):
        matlab.numbers(bomb, "x")
