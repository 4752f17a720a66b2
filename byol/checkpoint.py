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

from byol import __version__, networks
from byol.config import Config, Data, Network, apply, flatten
from byol.errors import BadData, DiskError, UsageError
from byol.method import Method
from byol.parallel.processes import together
from byol.run.files import open_regular, read_regular, refuse_link, write_atomically
from byol.run.progress import say

FOLDER = "checkpoints"
NAME = re.compile(r"step-(\d{9})\.([0-9a-f]{16})\.safetensors")
CUT_SHORT = re.compile(rf"\.{NAME.pattern}(\.\d+\.[0-9a-f]{{16}})?\.tmp")  # what a killed save has left
ENCODER = "encoder.safetensors"
BEST = "best.safetensors"  # the encoder of the best look
MOST_BYTES = 64_000_000_000  # of a file of weights; a checkpoint of ResNet-200 (4x) in float64 is smaller
MOST_HEADER = 10_000_000  # bytes; a checkpoint of ResNet-200 has some hundred thousand
FORMAT = 1  # of checkpoints and encoder files; those written before it was noted are of the first too


class NewerFormat(DiskError):
    """Whole, but written by a later version."""


class State(NamedTuple):
    """What a run is: everything else follows from the config and the step."""

    method: Method
    optimizer: Optimizer
    step: int


class Given(NamedTuple):
    """An encoder that a run is given to begin with: where it was found, its tensors, and what they settle."""

    place: str
    origin: str
    digest: str  # of every tensor, whatever the file's format
    network: dict[str, Any]  # the fields of Network that its shape is
    views: dict[str, Any]  # how its input was normalized
    resolution: int
    tensors: dict[str, Tensor]


def listed(state: State) -> dict[str, Tensor]:
    """Every tensor that a run is, by the name that it has in a checkpoint."""
    tensors = {f"method.{name}": value for name, value in state.method.state_dict().items()}
    names: dict[Tensor, str] = {param: name for name, param in state.method.named_parameters()}
    for param, slots in state.optimizer.state.items():
        tensors |= {f"optimizer.{names[param]}.{slot}": torch.as_tensor(value) for slot, value in slots.items()}
    return whole(tensors)


