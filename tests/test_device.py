"""Where tensors are and what waits for a GPU, shown without one: the real verbs on a pretended device."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import byol
from byol import algorithm, checkpoint, networks, pretraining, views
from byol.config import Config, Optim, apply
from byol.errors import Diverged, UsageError
from byol.evals.evaluation import evaluate
from byol.evals.spec import DENSE, PROTOCOLS
from byol.explore.gpu import check
from byol.models.fit import Options, fit
from byol.optim import build
from byol.run import files
from byol.run.machine import Machine, bf16_survives
from tests import device
from tests.conftest import ALONE, TINY, write_images
from tests.evals.dense.test_dense import TINY as DENSE_SPECS
from tests.evals.test_evals import SPECS
from tests.test_method import build as method_of
from tests.test_method import views as views_of

PLACE = {"run.device": "cuda", "data.workers": 0}
RUN = TINY | PLACE | {"optim.epochs": 4, "run.monitor_epochs": 100, "run.log_every": 4}


@pytest.fixture
def gpu() -> Any:
    with device.pretended() as gpu:
        yield gpu


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = apply(Config(), {"network.encoder": "resnet18", "network.width": 0.05, "network.small_images": True})
    config = apply(config, {"data.resolution": 32})
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("encoder") / checkpoint.ENCODER
    checkpoint.save_encoder(path, networks.encoder(config.network), config, {"step": 0})
    return path


def waits_between(gpu: device.Gpu, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> Callable[[], list[Any]]:
    """The waits between the calls of a function: those from its first call to its last."""
    marks, real = list[int](), getattr(owner, name)

    def marked(*arguments: Any, **named: Any) -> Any:
        marks.append(len(gpu.waits))
        return real(*arguments, **named)

    monkeypatch.setattr(owner, name, marked)
    return lambda: gpu.waits[marks[0] : marks[-1]] if len(marks) > 2 else ["it was not called thrice"]


@pytest.mark.parametrize(("precision", "in_memory"), [("float32", "always"), ("bf16", "never")])
def test_a_step_of_pretraining_waits_for_nothing(
    folder: Path, tmp_path: Path, gpu: device.Gpu, monkeypatch: pytest.MonkeyPatch, precision: str, in_memory: str
) -> None:
    """Breaks if anything of a step is read on the host, sent without pinned memory, or left on the wrong device: twelve
    steps, of which four are logged, with zero waits from the first to the last, and numbers that are sent to the host
    more often than once in run.log_every steps."""
    if precision == "bf16" and not bf16_survives():
        pytest.skip("needs a CPU that survives bf16")
    waits = waits_between(gpu, monkeypatch, pretraining, "update")
    changes = {"run.precision": precision, "data.in_memory": in_memory}
    real, sent = pretraining.update, list[int]()
    counted = lambda *given, **named: sent.append(gpu.copies["to the host"]) or real(*given, **named)
    monkeypatch.setattr(pretraining, "update", counted)
    run = byol.pretrain(folder, tmp_path / "run", "cifar10-cpu", RUN | changes)
    assert waits() == []
    assert [line["step"] for line in run.steps] == [0, 4, 8, 11]
    assert [count - sent[0] for count in sent] == [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]
    assert gpu.copies["to the device"] > 12


@pytest.mark.parametrize(
    "changes",
    [
        {"optim.optimizer": "adamw", "optim.clip": 1.0},
        {"optim.optimizer": "sgd", "objective.name": "info-nce", "optim.accumulate": 2},
        {"network.predictor": "optimal-linear", "network.projection": 3},
        {"network.predictor": "isotropic"},
        {"network.target": "moving-average", "run.passes": "together"},
        {**ALONE, "network.target": "stop-gradient", "views.colour": "torchvision", "objective.normalization": "batch"},
    ],
    ids=lambda changes: "-".join(map(str, changes)),
)
def test_variants_wait_for_nothing(
    folder: Path, tmp_path: Path, gpu: device.Gpu, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    """Breaks if an optimizer, an objective or another target reads from the device or computes on the host."""
    waits = waits_between(gpu, monkeypatch, pretraining, "update")
    byol.pretrain(folder, tmp_path / "run", "cifar10-cpu", RUN | {"optim.epochs": 2} | changes)
    assert waits() == []


def test_the_device_computes_as_the_cpu_does(folder: Path, tmp_path: Path) -> None:
    """Breaks if the masked step on a device computes otherwise than the CPU's, or the log has other lines."""
    on_cpu = byol.pretrain(folder, tmp_path / "cpu", "cifar10-cpu", RUN | {"run.device": "cpu"})
    with device.pretended():
        there = byol.pretrain(folder, tmp_path / "gpu", "cifar10-cpu", RUN)
    one, other = (checkpoint.read(checkpoint.found(run.out / "checkpoints")[0]) for run in (on_cpu, there))
    assert one.keys() == other.keys()
    for name in one:
        torch.testing.assert_close(other[name], one[name], rtol=1e-4, atol=1e-5)
    assert [line["step"] for line in there.metrics] == [line["step"] for line in on_cpu.metrics]


