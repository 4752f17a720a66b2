"""Encoders that other code bases have trained: the format is detected and every tensor accounted for.

`load_encoder` opens such a file directly; `byol import` writes it as an encoder file of byol.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from byol import checkpoint, networks
from byol.checkpoint import check_finite, encoder_header, encoder_settings, save_encoder
from byol.config import Config, apply
from byol.errors import BadData, DiskError, UsageError
from byol.method import for_channels
from byol.run.files import open_regular, placed
from byol.weights import reader
from byol.weights.compare import difference


@dataclass(frozen=True)
class Format:
    """How a trainer names an encoder, and what else it keeps in the same file."""

    name: str
    prefix: str
    left_out: tuple[str, ...] = ()  # prefixes of heads, targets and classifiers
    sequential: bool = False  # conv1, bn1, …, layer1 as 0, 1, …, 4


class Found(NamedTuple):
    """An encoder of a file: where it is from, its tensors in torchvision's names, and what was left out."""

    origin: str
    tensors: dict[str, Tensor]
    left_out: list[str]
    settings: dict[str, Any]  # config fields that follow from the format
    notes: list[str]


def import_encoder(file: Path, out: Path, resolution: int = 0) -> Found:
    """Writes the encoder of `file` to `out`; the written file is loaded again and compared before this returns."""
    if out.suffix != ".safetensors":
        raise UsageError(f"--out must name a .safetensors file, not {out}.")
    if out.exists() and out.samefile(file):
        raise UsageError(f"--out is the file that is read, {file}. Choose another.")
    found = find(file)
    encoder, config = built(found, file, resolution)
    out = placed(out)
    save_encoder(out, encoder, config, {"step": 0, "origin": found.origin})
    if difference(encoder, checkpoint.load_encoder(out), config):
        raise DiskError(f"{out} does not give the features that were written; the disk may be at fault.")
    return found


def load_encoder(path: str | Path, channels: int = 0) -> nn.Module:
    """The trained encoder of a run, of an encoder file, or of any file that `byol import` knows, in evaluation mode.

    With `channels`, it takes images of so many: each gets the mean of its first convolution's channels, scaled so that
    an image whose channels are all alike gives the same features.
    """
    module, config = open_weights(path)
    if channels in (0, config.network.channels):
        return module
    network = apply(config, {"network.channels": channels}, "load_encoder").network
    other = networks.encoder(network, config.data.resolution)
    other.load_state_dict(for_channels(module.state_dict(), other))
    return other.eval()


def open_weights(path: str | Path) -> tuple[nn.Module, Config]:
    """The encoder at a path that `load_encoder` takes, and the config that says how its input is made."""
    file = Path(path)
    if file.is_file() and not is_own(file):
        return built(find(file), file)
    config = apply(Config(), encoder_settings(encoder_header(path)), str(path))
    return checkpoint.load_encoder(path), config


def is_own(file: Path) -> bool:
    """Whether byol wrote the file: a safetensors file whose header says so."""
    if not _is_safetensors(file):
        return False
    try:
        with checkpoint.opened_tensors(file) as opened:
            return "byol" in (opened.metadata() or {})
    except (SafetensorError, OSError):
        return True  # damaged: the reader of our own files says so


def built(found: Found, file: Path, resolution: int = 0) -> tuple[nn.Module, Config]:
    """The network that the tensors of a file belong to, with these tensors, in evaluation mode; and its config."""
    settings = infer(found, file) | found.settings
    if resolution:
        settings["data.resolution"] = resolution
    config = apply(Config(), settings, f"{file}")
    encoder = networks.encoder(config.network, config.data.resolution)
    encoder.load_state_dict(matched(found, encoder, file))
    return encoder.eval(), config


def find(file: Path) -> Found:
    """The encoder in a file of any known format."""
    if not file.is_file():
        raise UsageError(f"There is no file {file}.")
    tree: Any = _safetensors(file) if _is_safetensors(file) else reader.read(file)
    if is_own(file):
        return Found("byol", tree, [], encoder_settings(encoder_header(file)), [])
    for item in _inside(tree):
        if isinstance(item.get("online_params"), dict) and isinstance(item.get("online_state"), dict):
            return deepmind(item["online_params"], item["online_state"])
    states = [state for state in map(_tensors, _inside(tree)) if any(v.ndim == 4 for v in state.values())]
    if not states:
        raise BadData(f"{file} holds no convolutions: it is no ResNet, or in a format that byol does not know.")
    return pytorch(states[0], file)


def _is_safetensors(file: Path) -> bool:
    """Eight bytes of length, then a JSON object."""
    try:
        with open_regular(file) as opened:
            return opened.read(9)[8:] == b"{"
    except OSError as error:
        raise DiskError(f"Cannot read {file}: {error.strerror}.") from None


def _safetensors(file: Path) -> dict[str, Tensor]:
    try:
        with checkpoint.opened_tensors(file) as opened:
            names = list(opened.keys())
            if len(names) > MOST_TENSORS:
                raise ValueError(f"{len(names):,} tensors are more than any ResNet has")
            return {name: opened.get_tensor(name) for name in names}
    except (SafetensorError, OSError, ValueError, RuntimeError) as error:
        raise BadData(f"{file} is damaged: {error}.") from None


