"""The encoder of a run in the formats of other libraries: written, loaded again, compared, with lines that use it."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file
from safetensors.torch import save as save_tensors
from torch import Tensor, nn

from byol.checkpoint import encoder_header, encoder_path, encoder_settings, load_encoder, save_encoder
from byol.config import Config, apply
from byol.config_values import bounds
from byol.errors import DiskError, OutputBusy, UsageError, nearest
from byol.evals.encoder import checksum
from byol.run import caution
from byol.run.files import followed, placed, read_json, write_atomically, write_json
from byol.weights import card, reader, resnets
from byol.weights.compare import difference

TOLERANCE = 1e-5  # relative; other libraries and runtimes sum in another order


class Source(NamedTuple):
    """What is exported: the encoder, how its input is made, and where the rest of the run is."""

    module: nn.Module
    config: Config
    header: dict[str, Any]
    run: Path


class Export(NamedTuple):
    """The files written, how far the features of the loaded files are from ours, and Python lines that use them."""

    files: list[Path]
    difference: float
    lines: list[str]


def export(run: Path, to: str, out: Path) -> Export:
    """Writes the encoder of a run or of an encoder file in the format `to`; succeeds only if features agree."""
    if to not in EXPORTS:
        raise UsageError(f"There is no export '{to}'. {nearest(to, EXPORTS)}")
    write, suffixes, limit = EXPORTS[to]
    if suffixes and out.suffix not in suffixes:
        raise UsageError(f"--out for {to} must name a {' or '.join(suffixes)} file, not {out}.")
    source = open_run(run)
    if out.exists() and out.samefile(encoder_path(run)):
        raise UsageError(f"--out is the encoder that is read, {out}. Choose another.")
    caution.repeat(run)
    out = placed(out)
    done = write(source, out)
    if not done.difference <= limit:
        for file in done.files:
            file.unlink(missing_ok=True)
        raise DiskError(
            f"The {to} export was withdrawn: loaded again, its features are off by {done.difference:.2g} (relative)."
        )
    return done


def open_run(run: Path) -> Source:
    header = encoder_header(run)
    config = apply(Config(), encoder_settings(header), str(run))
    return Source(load_encoder(run), config, header, run if run.is_dir() else run.parent)


def to_safetensors(source: Source, out: Path) -> Export:
    """Our own file: torchvision's names, and a header from which `byol.load_encoder` rebuilds the network."""
    extra = {
        name: value for name, value in source.header.items() if name not in ("network", "views", "resolution", "range")
    }
    save_encoder(out, source.module, source.config, extra)
    return Export([out], difference(source.module, load_encoder(out), source.config), _own_lines(source, out))


def to_torchvision(source: Source, out: Path) -> Export:
    """A state dict of torchvision's ResNet, without its classifier `fc`."""
    _only_resnets(source, "torchvision")
    content = io.BytesIO()
    torch.save({name: value.cpu() for name, value in source.module.state_dict().items()}, content)
    write_atomically(out, content.getvalue())
    model, lines = resnets.resnet("torchvision", source.config.network)
    model.load_state_dict(reader.read(out))
    lines.append(f"model.load_state_dict(torch.load({str(out)!r}, weights_only=True))")
    return Export([out], difference(source.module, model.eval(), source.config), lines + _use("model.eval()", source))


def to_timm(source: Source, out: Path) -> Export:
    """A safetensors file for timm's model of the same name and shape."""
    timm = optional_import("timm", "timm")
    content = save_tensors(dict(source.module.state_dict()), {"format": "pt"})
    if source.config.network.encoder.startswith("timm:"):
        name = source.config.network.encoder.removeprefix("timm:")
        known, side = timm.get_pretrained_cfg(name), source.config.data.resolution
        sized = {"img_size": side} if known and known.fixed_input_size else {}
        sized |= {"in_chans": source.config.network.channels} if source.config.network.channels != 3 else {}
        model: nn.Module = timm.create_model(name, num_classes=0, **sized)
        more = "".join(f", {option}={value}" for option, value in sized.items())
        lines = ["import timm, torch", f'model = timm.create_model("{name}", num_classes=0{more})']
    else:
        _only_resnets(source, "timm")
        model, lines = resnets.resnet("timm", source.config.network)
    write_atomically(out, content)
    model.load_state_dict(load_file(out))
    lines += ["from safetensors.torch import load_file", f"model.load_state_dict(load_file({str(out)!r}))"]
    return Export(
        [out],
        difference(source.module, model.eval(), source.config),
        [*lines, *_use("model.eval()", source)],
    )


