"""Four training steps of the reference code, recorded in tests/fixtures/parity, replayed by the real training step."""

from __future__ import annotations

import io
import json
import lzma
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from byol import method, networks, optim, schedules
from byol.algorithm import Pass, update
from byol.config import Optim
from byol.run.machine import Machine

TRACE = Path(__file__).parent / "fixtures" / "parity" / "byol_step_trace.npz.xz"
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


def keys(trace: np.lib.npyio.NpzFile, part: str) -> dict[str, tuple[str, str]]:
    """Of a part of the trace: the name in `Method` → the key and the kind of value (Haiku's leaf)."""
    split = [key.split("|") for key in trace.files if key.startswith(part + "|")]
    names = {torch_name(module, leaf): ("|".join((part, module, leaf)), leaf) for part, module, leaf in split}
    start = "target." if part.endswith("target") else "online."
    return {n if n.startswith(("predictor", "classifier")) else start + n: key for n, key in names.items()}


def build(meta: dict, trace: np.lib.npyio.NpzFile) -> method.Method:
    def branch() -> method.Branch:
        encoder = networks.ResNet(networks.Bottleneck, meta["blocks"], meta["channels"], meta["stem"], padding="same")
        return method.Branch(encoder, networks.mlp(meta["channels"][-1], meta["mlp_hidden"], meta["proj_out"]))

    predictor = networks.mlp(meta["proj_out"], meta["mlp_hidden"], meta["proj_out"])
    classifier = nn.Linear(meta["channels"][-1], meta["num_classes"])
    model = method.Method(branch(), predictor, branch(), classifier).double()
    for part in ("init_online", "init_target"):
        for name, (key, leaf) in keys(trace, part).items():
            parameter, value = model.get_parameter(name), to_torch(trace[key], leaf)
            assert parameter.shape == value.shape, name
            parameter.data.copy_(value)
    return model.train()


def views(trace: np.lib.npyio.NpzFile, step: int) -> Pass:
    def view(which: str) -> torch.Tensor:
        pixels = torch.from_numpy(trace[f"in{step}|{which}"]).double() / 255
        return ((pixels - IMAGENET[0]) / IMAGENET[1]).permute(0, 3, 1, 2).contiguous()

    return Pass(view("view1"), view("view2"), torch.from_numpy(trace[f"in{step}|labels"]))


def error(ours: torch.Tensor, theirs: np.ndarray) -> float:
    """Relative. Floored: the bias before a batch norm has no gradient but rounding, 1e-17 in both."""
    recorded = torch.from_numpy(theirs).double().reshape(-1)
    return float((ours.detach().reshape(-1) - recorded).norm() / recorded.norm().clamp(min=1e-9))


def sampled(values: torch.Tensor) -> torch.Tensor:
    """The values of a tensor that the trace keeps of its end: all up to 2047, about a thousand of more."""
    flat = values.reshape(-1)
    return flat[:: max(1, flat.numel() // 1024) | 1]


@pytest.fixture(scope="module")
def trace() -> np.lib.npyio.NpzFile:
    return np.load(io.BytesIO(lzma.decompress(TRACE.read_bytes())), allow_pickle=False)


def test_steps_of_the_reference_code(trace: np.lib.npyio.NpzFile) -> None:
    """Breaks with any change to padding, per-view statistics, LARS, schedules, loss scale or moving average."""
    meta = json.loads(str(trace["meta"]))
    model = build(meta, trace)
    counts = values_a_channel(model)
    settings = Optim(weight_decay=meta["wd"], momentum=meta["momentum"], trust_coefficient=meta["eta"])
    optimizer = optim.build(model, settings)
    place = Machine("cpu", "float64", torch.get_num_threads())
    assert len(meta["logs"]) == 4
    for step, log in enumerate(meta["logs"]):
        lr = schedules.learning_rate(
            step, peak=meta["base_lr"] * meta["batch"] / 256, warmup_steps=meta["warmup"], total_steps=meta["K"]
        )
        tau = schedules.target_decay(step, base=meta["base_ema"], total_steps=meta["K"])
        assert lr == pytest.approx(log["learning_rate"], rel=1e-6, abs=1e-12)
        assert tau == pytest.approx(log["tau"], rel=1e-6)
        seen = update(model, optimizer, [views(trace, step)], lr=lr, tau=tau, machine=place).read()
        assert seen.loss == pytest.approx(log["repr_loss"], rel=1e-5)
        assert seen.probe_loss == pytest.approx(log["classif_loss"], rel=1e-5)
        assert seen.probe_accuracy == pytest.approx(log["top1_accuracy"], abs=1e-9)
    parameters = dict(model.named_parameters())
    compared = set()
    for part in ("final_online", "final_target"):
        for name, (key, _) in keys(trace, part).items():
            assert error(sampled(parameters[name]), trace[key]) < 1e-5, key
            compared.add(name)
    assert compared == parameters.keys()
    for name, (key, _) in keys(trace, "final_mu").items():
        assert error(sampled(optimizer.state[parameters[name]]["momentum"]), trace[key]) < 1e-5, key
    check_statistics(model, counts, trace, "online")
    check_statistics(model, counts, trace, "target")


def values_a_channel(model: method.Method) -> dict[nn.Module, int]:
    """Filled by the passes that follow: over how many values each batch norm takes a channel's statistics."""
    counts: dict[nn.Module, int] = {}

    def count(norm: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        counts[norm] = inputs[0].numel() // inputs[0].shape[1]

    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            module.register_forward_pre_hook(count)
    return counts


def check_statistics(
    model: method.Method, counts: dict[nn.Module, int], trace: np.lib.npyio.NpzFile, branch: str
) -> None:
    """The reference starts its averages at 0 and divides by 1 − 0.9^n; torch starts at 0 and 1 and does not divide.

    So the recorded average before that division is torch's mean. Of torch's variance the start of 1 has decayed to
    0.9^n, and what is left averages the unbiased variance: N/(N−1) of the reference's, with N values a channel.
    """
    modules = dict(model.named_modules())
    compared = 0
    for key in trace.files:
        match = re.fullmatch(rf"final_{branch}_state\|(.+)/~/(mean|var)_ema\|hidden", key)
        if not match:
            continue
        name = torch_name(match[1], "scale").removesuffix(".weight")
        norm = modules[name if name.startswith("predictor") else f"{branch}.{name}"]
        updates = int(trace[key.replace("hidden", "counter")])
        assert norm.num_batches_tracked == updates == 8
        if match[2] == "mean":
            assert error(norm.running_mean, trace[key]) < 1e-5, key
        else:
            biased = (norm.running_var - 0.9**updates) * (counts[norm] - 1) / counts[norm]
            assert error(biased, trace[key]) < 1e-5, key
        compared += 1
    assert compared == 2 * sum(isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d) for m in owned(model, branch))


def owned(model: method.Method, branch: str) -> list[nn.Module]:
    """The modules whose statistics the reference keeps with a branch: with the online one, those of the predictor."""
    mine = (f"{branch}.", "predictor") if branch == "online" else (f"{branch}.",)
    return [module for name, module in model.named_modules() if name.startswith(mine)]
