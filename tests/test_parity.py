"""The recorded steps of the reference code, replayed by the real training step."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from byol import method, networks, optim, schedules
from byol.algorithm import Pass, update
from byol.config import Optim
from byol.machine import Machine

PARITY = Path(__file__).resolve().parents[2] / "shared" / "parity"
TRACES = sorted(PARITY.glob("*step_trace*.npz"))
IMAGENET = torch.tensor([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]], dtype=torch.float64)


def torch_name(module: str, leaf: str) -> str:
    """Haiku's module path and leaf as a name in `Method`, but for the leading online or target."""
    leaf = {"w": "weight", "b": "bias", "scale": "weight", "offset": "bias"}[leaf]
    head = re.fullmatch(r"(projector|predictor)/(linear_1|linear|batch_norm)", module)
    if head:
        return f"{head[1]}.{ {'linear': 0, 'batch_norm': 1, 'linear_1': 3}[head[2]] }.{leaf}"
    if module == "classifier":
        return f"classifier.{leaf}"
    path = module.split("/~/", 1)[1]
    path = path.replace("initial_conv", "conv1").replace("initial_batchnorm", "bn1")
    path = re.sub(r"block_group_(\d)/~/block_(\d+)/~/", lambda m: f"layer{int(m[1]) + 1}.{m[2]}.", path)
    path = path.replace("shortcut_conv", "downsample.0").replace("shortcut_batchnorm", "downsample.1")
    path = re.sub(
        r"(conv|batchnorm)_(\d)", lambda m: f"{ {'conv': 'conv', 'batchnorm': 'bn'}[m[1]] }{int(m[2]) + 1}", path
    )
    return f"encoder.{path}.{leaf}"


def to_torch(array: np.ndarray, leaf: str) -> torch.Tensor:
    if leaf == "w":
        array = array.transpose(3, 2, 0, 1) if array.ndim == 4 else array.T
    elif array.ndim > 1:
        array = array.reshape(-1)
    return torch.from_numpy(np.ascontiguousarray(array, dtype=np.float64))


def tree(trace: np.lib.npyio.NpzFile, part: str) -> dict[str, torch.Tensor]:
    found = {}
    for key in trace.files:
        if key.startswith(part + "|"):
            _, module, leaf = key.split("|")
            found[torch_name(module, leaf)] = to_torch(trace[key], leaf)
    return found


def build(meta: dict, trace: np.lib.npyio.NpzFile) -> method.Method:
    def branch() -> method.Branch:
        encoder = networks.ResNet(networks.Bottleneck, meta["blocks"], meta["channels"], meta["stem"], padding="same")
        return method.Branch(encoder, networks.mlp(meta["channels"][-1], meta["mlp_hidden"], meta["proj_out"]))

    predictor = networks.mlp(meta["proj_out"], meta["mlp_hidden"], meta["proj_out"])
    classifier = nn.Linear(meta["channels"][-1], meta["num_classes"])
    model = method.Method(branch(), predictor, branch(), classifier).double()
    for part, start in (("init_online", "online."), ("init_target", "target.")):
        for name, value in tree(trace, part).items():
            own = name if name.startswith(("predictor", "classifier")) else start + name
            if part == "init_target" and own == name:
                continue  # the reference code carries an unused copy of both heads in the target
            parameter = model.get_parameter(own)
            assert parameter.shape == value.shape, own
            parameter.data.copy_(value)
    return model.train()


def views(trace: np.lib.npyio.NpzFile, step: int) -> Pass:
    def view(which: str) -> torch.Tensor:
        pixels = torch.from_numpy(trace[f"in{step}|{which}"]).double() / 255
        return ((pixels - IMAGENET[0]) / IMAGENET[1]).permute(0, 3, 1, 2).contiguous()

    return Pass(view("view1"), view("view2"), torch.from_numpy(trace[f"in{step}|labels"]))


def relative(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """Floored: the bias before a batch norm has no gradient but rounding, 1e-17 in both."""
    return float((ours - theirs).detach().norm() / theirs.norm().clamp(min=1e-9))


@pytest.mark.skipif(not TRACES, reason="shared/parity is absent: no recorded reference steps to compare with")
@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.stem)
def test_steps_of_the_reference_code(path: Path) -> None:
    """Breaks with any change to padding, per-view statistics, LARS, schedules, loss scale or moving average."""
    trace = np.load(path)
    meta = json.loads(str(trace["meta"]))
    model = build(meta, trace)
    settings = Optim(weight_decay=meta["wd"], momentum=meta["momentum"], trust_coefficient=meta["eta"])
    optimizer = optim.build(model, settings)
    place = Machine("cpu", "float64", torch.get_num_threads())
    for step, log in enumerate(meta["logs"]):
        lr = schedules.learning_rate(
            step, peak=meta["base_lr"] * meta["batch"] / 256, warmup_steps=meta["warmup"], total_steps=meta["K"]
        )
        tau = schedules.target_decay(step, base=meta["base_ema"], total_steps=meta["K"])
        assert lr == pytest.approx(log["learning_rate"], rel=1e-6, abs=1e-12)
        assert tau == pytest.approx(log["tau"], rel=1e-6)
        seen = update(model, optimizer, [views(trace, step)], lr=lr, tau=tau, machine=place)
        assert seen.loss == pytest.approx(log["repr_loss"], rel=1e-5)
        assert seen.probe_loss == pytest.approx(log["classif_loss"], rel=1e-5)
        assert seen.probe_accuracy == pytest.approx(log["top1_accuracy"], abs=1e-9)
    names = dict(model.named_parameters())
    for name, value in tree(trace, "final_online").items():
        own = name if name.startswith(("predictor", "classifier")) else f"online.{name}"
        assert relative(names[own], value) < 1e-5, own
    for name, value in tree(trace, "final_mu").items():
        own = name if name.startswith(("predictor", "classifier")) else f"online.{name}"
        assert relative(optimizer.state[names[own]]["momentum"], value) < 1e-5, own
    for name, value in tree(trace, "final_target").items():
        if not name.startswith(("predictor", "classifier")):
            assert relative(names[f"target.{name}"], value) < 1e-5, name
    check_statistics(model, trace, "online")
    check_statistics(model, trace, "target")


def check_statistics(model: method.Method, trace: np.lib.npyio.NpzFile, branch: str) -> None:
    """The reference starts its averages at 0 and divides by 1 − 0.9^n; torch starts at 0 and 1 and does not.

    So ours = hidden for the mean; for the variance the start of 1 has decayed to 0.9^n, and torch averages the
    unbiased variance, which is n/(n−1) of the reference's with n values a channel.
    """
    modules = dict(model.named_modules())
    compared = 0
    for key in trace.files:
        match = re.fullmatch(rf"final_{branch}_state\|(.+)/~/(mean|var)_ema\|hidden", key)
        if not match or (branch == "target" and match[1].startswith("predictor")):
            continue
        name = torch_name(match[1], "scale").removesuffix(".weight")
        norm = modules[name if name.startswith("predictor") else f"{branch}.{name}"]
        hidden = torch.from_numpy(trace[key]).reshape(-1)
        updates = int(trace[key.replace("hidden", "counter")])
        assert norm.num_batches_tracked == updates
        if match[2] == "mean":
            assert relative(norm.running_mean, hidden) < 1e-5, key
        else:
            ours = norm.running_var - 0.9**updates
            ratio = ours / hidden
            assert float(ratio.std()) < 1e-5, key
            assert float(ratio.mean()) >= 1.0 - 1e-9, key
        compared += 1
    assert compared > 20
