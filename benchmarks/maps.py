"""Small maps: encoders whose last convolutions are one matrix product, beside torch's convolutions throughout.

    python benchmarks/maps.py

Milliseconds of CPU time of one thread that forward and backward passes of 128 images take, both ways in turns, median
of the rounds; written to results/maps.json.
"""

from __future__ import annotations

import itertools
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from byol import networks
from byol.convolutions import ProductConv2d
from byol.run.files import write_json
from byol.run.machine import versions
from byol.run.record import commit

RECORD = Path("results/maps.json")
BATCH, ROUNDS = 128, 15
# (width, px, 3x3 stem): auto's shapes for small images and for photographs, cifar10-cpu at 16 px, and full width.
SHAPES = ((0.25, 24, False), (0.25, 32, False), (0.5, 32, False), (0.5, 64, False), (0.25, 16, True), (0.5, 16, True))
WIDE = ((1.0, 24, False), (1.0, 32, False), (1.0, 64, False), (1.0, 16, True))


def milliseconds(network: networks.ResNet, images: torch.Tensor, bf16: bool) -> float:
    began = time.process_time()
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        representation = network(images)
    representation.float().square().sum().backward()
    return 1000 * (time.process_time() - began)


def compared(width: float, side: int, small: bool, bf16: bool) -> dict[str, Any]:
    torch.manual_seed(0)
    network = networks.resnet(18, width, small).to(memory_format=torch.channels_last).train()
    images = torch.randn(BATCH, 3, side, side).to(memory_format=torch.channels_last)
    few, taken = ProductConv2d.few, {"product": list[float](), "convolution": list[float]()}
    try:
        for turn, (way, times) in itertools.product(range(ROUNDS + 2), taken.items()):
            ProductConv2d.few = few if way == "product" else lambda *_: False  # type: ignore[method-assign]
            passed = milliseconds(network, images, bf16)
            if turn > 1:  # the first rounds find memory
                times.append(passed)
    finally:
        ProductConv2d.few = few  # type: ignore[method-assign]
    found: dict[str, Any] = {way: round(statistics.median(times), 1) for way, times in taken.items()}
    stem = "3x3" if small else "7x7"
    what = {"width": width, "side": side, "stem": stem, "precision": "bf16" if bf16 else "float32"}
    return what | found | {"gain": round(found["convolution"] / found["product"], 2)}


def main() -> None:
    torch.set_num_threads(1)
    lines = [compared(*shape, bf16) for bf16 in (True, False) for shape in (SHAPES + WIDE if bf16 else SHAPES)]
    for line in lines:
        print(line)
    write_json(
        RECORD,
        {
            "what": f"ms of CPU time of one thread, forward and backward of a ResNet-18, {BATCH} images",
            "lines": lines,
            "commit": commit(),
            "versions": versions(),
            "processor": torch.backends.cpu.get_cpu_capability(),
        },
    )


if __name__ == "__main__":
    main()
