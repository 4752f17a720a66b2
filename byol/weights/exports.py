"""The encoder of a run for others to use: written, loaded again, compared, and shown how to use in a few lines."""

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

from byol import networks
from byol.checkpoint import encoder_header, encoder_path, encoder_settings, load_encoder, save_encoder
from byol.config import Config, apply
from byol.errors import DiskError, OutputBusy, UsageError, nearest
from byol.records import write_atomically, write_json
from byol.weights import card, reader
from byol.weights.compare import difference

TOLERANCE = 1e-5  # relative; other libraries and runtimes sum in another order
ALONE = "import torch, torchvision"


class Source(NamedTuple):
    """What is exported: the encoder, how its input is made, and where the rest of the run is."""

    module: nn.Module
    config: Config
    header: dict[str, Any]
    run: Path


class Export(NamedTuple):
    """What was written, how far its features are from ours, and the lines that use it."""

    files: list[Path]
    difference: float
    lines: list[str]


def export(run: Path, to: str, out: Path) -> Export:
    """Writes the encoder of a run, or of an encoder file, in the format `to`; success means that features agree."""
    if to not in EXPORTS:
        raise UsageError(f"There is no export '{to}'. {nearest(to, EXPORTS)}")
    write, suffixes, limit = EXPORTS[to]
    if suffixes and out.suffix not in suffixes:
        raise UsageError(f"--out for {to} should end in {' or '.join(suffixes)}, not be {out}.")
    source = open_run(run)
    if out.exists() and out.samefile(encoder_path(run)):
        raise UsageError(f"--out is the encoder that is read, {out}. Choose another.")
    out.parent.mkdir(parents=True, exist_ok=True)
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
    extra = {name: value for name, value in source.header.items() if name not in ("network", "views", "resolution")}
    save_encoder(out, source.module, source.config, extra)
    lines = ["import byol, torch", f"encoder = byol.load_encoder({str(out)!r})", *_use("encoder", source)]
    return Export([out], difference(source.module, load_encoder(out), source.config), lines)


def to_torchvision(source: Source, out: Path) -> Export:
    """A state dict of torchvision's ResNet, without its classifier `fc`."""
    _only_resnets(source, "torchvision")
    content = io.BytesIO()
    torch.save({name: value.cpu() for name, value in source.module.state_dict().items()}, content)
    write_atomically(out, content.getvalue())
    model = torchvision_model(source.config)
    model.load_state_dict(reader.read(out))
    lines = [
        *torchvision_lines(source.config),
        "model.fc = torch.nn.Identity()",
        f"model.load_state_dict(torch.load({str(out)!r}, weights_only=True))",
        *_use("model.eval()", source),
    ]
    return Export([out], difference(source.module, model.eval(), source.config), lines)


def torchvision_model(config: Config) -> nn.Module:
    """torchvision's ResNet in the width of ours; it has no such option, so its groups are made narrower or wider."""
    from torchvision.models import resnet

    depth, width, stem = _shape(config)
    block, blocks = networks.RESNETS[depth]

    class Scaled(resnet.ResNet):  # type: ignore[misc]
        def _make_layer(self, kind: Any, planes: int, *more: Any, **named: Any) -> Any:
            if planes == 64:
                self.inplanes: int = stem
            return super()._make_layer(kind, round(planes * width), *more, **named)

    kind = resnet.Bottleneck if block is networks.Bottleneck else resnet.BasicBlock
    model: nn.Module = Scaled(kind, list(blocks))
    _replace_stem(model, config, stem)
    model.fc = nn.Identity()
    return model


