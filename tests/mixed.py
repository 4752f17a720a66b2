"""300 images as they lie on people's disks: albums of every format, some of them broken, with names to match."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

ORIENTATION = 0x0112
COUNT = 300
ODD_NAMES = (
    *("two words.jpg", "Überfahrt am Fluß.JPG", "猫 \U0001f408.jpeg", "-o.jpg", "50% off & more.jpg", "a'b\"c.jpg"),
    *("<img src=x onerror=alert(1)>.jpg", "line\nbreak.jpg", "tab\there.jpg", "{1..3}*[x]?.jpg", "#1;2.jpg"),
    "dots...jpg",
)


def encoded(image: Image.Image, format: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format, **options)
    return buffer.getvalue()


def deep(image: Image.Image) -> bytes:
    """16 bits of grey that use half of the range, as a microscope writes them."""
    grey = np.asarray(image.convert("L")).astype(np.uint16)
    return encoded(Image.fromarray(grey * 128), "PNG")


def turned(image: Image.Image, number: int) -> bytes:
    """Stored on its side, with the tag that sets it upright."""
    exif = Image.Exif()
    exif[ORIENTATION] = 2 + number % 7
    return encoded(image, "JPEG", exif=exif)


def moving(image: Image.Image) -> bytes:
    return encoded(image, "GIF", save_all=True, append_images=[image.rotate(90), image.rotate(180)])


def part(content: bytes, n: int) -> bytes:
    return content[: len(content) * (n + 2) // 12]


def kinds() -> Iterator[tuple[int, str, Callable[[Image.Image, int], bytes]]]:
    """How many of what, the name's ending, and the bytes of such a file."""
    yield 14, "grey.jpg", lambda image, n: encoded(image.convert("L"), "JPEG")
    yield 6, "cmyk.jpg", lambda image, n: encoded(image.convert("CMYK"), "JPEG")
    yield 6, "deep.png", lambda image, n: deep(image)
    yield 10, "turned.jpg", turned
    yield 4, "moving.gif", lambda image, n: moving(image)
    yield 8, "screen.png", lambda image, n: encoded(image.convert("RGBA"), "PNG")
    yield 4, "palette.png", lambda image, n: encoded(image.convert("P"), "PNG")
    yield 6, "web.webp", lambda image, n: encoded(image, "WEBP")
    yield 3, "scan.tif", lambda image, n: encoded(image, "TIFF")
    yield 3, "old.bmp", lambda image, n: encoded(image, "BMP")
    yield 6, "tiny.png", lambda image, n: encoded(image.resize((1 + 2 * n, 3)), "PNG")
    yield 6, "wide.jpg", lambda image, n: encoded(image.resize((400, 24)), "JPEG")
    yield 8, "cut.jpg", lambda image, n: part(encoded(image, "JPEG"), n)
    yield 4, "cut.png", lambda image, n: encoded(image, "PNG")[:-40]
    yield 5, "zero.jpg", lambda image, n: b""
    yield 4, "text.jpg", lambda image, n: b"<!DOCTYPE html><title>404 Not Found</title>\n" * 5
    yield 3, "noise.jpg", lambda image, n: np.random.default_rng(n).bytes(4000)


BROKEN = {"cut.jpg", "cut.png", "zero.jpg", "text.jpg", "noise.jpg"}


def write_mixed(root: Path, pictures: Sequence[Image.Image]) -> set[str]:
    """Writes 300 files with an image's name into albums, and some without; returns those that cannot be read."""
    broken, number = set(), 0

    def write(name: bytes | str, content: bytes) -> None:
        path = root / "Camera Roll" / f"{number // 100}" if number < 200 else root
        path.mkdir(parents=True, exist_ok=True)
        with open(os.path.join(os.fsencode(path), os.fsencode(name)), "wb") as file:
            file.write(content)
        if any(os.fsdecode(name).endswith("-" + ending) for ending in BROKEN):
            broken.add(str((path / os.fsdecode(name)).relative_to(root)))

    def picture() -> Image.Image:
        return pictures[number % len(pictures)].convert("RGB")

    for count, ending, make in kinds():
        for n in range(count):
            write(f"IMG_{number:04d}-{ending}", make(picture(), n))
            number += 1
    for name in (*ODD_NAMES, b"caf\xe9.jpg"):
        write(name, encoded(picture(), "JPEG"))
        number += 1
    for copy in range(4):
        write(f"Copy of {copy}.jpg", encoded(pictures[0].convert("RGB"), "JPEG"))
        number += 1
    while number < COUNT:
        write(f"IMG_{number:04d}.jpg", encoded(picture(), "JPEG", quality=90))
        number += 1
    (root / "Thumbs.db").write_bytes(b"\0" * 100)
    (root / "._IMG_0001.jpg").write_bytes(b"\0\5\x16\7" * 20)  # what macOS leaves beside every file
    (root / "notes.txt").write_text("not an image")
    for n in range(3):
        (root / f"IMG_9{n}.HEIC").write_bytes(b"\0\0\0\x18ftypheic" + b"\0" * 200)
    return broken
