"""Pixels are right for every kind of file, and every bad file ends in a short reason."""

from __future__ import annotations

import io
import os
import struct
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps, features

from byol.data.decode import decode, from_pil, image_size, printable
from byol.data.source import BadImage


def encoded(image: Image.Image, format: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format, **options)
    return buffer.getvalue()


def pixels(data: bytes, max_megapixels: float = 64.0) -> np.ndarray:
    """Decoded, as (H, W, 3) ints."""
    tensor = decode(data, max_megapixels)
    assert tensor.dtype == torch.uint8
    assert tensor.is_contiguous()
    return tensor.permute(1, 2, 0).numpy().astype(int)


def smooth(height: int = 24, width: int = 40) -> np.ndarray:
    """A colour ramp without edges, so that JPEG changes it little."""
    y, x = np.mgrid[0:height, 0:width]
    return np.stack([40 + 5 * y, 30 + 4 * x, 200 - 2 * x - 2 * y], -1).astype(np.uint8)


def noise(height: int = 13, width: int = 17, channels: int = 3) -> np.ndarray:
    return np.random.default_rng(7).integers(0, 256, (height, width, channels), dtype=np.uint8)


def png(width: int, height: int, depth: int, colour: int, body: bytes, chunks: bytes = b"") -> bytes:
    """A PNG by hand."""
    head = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunks + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def on_white(colour: np.ndarray, alpha: np.ndarray) -> np.ndarray:
    """The definition of compositing, in floats; alpha 0..255."""
    a = alpha[..., None] / 255
    return colour * a + 255 * (1 - a)


@pytest.mark.parametrize("format", ["PNG", "BMP", "TIFF", "PPM", "WEBP", "JPEG2000"])
def test_lossless_rgb_is_exact(format: str) -> None:
    options = {"WEBP": {"lossless": True}, "JPEG2000": {"irreversible": False}}.get(format, {})
    assert (pixels(encoded(Image.fromarray(noise()), format, **options)) == noise()).all()


@pytest.mark.parametrize(("format", "bound"), [("JPEG", 2), ("WEBP", 4), ("AVIF", 4)])
def test_lossy_rgb_is_close(format: str, bound: float) -> None:
    if format == "AVIF" and not features.check("avif"):
        pytest.skip("needs a Pillow that knows AVIF")
    image = pixels(encoded(Image.fromarray(smooth()), format, quality=95))
    assert np.abs(image - smooth()).mean() <= bound


def test_rows_columns_and_channels_keep_their_places() -> None:
    image = np.zeros((2, 3, 3), np.uint8)
    image[0, 2] = (10, 20, 30)
    tensor = decode(encoded(Image.fromarray(image), "PNG"))
    assert tensor.shape == (3, 2, 3)
    assert tensor[:, 0, 2].tolist() == [10, 20, 30]
    assert tensor.sum() == 60


@pytest.mark.parametrize(("height", "width"), [(1, 1), (1, 50), (300, 2)])
def test_extreme_shapes(height: int, width: int) -> None:
    image = noise(height, width)
    assert (pixels(encoded(Image.fromarray(image), "PNG")) == image).all()


def test_one_pixel_tensor_can_be_written() -> None:
    tensor = decode(encoded(Image.fromarray(noise(1, 1)), "PNG"))
    tensor += 1  # a view of Pillow's read-only memory would fail


@pytest.mark.parametrize("format", ["PNG", "JPEG", "BMP", "TIFF", "PPM", "GIF"])
def test_grey_is_repeated(format: str) -> None:
    grey = smooth()[..., 0]
    image = pixels(encoded(Image.fromarray(grey), format))
    assert (image[..., 0] == image[..., 1]).all()
    assert (image[..., 1] == image[..., 2]).all()
    assert np.abs(image[..., 0] - grey).max() <= (2 if format == "JPEG" else 0)


@pytest.mark.parametrize("format", ["PNG", "BMP", "TIFF", "PPM"])
def test_one_bit(format: str) -> None:
    bits = noise(channels=1)[..., 0] > 128
    assert (pixels(encoded(Image.fromarray(bits), format)) == 255 * bits[..., None]).all()


@pytest.mark.parametrize("format", ["PNG", "TIFF", "WEBP"])
def test_rgba_is_shown_on_white(format: str) -> None:
    image = noise(channels=4)
    data = encoded(Image.fromarray(image), format, **({"lossless": True, "exact": True} if format == "WEBP" else {}))
    expected = on_white(image[..., :3], image[..., 3])
    assert np.abs(pixels(data) - expected).max() <= 1


