"""Runs that begin from given weights: what the file settles, what learns when, exact resume without the file, the best
look, and a fixed target of another shape."""

from __future__ import annotations

import itertools
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import byol
from byol import checkpoint, method, networks, optim, pretraining
from byol.checkpoint import encoder_header, load_encoder, save_encoder
from byol.config import Config, apply
from byol.errors import BadData, ByolError, DiskError, Interrupted, OutputBusy, UsageError
from byol.presets import Facts, compose
from byol.run import monitor, signals
from byol.run.record import read_run
from byol.weights import given, resnets
from tests.conftest import TINY, write_images

SETTLED = ("network.encoder", "network.width", "network.small_images", "data.resolution")
FREE = {name: value for name, value in TINY.items() if name not in SETTLED} | {"data.resolution": 32}


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("given") / "images", 24)


def weights(path: Path, width: float = 0.05, seed: int = 5) -> Path:
    """An encoder of ours whose scales and statistics are not those of a new one."""
    config = apply(Config(), {**{name: TINY[name] for name in SETTLED}, "network.width": width})
    torch.manual_seed(seed)
    encoder = networks.encoder(config.network)
    for value in encoder.state_dict().values():
        if value.ndim == 1:
            value.copy_(torch.rand(value.shape) + 0.5)
    path.parent.mkdir(parents=True, exist_ok=True)
    save_encoder(path, encoder, config, {"step": 0})
    return path


def newest(out: Path) -> dict[str, Tensor]:
    return checkpoint.read(checkpoint.found(out / "checkpoints")[0])


