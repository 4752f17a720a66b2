"""What is no image, or too much of one, is refused in few words, little memory and no noise."""

from __future__ import annotations

import logging
import struct
import time
import warnings
import zlib

import numpy as np
import pytest
from PIL import Image, features

from byol.data.decode import decode, image_size
from byol.data.source import BadImage
from tests.data.test_decode import encoded, exif, noise, pixels, png


def bomb(side: int = 20000) -> bytes:
    """side x side black pixels of one bit each in a few KB."""
    packer = zlib.compressobj(9)
    row = bytes(1 + (side + 7) // 8)
    body = b"".join(packer.compress(row * 100) for _ in range(side // 100)) + packer.flush()
    return png(side, side, 1, 0, body)


@pytest.mark.parametrize("junk", [b"\xff\xd8\xff\xe0\0\x02" + bytes(20_000_000), b"P6 #" + b"x" * 20_000_000])
def test_endless_headers_end(junk: bytes) -> None:
    started = time.process_time()
    with pytest.raises(BadImage):
        decode(junk)
    assert time.process_time() - started < 1


BAD = {
    "empty": (b"", "empty file"),
    "text": (b"just some words, no picture at all\n" * 9, "not an image"),
    "html": (b"<!DOCTYPE html><html><body>404 not found</body></html>", "not an image"),
    "svg": (b'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"></svg>', "not an image"),
    "eps": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n", "not an image"),
    "zeros": (bytes(5000), "not an image"),
    "heic": (b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(200), "not an image"),
    "jpeg start only": (b"\xff\xd8\xff", "damaged or unfinished header"),
    "png start only": (b"\x89PNG\r\n\x1a\n\0\0", "damaged or unfinished header"),
    "no width": (png(0, 5, 8, 0, zlib.compress(b"\0" * 5)), "damaged or unfinished header"),
    "no width ppm": (b"P6 0 5 255\n", "must be|damaged|cannot|not an image"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_image_says_so(name: str) -> None:
    data, reason = BAD[name]
    with pytest.raises(BadImage, match=reason):
        decode(data)
    with pytest.raises(BadImage, match=reason):
        image_size(data)


@pytest.mark.parametrize("format", ["JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP", "PPM"])
def test_half_a_file_is_truncated(format: str) -> None:
    whole = encoded(Image.fromarray(noise(64, 64)), format)
    with pytest.raises(BadImage) as caught:
        decode(whole[: len(whole) // 2])
    if format in ("JPEG", "PNG", "GIF", "BMP", "PPM"):
        assert str(caught.value) == "truncated"
    assert len(str(caught.value)) < 130


@pytest.mark.parametrize("format", ["JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP", "JPEG2000", "AVIF", "PPM"])
def test_damage_anywhere_gives_pixels_or_bad_image(format: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Only `BadImage` may escape and nothing may reach stderr; but libtiff prints, and Pillow has no switch for it."""
    if format == "AVIF" and not features.check("avif"):
        pytest.skip("needs a Pillow that knows AVIF")
    rng = np.random.default_rng(3)
    options = {"compression": "tiff_lzw"} if format == "TIFF" else {}
    whole = np.frombuffer(encoded(Image.fromarray(noise(20, 20)), format, exif=exif(6), **options), np.uint8)
    reasons: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for trial in range(120):
            data = whole.copy()
            places = rng.integers(0, min(len(data), 80 if trial % 2 else len(data)), rng.integers(1, 6))
            data[places] = rng.integers(0, 256, len(places))
            cut = len(data) if trial % 3 else int(rng.integers(1, len(data)))
            try:
                assert decode(data[:cut].tobytes(), 1.0).shape[0] == 3
            except BadImage as bad:
                reasons.append(str(bad))
    assert all(0 < len(reason) < 130 and reason.isprintable() for reason in reasons)
    assert format == "TIFF" or capfd.readouterr().err == ""


def test_bomb_costs_nothing() -> None:
    import resource

    data = bomb()
    assert len(data) < 60_000
    decode(encoded(Image.fromarray(noise()), "PNG"))  # the plugins are loaded before the clock starts
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.process_time()
    with pytest.raises(BadImage, match=r"^400 megapixels, over the limit of 64$"):
        decode(data)
    assert time.process_time() - started < 0.05
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # KB


def test_limit_is_ours_and_silent(recwarn: pytest.WarningsRecorder, capfd: pytest.CaptureFixture[str]) -> None:
    """100 megapixels: Pillow would only warn."""
    with pytest.raises(BadImage, match=r"^100 megapixels, over the limit of 64$"):
        decode(bomb(10000))
    assert image_size(bomb(10000)) == (10000, 10000)
    with pytest.raises(BadImage, match=r"^0\.0002 megapixels, over the limit of 0\.0001$"):
        decode(encoded(Image.fromarray(noise(10, 20)), "PNG"), 0.0001)
    assert decode(encoded(Image.fromarray(noise(10, 10)), "PNG"), 0.0001).shape == (3, 10, 10)
    assert not recwarn.list
    assert capfd.readouterr().err == ""


def test_a_higher_limit_than_pillows_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 50)
    data = encoded(Image.fromarray(noise()), "PNG")  # 221 pixels, more than twice 50
    with pytest.raises(BadImage, match=r"0\.000221 megapixels, over the limit of 4e-05"):
        decode(data, 0.00004)
    assert Image.MAX_IMAGE_PIXELS == 50
    assert (pixels(data, 0.001) == noise()).all()


def test_running_out_of_memory_is_a_bad_image(monkeypatch: pytest.MonkeyPatch) -> None:
    for error, reason in [
        (MemoryError(), "not enough memory"),
        (EOFError(), "truncated"),
        (ZeroDivisionError(), "ZeroDivisionError"),
        (OSError(5, "Input/output error"), "input/output error"),
        (struct.error("unpack requires a buffer\nof 4 bytes"), "unpack requires a buffer of 4 bytes"),
    ]:

        def fail(*_: object, error: Exception = error, **__: object) -> None:
            raise error

        monkeypatch.setattr(Image, "open", fail)
        with pytest.raises(BadImage, match=reason):
            decode(b"anything")


def test_interrupt_is_not_swallowed(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Image, "open", interrupt)
    with pytest.raises(KeyboardInterrupt):
        decode(b"anything")


def test_tiff_complaints_are_not_printed(capfd: pytest.CaptureFixture[str]) -> None:
    data = bytearray(encoded(Image.fromarray(noise()), "TIFF"))
    tag = data.index(struct.pack("<HHII", 277, 3, 1, 3)[:8])  # SamplesPerPixel
    data[tag + 8 : tag + 10] = struct.pack("<H", 60000)
    logging.getLogger("PIL.TiffImagePlugin").error("spoken by Pillow")
    with pytest.raises(BadImage):
        decode(bytes(data))
    assert capfd.readouterr().err == ""
