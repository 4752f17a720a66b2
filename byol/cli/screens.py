"""What the command says besides its verbs: the five tasks, the version, and one JSON object for machines."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path

import byol

TASKS = """byol: a good encoder from unlabelled images, and whether it is learning.

  from photos to an encoder
      byol pretrain ./images --budget 15m
      byol report runs/images-auto
  from given weights to your own classifier
      byol pretrain ./images --init resnet18.pth --out runs/mine
      byol fit runs/mine --on ./labelled -o model
  other kinds of images: 16-bit, many channels, TIFF, DICOM
      byol doctor ./scans
      byol pretrain ./scans
  a table of the paper, ours beside it
      byol table --list
      byol table target-decay --scale cpu --data ./cifar10
  on a cluster
      byol plan paper-300 --devices 64 --device-type a100
      byol launch ./images --preset paper-300 --out runs/big --dry-run

No images at hand? byol demo takes five minutes. byol --help lists all verbs, byol VERB --help one."""


def version() -> str:
    """byol, the libraries, and what a run would compute with here."""
    from byol.config import Config
    from byol.run import machine

    here, found = machine.choose(Config()), machine.versions()
    name = here.device_name
    if name == "cuda":
        import torch

        name += f" ({torch.cuda.device_count()} x {torch.cuda.get_device_name()})"
    elif name == "cpu":
        name += f" ({found['cores']} cores, {found['instructions']})"
    libraries = ", ".join(f"{library} {found[library]}" for library in ("torch", "torchvision", "numpy", "python"))
    return f"byol {byol.__version__}\n{libraries}\ndevice {name}, precision {here.precision}, threads {here.threads}"


def as_json(verb: str, code: int, seconds: float, result: object, said: list[str], error: str) -> str:
    """One line for a program: how the verb ended, what it found, and what it would have printed."""
    facts = {
        "byol": byol.__version__,
        "verb": verb,
        "exit_code": code,
        "error": error or None,
        "seconds": round(seconds, 2),
        "result": plain(result),
        "said": [line for text in said for line in text.splitlines()],
    }
    return json.dumps(facts, ensure_ascii=False) + "\n"


def plain(value: object) -> object:
    """As JSON has it: records by their fields, paths as text, a number that is not finite as null; functions, networks
    and arrays are left out."""
    if is_dataclass(value) and not isinstance(value, type):
        return plain({item.name: getattr(value, item.name) for item in fields(value)})
    if hasattr(value, "_asdict"):
        return plain(value._asdict())
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items() if not _mute(each)}
    if isinstance(value, list | tuple | set):
        return [plain(each) for each in value]
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "item") and getattr(value, "shape", None) == ():
        return plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, str | bool | int | float) else str(value)


def _mute(value: object) -> bool:
    """What no program would read from a line of text."""
    return (callable(value) and not is_dataclass(value)) or bool(getattr(value, "shape", ()))
