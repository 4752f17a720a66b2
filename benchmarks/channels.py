"""Deep images of five channels beside 8-bit colours, in one run on one core: images a second from file to two views.

    python benchmarks/channels.py --out results/channels-speed.json

The same scenes are written as JPEG, as PNG and as .npy of 8-bit colours, and as .npy of five 16-bit channels, all of
256 px. An image begins as its file and ends as two normalized views of 224 px. The kinds take turns, a batch each, and
are timed by the processor time of this process, so that other programs on the machine matter little.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from byol import data, views
from byol.config import Config, apply
from byol.crops import scale_of
from byol.data import values
from byol.data.stored import fitted
from byol.kinds import views as views_of_kind
from byol.run import machine
from byol.run.record import commit, now

SIDE, SIZE, IMAGES, BATCH = 256, 224, 64, 8
KINDS = ("jpeg-rgb", "png-rgb", "npy-rgb", "npy-five")


def write(root: Path) -> None:
    """Smooth noise with some grain, the same in every kind but for its channels and depth."""
    random = np.random.default_rng(0)
    for kind in KINDS:
        (root / kind).mkdir()
    for number in range(IMAGES):
        coarse = torch.from_numpy(random.random((1, 5, 9, 9), np.float32))
        fine = torch.nn.functional.interpolate(coarse, size=(SIDE, SIDE), mode="bicubic")[0].numpy()
        unit = np.clip(fine + random.normal(0, 0.02, fine.shape), 0, 1)
        colours = (unit[:3] * 255).round().astype(np.uint8)
        picture = Image.fromarray(colours.transpose(1, 2, 0).copy())
        picture.save(root / "jpeg-rgb" / f"{number:03d}.jpg", quality=90)
        picture.save(root / "png-rgb" / f"{number:03d}.png")
        np.save(root / "npy-rgb" / f"{number:03d}.npy", colours)
        np.save(root / "npy-five" / f"{number:03d}.npy", (unit * 65535).round().astype(np.uint16))


def maker(folder: Path, kind: str) -> tuple[Callable[[int], None], Config]:
    """What makes both views of a batch from files, and the config that the images have settled."""
    config = apply(Config(), {"data.resolution": SIZE})
    found = data.open_stored(str(folder), config.data)
    config = apply(config, values.settle(found, config, {}, {}).fields)
    source, scale = fitted(found, config.data), scale_of(config.data)
    recipe = views_of_kind(kind, config.views, config.network.channels)[0] if kind else config.views

    def batch(step: int) -> None:
        images = [source.read((step * BATCH + place) % len(source)) for place in range(BATCH)]
        for draw in views.draw(0, step, BATCH, recipe):
            views.make(images, draw, recipe, SIZE, scale)

    return batch, config


def measure(root: Path, rounds: int) -> dict[str, Any]:
    """Images a second of processor time: the median over the rounds, and the quarter of them on either side."""
    makers = {
        "jpeg-rgb": maker(root / "jpeg-rgb", "")[0],
        "png-rgb": maker(root / "png-rgb", "")[0],
        "npy-rgb": maker(root / "npy-rgb", "")[0],
        "npy-five": maker(root / "npy-five", "")[0],
        "npy-five, satellite": maker(root / "npy-five", "satellite")[0],
    }
    seconds: dict[str, list[float]] = {name: [] for name in makers}
    for step in range(rounds + 1):
        for name, make in makers.items():
            began = time.process_time()
            make(step)
            if step:  # the first warms up
                seconds[name].append(time.process_time() - began)
    rates = {name: sorted(BATCH / each for each in taken) for name, taken in seconds.items()}
    return {
        name: {
            "images_per_second": round(statistics.median(found), 1),
            "quartiles": [round(found[len(found) // 4], 1), round(found[3 * len(found) // 4], 1)],
        }
        for name, found in rates.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=24)
    options = parser.parse_args()
    torch.set_num_threads(1)
    machine.keep_memory()
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder))
        found = measure(Path(folder), options.rounds)
        settled = maker(Path(folder) / "npy-five", "")[1]
    base = found["jpeg-rgb"]["images_per_second"]
    result = {
        "what": "two views of 224 px from files of 256 px, one core, processor time",
        "created": now(),
        "commit": commit(),
        "versions": machine.versions(),
        "images": IMAGES,
        "batch": BATCH,
        "rounds": options.rounds,
        "five": {"channels": settled.data.channels, "range": settled.data.range},
        "rates": found,
        "ratio_to_jpeg": {name: round(rate["images_per_second"] / base, 3) for name, rate in found.items()},
    }
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result["ratio_to_jpeg"], indent=1))


if __name__ == "__main__":
    main()
