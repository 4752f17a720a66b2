"""Checkpoints: whole or absent on disk, verified when read, never executed; and the encoder that comes out."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor, nn
from torch.optim import Optimizer

from byol import networks, optim
from byol.config import Config, Network, apply, flatten
from byol.errors import DiskError, UsageError
from byol.method import Method
from byol.progress import say
from byol.records import write_atomically

NAME = re.compile(r"step-(\d{9})\.([0-9a-f]{16})\.safetensors")
ENCODER = "encoder.safetensors"


class State(NamedTuple):
    """What a run is: everything else follows from the config and the step."""

    method: Method
    optimizer: Optimizer
    step: int


def save(directory: Path, state: State, keep: int, slots_of: dict[Tensor, dict[str, Any]] | None = None) -> Path:
    """Writes step-N.DIGEST.safetensors, whose name carries the digest of its bytes, and drops the oldest.

    `slots_of` is the optimizer's state where this process alone does not have all of it.
    """
    tensors = {f"method.{name}": value for name, value in state.method.state_dict().items()}
    names: dict[Tensor, str] = {param: name for name, param in state.method.named_parameters()}
    for param, slots in (slots_of or state.optimizer.state).items():
        tensors |= {f"optimizer.{names[param]}.{slot}": torch.as_tensor(value) for slot, value in slots.items()}
    tensors = {name: value.detach().to("cpu").contiguous() for name, value in tensors.items()}
    content = save_tensors(tensors, {"step": str(state.step)})
    path = directory / f"step-{state.step:09d}.{hashlib.sha256(content).hexdigest()[:16]}.safetensors"
    write_atomically(path, content)
    for old in found(directory)[keep:]:
        with suppress(OSError):  # one too many costs space, not the run
            old.unlink()
    return path


def found(directory: Path) -> list[Path]:
    """The checkpoints of a run, newest first."""
    if not directory.is_dir():
        return []
    return sorted((p for p in directory.iterdir() if NAME.fullmatch(p.name)), reverse=True)


def load_newest(directory: Path, method: Method, optimizer: Optimizer, step: int = -1) -> int:
    """Restores the newest checkpoint that is whole, or that of a step, and returns its step; 0: there is none."""
    paths = [path for path in found(directory) if step in (-1, int(path.name[5:14]))]
    for path in paths:
        try:
            tensors = read(path)
        except DiskError as error:
            say(f"{error} Trying the one before it.")
            continue
        _restore(tensors, method, optimizer)
        return int(path.name[5:14])
    if paths:
        raise DiskError(f"No checkpoint in {directory} is readable. Start again with --overwrite.")
    return 0


def read(path: Path) -> dict[str, Tensor]:
    """The tensors of a checkpoint whose bytes have the digest that its name promises."""
    match = NAME.fullmatch(path.name)
    assert match, path
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DiskError(f"Cannot read the checkpoint {path}: {error.strerror}.") from None
    if hashlib.sha256(content).hexdigest()[:16] != match[2]:
        raise DiskError(f"The checkpoint {path} is damaged: its checksum does not match.")
    try:
        tensors: dict[str, Tensor] = load_tensors(content)
    except SafetensorError as error:
        raise DiskError(f"The checkpoint {path} is damaged: {error}.") from None
    return tensors


def _restore(tensors: dict[str, Tensor], method: Method, optimizer: Optimizer) -> None:
    method.load_state_dict({n.removeprefix("method."): v for n, v in tensors.items() if n.startswith("method.")})
    for name, param in method.named_parameters():
        prefix = f"optimizer.{name}."
        slots = {n.removeprefix(prefix): v for n, v in tensors.items() if n.startswith(prefix)}
        if slots:  # counters such as AdamW's `step` stay on the CPU, buffers follow their parameter
            optimizer.state[param] = {s: v.to(param.device) if v.shape == param.shape else v for s, v in slots.items()}
    optim.keep_own(optimizer)


def save_encoder(path: Path, encoder: nn.Module, config: Config, extra: dict[str, Any]) -> None:
    """The encoder alone, in torchvision's names, with what is needed to rebuild and use it in the header."""
    network = {name: getattr(config.network, name) for name in ENCODER_FIELDS}
    views = {"views": flatten(config.views), "resolution": config.data.resolution}
    header = {"format": "pt", "byol": json.dumps({"network": network, **views, **extra})}
    tensors = {
        name: value.detach().float().cpu().contiguous() if value.is_floating_point() else value.cpu()
        for name, value in encoder.state_dict().items()
    }
    write_atomically(path, save_tensors(tensors, header))


def encoder_path(path: str | Path) -> Path:
    """The encoder file of a run directory, or the file itself."""
    path = Path(path)
    file = path / ENCODER if path.is_dir() else path
    if not file.is_file():
        hint = "the run has not finished its first look yet" if (path / "run.json").exists() else "no such run or file"
        raise UsageError(f"There is no encoder at {path}: {hint}.")
    return file


def encoder_header(path: str | Path) -> dict[str, Any]:
    """What `save_encoder` wrote beside the weights: network, views, resolution, step."""
    file = encoder_path(path)
    try:
        with safe_open(file, "pt") as opened:
            header = json.loads((opened.metadata() or {})["byol"])
            assert isinstance(header, dict)
            return header
    except (SafetensorError, KeyError, ValueError, AssertionError):
        raise DiskError(f"{file} is not an encoder written by byol, or it is damaged.") from None


def encoder_settings(header: Mapping[str, Any]) -> dict[str, Any]:
    """The config fields that a header holds."""
    rooms = {f"{room}.{name}": value for room in ("views", "network") for name, value in header[room].items()}
    return {**rooms, "data.resolution": header["resolution"]}


def load_encoder(path: str | Path) -> nn.Module:
    """The trained encoder of a run (or an encoder file), in evaluation mode."""
    header = encoder_header(path)
    file = encoder_path(path)
    config = apply(Config(), {f"network.{k}": v for k, v in header["network"].items()}, str(file))
    encoder = networks.encoder(config.network)
    try:
        encoder.load_state_dict(load_tensors(file.read_bytes()))
    except (SafetensorError, RuntimeError):
        raise DiskError(f"{file} does not hold the {config.network.encoder} that its header names.") from None
    return encoder.eval()


ENCODER_FIELDS = ("encoder", "width", "small_images", "padding", "zero_init_last")
assert set(ENCODER_FIELDS) <= set(Network.__dataclass_fields__)