def torchvision_lines(config: Config) -> list[str]:
    """The same in words to paste."""
    depth, width, stem = _shape(config)
    if width == 1 and not config.network.small_images:
        return [ALONE, f"model = torchvision.models.resnet{depth}()"]
    kind = "Bottleneck" if networks.RESNETS[depth][0] is networks.Bottleneck else "BasicBlock"
    lines = [ALONE, "from torchvision.models import resnet"]
    if width == 1:
        lines.append(f"model = resnet.resnet{depth}()")
    else:
        lines += [
            "class Scaled(resnet.ResNet):",
            "    def _make_layer(self, kind, planes, *more, **named):",
            f"        self.inplanes = {stem} if planes == 64 else self.inplanes",
            f"        return super()._make_layer(kind, round(planes * {width:g}), *more, **named)",
            f"model = Scaled(resnet.{kind}, {list(networks.RESNETS[depth][1])})",
        ]
    return lines + _stem_lines(config, stem)


def to_timm(source: Source, out: Path) -> Export:
    """A safetensors file for timm's model of the same name and shape."""
    timm = _import("timm", "timm")
    content = save_tensors(dict(source.module.state_dict()), {"format": "pt"})
    if source.config.network.encoder.startswith("timm:"):
        name = source.config.network.encoder.removeprefix("timm:")
        model: nn.Module = timm.create_model(name, num_classes=0)
        lines = ["import timm, torch", f'model = timm.create_model("{name}", num_classes=0)']
    else:
        _only_resnets(source, "timm")
        model, lines = timm_model(source.config), timm_lines(source.config)
    write_atomically(out, content)
    model.load_state_dict(load_file(out))
    lines += ["from safetensors.torch import load_file", f"model.load_state_dict(load_file({str(out)!r}))"]
    return Export(
        [out],
        difference(source.module, model.eval(), source.config),
        [*lines, *_use("model.eval()", source)],
    )


def timm_model(config: Config) -> nn.Module:
    """timm's ResNet; its plain stem always has 64 channels, so what reads it is replaced when ours has others."""
    from timm.models import resnet

    depth, width, stem = _shape(config)
    block, blocks = networks.RESNETS[depth]
    kind = resnet.Bottleneck if block is networks.Bottleneck else resnet.BasicBlock
    channels = tuple(round(64 * width * 2**group) for group in range(4))
    model: Any = resnet.ResNet(kind, list(blocks), num_classes=0, channels=channels)
    _replace_stem(model, config, stem)
    if stem != 64:
        first, wide = model.layer1[0], channels[0]
        if block is networks.Bottleneck:
            first.conv1 = nn.Conv2d(stem, wide, 1, bias=False)
            first.downsample[0] = nn.Conv2d(stem, 4 * wide, 1, bias=False)
        else:
            first.conv1 = nn.Conv2d(stem, wide, 3, padding=1, bias=False)
            first.downsample = None
    made: nn.Module = model
    return made


def timm_lines(config: Config) -> list[str]:
    depth, width, stem = _shape(config)
    if width == 1:
        made = ["import timm, torch", f'model = timm.create_model("resnet{depth}", num_classes=0)']
        return made + _stem_lines(config, stem)
    bottleneck = networks.RESNETS[depth][0] is networks.Bottleneck
    kind, blocks = "Bottleneck" if bottleneck else "BasicBlock", list(networks.RESNETS[depth][1])
    channels = tuple(round(64 * width * 2**group) for group in range(4))
    first = f"model.layer1[0].conv1 = torch.nn.Conv2d({stem}, {channels[0]}, "
    if bottleneck:
        shortcut = f"model.layer1[0].downsample[0] = torch.nn.Conv2d({stem}, {4 * channels[0]}, 1, bias=False)"
    else:
        shortcut = "model.layer1[0].downsample = None"
    return [
        "import torch",
        "from timm.models import resnet",
        f"model = resnet.ResNet(resnet.{kind}, {blocks}, num_classes=0, channels={channels})",
        *_stem_lines(config, stem),
        first + ("1, bias=False)" if bottleneck else "3, padding=1, bias=False)"),
        shortcut,
    ]


def to_onnx(source: Source, out: Path) -> Export:
    """A graph for batches of any size at the run's resolution; compared by onnxruntime at two batch sizes."""
    onnx, runtime = _import("onnx", "onnx"), _import("onnxruntime", "onnx")
    _import("onnxscript", "onnx")
    size = source.config.data.resolution
    example = torch.zeros(2, 3, size, size)
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
        f"pixels = np.zeros((1, {size}, {size}, 3), np.float32)  # RGB in [0, 1]",
        f"images = ((pixels - np.float32({mean})) / np.float32({std})).transpose(0, 3, 1, 2)",
        'features = session.run(None, {"images": images})[0]',
    ]
    return Export([out], worst, lines)


