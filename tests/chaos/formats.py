"""A small run in the present format of run.json, which tests/chaos/test_formats.py reads.

`python -m tests.chaos.formats` writes it. The run of a format that was released is never written anew.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import byol
from byol import checkpoint
from byol.run import record
from tests.conftest import ALONE, TINY

FIXTURES = Path(__file__).parents[1] / "fixtures"
SMALLEST = {**TINY, **ALONE} | {
    "network.width": 0.01,
    "network.projector_hidden": 2,
    "network.predictor_hidden": 2,
    "network.projection": 2,
    "optim.epochs": 1,
    "optim.batch": 4,
    "run.monitor_images": 16,
}


def digest(tensors: dict[str, Tensor]) -> str:
    """Of names, shapes and bytes."""
    found = hashlib.sha256()
    for name, value in sorted(tensors.items()):
        found.update(f"{name} {tuple(value.shape)} {value.dtype}\0".encode() + value.contiguous().numpy().tobytes())
    return found.hexdigest()


def features(encoder: torch.nn.Module) -> list[float]:
    """Of one image that is the same everywhere."""
    image = (torch.arange(3 * 32 * 32) % 251).float().view(1, 3, 32, 32) / 250
    with torch.inference_mode():
        found: list[float] = encoder(image)[0].tolist()
    return found


def main() -> None:
    out = FIXTURES / f"format-{record.FORMAT}"
    out.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as place:
        run = Path(place) / "run"
        byol.pretrain("scenes:16", run, "cifar10-cpu", SMALLEST)
        newest = checkpoint.found(run / "checkpoints")[0]
        expected: dict[str, Any] = {
            "checkpoint": digest(checkpoint.read(newest)),
            "features": features(checkpoint.load_encoder(run)),
        }
        for file in (newest, run / checkpoint.ENCODER):
            (out / f"{file.name}.xz").write_bytes(lzma.compress(file.read_bytes(), preset=9))
        shutil.copy(run / "run.json", out)
    (out / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    main()