def whole(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors as they are; of those that the processes hold in parts, all processes have to ask for the whole."""
    with together():
        return {n: v.full_tensor() if hasattr(v, "full_tensor") else v for n, v in tensors.items()}


def save(directory: Path, state: State, keep: int, tensors: dict[str, Tensor] | None = None) -> Path:
    """Writes step-N.DIGEST.safetensors, whose name carries the digest of its bytes, and drops the oldest.

    `tensors` are the state's where the state itself holds them in parts.
    """
    tensors = listed(state) if tensors is None else tensors
    tensors = {name: value.detach().to("cpu").contiguous() for name, value in tensors.items()}
    content = as_file(tensors, {"byol": json.dumps({"format": FORMAT, "step": state.step})})
    path = directory / f"step-{state.step:09d}.{hashlib.sha256(content).hexdigest()[:16]}.safetensors"
    write_atomically(path, content)
    for old in [*found(directory)[keep:], *_cut_short(directory)]:
        with suppress(OSError):  # one too many costs space, not the run
            old.unlink()
    return path


def as_file(tensors: dict[str, Tensor], header: dict[str, str]) -> bytes:
    """A safetensors file, the same bytes for the same values: safetensors writes its header in an order of chance."""
    content: bytes = save_tensors(tensors, header)
    end = 8 + int.from_bytes(content[:8], "little")
    told = json.loads(content[8:end])
    told["__metadata__"] = dict(sorted(header.items()))
    text = json.dumps(told, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # the tensors begin at a multiple of eight, as safetensors has them
    return len(text).to_bytes(8, "little") + text + content[end:]


def found(directory: Path) -> list[Path]:
    """The checkpoints of a run, newest first."""
    if not directory.is_dir():
        return []
    return sorted((p for p in directory.iterdir() if NAME.fullmatch(p.name)), reverse=True)


def _cut_short(directory: Path) -> list[Path]:
    return [path for path in directory.iterdir() if CUT_SHORT.fullmatch(path.name)]


def step_of(path: Path) -> int:
    """The step of a checkpoint, by its name."""
    return int(path.name[5:14])


def clear(directory: Path) -> None:
    """Removes the checkpoints of a run, and their folder if it holds nothing else."""
    refuse_link(directory)
    if directory.is_dir():
        for path in [*found(directory), *_cut_short(directory)]:
            path.unlink(missing_ok=True)
        with suppress(OSError):  # a stranger's files are in it
            directory.rmdir()


def load_newest(directory: Path, method: Method, optimizer: Optimizer, step: int = -1) -> int:
    """Restores the newest checkpoint that is whole, or that of a step, and returns its step; 0: there is none."""
    paths = [path for path in found(directory) if step in (-1, step_of(path))]
    for path in paths:
        try:
            tensors = read(path)
        except NewerFormat:
            raise  # an older checkpoint would throw away what the later version has done since
        except DiskError as error:
            say(f"{error} Trying the one before it.")
            continue
        _restore(tensors, method, optimizer, path)
        return step_of(path)
    if paths:
        raise DiskError(f"No checkpoint in {directory} is readable. Start again with --overwrite.")
    return 0


def read(path: Path) -> dict[str, Tensor]:
    """The tensors of a checkpoint whose bytes have the digest that its name promises."""
    match = NAME.fullmatch(path.name)
    assert match, path
    try:
        content = read_regular(path, MOST_BYTES)
    except OSError as error:
        raise DiskError(f"Cannot read the checkpoint {path}: {error.strerror}.") from None
    if hashlib.sha256(content).hexdigest()[:16] != match[2]:
        raise DiskError(f"The checkpoint {path} is damaged: its checksum does not match.")
    try:
        tensors: dict[str, Tensor] = load_tensors(content)
    except (SafetensorError, ValueError, KeyError) as error:
        raise DiskError(f"The checkpoint {path} is damaged: {error}.") from None
    _refuse_newer(path)
    return tensors


def opened_tensors(path: Path) -> safe_open:
    """A safetensors file, opened after a look at what it is: neither a pipe nor a header without end is waited for."""
    with open_regular(path) as file:
        if int.from_bytes(file.read(8), "little") > MOST_HEADER:
            raise SafetensorError(f"its header is longer than {MOST_HEADER / 1e6:g} MB")
    return safe_open(path, "pt")


def _refuse_newer(path: Path) -> None:
    """A file of a later version is not guessed at."""
    with opened_tensors(path) as opened:
        told = (opened.metadata() or {}).get("byol", "{}")
    try:
        number = json.loads(told).get("format", 1)
        newer = not 1 <= number <= FORMAT
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise DiskError(f"{path} is damaged or is not ours: its header cannot be read.") from None
    if newer:
        raise NewerFormat(
            f"{path} is of format {number}, and this byol ({__version__}) knows formats up to {FORMAT}. "
            "Update byol to read it."
        )


def _restore(tensors: dict[str, Tensor], method: Method, optimizer: Optimizer, path: Path) -> None:
    try:
        method.load_state_dict({n.removeprefix("method."): v for n, v in tensors.items() if n.startswith("method.")})
    except RuntimeError:
        raise DiskError(f"{path} holds other networks than the run's config names.") from None
    for name, param in method.named_parameters():
        prefix = f"optimizer.{name}."
        slots = {n.removeprefix(prefix): v for n, v in tensors.items() if n.startswith(prefix)}
        if slots:
            optimizer.state[param] = {slot: _placed(value, param) for slot, value in slots.items()}


def _placed(value: Tensor, param: Tensor) -> Tensor:
    """A buffer on the device and in the memory layout of its parameter: torch's fused optimizers take elements in the
    order in which memory has them, and ask nobody. Counters such as AdamW's `step` stay on the CPU."""
    return torch.empty_like(param, dtype=value.dtype).copy_(value) if value.shape == param.shape else value


def save_encoder(path: Path, encoder: nn.Module, config: Config, extra: dict[str, Any]) -> None:
    """The encoder alone, in torchvision's names, with what is needed to rebuild and use it in the header."""
    views = {"views": flatten(config.views), "resolution": config.data.resolution}
    if config.data.range != Config().data.range:
        views["range"] = config.data.range
    files = {
        name: getattr(config.data, name) for name in READING if getattr(config.data, name) != getattr(Data(), name)
    }
    if files:
        views["files"] = files
    told = {"format": FORMAT, "network": encoder_shape(config.network), **views, **extra}
    header = {"format": "pt", "byol": json.dumps(told)}
    tensors = {
        name: value.detach().float().cpu().contiguous() if value.is_floating_point() else value.cpu()
        for name, value in encoder.state_dict().items()
    }
    write_atomically(path, as_file(tensors, header))


def encoder_shape(network: Network) -> dict[str, Any]:
    """The fields of a network that its encoder depends on; the channels of images only where they are not colours."""
    shape = {name: getattr(network, name) for name in ENCODER_FIELDS}
    return shape if network.channels == 3 else {**shape, "channels": network.channels}


def encoder_path(path: str | Path) -> Path:
    """The encoder file of a run directory, or the file itself."""
    path = Path(path)
    file = path / ENCODER if path.is_dir() else path
    if not file.is_file():
        hint = "the run has not finished its first look yet" if (path / "run.json").exists() else "no such run or file"
        raise UsageError(f"There is no encoder at {path}: {hint}.")
    return file


def encoder_header(path: str | Path) -> dict[str, Any]:
    """What `save_encoder` wrote beside the weights: network, views, resolution, range of values, step."""
    file = encoder_path(path)
    try:
        with opened_tensors(file) as opened:
            told = (opened.metadata() or {})["byol"]
        _refuse_newer(file)
        header: dict[str, Any] = json.loads(told)
        apply(Config(), encoder_settings(header), str(file))
        return header
    except (SafetensorError, OSError, KeyError, ValueError, AttributeError, TypeError, RecursionError):
        raise DiskError(f"{file} is not an encoder written by byol, or it is damaged.") from None
    except UsageError as error:
        raise DiskError(f"{error} The file is damaged, or of another version of byol.") from None


def encoder_settings(header: Mapping[str, Any]) -> dict[str, Any]:
    """The config fields that a header holds."""
    stored = {"zero_init_last": False, "channels": 3, **header["network"]}  # which the first files do not name
    views, network = header["views"], {name: stored[name] for name in (*ENCODER_FIELDS, "channels")}
    rooms = {f"{room}.{n}": v for room, own in (("views", views), ("network", network)) for n, v in own.items()}
    values = {"data.channels": stored["channels"], "data.range": header.get("range", "auto")}
    values |= {f"data.{name}": value for name, value in header.get("files", {}).items() if name in READING}
    return {**rooms, **values, "data.resolution": header["resolution"]}


def load_encoder(path: str | Path) -> nn.Module:
    """The trained encoder of a run (or an encoder file), in evaluation mode."""
    header = encoder_header(path)
    file = encoder_path(path)
    config = apply(Config(), encoder_settings(header), str(file))
    _check_shapes(file, config.network, config.data.resolution)
    encoder = networks.encoder(config.network, config.data.resolution)
    try:
        encoder.load_state_dict(load_tensors(read_regular(file, MOST_BYTES)))
    except (SafetensorError, RuntimeError, OSError):
        raise _other(file, config.network) from None
    check_finite(encoder.state_dict(), file)
    return encoder.eval()


def check_finite(tensors: Mapping[str, Tensor], file: Path) -> None:
    """Weights of a training that went wrong would give features that are no numbers, and any score."""
    wrong = [name for name, values in tensors.items() if not torch.isfinite(values).all()]
    if wrong:
        more = f" and {len(wrong) - 1} more tensors" if len(wrong) > 1 else ""
        raise BadData(f"{file} holds values that are not finite, in {wrong[0]}{more}: it gives no features.")


def _check_shapes(file: Path, network: Network, resolution: int = 0) -> None:
    """Before memory is taken for a network that the file only claims to hold."""
    with opened_tensors(file) as opened:
        held = {name: tuple(opened.get_slice(name).get_shape()) for name in opened.keys()}  # noqa: SIM118 (it is no dict)
    if held != networks.shapes(network, resolution):
        raise _other(file, network)


def _other(file: Path, network: Network) -> DiskError:
    return DiskError(f"{file} does not hold the {network.encoder} that its header names.")


ENCODER_FIELDS = ("encoder", "width", "small_images", "padding", "zero_init_last")
assert set(ENCODER_FIELDS) <= set(Network.__dataclass_fields__)
# How files are read: an encoder is used on images that are read as those it was trained on.
READING = ("pages", "pattern", "axes", "array", "slices", "voi")
assert set(READING) <= set(Data.__dataclass_fields__)
