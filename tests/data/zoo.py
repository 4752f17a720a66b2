"""A folder of every bad or odd kind of image file: those that cannot be shown, and what the others show."""

from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageCms

from tests.data.test_bad_images import bomb
from tests.data.test_decode import chunk, encoded, exif, noise, png, smooth, stored_as


def ycck(ink: np.ndarray) -> bytes:
    """A JPEG of inks (H, W, 4) stored as luma, chroma and black, as Photoshop does: Adobe's transform 2."""
    red, green, blue = (ink[..., i].astype(float) for i in range(3))
    luma = 0.299 * red + 0.587 * green + 0.114 * blue
    planes = np.stack([luma, 128 + (blue - luma) / 1.772, 128 + (red - luma) / 1.402], -1).round()
    # Pillow inverts on writing, and would write what it is given as inks, transform 0.
    given = np.concatenate([255 - planes.clip(0, 255), ink[..., 3:]], -1).astype(np.uint8)
    data = bytearray(encoded(Image.fromarray(given, "CMYK"), "JPEG", quality=98, subsampling=0))
    marker = data.index(b"Adobe")
    assert data[marker + 11] == 0
    data[marker + 11] = 2
    return bytes(data)


def inks() -> np.ndarray:
    y, x = np.mgrid[0:24, 0:40]
    return np.stack([4 * y, 3 * x, 90 - 2 * y, x + y], -1).astype(np.uint8)


