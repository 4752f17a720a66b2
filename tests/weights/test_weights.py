"""Weights in and out: formats of others by their own names, nothing in a file is run, exports that agree."""

from __future__ import annotations

import lzma
import pickle
import sys
import types
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision
from safetensors.torch import load_file, save_file
from torch import nn

import byol
from byol import networks
from byol.checkpoint import encoder_header, load_encoder, save_encoder
from byol.config import Config, apply
from byol.errors import BadData, ByolError, UsageError
from byol.evals.encoder import open_encoder
from byol.weights import exports, imports, resnets

DEEPMIND = Path(__file__).resolve().parents[1] / "fixtures" / "deepmind"
NARROW = {"network.encoder": "resnet18", "network.width": 0.125, "network.small_images": True, "data.resolution": 32}


def trained(module: nn.Module) -> nn.Module:
    """With statistics and scales that are not those of the first moment, so that a mix-up shows."""
    generator = torch.Generator().manual_seed(1)
    for name, value in module.state_dict().items():
        if value.is_floating_point() and value.ndim == 1:
            value.copy_(torch.rand(value.shape, generator=generator) + 0.5)
        elif name.endswith("num_batches_tracked"):
            value.fill_(7)
    return module.eval()


@pytest.fixture(scope="module")
def plain() -> nn.Module:
    """torchvision's own ResNet, an eighth as wide, with a classifier: a second library's names and arithmetic."""
    torch.manual_seed(0)
    model = resnets.torchvision_resnet("BasicBlock", [2, 2, 2, 2], 0.125, small_images=False)
    assert isinstance(model, torchvision.models.ResNet)
    model.fc = nn.Linear(64, 10)
    return trained(model)