def parameters(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    statistics = ("running_mean", "running_var", "num_batches_tracked")
    return {name: value for name, value in tensors.items() if not name.endswith(statistics)}


def test_heads_alone_leave_the_given_weights_and_move_their_statistics(images: Path, tmp_path: Path) -> None:
    """Breaks if the encoder learns while the heads learn alone, the target does not start as the online network, the
    heads do not learn, or the batch statistics do not adapt to the new images."""
    torch.manual_seed(1)
    plain = resnets.torchvision_resnet("BasicBlock", [2, 2, 2, 2], 0.05, small_images=True)
    plain.fc = nn.Linear(26, 3)  # as torchvision's files have a classifier
    torch.save(plain.state_dict(), tmp_path / "torchvision.pth")
    overrides = FREE | {"network.init": str(tmp_path / "torchvision.pth"), "optim.head_epochs": 100, "optim.tau": 0.5}
    run = byol.pretrain(images, tmp_path / "run", "cifar10-cpu", overrides)
    network = run.config.network
    assert (network.encoder, network.width, network.small_images) == ("resnet18", pytest.approx(0.05), True)
    assert network.target_init == "same"
    tensors, given = newest(run.out), plain.state_dict()
    for name in parameters({name: value for name, value in given.items() if not name.startswith("fc.")}):
        for branch in ("online", "target"):
            assert torch.equal(tensors[f"method.{branch}.encoder.{name}"], given[name]), (branch, name)
    assert not torch.equal(tensors["method.online.encoder.bn1.running_mean"], given["bn1.running_mean"])
    assert not torch.equal(tensors["method.online.projector.0.weight"], tensors["method.target.projector.0.weight"])
    assert not any(name.startswith("optimizer.online.encoder") for name in tensors)
    assert read_run(run.out).weights["network.init"].origin.startswith("resnet18")


def test_resume_needs_no_file_and_takes_no_other(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks if a run that goes on differs in a bit from an uninterrupted one (weights, momentum, metrics, the best
    encoder), wants the file that it began from, takes other weights, or refuses the same ones elsewhere."""
    first = weights(tmp_path / "first" / "encoder.safetensors")
    phases = {"optim.head_epochs": 0.7, "optim.encoder_lr": 0.3, "optim.layer_decay": 0.8, "optim.epochs": 2}
    overrides = FREE | phases | {"network.init": str(first)}
    byol.pretrain(images, tmp_path / "whole", "cifar10-cpu", overrides)
    real, calls = pretraining.update, []

    def update(*arguments: Any, **named: Any) -> Any:
        calls.append(1)
        signals._state.requested = len(calls) in (1, 3)  # while the heads learn alone, and after
        return real(*arguments, **named)

    monkeypatch.setattr(pretraining, "update", update)
    with pytest.raises(Interrupted):
        byol.pretrain(images, tmp_path / "cut", "cifar10-cpu", overrides)
    shutil.move(first, tmp_path / "moved.safetensors")
    with pytest.raises(Interrupted):
        byol.pretrain(images, tmp_path / "cut", "cifar10-cpu", overrides)
    other = weights(tmp_path / "other.safetensors", seed=6)
    for place, refusal in ((str(other), "other weights"), ("", "began with given weights")):
        with pytest.raises(OutputBusy, match=refusal):
            byol.pretrain(images, tmp_path / "cut", "cifar10-cpu", overrides | {"network.init": place})
    elsewhere = overrides | {"network.init": str(tmp_path / "moved.safetensors")}
    byol.pretrain(images, tmp_path / "cut", "cifar10-cpu", elsewhere)
    whole, cut = newest(tmp_path / "whole"), newest(tmp_path / "cut")
    assert whole.keys() == cut.keys()
    assert all(torch.equal(whole[name], cut[name]) for name in whole)
    for name in ("metrics.jsonl", checkpoint.BEST, checkpoint.ENCODER):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "cut" / name).read_bytes(), name


def test_a_run_that_began_without_weights_takes_none(images: Path, tmp_path: Path) -> None:
    """Breaks if --init is ignored for a directory whose run started from noise."""
    byol.pretrain(images, tmp_path / "run", "cifar10-cpu", TINY)
    given = FREE | {"network.init": str(weights(tmp_path / "w.safetensors"))}
    with pytest.raises(OutputBusy, match="without given weights"):
        byol.pretrain(images, tmp_path / "run", "cifar10-cpu", given)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"network.width": 0.1}, "network.width 0.1 contradicts the weights"),
        ({"network.encoder": "resnet50"}, "with which it is resnet18"),
        ({"network.small_images": False}, "network.small_images False contradicts"),
        ({"network.padding": "same"}, "network.padding same contradicts"),
        ({"network.target_init": "independent"}, "with which it is same"),
    ],
)
def test_flags_that_contradict_the_weights(images: Path, tmp_path: Path, change: dict[str, Any], said: str) -> None:
    """Breaks if a flag silently loses against the file, or the file against the flag."""
    given = weights(tmp_path / "w.safetensors")
    with pytest.raises(UsageError, match=said):
        byol.pretrain(images, tmp_path / "run", "cifar10-cpu", FREE | {"network.init": str(given)} | change)
    assert not (tmp_path / "run").exists()


def test_weights_that_cannot_be_used(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks if half a file, another architecture, a missing file or a model that timm cannot give ends in a traceback
    or with another exit code."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "empty"))
    whole = weights(tmp_path / "w.safetensors").read_bytes()
    (tmp_path / "half.safetensors").write_bytes(whole[: len(whole) // 2])
    torch.save({"features.0.weight": torch.zeros(8, 3, 3, 3)}, tmp_path / "vgg.pth")
    wrong: list[tuple[str, type[ByolError]]] = [
        (str(tmp_path / "half.safetensors"), DiskError),
        (str(tmp_path / "vgg.pth"), BadData),
        (str(tmp_path / "gone.pth"), UsageError),
        ("timm:resnet1", UsageError),
        ("timm:resnet18", UsageError),
    ]
    for place, kind in wrong:
        with pytest.raises(kind) as said:
            byol.pretrain(images, tmp_path / "run", "cifar10-cpu", FREE | {"network.init": place})
        assert "\n" not in str(said.value)
        assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("kind", ["model.safetensors", "pytorch_model.bin"])
def test_weights_of_timm_from_the_local_cache(
    kind: str, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Breaks if timm's own weights are not what the run begins from, or a pickle among them is run."""
    timm = pytest.importorskip("timm")
    constants = pytest.importorskip("huggingface_hub.constants")
    torch.manual_seed(5)
    model = timm.create_model("test_resnet", pretrained=False)
    place = tmp_path / "hub" / "models--timm--test_resnet.r160_in1k"
    (place / "refs").mkdir(parents=True)
    (place / "refs" / "main").write_text("0" * 40)
    snapshot = place / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    asked = FREE | {"network.init": "timm:test_resnet", "data.resolution": 64}
    if kind == "model.safetensors":
        save_file(model.state_dict(), snapshot / kind)
        found = given.read("timm:test_resnet")
        assert found.tensors.keys() <= model.state_dict().keys()
        assert all(torch.equal(value, model.state_dict()[name]) for name, value in found.tensors.items())
        run = byol.pretrain(images, tmp_path / "run", "cifar10-cpu", asked)
        assert run.config.network.encoder == "timm:test_resnet"
    else:
        torch.save({"harm": Harm(tmp_path / "harmed")}, snapshot / kind)
        with pytest.raises(UsageError, match="timm cannot give its weights"):
            byol.pretrain(images, tmp_path / "run", "cifar10-cpu", asked)
        assert not (tmp_path / "harmed").exists()


class Harm:
    """A pickle that would write a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.write_text, (self.path, "harm"))


def test_what_learns_and_how_fast() -> None:
    """Breaks if a rate is multiplied for the wrong block or lost where groups are split, LARS then adapts a norm, or
    the option for normalization trains a convolution."""
    network = apply(Config(), TINY).network
    settings = {"optim.encoder_lr": 0.5, "optim.layer_decay": 0.9, "optim.predictor_lr": 10.0}
    model = method.build(network)
    optimizer = optim.build(model, apply(Config(), settings).optim)
    names = {param: name for name, param in model.named_parameters()}
    rates = {names[p]: (g["scale"], g["adapt"]) for g in optimizer.param_groups for p in g["params"]}
    expected = {
        "online.encoder.conv1.weight": (0.5 * 0.9**8, True),  # eight blocks are between the stem and the output
        "online.encoder.bn1.bias": (0.5 * 0.9**8, False),
        "online.encoder.layer1.0.conv1.weight": (0.5 * 0.9**7, True),
        "online.encoder.layer3.1.bn2.weight": (0.5 * 0.9**2, False),
        "online.encoder.layer4.1.conv2.weight": (0.5, True),
        "online.projector.0.weight": (1.0, True),
        "predictor.0.weight": (10.0, True),
    }
    for name, (factor, adapt) in expected.items():
        assert rates[name] == (pytest.approx(factor), adapt), name
    assert len(rates) == sum(p.requires_grad for p in model.parameters())
    norms = method.build(network)
    trained = optim.build(norms, apply(Config(), {"optim.norm_only": True}).optim)
    names = {param: name for name, param in norms.named_parameters()}
    learning = {names[p] for g in trained.param_groups for p in g["params"] if "online.encoder" in names[p]}
    assert learning == {n for n, p in norms.named_parameters() if n.startswith("online.encoder") and p.ndim == 1}


def test_auto_goes_on_gently_and_says_why() -> None:
    """Breaks if `auto` treats given weights as noise, overrides what was asked for, or chooses without a reason."""
    facts = Facts(images=3000, side=240, cores=2, memory=8.0, accelerator=False, seconds=lambda _: 0.001, weights=64)
    settled = {"network.encoder": "resnet34", "network.width": 0.5, "network.target_init": "same"}
    config, reasons = compose("auto", {"optim.encoder_lr": 0.1}, {}, "", facts, settled)
    assert (config.network.encoder, config.network.width, config.network.target_init) == ("resnet34", 0.5, "same")
    assert config.data.resolution == 64
    assert config.optim.encoder_lr == 0.1
    assert config.optim.head_epochs > 0
    scratch, _ = compose("auto", {}, {}, "", replace(facts, weights=0))
    assert config.optim.epochs < scratch.optim.epochs
    assert (config.objective.name, config.optim.optimizer) == ("byol", "lars")  # for which the rate below is meant
    assert config.optim.lr == 0.4
    timed, _ = compose("auto", {"run.budget": "20m"}, {}, "", facts, settled)
    assert timed.optim.epochs * 3000 * 0.001 == pytest.approx(0.94 * 20 * 60, rel=0.01)  # the rest goes into looks
    short, told = compose("auto", {"run.budget": "30s"}, {}, "", facts, settled)
    assert short.optim.head_epochs == pytest.approx(short.optim.epochs / 10)
    assert next(reason.value for reason in told if reason.field == "optim.head_epochs") == short.optim.head_epochs
    chosen = {reason.field: reason.value for reason in reasons}
    assert {"data.resolution", "optim.epochs", "optim.lr", "optim.head_epochs"} <= chosen.keys()
    assert "optim.encoder_lr" not in chosen
    assert len({reason.field for reason in reasons}) == len(reasons)


def test_the_best_look_is_kept(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks if best.safetensors is the last encoder, that of a later look as good, or not of its look's step."""
    real = monitor.Monitor.look
    figures = itertools.chain([0.2, 0.6, 0.5, 0.6, 0.1], itertools.repeat(0.3))
    encoders: list[dict[str, Tensor]] = []

    def look(self: Any, model: Any, step: int) -> dict[str, float]:
        encoders.append({name: value.clone() for name, value in model.online.encoder.state_dict().items()})
        return real(self, model, step) | {"knn": next(figures)}

    monkeypatch.setattr(monitor.Monitor, "look", look)
    run = byol.pretrain(images, tmp_path / "run", "cifar10-cpu", TINY)
    looks = [line for line in run.metrics if "knn" in line]
    assert len(looks) == len(encoders) > 3
    best = load_file(run.out / checkpoint.BEST)
    assert all(torch.equal(best[name], value) for name, value in encoders[1].items())
    assert encoder_header(run.out / checkpoint.BEST)["step"] == looks[1]["step"] + 1
    assert encoder_header(run.out)["step"] == run.plan.steps
    load_encoder(run.out / checkpoint.BEST)


def test_a_fixed_target_of_another_shape(images: Path, tmp_path: Path) -> None:
    """Breaks if the given target moves, has the online network's shape, or a finished run needs its file again."""
    given = weights(tmp_path / "wide.safetensors", width=0.15)
    distilled = {
        "network.target": "fixed",
        "network.target_init": str(given),
        "network.target_projector_hidden": 24,
        "optim.epochs": 1,
    }
    run = byol.pretrain(images, tmp_path / "run", "cifar10-cpu", TINY | distilled)
    assert (run.config.network.width, run.config.network.target_width) == (0.05, 0.15)
    tensors, wide = newest(run.out), load_file(given)
    assert all(torch.equal(tensors[f"method.target.encoder.{name}"], value) for name, value in parameters(wide).items())
    assert tensors["method.target.projector.0.weight"].shape == (24, wide["layer4.1.bn2.weight"].shape[0])
    assert tensors["method.online.projector.0.weight"].shape[0] == TINY["network.projector_hidden"]
    assert load_encoder(run.out).num_features < wide["layer4.1.bn2.weight"].shape[0]
    given.unlink()
    longer = byol.pretrain(images, run.out, "cifar10-cpu", TINY | distilled | {"optim.epochs": 2})
    assert longer.plan.steps == 6
    for change in ({"network.target": "moving-average"}, {"network.target": "online"}):
        with pytest.raises(UsageError, match=r"is for network\.target fixed"):
            byol.pretrain(images, tmp_path / "other", "cifar10-cpu", TINY | distilled | change)