def _inside(tree: Any, depth: int = 0) -> Iterator[dict[Any, Any]]:
    """All dictionaries of a tree, the outer ones first."""
    if isinstance(tree, dict) and depth < 6:
        yield tree
        for value in tree.values():
            yield from _inside(value, depth + 1)


def _tensors(mapping: Mapping[Any, Any]) -> dict[str, Tensor]:
    """Those with names; a leading `module.` is what DistributedDataParallel leaves."""
    named = {name: value for name, value in mapping.items() if isinstance(name, str) and isinstance(value, Tensor)}
    if named and all(name.startswith("module.") for name in named):
        named = {name.removeprefix("module."): value for name, value in named.items()}
    return named


def pytorch(state: Mapping[str, Tensor], file: Path) -> Found:
    """The encoder of a PyTorch trainer's state dict, in the format that explains every key."""
    kind = _format(state, file)
    tensors, left_out = {}, []
    first = _first_group(state, kind.prefix) if kind.sequential else 0
    for name, value in state.items():
        if name.startswith(kind.left_out) or not name.startswith(kind.prefix):
            left_out.append(name)
        else:
            own = name.removeprefix(kind.prefix)
            own = own.replace(".shortcut.", ".downsample.")  # lightly's own ResNets
            tensors[_from_sequence(own, first) if kind.sequential else own] = value
    notes = []
    if kind.name == "solo-learn" and tensors["conv1.weight"].shape[-1] == 3:
        notes.append("solo-learn pads its 3x3 stem by 2, byol by 1: features differ a little at the borders.")
    return Found(kind.name, tensors, left_out, {}, notes)


def _format(state: Mapping[str, Tensor], file: Path) -> Format:
    """The format that explains every key; if there is none, the error names the keys that the nearest one leaves."""

    def unknown(kind: Format) -> list[str]:
        if kind.prefix:
            return [name for name in state if not name.startswith((kind.prefix, *kind.left_out))]
        return [name for name in state if not (name.startswith(kind.left_out) or OURS.match(name))]

    stems = {kind: f"{kind.prefix}{'0' if kind.sequential else 'conv1'}.weight" for kind in FORMATS}
    attempts = [(unknown(kind), kind) for kind, stem in stems.items() if stem in state]
    if not attempts:
        raise BadData(f"{file} has no ResNet under a name that byol knows; its tensors are {', '.join(state)}.")
    left, kind = min(attempts, key=lambda attempt: len(attempt[0]))
    if left:
        raise BadData(
            f"{file} looks like {kind.name}, but {len(left)} of its tensors have no place in it: {', '.join(left)}."
        )
    return kind


def _first_group(state: Mapping[str, Tensor], prefix: str) -> int:
    """The place of layer1 in a sequence: 4 in torchvision's order, 2 where activation and pooling are no modules."""
    places = [int(m[1]) for name in state if (m := re.fullmatch(re.escape(prefix) + r"(\d+)\.0\.conv1\.weight", name))]
    return min(places, default=4)


def _from_sequence(name: str, first: int) -> str:
    """`4.0.conv1.weight` → `layer1.0.conv1.weight`: a ResNet's modules in their order."""
    place, _, rest = name.partition(".")
    if place in ("0", "1"):
        return f"{'conv1' if place == '0' else 'bn1'}.{rest}"
    return f"layer{int(place) - first + 1}.{rest}" if place.isdecimal() else name


def deepmind(params: Mapping[str, Any], state: Mapping[str, Any]) -> Found:
    """Haiku's modules by torchvision's names; arrays of height × width × in × out are turned round."""
    tensors, left_out = {}, []
    for module, arrays in {**params, **state}.items():
        name, average = haiku_name(module)
        if name is None:
            left_out += [f"{module}/{key}" for key in arrays]
            continue
        for key, value in arrays.items():
            if average and key == "hidden":
                continue  # the average before its bias is removed
            if average and key == "counter":
                tensors[f"{name}.num_batches_tracked"] = torch.tensor(int(value))
                continue
            own = average or {"w": "weight", "b": "bias", "scale": "weight", "offset": "bias"}.get(key, key)
            array = np.asarray(value)
            array = array.transpose(3, 2, 0, 1) if key == "w" and array.ndim == 4 else array.reshape(-1)
            with np.errstate(over="ignore"):  # told by `matched`
                tensors[f"{name}.{own}"] = torch.from_numpy(np.ascontiguousarray(array, np.float32))
    return Found("DeepMind BYOL", tensors, left_out, {"network.padding": "same"}, [])


