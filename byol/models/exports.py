"""A model for other runtimes: written, loaded again, its answers compared, with the lines that use it.

ONNX and torch.export hold everything but the crop: RGB in [0, 1] to calibrated probabilities. The layouts of
torchvision and timm hold encoder and head, whose softmax or sigmoid are the same probabilities.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file
from safetensors.torch import save as save_tensors
from torch import Tensor, nn

from byol.errors import DiskError, OutputBusy, UsageError, nearest
from byol.models.model import Model, load_model
from byol.run.files import placed, write_atomically
from byol.weights import reader, resnets
from byol.weights.exports import TOLERANCE, Export, in_words, optional_import

BATCHES = (1, 3)


def export(run: Path, to: str, out: Path) -> Export:
    """Writes the model in a folder in the form `to`; succeeds only if the loaded file gives the same probabilities."""
    if to not in EXPORTS:
        raise UsageError(f"There is no export '{to}' of a model. {nearest(to, EXPORTS)}")
    write, suffixes = EXPORTS[to]
    if out.suffix not in suffixes:
        raise UsageError(f"--out for {to} must name a {' or '.join(suffixes)} file, not {out}.")
    if out.exists() and out.resolve().parent == run.resolve():
        raise OutputBusy(f"{out} is a file of the model itself. Choose another --out.")
    model = load_model(run, {"run.device": "cpu"}).float()
    done = write(model, placed(out))
    if not done.difference <= TOLERANCE:
        for file in done.files:
            file.unlink(missing_ok=True)
        raise DiskError(
            f"The {to} export was withdrawn: loaded again, its probabilities are off by {done.difference:.2g}."
        )
    return done


@torch.no_grad()
def difference(model: Model, other: Callable[[Tensor], Tensor], normalized: bool = False) -> float:
    """The largest distance between two probabilities, over batches of several sizes."""
    worst, generator = 0.0, torch.Generator().manual_seed(0)
    for count in BATCHES:
        shape = (model.used.config.network.channels, model.resolution, model.resolution)
        images = torch.rand(count, *shape, generator=generator)
        given = (images - model.mean) / model.std if normalized else images
        worst = max(worst, float((model(images) - other(given)).abs().max()))
    return worst


def to_onnx(model: Model, out: Path) -> Export:
    onnx, runtime = optional_import("onnx", "onnx"), optional_import("onnxruntime", "onnx")
    optional_import("onnxscript", "onnx")
    program = torch.onnx.export(
        model,
        (_example(model),),
        input_names=["images"],
        output_names=["probabilities"],
        dynamic_shapes=({0: torch.export.Dim("batch")},),
        dynamo=True,
        verbose=False,
    )
    assert program is not None
    graph = program.model_proto
    told = {"classes": list(model.classes), "thresholds": model.facts.thresholds, **model.facts.preprocessing}
    for name, value in told.items():
        graph.metadata_props.add(key=name, value=json.dumps(value))
    onnx.checker.check_model(graph)
    write_atomically(out, graph.SerializeToString())
    session = runtime.InferenceSession(str(out), providers=["CPUExecutionProvider"])

    def run(images: Tensor) -> Tensor:
        return torch.from_numpy(session.run(None, {"images": images.numpy()})[0])

    size, channels = model.resolution, model.used.config.network.channels
    lines = [
        "import json, numpy as np, onnxruntime",
        f"session = onnxruntime.InferenceSession({str(out)!r})",
        'classes = json.loads(session.get_modelmeta().custom_metadata_map["classes"])',
        f"images = np.zeros((1, {channels}, {size}, {size}), np.float32)  # {in_words(model.used.config)}",
        'print(classes, session.run(None, {"images": images})[0])',
    ]
    return Export([out], difference(model, run), lines)


def to_torch_export(model: Model, out: Path) -> Export:
    program = torch.export.export(model, (_example(model),), dynamic_shapes=({0: torch.export.Dim("batch")},))
    content = io.BytesIO()
    torch.export.save(program, content)
    write_atomically(out, content.getvalue())
    again = torch.export.load(str(out)).module()
    size, channels = model.resolution, model.used.config.network.channels
    told = in_words(model.used.config)
    lines = [
        "import torch",
        f"model = torch.export.load({str(out)!r}).module()",
        f"print({list(model.classes)}, model(torch.rand(1, {channels}, {size}, {size})))  # {told}",
    ]
    return Export([out], difference(model, again), lines)


def to_torchvision(model: Model, out: Path) -> Export:
    """A state dict of torchvision's ResNet with its classifier `fc`."""
    _only_resnets(model, "torchvision")
    content = io.BytesIO()
    torch.save(_with_classifier(model), content)
    write_atomically(out, content.getvalue())
    other, lines = resnets.resnet("torchvision", model.used.config.network)
    other.fc = nn.Linear(model.head.in_features, model.head.out_features)
    other.load_state_dict(reader.read(out))
    lines += [_classifier(model), f"model.load_state_dict(torch.load({str(out)!r}, weights_only=True))"]
    return Export([out], difference(model, _answering(other, model), normalized=True), lines + _use(model))