def test_grey_with_alpha_is_shown_on_white() -> None:
    image = noise(channels=2)
    data = encoded(Image.fromarray(image, "LA"), "PNG")
    expected = on_white(image[..., :1].repeat(3, -1), image[..., 1])
    assert np.abs(pixels(data) - expected).max() <= 1


def palette_image() -> tuple[Image.Image, np.ndarray, np.ndarray]:
    table = noise(1, 4)[0]
    indices = noise(channels=1)[..., 0] % 4
    image = Image.fromarray(indices, "P")
    image.putpalette(table.tobytes())
    return image, indices, table


@pytest.mark.parametrize("format", ["PNG", "GIF", "BMP", "TIFF"])
def test_palette(format: str) -> None:
    image, indices, table = palette_image()
    assert (pixels(encoded(image, format)) == table[indices]).all()


def test_palette_with_one_transparent_entry() -> None:
    image, indices, table = palette_image()
    expected = table.copy()
    expected[2] = 255
    for format in ("PNG", "GIF"):
        assert (pixels(encoded(image, format, transparency=2)) == expected[indices]).all()


def test_palette_with_alpha_for_each_entry() -> None:
    image, indices, table = palette_image()
    alpha = np.array([0, 80, 200, 255], np.uint8)
    data = encoded(image, "PNG", transparency=alpha.tobytes())
    assert np.abs(pixels(data) - on_white(table, alpha)[indices]).max() <= 1


def test_transparent_colour_of_grey_and_rgb_png() -> None:
    grey = np.array([[0, 100], [200, 100]], np.uint8)
    shown = pixels(encoded(Image.fromarray(grey), "PNG", transparency=100))
    assert (shown[..., 0] == [[0, 255], [200, 255]]).all()
    colour = np.array([[[1, 2, 3], [4, 5, 6]]], np.uint8)
    shown = pixels(encoded(Image.fromarray(colour), "PNG", transparency=(4, 5, 6)))
    assert shown.tolist() == [[[1, 2, 3], [255, 255, 255]]]


@pytest.mark.parametrize(("format", "bound"), [("TIFF", 1), ("JPEG", 2)])
def test_cmyk(format: str, bound: float) -> None:
    y, x = np.mgrid[0:24, 0:40]
    ink = np.stack([4 * y, 3 * x, 90 - 2 * y, x + y], -1).astype(np.uint8)
    options = {"quality": 97, "subsampling": 0} if format == "JPEG" else {}
    image = pixels(encoded(Image.fromarray(ink, "CMYK"), format, **options))
    expected = (255 - ink[..., :3].astype(float)) * (255 - ink[..., 3:].astype(float)) / 255
    assert np.abs(image - expected).mean() <= bound


def test_colour_profile_is_ignored() -> None:
    from PIL import ImageCms

    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("LAB")).tobytes()
    data = encoded(Image.fromarray(noise()), "PNG", icc_profile=profile)
    assert (pixels(data) == noise()).all()


DEEP = np.array([[0, 128, 129, 257, 20000], [32896, 40000, 65279, 65406, 65535]], np.uint16)
DEEP_AS_8 = [[0, 0, 1, 1, 78], [128, 156, 254, 254, 255]]  # rounded value / 257, by hand


def deep_png() -> bytes:
    return png(5, 2, 16, 0, zlib.compress(b"".join(b"\0" + row.astype(">u2").tobytes() for row in DEEP)))


@pytest.mark.parametrize(
    "data",
    [
        deep_png(),
        encoded(Image.fromarray(DEEP), "PNG"),
        encoded(Image.fromarray(DEEP), "TIFF"),
        encoded(Image.fromarray(DEEP), "TIFF", compression="tiff_lzw"),
        encoded(Image.fromarray(DEEP.astype(">u2")), "TIFF"),
        b"P5 5 2 65535\n" + DEEP.astype(">u2").tobytes(),
        encoded(Image.fromarray(DEEP), "JPEG2000", irreversible=False),
    ],
    ids=["png by hand", "png", "tiff", "tiff lzw", "tiff big-endian", "pgm", "jp2"],
)
def test_16_bit_grey_is_scaled_not_clipped(data: bytes) -> None:
    assert pixels(data)[..., 0].tolist() == DEEP_AS_8


def test_16_bit_pgm_with_a_low_maximum() -> None:
    data = b"P5 3 1 1023\n" + np.array([0, 511, 1023], ">u2").tobytes()
    assert pixels(data)[0, :, 0].tolist() == [0, 127, 255]


