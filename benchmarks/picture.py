"""The README's picture from a run of `byol demo`: `python benchmarks/picture.py runs/demo`.

The report of the run is photographed by Chromium, and set beside the nearest neighbours that the demo drew. Nothing in
the picture is drawn by hand: another run gives another picture.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import tempfile
from pathlib import Path

from PIL import Image

from byol.report.build import report

ROOT = Path(__file__).resolve().parents[1]
SIZE = (1200, 1240)  # of the browser's window: verdict, measures and map
HEIGHT, GAP, LIMIT = 600, 18, 200_000  # of the picture in pixels; its largest size in bytes
PAPER = (250, 250, 247)  # the report's own ground


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
    """Both in one row of one height."""
    scaled = [
        part.resize((round(part.width * HEIGHT / part.height), HEIGHT), Image.Resampling.LANCZOS)
        for part in (page.convert("RGB"), neighbours.convert("RGB"))
    ]
    whole = Image.new("RGB", (sum(part.width for part in scaled) + GAP, HEIGHT), PAPER)
    whole.paste(scaled[0], (0, 0))
    whole.paste(scaled[1], (scaled[0].width + GAP, 0))
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