def to_huggingface(source: Source, out: Path) -> Export:
    """A folder as the Hugging Face hub shows it: weights, config and a model card of results, data and settings."""
    if out.exists() and (not out.is_dir() or (any(out.iterdir()) and not (out / "config.json").exists())):
        raise OutputBusy(f"{out} exists and is no exported model. Choose another --out.")
    out.mkdir(parents=True, exist_ok=True)
    weights = out / "model.safetensors"
    own = to_safetensors(source, weights)
    plain = _plain(source.config)
    lines = own.lines
    if plain:
        lines = ["import timm, torch", f"model = timm.create_model({f'local-dir:{out}'!r}, pretrained=True)"]
        lines += _use("model.eval()", source)
    write_json(out / "config.json", card.config(source.config, int(source.module.num_features), plain))  # type: ignore[arg-type]
    portable = [line.replace(str(out), out.name) for line in lines]
    write_atomically(out / "README.md", card.text(source.run, source.config, source.header, portable).encode())
    worst = own.difference
    if plain and _installed("timm"):
        import timm

        model = timm.create_model(f"local-dir:{out}", pretrained=True)
        worst = max(worst, difference(source.module, model.eval(), source.config))
    return Export([weights, out / "config.json", out / "README.md"], worst, lines)


def _plain(config: Config) -> bool:
    """Whether torchvision and timm have the network by its name alone."""
    network = config.network
    own = not network.encoder.startswith("timm:")
    return own and network.width == 1 and not network.small_images and network.padding == "symmetric"


def _shape(config: Config) -> tuple[int, float, int]:
    """Depth, width, and channels of the stem."""
    width = config.network.width
    return int(config.network.encoder.removeprefix("resnet")), width, max(1, round(64 * width))


def _replace_stem(model: Any, config: Config, stem: int) -> None:
    if config.network.small_images:
        model.conv1, model.maxpool = nn.Conv2d(3, stem, 3, padding=1, bias=False), nn.Identity()
    elif stem != 64:
        model.conv1 = nn.Conv2d(3, stem, 7, 2, 3, bias=False)
    if stem != 64:
        model.bn1 = nn.BatchNorm2d(stem)


def _stem_lines(config: Config, stem: int) -> list[str]:
    lines = []
    if config.network.small_images:
        lines.append(f"model.conv1 = torch.nn.Conv2d(3, {stem}, 3, padding=1, bias=False)")
        lines.append("model.maxpool = torch.nn.Identity()")
    elif stem != 64:
        lines.append(f"model.conv1 = torch.nn.Conv2d(3, {stem}, 7, 2, 3, bias=False)")
    if stem != 64:
        lines.append(f"model.bn1 = torch.nn.BatchNorm2d({stem})")
    return lines


def _use(model: str, source: Source) -> list[str]:
    size = source.config.data.resolution
    return [
        f"images = torch.rand(1, 3, {size}, {size})  # RGB in [0, 1]",
        "mean, std = "
        + ", ".join(f"torch.tensor({list(v)})" for v in (source.config.views.mean, source.config.views.std)),
        f"features = {model}((images - mean[:, None, None]) / std[:, None, None])",
    ]


def _only_resnets(source: Source, to: str) -> None:
    network = source.config.network
    if network.encoder.startswith("timm:"):
        raise UsageError(f"{network.encoder} is no ResNet of {to}'s. Export it to timm, onnx, safetensors.")
    if network.padding == "same":
        raise UsageError(f"{to} has no padding as in JAX, so its features would differ. Export to onnx or safetensors.")


def _installed(name: str) -> bool:
    from importlib.util import find_spec

    return find_spec(name) is not None


def _import(name: str, extra: str) -> Any:
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