def features(model: nn.Module, images: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return model(images)


def encoder_file(path: Path, **values: Any) -> Path:
    config = apply(Config(), {**NARROW, **{k.replace("__", "."): v for k, v in values.items()}})
    torch.manual_seed(0)
    save_encoder(path, trained(networks.encoder(config.network)), config, {"step": 3})
    return path


@pytest.mark.parametrize("size", [224, 96])
def test_deepmind_representations(tmp_path: Path, size: int) -> None:
    """Breaks if names, transposition, running averages, padding or the inferred shape are wrong: recorded arrays."""
    file = tmp_path / "pretrained.pkl"
    file.write_bytes(lzma.decompress((DEEPMIND / "resnet50_eighth.pkl.xz").read_bytes()))
    found = imports.import_encoder(file, tmp_path / "encoder.safetensors")
    header = encoder_header(tmp_path / "encoder.safetensors")
    assert found.origin == "DeepMind BYOL"
    shape = {"encoder": "resnet50", "width": 0.125, "small_images": False, "padding": "same", "zero_init_last": False}
    assert header["network"] == shape
    assert {name.split("/")[0] for name in found.left_out} == {"projector", "predictor", "classifier"}
    recorded = np.load(DEEPMIND / "expected.npz")
    pixels = torch.from_numpy(recorded[f"images_{size}"]).permute(0, 3, 1, 2).float() / 255
    mean, std = (torch.tensor(v)[:, None, None] for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    expected = recorded[f"representation_{size}"]
    for path in (tmp_path / "encoder.safetensors", file):  # imported before, and as DeepMind wrote it
        ours = features(byol.load_encoder(path), (pixels - mean) / std).numpy()
        assert np.abs(ours - expected).max() <= 1e-4 * np.abs(expected).max()


def wrapped(state: dict[str, Any], kind: str) -> dict[str, Any]:
    """A torchvision state dict as the trainers keep it, by their own names for the rest of the model."""
    body = {name: value for name, value in state.items() if not name.startswith("fc.")}
    head = {"weight": torch.zeros(4, 64)}

    def under(prefix: str, tensors: dict[str, Any] = body) -> dict[str, Any]:
        return {f"{prefix}.{name}": value for name, value in tensors.items()}

    sequence = {"conv1": "0", "bn1": "1", "layer1": "4", "layer2": "5", "layer3": "6", "layer4": "7"}
    numbered = {f"{sequence[n.split('.')[0]]}.{n.split('.', 1)[1]}": v for n, v in body.items()}
    return {
        "torchvision": state,
        "ddp": under("module", state),
        "lightly": {"state_dict": {**under("backbone", numbered), **under("projection_head.layers.0", head)}},
        "lightly-benchmark": {
            "state_dict": {
                **under("backbone"),
                **under("teacher_backbone"),
                **under("student_projection_head.layers.0", head),
                **under("online_classifier.linear", head),
            },
            "epoch": 3,
        },
        "solo-learn": {
            "state_dict": {
                **under("backbone"),
                **under("momentum_backbone"),
                **under("projector.0", head),
                **under("predictor.0", head),
                **under("classifier", head),
            },
            "callbacks": {},
        },
        "mmselfsup": {
            "meta": {"epoch": 1},
            "state_dict": {**under("backbone"), **under("neck.fc0", head), **under("target_net.module.0")},
        },
        "byol-pytorch": {
            **under("net", state),
            **under("online_encoder.net", body),
            **under("online_encoder.projector.0", head),
            **under("online_predictor.0", head),
            **under("target_encoder.net", body),
        },
    }[kind]


ORIGINS = {
    "torchvision": "torchvision or timm",
    "ddp": "torchvision or timm",
    "lightly-benchmark": "lightly",
}


@pytest.mark.parametrize(
    "kind", ["torchvision", "ddp", "lightly", "lightly-benchmark", "solo-learn", "mmselfsup", "byol-pytorch"]
)
def test_trainers_of_pytorch(plain: nn.Module, kind: str, tmp_path: Path) -> None:
    """Breaks if a trainer's names are not told apart or mapped to the wrong layer: features of torchvision's model."""
    torch.save(wrapped(plain.state_dict(), kind), tmp_path / "theirs.pth")
    found = imports.import_encoder(tmp_path / "theirs.pth", tmp_path / "ours.safetensors")
    assert found.origin == ORIGINS.get(kind, kind)
    images = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(2))
    body = nn.Sequential(*list(plain.children())[:-1], nn.Flatten())
    for path in ("ours.safetensors", "theirs.pth"):  # imported before, and as the trainer wrote it
        ours = features(byol.load_encoder(tmp_path / path), images)
        torch.testing.assert_close(ours, features(body, images), rtol=1e-5, atol=1e-6)
    assert open_encoder(tmp_path / "theirs.pth").checksum() == open_encoder(tmp_path / "ours.safetensors").checksum()


def test_a_lightly_generator(plain: nn.Module, tmp_path: Path) -> None:
    """Breaks if lightly's own ResNets, without modules for activation and pooling, are put in torchvision's places."""
    places = {"conv1": "0", "bn1": "1", "layer1": "2", "layer2": "3", "layer3": "4", "layer4": "5"}
    state = {n: v for n, v in plain.state_dict().items() if not n.startswith("fc.")}
    theirs = {f"backbone.{places[n.split('.')[0]]}.{n.split('.', 1)[1]}": v for n, v in state.items()}
    torch.save({n.replace("downsample", "shortcut"): v for n, v in theirs.items()}, tmp_path / "theirs.pth")
    found = imports.import_encoder(tmp_path / "theirs.pth", tmp_path / "ours.safetensors")
    assert found.origin == "lightly"
    assert all(torch.equal(value, state[key]) for key, value in load_file(tmp_path / "ours.safetensors").items())


def haiku(state: dict[str, torch.Tensor]) -> dict[str, Any]:
    """A bottleneck ResNet as Haiku keeps it, by the rules of its module names, written the other way round."""
    params: dict[str, dict[str, np.ndarray]] = {}
    averages: dict[str, dict[str, Any]] = {}
    for name, value in state.items():
        *path, kind = name.split(".")
        array = value.numpy()
        if path[0] in ("conv1", "bn1"):
            module = "res_net50/~/" + ("initial_conv_1" if path[0] == "conv1" else "initial_batchnorm")
        else:
            group, block, what = int(path[0][5:]) - 1, path[1], path[2]
            last = ("shortcut_conv", "shortcut_batchnorm")[int(path[3])] if what == "downsample" else ""
            last = last or {"conv": "conv_", "bn": "batchnorm_"}[what[:-1]] + str(int(what[-1]) - 1)
            module = f"res_net50/~/block_group_{group}/~/block_{block}/~/{last}"
        if kind.startswith("running"):
            average = array.reshape(1, 1, 1, -1)
            ema = {"counter": np.int32(5), "hidden": average * 0.5, "average": average}
            averages[f"{module}/~/{'mean' if kind == 'running_mean' else 'var'}_ema"] = ema
        elif array.ndim == 4:
            params[module] = {"w": array.transpose(2, 3, 1, 0)}
        elif array.ndim == 1:
            own = "scale" if kind == "weight" else "offset"
            params.setdefault(module, {})[own] = array.reshape(1, 1, 1, -1)
    params["projector/linear"] = {"w": np.zeros((4, 4), np.float32), "b": np.zeros(4, np.float32)}
    return {"online_params": params, "online_state": averages, "target_params": {}, "opt_state": None}


def test_old_haiku_mappings_and_another_state_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks if the mapping classes of 2020, a second `initial_conv` or another name of the state are not read."""
    config = apply(Config(), {"network.encoder": "resnet50", "network.width": 0.0625})
    torch.manual_seed(0)
    model = trained(networks.encoder(config.network))
    content = haiku(dict(model.state_dict()))
    module = types.ModuleType("haiku._src.data_structures")

    class FlatMapping:
        def __init__(self, values: dict[str, Any]) -> None:
            self.values = values

        def __reduce__(self) -> Any:
            return FlatMapping, (self.values,)

    FlatMapping.__module__, FlatMapping.__qualname__ = module.__name__, "FlatMapping"
    module.FlatMapping = FlatMapping  # type: ignore[attr-defined]
    for name in ("haiku", "haiku._src", module.__name__):
        monkeypatch.setitem(sys.modules, name, module)
    tree = {"experiment_state": {k: FlatMapping(v) if v else v for k, v in content.items()}, "step": 1, "rng": None}
    (tmp_path / "old.pkl").write_bytes(pickle.dumps(tree, 2))
    found = imports.import_encoder(tmp_path / "old.pkl", tmp_path / "ours.safetensors")
    assert (found.origin, found.left_out) == ("DeepMind BYOL", ["projector/linear/w", "projector/linear/b"])
    ours = load_encoder(tmp_path / "ours.safetensors").state_dict()
    for name, value in model.state_dict().items():
        assert torch.equal(ours[name], torch.tensor(5) if name.endswith("tracked") else value), name


def test_objects_of_trainers_are_passed_over(plain: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks if a checkpoint is refused for the history that mmengine keeps beside the weights."""
    module = types.ModuleType("mmengine.logging.history_buffer")

    class HistoryBuffer:
        def __init__(self) -> None:
            self.history = np.arange(3.0)

    HistoryBuffer.__module__, HistoryBuffer.__qualname__ = module.__name__, "HistoryBuffer"
    module.HistoryBuffer = HistoryBuffer  # type: ignore[attr-defined]
    with monkeypatch.context() as patch:
        for name in ("mmengine", "mmengine.logging", module.__name__):
            patch.setitem(sys.modules, name, module)
        theirs = wrapped(plain.state_dict(), "mmselfsup")
        torch.save({**theirs, "message_hub": {"log": HistoryBuffer()}}, tmp_path / "theirs.pth")
    assert imports.import_encoder(tmp_path / "theirs.pth", tmp_path / "ours.safetensors").origin == "mmselfsup"


def test_safetensors_and_old_pytorch_files(plain: nn.Module, tmp_path: Path) -> None:
    """Breaks if the layout before PyTorch 1.6, or a timm file, is read wrongly."""
    state = {name: value.clone() for name, value in plain.state_dict().items() if not name.startswith("fc.")}
    torch.save(OrderedDict(plain.state_dict()), tmp_path / "old.pth", _use_new_zipfile_serialization=False)
    save_file(state, tmp_path / "timm.safetensors")
    for name in ("old.pth", "timm.safetensors"):
        imports.import_encoder(tmp_path / name, tmp_path / "ours.safetensors")
        assert all(torch.equal(value, state[key]) for key, value in load_file(tmp_path / "ours.safetensors").items())
        direct = byol.load_encoder(tmp_path / name).state_dict()
        assert all(torch.equal(value, state[key]) for key, value in direct.items())
    (tmp_path / "damaged.safetensors").write_bytes((tmp_path / "ours.safetensors").read_bytes()[:-9])
    for name, error in (("damaged.safetensors", "damaged"), ("nowhere.pth", "no such run or file")):
        with pytest.raises(ByolError, match=error):
            byol.load_encoder(tmp_path / name)


def test_images_are_embedded_by_a_file_of_another_trainer(plain: nn.Module, folder: Path, tmp_path: Path) -> None:
    """Breaks if `embed`, and with it `evaluate` and `search`, needs `byol import` first: against the imported file."""
    torch.save(wrapped(plain.state_dict(), "solo-learn"), tmp_path / "theirs.ckpt")
    imports.import_encoder(tmp_path / "theirs.ckpt", tmp_path / "ours.safetensors")
    theirs, names = byol.embed(tmp_path / "theirs.ckpt", folder)
    ours, same_names = byol.embed(tmp_path / "ours.safetensors", folder)
    assert names == same_names
    np.testing.assert_array_equal(theirs, ours)


def test_every_key_without_a_place_is_named(plain: nn.Module, tmp_path: Path) -> None:
    """Breaks if mapping is lenient: a key too many, one too few, a wrong shape, a network that is not built here."""
    state = dict(plain.state_dict())

    def refused(changed: dict[str, Any], *names: str) -> None:
        torch.save(changed, tmp_path / "theirs.pth")
        with pytest.raises(BadData) as error:
            imports.import_encoder(tmp_path / "theirs.pth", tmp_path / "ours.safetensors")
        assert all(name in str(error.value) for name in names), error.value
        assert not (tmp_path / "ours.safetensors").exists()

    refused({**state, "extra.one": torch.ones(1), "extra.two": torch.ones(1)}, "extra.one", "extra.two")
    refused({**state, "layer2.0.conv9.weight": torch.ones(1)}, "layer2.0.conv9.weight has no place")
    refused({n: v for n, v in state.items() if n != "layer3.1.bn2.running_var"}, "layer3.1.bn2.running_var is missing")
    refused({**state, "layer1.0.conv1.weight": torch.ones(8, 4, 3, 3)}, "layer1.0.conv1.weight is (8, 4, 3, 3)")
    backbone = {f"backbone.{n}": v for n, v in state.items() if not n.startswith("fc.")}
    refused({"state_dict": {**backbone, "queue": torch.ones(1)}}, "queue")
    refused({"state_dict": {"layers.0.weight": torch.ones(4, 3, 3, 3)}}, "layers.0.weight")
    refused({"weight": torch.ones(3)}, "no convolutions")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_are_refused(plain: nn.Module, tmp_path: Path, value: float) -> None:
    """Breaks if an encoder of a training that went wrong gives features, and these a score."""
    state = {name: tensor.clone() for name, tensor in plain.state_dict().items()}
    for name in ("layer2.0.conv1.weight", "layer3.0.bn1.running_var"):
        state[name].view(-1)[3] = value
    torch.save(state, tmp_path / "x.pth")
    with pytest.raises(BadData, match=r"x\.pth holds values that are not finite, in .* and 1 more tensors"):
        imports.import_encoder(tmp_path / "x.pth", tmp_path / "encoder.safetensors")
    file = encoder_file(tmp_path / "encoder.safetensors")
    encoder = load_encoder(file)
    encoder.state_dict()["layer1.0.conv1.weight"].view(-1)[0] = value
    save_encoder(file, encoder, apply(Config(), NARROW), {"step": 3})
    with pytest.raises(BadData, match="holds values that are not finite, in layer1"):
        load_encoder(file)


SHAPES = {
    "resnet18": {},
    "resnet18-wide-stem": {"network__small_images": False, "data__resolution": 64, "network__width": 0.25},
    "resnet50": {"network__encoder": "resnet50", "network__width": 0.0625},
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("to", ["torchvision", "timm", "safetensors"])
def test_export_and_import_give_identical_features(to: str, shape: str, tmp_path: Path) -> None:
    """Breaks if a weight is changed or lost on the way out and back."""
    file = encoder_file(tmp_path / "encoder.safetensors", **SHAPES[shape])
    out = tmp_path / f"out{'.pth' if to == 'torchvision' else '.safetensors'}"
    assert exports.export(file, to, out).difference <= 1e-6
    imports.import_encoder(out, tmp_path / "back.safetensors")
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    assert torch.equal(*(features(load_encoder(p), images) for p in (file, tmp_path / "back.safetensors")))


def check_lines(lines: list[str], file: Path) -> None:
    """Runs what was printed to be pasted, and compares what it calls features with ours."""
    names: dict[str, Any] = {}
    exec("\n".join(lines), names)
    mean, std = (names[name][:, None, None] for name in ("mean", "std"))
    expected = features(load_encoder(file), (names["images"] - mean) / std)
    torch.testing.assert_close(names["features"].detach(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_printed_lines_work(shape: str, tmp_path: Path) -> None:
    """Breaks if what is printed to be pasted does not run, or gives other features."""
    file = encoder_file(tmp_path / "encoder.safetensors", **SHAPES[shape])
    for to, suffix in (("torchvision", ".pth"), ("timm", ".safetensors"), ("safetensors", ".safetensors")):
        check_lines(exports.export(file, to, tmp_path / f"{to}{suffix}").lines, file)


def test_the_printed_lines_of_a_whole_network_are_few(tmp_path: Path) -> None:
    """Breaks if a network that torchvision and timm have by name needs more than its name."""
    shape = {"network__width": 1.0, "network__small_images": False, "data__resolution": 64}
    file = encoder_file(tmp_path / "encoder.safetensors", **shape)
    lines = exports.export(file, "huggingface", tmp_path / "folder").lines
    assert len(lines) <= 5
    check_lines(lines, file)
    for to, suffix in (("torchvision", ".pth"), ("timm", ".safetensors")):
        lines = exports.export(file, to, tmp_path / f"{to}{suffix}").lines
        assert len(lines) <= 8
        check_lines(lines, file)
    assert str(tmp_path) not in (tmp_path / "folder" / "README.md").read_text()


def test_onnx_agrees_with_onnxruntime(tmp_path: Path) -> None:
    """Breaks if the graph differs from the network, cannot take other batch sizes, or its printed lines do not run."""
    for package in ("onnx", "onnxruntime", "onnxscript"):
        pytest.importorskip(package, reason=f"needs {package}, of the extra onnx")
    file = encoder_file(tmp_path / "encoder.safetensors")
    done = exports.export(file, "onnx", tmp_path / "encoder.onnx")
    assert done.difference <= 1e-5
    import onnxruntime

    images = torch.randn(5, 3, 32, 32)
    session = onnxruntime.InferenceSession(str(tmp_path / "encoder.onnx"))
    found = session.run(None, {"images": images.numpy()})[0]
    np.testing.assert_allclose(found, features(load_encoder(file), images).numpy(), rtol=1e-4, atol=1e-5)
    names: dict[str, Any] = {}
    exec("\n".join(done.lines), names)
    assert names["features"].shape == (1, 64)


def test_what_cannot_be_exported_is_said(tmp_path: Path) -> None:
    """Breaks if padding that torchvision does not have is exported there, or the input is overwritten."""
    file = encoder_file(tmp_path / "encoder.safetensors", network__padding="same", network__small_images=False)
    for arguments in (("torchvision", "x.pth"), ("timm", "x.safetensors"), ("onx", "x.onnx"), ("onnx", "x.pth")):
        with pytest.raises(UsageError):
            exports.export(file, arguments[0], tmp_path / arguments[1])
    with pytest.raises(UsageError, match="the encoder that is read"):
        exports.export(file, "safetensors", file)
    assert exports.export(file, "safetensors", tmp_path / "same.safetensors").difference == 0
    assert encoder_header(tmp_path / "same.safetensors")["network"]["padding"] == "same"


def test_an_export_that_disagrees_is_withdrawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks if a difference in features is reported as success."""
    file = encoder_file(tmp_path / "encoder.safetensors")
    real = resnets.torchvision_resnet

    def wrong(*arguments: Any) -> nn.Module:
        model = real(*arguments)
        model.layer1[0].bn2.eps = 0.5
        return model

    monkeypatch.setattr(resnets, "torchvision_resnet", wrong)
    with pytest.raises(ByolError, match="withdrawn"):
        exports.export(file, "torchvision", tmp_path / "x.pth")
    assert not (tmp_path / "x.pth").exists()