def _bad() -> dict[bytes, bytes]:
    """File → content that cannot be shown."""
    jpeg, whole_png = encoded(Image.fromarray(smooth(48, 48)), "JPEG"), encoded(Image.fromarray(noise(48, 48)), "PNG")
    found = {
        b"zero-bytes.jpg": b"",
        b"text.png": b"just some words, no picture at all\n" * 9,
        b"html.jpg": b"<!DOCTYPE html><html><body>404 not found</body></html>",
        b"drawing.png": b'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"></svg>',
        b"postscript.jpg": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n",
        b"heic-junk.jpg": b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(200),
        b"program.png": b"\x7fELF\x02\x01\x01" + bytes(300),
        b"archive.jpg": b"PK\x03\x04" + bytes(300),
        b"zeros.bmp": bytes(5000),
        b"noise.webp": np.random.default_rng(1).bytes(3000),
        b"no-pixels.png": png(0, 5, 8, 0, zlib.compress(b"\0" * 5)),
        b"no-pixels.ppm": b"P6 0 5 255\n",
        b"header-only.gif": encoded(Image.fromarray(smooth()), "GIF")[:13],
        b"endless-header.jpg": b"\xff\xd8\xff\xe0\0\x02" + bytes(30_000),
        b"20000x20000.png": bomb(),
        b"65500x65500.jpg": _claims_65500(jpeg),
        b"2-billion-rows.bmp": _rows(2**31 - 1),
        b"text-bomb.png": _text_bomb(),
        b"wrong-checksum.png": whole_png[:60] + bytes([whole_png[60] ^ 255]) + whole_png[61:],
        b"endless-directory.tif": b"II*\0\x08\0\0\0" + struct.pack("<H", 65535) + bytes(600),
        b"half.webp": encoded(Image.fromarray(smooth(48, 48)), "WEBP")[:80],
        b"half.tif": encoded(Image.fromarray(smooth(48, 48)), "TIFF")[:900],
        b"half.gif": encoded(Image.fromarray(smooth(48, 48)), "GIF")[:600],
    }
    for tenth in range(1, 10):
        found[b"cut-%d.jpg" % tenth] = jpeg[: len(jpeg) * tenth // 10]
        found[b"cut-%d.png" % tenth] = whole_png[: len(whole_png) * tenth // 10]
    return found


def _claims_65500(jpeg: bytes) -> bytes:
    place = jpeg.index(b"\xff\xc0") + 5
    return jpeg[:place] + struct.pack(">HH", 65500, 65500) + jpeg[place + 4 :]


def _rows(count: int) -> bytes:
    head = struct.pack("<IHHI", 0, 0, 0, 54) + struct.pack("<IiiHHI", 40, 9, count, 1, 24, 0)
    return b"BM" + head + bytes(40)


def _text_bomb() -> bytes:
    """A comment of 300 MB in 300 KB."""
    body = b"Comment\0\0" + zlib.compress(bytes(300_000_000), 9)
    return png(4, 4, 8, 0, zlib.compress(bytes(20)), chunk(b"zTXt", body))


def _odd() -> dict[bytes, tuple[bytes, np.ndarray]]:
    """File → (content, what a viewer shows)."""
    shown, grey = smooth(24, 40), smooth(24, 40)[..., 0]
    red, blue = Image.new("RGB", (40, 24), (255, 0, 0)), Image.new("RGB", (40, 24), (0, 0, 255))
    frames: dict[str, Any] = {"save_all": True, "append_images": [blue, red]}
    only_red = np.asarray(red)
    ink = inks()
    inked = (255 - ink[..., :3].astype(float)) * (255 - ink[..., 3:].astype(float)) / 255
    alpha = np.full((24, 40, 1), 100, np.uint8)
    on_white = (shown * (100 / 255) + 255 * (1 - 100 / 255)).round()
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("LAB")).tobytes()
    deep = grey.astype(np.uint16) * 257
    palette = Image.fromarray(grey % 4, "P")
    palette.putpalette(bytes([0, 0, 0, 50, 60, 70, 90, 0, 90, 250, 250, 0]))
    entries = np.array([[0, 0, 0], [50, 60, 70], [255, 255, 255], [250, 250, 0]])
    tall, wide = np.full((10_000, 1, 3), 9, np.uint8), np.full((1, 10_000, 3), 7, np.uint8)
    found = {
        b"plain.jpg": (encoded(Image.fromarray(shown), "JPEG", quality=97), shown),
        b"really-a-png.jpg": (encoded(Image.fromarray(shown), "PNG"), shown),
        b"really-a-jpeg.png": (encoded(Image.fromarray(shown), "JPEG", quality=97), shown),
        b"animated.gif": (encoded(red, "GIF", **frames), only_red),
        b"animated.webp": (encoded(red, "WEBP", lossless=True, **frames), only_red),
        b"animated.png": (encoded(red, "PNG", **frames), only_red),
        b"pages.tif": (encoded(red, "TIFF", **frames), only_red),
        b"cmyk.jpg": (encoded(Image.fromarray(ink, "CMYK"), "JPEG", quality=97, subsampling=0), inked),
        b"ycck.jpg": (ycck(ink), inked),
        b"cmyk.tif": (encoded(Image.fromarray(ink, "CMYK"), "TIFF"), inked),
        b"1-bit.png": (encoded(Image.fromarray(grey > 100), "PNG"), _three(255 * (grey > 100))),
        b"1-bit.tif": (encoded(Image.fromarray(grey > 100), "TIFF"), _three(255 * (grey > 100))),
        b"16-bit.png": (encoded(Image.fromarray(deep), "PNG"), _three(grey)),
        b"16-bit.tif": (encoded(Image.fromarray(deep), "TIFF"), _three(grey)),
        b"32-bit.tif": (encoded(Image.fromarray(grey.astype(np.int32)), "TIFF"), _three(grey)),
        b"float.tif": (encoded(Image.fromarray((grey / 255).astype(np.float32)), "TIFF"), _three(grey)),
        b"palette.png": (encoded(palette, "PNG", transparency=2), entries[grey % 4]),
        b"palette.gif": (encoded(palette, "GIF", transparency=2), entries[grey % 4]),
        b"rgba.png": (encoded(Image.fromarray(np.concatenate([shown, alpha], -1)), "PNG"), on_white),
        b"grey-alpha.png": (
            encoded(Image.fromarray(np.stack([grey, alpha[..., 0]], -1), "LA"), "PNG"),
            _three((grey * (100 / 255) + 255 * (1 - 100 / 255)).round()),
        ),
        b"profile.png": (encoded(Image.fromarray(shown), "PNG", icc_profile=profile), shown),
        b"broken-exif.jpg": (
            encoded(Image.fromarray(shown), "JPEG", quality=97, exif=b"Exif\0\0II*\0\xff\xff\xff\xff"),
            shown,
        ),
        b"1x1.png": (encoded(Image.fromarray(shown[:1, :1]), "PNG"), shown[:1, :1]),
        b"1x10000.png": (encoded(Image.fromarray(tall), "PNG"), tall),
        b"10000x1.png": (encoded(Image.fromarray(wide), "PNG"), wide),
        b"no-utf8-\xff\xfe.png": (encoded(Image.fromarray(shown), "PNG"), shown),
        b"line\nbreak.png": (encoded(Image.fromarray(shown), "PNG"), shown),
        "right-to-left-\u202egnp.png".encode(): (encoded(Image.fromarray(shown), "PNG"), shown),
        b"quote'\"<b>&amp;.png": (encoded(Image.fromarray(shown), "PNG"), shown),
        b"\x1b[31mred.png": (encoded(Image.fromarray(shown), "PNG"), shown),
        b"tab\tand space .png": (encoded(Image.fromarray(shown), "PNG"), shown),
        b"n" * 250 + b".png": (encoded(Image.fromarray(shown), "PNG"), shown),
    }
    for orientation in range(1, 9):
        stored = Image.fromarray(stored_as(shown, orientation))
        found[b"exif-%d.png" % orientation] = (encoded(stored, "PNG", exif=exif(orientation)), shown)
    return found


def _three(grey: np.ndarray) -> np.ndarray:
    return np.repeat(np.asarray(grey)[..., None], 3, -1)


BAD = _bad()
ODD = _odd()
SPARSE = {b"5-gb.jpg": b"", b"5-gb-head.png": b"\x89PNG\r\n\x1a\n"}  # files that are mostly a hole
LOSSY = 2.0  # of 255, for JPEG; everything else is exact to a rounding
KINDS = len(BAD) + len(ODD) + len(SPARSE) + 4  # and the four of `build` that are no files


def build(root: Path) -> Path:
    """The folder; beside the files a pipe, a link to itself, a broken link and a folder with an image's name."""
    base = os.fsencode(root / "zoo")
    os.makedirs(base)
    for name, content in [*BAD.items(), *((n, c) for n, (c, _) in ODD.items()), *SPARSE.items()]:
        with open(os.path.join(base, name), "wb") as file:
            file.write(content)
            if name in SPARSE:
                file.truncate(5 << 30)
    os.mkfifo(os.path.join(base, b"pipe.jpg"))
    os.symlink(b"loop.png", os.path.join(base, b"loop.png"))
    os.symlink(base, os.path.join(base, b"up"))
    os.symlink(b"nowhere.png", os.path.join(base, b"gone.png"))
    os.mkdir(os.path.join(base, b"folder.jpg"))
    return Path(os.fsdecode(base))
