"""The README's picture from a run of `byol demo`: `python benchmarks/picture.py runs/demo`.

The report of the run is photographed by Chromium, and set beside the nearest neighbours that the demo drew: of every
image the first four by the random network and the first four after BYOL. Nothing in the picture is drawn by hand:
another run gives another picture.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import tempfile
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from byol.report.build import report
from byol.run.pictures import CELL, GAP

ROOT = Path(__file__).resolve().parents[1]
SIZE = (660, 700)  # of the browser's window, and of its half of the picture: verdict, measures and the map's upper part
HEAD, SPACE, LIMIT = 30, 14, 200_000  # pixels above the neighbours and between groups; the largest size in bytes
ROWS, NEAREST, DRAWN, TITLE = 10, 4, 5, 14  # of the demo's sheet: rows, neighbours shown, neighbours drawn, its heading
PAPER, INK = (250, 250, 247), (45, 50, 48)  # the report's own ground and letters


def browser() -> str:
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if not found:
        raise SystemExit("A picture of the report needs Chromium, which was not found on the path.")
    return found


def photograph(page: Path, picture: Path, size: tuple[int, int] = SIZE, dark: bool = False) -> None:
    """An HTML file or address as Chromium shows it, without the network."""
    address = page.resolve().as_uri()
    with tempfile.TemporaryDirectory() as profile:
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--hide-scrollbars"]
        flags += [f"--user-data-dir={profile}", "--virtual-time-budget=8000", f"--window-size={size[0]},{size[1]}"]
        flags += ["--force-dark-mode", "--blink-settings=preferredColorScheme=0"] if dark else []
        command = [browser(), *flags, f"--screenshot={picture}", address]
        subprocess.run(command, check=True, capture_output=True, timeout=120)


def composed(page: Image.Image, neighbours: Image.Image) -> Image.Image:
    """The report, and beside it image | nearest before | nearest after, cut from the demo's sheet."""
    step = CELL + GAP
    wide = (1 + 2 * NEAREST) * step + 2 * SPACE
    whole = Image.new("RGB", (page.width + wide, page.height), PAPER)
    whole.paste(page.convert("RGB"), (0, 0))
    words, font = ImageDraw.Draw(whole), ImageFont.load_default(size=15)
    x = page.width
    for first, count, title in ((0, 1, "image"), (1, NEAREST, "random network"), (1 + DRAWN, NEAREST, "after BYOL")):
        words.text((x, 8), title, fill=INK, font=font)
        corner = GAP + first * step
        part = (corner, TITLE + GAP, corner + count * step - GAP, TITLE + GAP + ROWS * step - GAP)
        whole.paste(neighbours.convert("RGB").crop(part), (x, HEAD))
        x += count * step + SPACE
    return whole


def save(picture: Image.Image, path: Path) -> int:
    """In as many colours as the limit lets it have."""
    for colours in (256, 128, 64, 32):
        few = picture.quantize(colours, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
        few.save(path, optimize=True)
        if path.stat().st_size <= LIMIT:
            return colours
    raise SystemExit(f"{path} is larger than {LIMIT:,} bytes even with 32 colours.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, help="the directory of `byol demo`")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "demo.png")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        page, shot = Path(place, "report.html"), Path(place, "report.png")
        report([given.run], page, 700, "")
        photograph(page, shot)
        with Image.open(shot) as seen, Image.open(given.run / "neighbours.png") as neighbours:
            picture = composed(seen, neighbours)
    colours = save(picture, given.out)
    print(f"{given.out}: {picture.width} × {picture.height}, {colours} colours, {given.out.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