def to_timm(model: Model, out: Path) -> Export:
    """A safetensors file for timm's ResNet with its classifier `fc`."""
    optional_import("timm", "timm")
    _only_resnets(model, "timm")
    write_atomically(out, save_tensors(_with_classifier(model), {"format": "pt"}))
    other, lines = resnets.resnet("timm", model.used.config.network)
    other.fc = nn.Linear(model.head.in_features, model.head.out_features)
    other.load_state_dict(load_file(out))
    load = ["from safetensors.torch import load_file", f"model.load_state_dict(load_file({str(out)!r}))"]
    lines += [_classifier(model), *load]
    return Export([out], difference(model, _answering(other, model), normalized=True), lines + _use(model))


def _with_classifier(model: Model) -> dict[str, Tensor]:
    """Encoder and head in torchvision's names; the temperature is in the head, so that a softmax is calibrated."""
    heat = model.facts.temperature
    head = {"fc.weight": model.head.weight / heat, "fc.bias": model.head.bias / heat}
    return {name: value.detach().cpu().contiguous() for name, value in {**model.encoder.state_dict(), **head}.items()}


def _answering(other: nn.Module, model: Model) -> Callable[[Tensor], Tensor]:
    other.eval()
    return lambda images: torch.sigmoid(other(images)) if model.facts.several else torch.softmax(other(images), 1)


def _classifier(model: Model) -> str:
    return f"model.fc = torch.nn.Linear({model.head.in_features}, {model.head.out_features})"


def _use(model: Model) -> list[str]:
    size, views, channels = model.resolution, model.used.config.views, model.used.config.network.channels
    answer = "torch.sigmoid" if model.facts.several else "torch.softmax"
    last = "" if model.facts.several else ", 1"
    return [
        f"images = torch.rand(1, {channels}, {size}, {size})  # {in_words(model.used.config)}",
        f"mean, std = torch.tensor({list(views.mean)}), torch.tensor({list(views.std)})",
        f"probabilities = {answer}(model.eval()((images - mean[:, None, None]) / std[:, None, None]){last})",
    ]


def _example(model: Model) -> Tensor:
    return torch.zeros(2, model.used.config.network.channels, model.resolution, model.resolution)


def _only_resnets(model: Model, to: str) -> None:
    network = model.used.config.network
    if network.encoder.startswith("timm:") or network.padding == "same":
        raise UsageError(f"{to} has no network like this one. Export the model to onnx or torch-export.")


EXPORTS: dict[str, tuple[Callable[[Model, Path], Export], tuple[str, ...]]] = {
    "onnx": (to_onnx, (".onnx",)),
    "torch-export": (to_torch_export, (".pt2",)),
    "torchvision": (to_torchvision, (".pth", ".pt")),
    "timm": (to_timm, (".safetensors",)),
}