def test_16_bit_rgb_png() -> None:
    values = np.array([[[0, 32768, 65535]]], ">u2")
    data = png(1, 1, 16, 2, zlib.compress(b"\0" + values.tobytes()))
    assert np.abs(pixels(data) - [[[0, 128, 255]]]).max() <= 1


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (np.array([[0, 128, 255]], np.int32), [0, 128, 255]),
        (np.array([[-1000, 0, 1000]], np.int32), [0, 128, 255]),
        (np.array([[70000, 70000]], np.int32), [0, 0]),
        (np.array([[0.0, 0.5, 1.0]], np.float32), [0, 128, 255]),
        (np.array([[0.0, 99.6, 254.0]], np.float32), [0, 100, 254]),
        (np.array([[-3e38, 0.0, 3e38]], np.float32), [0, 128, 255]),
        (np.array([[np.nan, 300.0, np.inf, 400.0]], np.float32), [0, 0, 0, 255]),
        (np.array([[np.nan, np.nan]], np.float32), [0, 0]),
    ],
)
def test_32_bit_tiff(values: np.ndarray, expected: list[int]) -> None:
    image = pixels(encoded(Image.fromarray(values), "TIFF"))
    assert image[0].tolist() == [[v, v, v] for v in expected]


# Where EXIF 2.3 puts row 0 and column 0 of the stored image in the one that is shown.
SIDES = {
    1: ("top", "left"),
    2: ("top", "right"),
    3: ("bottom", "right"),
    4: ("bottom", "left"),
    5: ("left", "top"),
    6: ("right", "top"),
    7: ("right", "bottom"),
    8: ("left", "bottom"),
}


def stored_as(shown: np.ndarray, orientation: int) -> np.ndarray:
    """What a camera stores, from the definition of the tag: one pixel at a time."""
    row_side, column_side = SIDES[orientation]
    height, width = shown.shape[:2]
    turned = row_side in ("left", "right")
    stored = np.zeros((width, height, 3) if turned else (height, width, 3), np.uint8)
    for r in range(stored.shape[0]):
        for c in range(stored.shape[1]):
            place = {row_side: r, column_side: c}
            y = place["top"] if "top" in place else height - 1 - place["bottom"]
            x = place["left"] if "left" in place else width - 1 - place["right"]
            stored[r, c] = shown[y, x]
    return stored


def exif(orientation: object) -> Image.Exif:
    tags = Image.Exif()
    tags[0x0112] = orientation
    return tags


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("format", ["PNG", "JPEG", "TIFF", "WEBP"])
def test_exif_orientation(orientation: int, format: str) -> None:
    shown = smooth(16, 40) if format == "JPEG" else noise(5, 8)
    options: dict[str, Any] = {"JPEG": {"quality": 97}, "WEBP": {"lossless": True}}.get(format, {})
    stored = Image.fromarray(stored_as(shown, orientation))
    data = encoded(stored, format, exif=exif(orientation), **options)
    image = pixels(data)
    assert image.shape == shown.shape
    assert np.abs(image - shown).mean() <= (2 if format == "JPEG" else 0)
    assert image_size(data) == shown.shape[:2]
    with Image.open(io.BytesIO(data)) as file:  # a second library's opinion
        assert (np.asarray(ImageOps.exif_transpose(file).convert("RGB")) == image).all()


@pytest.mark.parametrize("block", [b"Exif\0\0", b"Exif\0\0II*\0\xff\xff\xff\xff", b"Exif\0\0MM\0*\0\0\0\x08\xff\xff"])
def test_broken_exif_is_no_reason_to_refuse(block: bytes) -> None:
    data = encoded(Image.fromarray(smooth()), "JPEG", exif=block)
    assert pixels(data).shape == smooth().shape
    assert image_size(data) == smooth().shape[:2]


@pytest.mark.parametrize("value", [0, 9, 65535])
def test_unknown_orientation_is_upright(value: int) -> None:
    data = encoded(Image.fromarray(noise()), "PNG", exif=exif(value))
    assert (pixels(data) == noise()).all()


@pytest.mark.parametrize("format", ["GIF", "WEBP", "PNG", "TIFF"])
def test_first_frame_of_an_animation(format: str) -> None:
    red, blue = Image.new("RGB", (9, 6), (255, 0, 0)), Image.new("RGB", (9, 6), (0, 0, 255))
    options = {"lossless": True} if format == "WEBP" else {}
    image = pixels(encoded(red, format, save_all=True, append_images=[blue, red], **options))
    assert image.shape == (6, 9, 3)
    assert (image == [255, 0, 0]).all()


