"""Encoder files whose header says what a stranger likes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import load_file
from safetensors.torch import save as save_tensors


def with_header(file: Path, field: str, value: Any) -> None:
    """Writes one field of the header of an encoder anew, such as network.width; None takes the field out."""
    with safe_open(file, "pt") as opened:
        told = json.loads((opened.metadata() or {})["byol"])
    *sections, name = field.split(".")
    place = told
    for section in sections:
        place = place[section]
    place[name] = value
    if value is None:
        del place[name]
    file.write_bytes(save_tensors(load_file(file), {"format": "pt", "byol": json.dumps(told)}))