def to_onnx(source: Source, out: Path) -> Export:
    """A graph for batches of any size at the run's resolution; compared by onnxruntime at two batch sizes."""
    onnx, runtime = optional_import("onnx", "onnx"), optional_import("onnxruntime", "onnx")
    optional_import("onnxscript", "onnx")
    size = source.config.data.resolution
    channels = source.config.network.channels
    example = torch.zeros(2, channels, size, size)
    batch = torch.export.Dim("batch")
    program = torch.onnx.export(
        source.module,
        (example,),
        input_names=["images"],
        output_names=["features"],
        dynamic_shapes=({0: batch},),
        dynamo=True,
        verbose=False,
    )
    assert program is not None
    model = program.model_proto
    used = {"mean": source.config.views.mean, "std": source.config.views.std, "resolution": size}
    used |= {"range": source.config.data.range} if bounds(source.config.data.range) else {}
    for name, value in used.items():
        model.metadata_props.add(key=name, value=json.dumps(value))
    onnx.checker.check_model(model)
    write_atomically(out, model.SerializeToString())
    session = runtime.InferenceSession(str(out), providers=["CPUExecutionProvider"])

    def features(images: Tensor) -> Tensor:
        return torch.from_numpy(session.run(None, {"images": images.numpy()})[0])

    worst = max(difference(source.module, features, source.config, images) for images in (1, 3))
    mean, std = (list(values) for values in (source.config.views.mean, source.config.views.std))
    lines = [
        "import numpy as np, onnxruntime",
        f"session = onnxruntime.InferenceSession({str(out)!r})",
        f"pixels = np.zeros((1, {size}, {size}, {channels}), np.float32)  # {in_words(source.config)}",
        f"images = ((pixels - np.float32({mean})) / np.float32({std})).transpose(0, 3, 1, 2)",
        'features = session.run(None, {"images": images})[0]',
    ]
    return Export([out], worst, lines)


def to_huggingface(source: Source, out: Path) -> Export:
    """A folder as the Hugging Face hub shows it: weights, config and a model card of results, data and settings.

    config.json is written first: it tells an export that was killed in the middle from a folder of somebody else.
    """
    out = followed(out)
    if out.exists() and not _is_export(out):
        raise OutputBusy(f"{out} exists and is no exported model. Choose another --out.")
    out.mkdir(parents=True, exist_ok=True)
    weights, plain = out / "model.safetensors", _plain(source.config)
    write_json(out / "config.json", card.config(source.config, int(source.module.num_features), plain))  # type: ignore[arg-type]
    own = to_safetensors(source, weights)
    lines = _timm_lines if plain else _own_lines
    elsewhere = Path(out.resolve().name)  # a card is read where the folder was copied to
    portable = lines(source, elsewhere if plain else elsewhere / weights.name)
    text = card.text(source.run, source.config, source.header, portable, checksum(source.module))
    write_atomically(out / "README.md", text.encode())
    worst = own.difference
    if plain and _installed("timm"):
        import timm

        model = timm.create_model(f"local-dir:{out}", pretrained=True)
        worst = max(worst, difference(source.module, model.eval(), source.config))
    used = lines(source, out if plain else weights)
    return Export([weights, out / "config.json", out / "README.md"], worst, used)


def _own_lines(source: Source, file: Path) -> list[str]:
    return ["import byol, torch", f"encoder = byol.load_encoder({str(file)!r})", *_use("encoder", source)]


def _timm_lines(source: Source, folder: Path) -> list[str]:
    model = f"model = timm.create_model({f'local-dir:{folder}'!r}, pretrained=True)"
    return ["import timm, torch", model, *_use("model.eval()", source)]


def _is_export(folder: Path) -> bool:
    """Whether a folder is empty but for hidden files, or holds a model that was exported here."""
    if not folder.is_dir():
        return False
    if all(path.name.startswith(".") for path in folder.iterdir()):
        return True
    try:
        config = read_json(folder / "config.json")
    except DiskError:
        return False
    return isinstance(config, dict) and "byol" in config


def _plain(config: Config) -> bool:
    """Whether torchvision and timm have the network by its name alone."""
    network = config.network
    own = not network.encoder.startswith("timm:")
    usual = network.width == 1 and network.channels == 3
    return own and usual and not network.small_images and network.padding == "symmetric"


def in_words(config: Config) -> str:
    """What the numbers are that an exported network takes."""
    if not bounds(config.data.range):
        return "RGB in [0, 1]" if config.network.channels == 3 else "8-bit values / 255"
    return f"in [0, 1], which are the stored values {config.data.range}"


def _use(model: str, source: Source) -> list[str]:
    size = source.config.data.resolution
    return [
        f"images = torch.rand(1, {source.config.network.channels}, {size}, {size})  # {in_words(source.config)}",
        "mean, std = "
        + ", ".join(f"torch.tensor({list(v)})" for v in (source.config.views.mean, source.config.views.std)),
        f"features = {model}((images - mean[:, None, None]) / std[:, None, None])",
    ]


def _only_resnets(source: Source, to: str) -> None:
    network = source.config.network
    if network.encoder.startswith("timm:"):
        raise UsageError(f"{network.encoder} is not a ResNet of {to}. Export it to timm, onnx or safetensors.")
    if network.padding == "same":
        raise UsageError(f"{to} cannot pad as JAX does, so features would differ. Export to onnx or safetensors.")


def _installed(name: str) -> bool:
    from importlib.util import find_spec

    return find_spec(name) is not None


def optional_import(name: str, extra: str) -> Any:
    """A library that only this export needs."""
    from importlib import import_module

    try:
        return import_module(name)
    except ImportError:
        raise UsageError(f"This export needs {name}: pip install 'byol[{extra}]'.") from None


EXPORTS: dict[str, tuple[Callable[[Source, Path], Export], tuple[str, ...], float]] = {
    "torchvision": (to_torchvision, (".pth", ".pt"), TOLERANCE),
    "timm": (to_timm, (".safetensors",), TOLERANCE),
    "safetensors": (to_safetensors, (".safetensors",), 0.0),
    "onnx": (to_onnx, (".onnx",), TOLERANCE),
    "huggingface": (to_huggingface, (), TOLERANCE),
}