@pytest.mark.parametrize(
    ("format", "options"),
    [
        ("PNG", {}),
        ("PPM", {}),
        ("TIFF", {}),
        ("TIFF", {"compression": "tiff_lzw"}),
        ("JPEG2000", {"irreversible": False}),
        ("WEBP", {"lossless": True}),
    ],
)
def test_an_open_file_works_as_bytes_do(tmp_path: Path, format: str, options: dict[str, Any]) -> None:
    path = tmp_path / "image"
    path.write_bytes(encoded(Image.fromarray(noise()), format, **options))
    with path.open("rb") as file:
        assert (decode(file).permute(1, 2, 0).numpy() == noise()).all()


def test_sizes_from_paths_need_no_pixels(tmp_path: Path) -> None:
    data = encoded(Image.fromarray(noise(30, 50)), "PNG")
    path = tmp_path / "a.png"
    path.write_bytes(data[:60])  # little more than the header
    assert image_size(path) == (30, 50)
    assert image_size(str(path)) == (30, 50)
    with pytest.raises(BadImage, match="no such file"):
        image_size(tmp_path / "missing.png")
    with pytest.raises(BadImage, match="not a regular file"):
        image_size(tmp_path)
    os.mkfifo(tmp_path / "pipe.png")
    with pytest.raises(BadImage, match="not a regular file"):
        image_size(tmp_path / "pipe.png")


def test_pillow_images_follow_the_same_rules() -> None:
    assert from_pil(Image.fromarray(DEEP))[0].tolist() == DEEP_AS_8
    assert (from_pil(Image.new("RGBA", (3, 2), (9, 9, 9, 0))) == 255).all()


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        (b"plain name.jpg", "plain name.jpg"),
        ("\u00fc\u00df\u4e2d.jpg".encode(), "\u00fc\u00df\u4e2d.jpg"),
        (b"a\xff.jpg", "a\\xff.jpg"),
        (b"a\nb.jpg", "a\\nb.jpg"),
        ("a\u202egpj.exe".encode(), "a\\u202egpj.exe"),
        (b"\x1b[31m.jpg", "\\x1b[31m.jpg"),
        (b"a\\nb.jpg", "a\\\\nb.jpg"),
    ],
)
def test_printable_names(raw: bytes, shown: str) -> None:
    assert printable(raw) == shown
    assert printable(os.fsdecode(raw)) == shown


def scans(count: int, width: int, height: int) -> bytes:
    """A progressive JPEG of these pixels whose last scan comes again and again."""
    file = io.BytesIO()
    Image.new("RGB", (64, 64)).save(file, "JPEG", progressive=True)
    content = bytearray(file.getvalue())
    frame = content.find(b"\xff\xc2")
    content[frame + 5 : frame + 9] = struct.pack(">HH", height, width)
    return bytes(content[:-2]) + bytes(content[content.rfind(b"\xff\xda") : -2]) * count + b"\xff\xd9"


def pieces(kind: bytes, count: int) -> bytes:
    """A PNG with so many empty chunks."""

    def chunk(name: bytes, content: bytes = b"") -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    pixels = zlib.compress(bytes(10 * 31))
    start = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 10, 10, 8, 2, 0, 0, 0))
    return start + chunk(b"IDAT", pixels[:5]) + chunk(kind) * count + chunk(b"IDAT", pixels[5:]) + chunk(b"IEND")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (scans(3000, 8000, 7750), "3,010 scans"),
        (scans(90, 8000, 7750), "100 scans"),
        (scans(3000, 64, 64), "3,010 scans"),
        (b"P1\n2000 2000\n" + b"#c\n" * 1_000_000 + b"1 " * 4_000_000, "plain text"),
        (b"P1\n100 100\n" + b"#c\n" * 2000 + b"1 " * 10_000, "plain text"),
        (b"P3\n2000 2000\n255\n" + b"123 " * 12_000_000, "plain text"),
        (pieces(b"IDAT", 1_000_000), "too many pieces"),
    ],
    ids=["scans", "large", "small", "comments", "few", "numbers", "chunks"],
)
def test_the_work_of_an_image_is_bounded(content: bytes, reason: str) -> None:
    """Breaks if a file decides how long it is decoded: each of these took seconds to minutes."""
    before = time.process_time()
    with pytest.raises(BadImage, match=reason):
        decode(content)
    assert time.process_time() - before < 2


def test_sound_images_of_many_scans_are_decoded() -> None:
    """Breaks if the bounds refuse what cameras and tools write."""
    assert decode(scans(10, 640, 480)).shape == (3, 480, 640)
    assert decode(b"P2\n# made by a tool\n2 1\n255\n0 255\n")[0].tolist() == [[0, 255]]