def haiku_name(module: str) -> tuple[str | None, str]:
    """torchvision's name of a Haiku module, and which running average it is, if any; None for heads."""
    if module.startswith(("projector", "predictor", "classifier")):
        return None, ""
    average = ""
    for suffix, running in (("/~/mean_ema", "running_mean"), ("/~/var_ema", "running_var")):
        if module.endswith(suffix):
            module, average = module.removesuffix(suffix), running
    *groups, last = [part for part in module.split("/") if part != "~"][1:] or [module]
    if match := re.fullmatch(r"initial_(conv|batchnorm)(_1)?", last):
        return ("conv1" if match[1] == "conv" else "bn1"), average
    numbers = [re.fullmatch(r"block(?:_group)?_(\d+)", part) for part in groups]
    own = re.fullmatch(r"(conv|batchnorm)_(\d+)|shortcut_(conv|batchnorm)", last)
    if len(numbers) != 2 or not all(numbers) or not own:
        return module, average  # matched with nothing, and so named
    place = f"layer{int(numbers[0][1]) + 1}.{int(numbers[1][1])}"  # type: ignore[index]
    if own[3]:
        return f"{place}.downsample.{0 if own[3] == 'conv' else 1}", average
    return f"{place}.{'conv' if own[1] == 'conv' else 'bn'}{int(own[2]) + 1}", average


def infer(found: Found, file: Path) -> dict[str, Any]:
    """Config fields: depth from the blocks of each group, width and stem from the first convolution."""
    if "network.encoder" in found.settings:
        return {}
    blocks = Counter(
        int(match[1]) for name in found.tensors if (match := re.fullmatch(r"layer(\d)\.\d+\.conv1\.weight", name))
    )
    block = networks.Bottleneck if "layer1.0.conv3.weight" in found.tensors else networks.BasicBlock
    counts = tuple(blocks[group] for group in range(1, 5))
    depth = next((d for d, kind in networks.RESNETS.items() if kind == (block, counts)), None)
    stem = found.tensors.get("conv1.weight")
    if depth is None or stem is None or stem.ndim != 4 or stem.shape[-1] not in (3, 7):
        raise BadData(
            f"{file} ({found.origin}) is no ResNet that can be built here: groups of {counts} blocks "
            f"and tensors {', '.join(found.tensors)}."
        )
    small, channels = stem.shape[-1] == 3, stem.shape[1]
    # How a network of other channels was fed is not in its file: values in [0, 1] as they are.
    plain: dict[str, Any] = {"network.channels": channels, "data.channels": channels}
    plain |= {"views.mean": (0.0,) * channels, "views.std": (1.0,) * channels}
    return (plain if channels != 3 else {}) | {
        "network.encoder": f"resnet{depth}",
        "network.width": _width([found.tensors[f"layer{group}.0.conv1.weight"].shape[0] for group in range(1, 5)]),
        "network.small_images": small,
        "data.resolution": 32 if small else 224,
    }


def _width(channels: Sequence[int]) -> float:
    """The width that gives the four groups these channels, which are rounded: as exact or as short as possible."""
    candidates = [channels[0] / 64, *(round(channels[-1] / 512, digits) for digits in range(1, 8))]
    fits = (width for width in candidates if [max(1, round(64 * width * 2**group)) for group in range(4)] == channels)
    return next(fits, channels[0] / 64)


def matched(found: Found, encoder: nn.Module, file: Path) -> dict[str, Tensor]:
    """The tensors for the encoder; any that is missing, left over or of another shape is named."""
    expected = encoder.state_dict()
    tensors = {
        name: value if name.endswith("num_batches_tracked") else value.float() for name, value in found.tensors.items()
    }
    for name, value in expected.items():
        if name.endswith("num_batches_tracked"):  # older files have none, and nothing depends on it
            tensors.setdefault(name, value)
    wrong = [f"{name} is missing" for name in expected if name not in tensors]
    wrong += [f"{name} has no place" for name in tensors if name not in expected]
    wrong += [
        f"{name} is {tuple(tensors[name].shape)}, not {tuple(value.shape)}"
        for name, value in expected.items()
        if name in tensors and tensors[name].shape != value.shape
    ]
    if wrong:
        raise BadData(f"{file} ({found.origin}) does not match: {'; '.join(wrong)}.")
    check_finite(tensors, file)
    return tensors


MOST_TENSORS = 20_000  # some times those of a ResNet-200 with its target, heads and optimizer
OURS = re.compile(r"(conv1|bn1|layer[1-4]\.\d+)\.")
HEADS = ("projector.", "predictor.", "classifier.", "momentum_projector.", "momentum_classifier.")
LIGHTLY = ("projection_head", "prediction_head", "student_", "teacher_", "backbone_momentum.", "online_classifier.")
FORMATS = (
    Format("torchvision or timm", "", ("fc.",)),
    Format("solo-learn", "backbone.", (*HEADS, "momentum_backbone.")),
    Format("solo-learn before 1.0.5", "encoder.", (*HEADS, "momentum_encoder.")),
    Format("mmselfsup", "backbone.", ("neck.", "head.", "target_net.", "online_net.", "data_preprocessor.")),
    Format("lightly", "backbone.", LIGHTLY),
    Format("lightly", "backbone.", LIGHTLY, sequential=True),
    Format(
        "byol-pytorch",
        "online_encoder.net.",
        ("net.", "online_encoder.projector.", "online_predictor.", "target_encoder."),
    ),
)