@pytest.mark.parametrize("optimizer", ["lars", "sgd", "adamw"])
def test_a_step_that_is_not_finite_is_masked_on_the_device(gpu: device.Gpu, optimizer: str) -> None:
    """Breaks if NaN reaches weights, optimizer, target or statistics, a good step is masked, or masking waits: the
    second of three steps is bad, and afterwards all is as if it had not been."""
    place = Machine("cuda", "float64", 1)
    found = []
    for seeds in ((0, 1), (0, None, 1)):
        model = method_of().to("cuda")
        chosen = build(model, Optim(weight_decay=1e-3, optimizer=optimizer))  # type: ignore[arg-type]
        before = len(gpu.waits)
        outcomes = []
        for seed in seeds:
            seen = views_of(seed or 0)
            if seed is None:
                seen.view2[0, 0, 0, 0] = float("nan")
            seen = algorithm.Pass(*(value.pin_memory().to("cuda", non_blocking=True) for value in seen))
            outcomes.append(algorithm.update(model, chosen, [seen], lr=0.1, tau=0.9, machine=place))
        assert gpu.waits[before:] == []
        slots = [slot for p in model.parameters() if p in chosen.state for slot in chosen.state[p].values()]
        found.append([t.to("cpu") for t in (*model.parameters(), *model.buffers(), *slots)])
        if None in seeds:
            with pytest.raises(Diverged, match="the loss is nan"):
                outcomes[1].read()
            assert outcomes[2].read().loss < outcomes[0].read().loss + 1
    assert len(found[0]) == len(found[1]) > 200
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_divergence_is_noticed_within_a_step(
    folder: Path, tmp_path: Path, gpu: device.Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Breaks if a device's bad step goes on for more than one step after its numbers were sent, which is done every
    fourth step here, is not written down, or a skipped one stops."""
    real, calls = pretraining.augmented, [-1]

    def poisoned(*arguments: Any) -> Any:
        calls[0] += 1
        for item in real(*arguments):
            yield item._replace(view1=item.view1 * float("nan")) if calls[0] == 3 else item

    monkeypatch.setattr(pretraining, "augmented", poisoned)
    with pytest.raises(Diverged, match=r"at step 3 the loss is nan"):
        byol.pretrain(folder, tmp_path / "stops", "cifar10-cpu", RUN)
    assert calls[0] <= 4
    assert [note["step"] for note in files.read_json(tmp_path / "stops" / "diverged.json")] == [3]
    calls[0] = -1
    run = byol.pretrain(folder, tmp_path / "goes on", "cifar10-cpu", RUN | {"run.on_nan": "skip", "run.log_every": 1})
    assert [line["step"] for line in run.steps] == [k for k in range(12) if k != 3]
    assert [note["step"] for note in files.read_json(run.out / "diverged.json")] == [3]


@pytest.mark.parametrize("name", PROTOCOLS)
def test_evaluations_keep_to_their_device(
    name: str, encoder: Path, tmp_path: Path, gpu: device.Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Breaks if a protocol mixes host and device, or reads its loss in every step of training."""
    waits, marks, step = list[Any](), dict[Any, int](), torch.optim.SGD.step

    def marked(self: Any, *arguments: Any, **named: Any) -> Any:
        if self in marks:
            waits.extend(gpu.waits[marks[self] :])
        marks[self] = len(gpu.waits)
        return step(self, *arguments, **named)

    monkeypatch.setattr(torch.optim.SGD, "step", marked)
    specs = DENSE_SPECS if name in DENSE else SPECS
    settings = PLACE | {"run.precision": "float32"}
    found = evaluate(
        encoder,
        "scenes:40",
        [name],
        specs=specs,
        out=tmp_path,
        cache=tmp_path / "cache",
        settings=settings,
        compare=False,
    )
    assert np.isfinite([measure.mean for measure in found[name].test.values()]).all()
    assert gpu.copies["to the device"] > 0
    if name != "detection":  # torchvision's detector counts its proposals on the host
        assert waits == []


def test_embed_and_fit_keep_to_their_device(folder: Path, encoder: Path, tmp_path: Path, gpu: device.Gpu) -> None:
    """Breaks if features, or a classifier on them, are computed of tensors of both places."""
    features, names = byol.embed(encoder, folder)
    assert features.shape == (24, byol.load_encoder(encoder).num_features)
    assert len(names) == 24
    write_images(tmp_path / "labelled", 60)
    model = fit(encoder, tmp_path / "labelled", tmp_path / "model", options=Options(transfer=SPECS.transfer))
    assert model.facts.setting


def test_the_pretended_device_refuses_to_mix(gpu: device.Gpu) -> None:
    """Breaks if the harness lets a mixing through, or refuses what CUDA takes: a single number of the host."""
    there, here = torch.ones(3).to("cuda"), torch.ones(3)
    assert there.device == torch.device("cuda", 0)
    assert here.device.type == "cpu"
    with pytest.raises(device.Mixed):
        there + here
    with pytest.raises(device.Mixed):
        torch.nn.functional.linear(there, torch.ones(2, 3))
    with pytest.raises(TypeError):
        there.numpy()
    with torch.cuda.stream(torch.cuda.Stream()):
        other = here.pin_memory().to("cuda", non_blocking=True)
    with pytest.raises(device.Race):
        other + 1
    assert (there + torch.tensor(1.0)).tolist() == [2, 2, 2]


WAITS: dict[str, Callable[[torch.Tensor], object]] = {
    "item": lambda t: t.sum().item(),
    "bool": lambda t: bool(t.any()),
    "float": lambda t: float(t[0]),
    "tolist": lambda t: t.tolist(),
    "cpu": lambda t: t.cpu(),
    "nonzero": lambda t: t.nonzero(),
    "mask": lambda t: t[t > 0],
    "new_tensor": lambda t: t.new_tensor([1.0]),
    "blocking upload": lambda t: torch.ones(2).to("cuda"),
    "unpinned upload": lambda t: torch.ones(2).to("cuda", non_blocking=True),
    "made there": lambda t: torch.tensor([1.0], device="cuda"),
    "equal": lambda t: torch.equal(t, t),
}


@pytest.mark.parametrize("name", WAITS)
def test_the_pretended_device_counts_every_wait(gpu: device.Gpu, name: str) -> None:
    """Breaks if the harness misses a kind of waiting."""
    there = torch.ones(3).pin_memory().to("cuda", non_blocking=True)
    (there * 2 + torch.zeros(3, device="cuda")).sum()
    assert gpu.waits == []
    WAITS[name](there)
    assert len(gpu.waits) == 1


@pytest.mark.parametrize("name", ["a wait", "a mixing"])
def test_the_harness_finds_what_is_put_in(
    folder: Path, tmp_path: Path, gpu: device.Gpu, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Breaks if a wait or a mixing within a step of pretraining goes unseen."""
    waits = waits_between(gpu, monkeypatch, pretraining, "update")
    real = views.solarize

    def changed(images: torch.Tensor, threshold: float = 0.5) -> torch.Tensor:
        if name == "a wait":
            float(images.mean())
            return real(images, threshold)
        return real(images, threshold) + torch.zeros(len(images), 1, 1, 1)

    monkeypatch.setattr(views, "solarize", changed)
    if name == "a mixing":
        with pytest.raises(device.Mixed):
            byol.pretrain(folder, tmp_path / "run", "cifar10-cpu", RUN)
        return
    byol.pretrain(folder, tmp_path / "run", "cifar10-cpu", RUN)
    assert waits()
    assert {wait[0] for wait in waits()} == {"_local_scalar_dense"}


def test_check_gpu_compares_and_measures(gpu: device.Gpu, tmp_path: Path) -> None:
    """Breaks if CPU and device are not compared over steps, or a figure of the report is missing."""
    small: dict[str, Any] = {"network.encoder": "resnet18", "data.resolution": 32, "optim.batch": 4}
    found = check(tmp_path / "report.json", small | {"network.width": 0.05, "run.precision": "float32"}, 2, False)
    assert found.agrees
    assert found.apart == {"float64": 0.0, "float32": 0.0}  # the pretended device computes as the CPU does
    written = files.read_json(tmp_path / "report.json")
    assert written["speed"]["plain"]["images_per_second"] > 0
    assert written["speed"]["plain"]["planned_gb"] > 0
    assert written["device"] == "pretended"


def test_check_gpu_without_a_gpu_is_a_sentence(tmp_path: Path) -> None:
    """Breaks if a machine without a GPU gets a traceback, or an empty report."""
    if torch.cuda.is_available():
        pytest.skip("needs a machine without a GPU")
    with pytest.raises(UsageError, match=r"needs a CUDA device, and torch .* sees none here"):
        check(tmp_path / "report.json", {})
    assert not (tmp_path / "report.json").exists()
