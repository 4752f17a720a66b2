"""Every protocol on rendered scenes: it chooses without the test images, leaves the encoder alone, and reports."""

from __future__ import annotations

import importlib
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from byol import checkpoint, views
from byol.config import Data, View, Views
from byol.data import open_task
from byol.data.parts import Part, Sealed, Task, balanced
from byol.errors import Diverged, UsageError
from byol.evals import budget, classifier, features, finetune, linear, logistic, record, supervised
from byol.evals.encoder import Encoder, frozen, open_encoder, random_encoder
from byol.evals.evaluation import evaluate, open_data, run_protocol
from byol.evals.protocol import Session
from byol.evals.spec import (
    CLASSIFICATION,
    MODULES,
    PROTOCOLS,
    Depth,
    Finetune,
    Knn,
    Linear,
    Segmentation,
    SemiSupervised,
    Specs,
    Supervised,
    Transfer,
)

SPECS = Specs(
    Knn(k=5),
    Transfer(penalties=(1e-2, 1.0, 100.0)),
    Linear(epochs=2, batch=32, lrs=(0.4, 0.05)),
    SemiSupervised(fractions=(0.1, 0.5), lrs=(0.1, 0.02), epochs=(1.0, 2.0), batch=16),
    Finetune(steps=3, batch=16, lrs=(0.01, 0.1), weight_decays=(0.0, 1e-4)),
    Supervised(epochs=1, batch=16, lrs=(0.1, 0.02)),
)

# The whole image, never altered but by a flip.
STILL = View(area_min=1, area_max=1, ratio_min=1, ratio_max=1, jitter=0, grayscale=0, blur=0)


@pytest.fixture(scope="module")
def task() -> Task:
    return open_task("scenes:120", Data(resolution=32))


def spec_of(name: str) -> Any:
    return getattr(SPECS, PROTOCOLS[name])


@pytest.mark.parametrize("name", CLASSIFICATION)
def test_no_choice_depends_on_the_test_images(name: str, encoder: Encoder, task: Task, tmp_path: Path) -> None:
    """Breaks if anything is chosen, trained or stopped by what the test part holds: two test parts, the same choices.

    Also: the encoder that came in is byte for byte the one that goes out.
    """
    before = encoder.checksum()
    test = task.test.again().open()
    random = np.random.default_rng(0)
    results = []
    for number, targets in enumerate((test.targets, random.permutation(test.targets))):
        other = replace(task, test=Sealed(lambda t=targets: Part(test.source, test.indices, t)))
        session = Session(cache=tmp_path / "cache", out=tmp_path / str(number))
        results.append(run_protocol(name, encoder, other, spec_of(name), session))
    assert results[0].trials == results[1].trials
    assert results[0].chosen == results[1].chosen
    assert results[0].test != results[1].test
    assert all(0 <= value <= 1 for value in results[0].test.values())
    assert encoder.checksum() == before


@pytest.mark.parametrize("name", CLASSIFICATION)
def test_nothing_is_trained_after_the_test_part_is_opened(
    name: str, encoder: Encoder, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Breaks if a step, a fit or another look at the validation part follows the opening."""
    sealed = task.test.again()
    step, fit, score = torch.optim.SGD.step, logistic.fit, classifier.Held.score

    def guarded(function: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            assert not sealed.opened, f"{function.__name__} after the test part was opened"
            return function(*arguments, **options)

        return call

    monkeypatch.setattr(torch.optim.SGD, "step", guarded(step))
    monkeypatch.setattr(logistic, "fit", guarded(fit))
    monkeypatch.setattr(classifier.Held, "score", guarded(score))
    session = Session(cache=tmp_path / "cache", out=tmp_path / "out")
    run_protocol(name, encoder, replace(task, test=sealed), spec_of(name), session)
    assert sealed.opened


def test_a_bank_is_its_heads_trained_alone(encoder: Encoder, task: Task) -> None:
    """Breaks if one learning rate's head feels another's gradient or rate."""
    images = classifier.images_of(task.train, encoder)
    spec = Linear(epochs=2, batch=32)
    with frozen(encoder):
        bank = linear.train_bank(encoder, images, 10, replace(spec, lrs=(0.4, 0.05)), 3, 6)
        alone = [linear.train_bank(encoder, images, 10, replace(spec, lrs=(lr,)), 3, 6)[0] for lr in (0.4, 0.05)]
    for together, single in zip(bank, alone, strict=True):
        assert torch.equal(together.weight, single.weight)
        assert torch.equal(together.bias, single.bias)
    assert not torch.equal(bank[0].weight, bank[1].weight)


def test_a_head_is_trained_as_the_protocol_says(encoder: Encoder, task: Task) -> None:
    """Breaks if momentum is not Nesterov's, the rate is not scaled by batch/256 or follows no cosine, or decay is on.

    With whole-image crops and no flip the features are fixed, and the update rule can be written out.
    """
    still = replace(STILL, flip=0.0)
    fixed = replace(encoder, config=replace(encoder.config, views=Views(t=still, t_prime=still)))
    part = task.train.take(np.arange(32))
    images = classifier.images_of(part, fixed)
    spec = Linear(epochs=5, batch=32, lrs=(0.4,), views="pretraining")
    with frozen(fixed) as module:
        head = linear.train_bank(fixed, images, 10, spec, 3, 5)[0]
        start = linear._heads(fixed, 10, 1, 3)[0]
        pixels = torch.stack([part.source.read(int(i)) for i in part.indices])
        inputs = features.represent(module, pixels, fixed.config, fixed.place).double()
    targets = torch.from_numpy(part.targets)
    weight, bias = start.weight.detach().double(), start.bias.detach().double()
    buffers = [torch.zeros_like(weight), torch.zeros_like(bias)]
    for k in range(5):
        lr = 0.4 * 32 / 256 * 0.5 * (1 + math.cos(math.pi * k / 5))
        error = (F.softmax(inputs @ weight.T + bias, 1) - F.one_hot(targets, 10)) / 32
        for value, gradient, buffer in zip((weight, bias), (error.T @ inputs, error.sum(0)), buffers, strict=True):
            buffer.mul_(0.9).add_(gradient)
            value.sub_(lr * (gradient + 0.9 * buffer))
    torch.testing.assert_close(head.weight.double(), weight, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(head.bias.double(), bias, rtol=1e-4, atol=1e-6)


def test_balanced_selection(task: Task) -> None:
    """Breaks if classes get unequal shares, or a smaller fraction is not part of a larger one."""
    half, all_ = balanced(task.train, 0.5, 0), balanced(task.train, 1.0, 0)
    tenth = balanced(task.train, 0.1, 0)
    assert set(np.bincount(tenth.targets)) == {1}
    assert set(np.bincount(half.targets)) == {6}
    assert {*tenth.indices} < {*half.indices} < {*all_.indices}
    assert len(all_) == len(task.train)


@pytest.mark.parametrize("protocol", ["finetune", "linear", "segmentation"])
def test_timing_a_protocol_changes_nothing(
    protocol: str, encoder: Encoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """Breaks if the steps that are timed first leave a trace in what is trained, or the time is not said."""
    spec = {
        "finetune": Finetune(steps=2, batch=8, lrs=(0.1,), weight_decays=(0.0,)),
        "linear": Linear(epochs=1, batch=32, lrs=(0.4,)),
        "segmentation": Segmentation(steps=2, batch=2, lrs=(0.1,), channels=8, crop=32, test_crop=32),
    }[protocol]

    def scored(place: str) -> dict[str, float]:
        found = open_data(protocol, "scenes:30", encoder.config.data, spec)
        session = Session(cache=tmp_path / place, out=tmp_path / place)
        return run_protocol(protocol, encoder, found, spec, session).test

    plain = scored("plain")
    assert "will take" not in capsys.readouterr().err
    monkeypatch.setattr(budget, "LONG_STEPS", 1)
    monkeypatch.setattr(budget, "LONG_SECONDS", 0.0)
    assert scored("timed") == plain
    assert "will take" in capsys.readouterr().err


def test_a_diverged_setting_is_not_chosen(encoder: Encoder, task: Task, tmp_path: Path) -> None:
    """Breaks if a loss that is not finite stops the sweep, or wins it."""
    spec = Finetune(steps=8, batch=16, lrs=(1e30, 0.01), weight_decays=(0.0,))
    result = finetune.evaluate(encoder, task.again(), spec, Session(cache=tmp_path, out=tmp_path))
    assert result.chosen["lr"] == 0.01


@pytest.mark.parametrize("name", ["linear", "semi-supervised", "finetune", "supervised", "segmentation", "depth"])
def test_a_final_training_that_diverges_reports_nothing(name: str, encoder: Encoder, tmp_path: Path) -> None:
    """Breaks if a broken network is scored: NaN scores look like a top-1 accuracy of 100 %. All rates are absurd."""
    few = {"steps": 8, "batch": 4, "lrs": (1e30,)}
    spec = {
        "linear": Linear(epochs=4, batch=8, lrs=(1e40, 9e39)),
        "semi-supervised": SemiSupervised(fractions=(0.5,), lrs=(1e30,), epochs=(8.0,), batch=8),
        "finetune": Finetune(weight_decays=(0.0,), **few),
        "supervised": Supervised(epochs=4, batch=8, lrs=(1e30,), warmup_epochs=0, augment_ops=0),
        "segmentation": Segmentation(channels=8, crop=32, test_crop=32, **few),
        "depth": Depth(filters=(8, 8), shrink=1.0, **few),
    }[name]
    task = open_data(name, "scenes:40", encoder.config.data, spec)
    with pytest.raises(Diverged, match="diverged"):
        run_protocol(name, encoder, task, spec, Session(cache=tmp_path, out=tmp_path / "out"))
    assert not task.test.opened
    assert not (tmp_path / "out" / checkpoint.ENCODER).exists()


def test_a_diverged_head_leaves_the_bank_alone(encoder: Encoder, task: Task, tmp_path: Path) -> None:
    """Breaks if one learning rate that is far too high wins by scores that are not numbers, or spoils the others."""
    spec = Linear(epochs=2, batch=32, lrs=(2.4e39, 0.1))
    found = run_protocol("linear", encoder, task.again(), spec, Session(cache=tmp_path))
    alone = run_protocol("linear", encoder, task.again(), replace(spec, lrs=(0.1,)), Session(cache=tmp_path))
    assert [trial.validation for trial in found.trials] == [-1.0, alone.trials[0].validation]
    assert found.chosen == {"lr": 0.1}
    assert found.test == alone.test


def test_a_trial_belongs_to_everything_its_score_depends_on(
    path: Path, encoder: Encoder, task: Task, tmp_path: Path
) -> None:
    """Breaks if a validation score is reused at another resolution, precision, validation part, seed or step count."""
    spec = Finetune(steps=1, batch=8, lrs=(0.01, 0.1), weight_decays=(0.0,))
    few = replace(task, train=task.train.take(range(16)), validation=task.validation.take(range(6)))
    usual = {"run.precision": "float32", "data.workers": 0}
    larger, exact = (
        open_encoder(path, usual | more) for more in ({"data.resolution": 40}, {"run.precision": "float64"})
    )
    other = replace(few, validation=task.validation.take(range(4)))
    runs = [
        *((encoder, few, spec, 0), (larger, few, spec, 0), (exact, few, spec, 0), (encoder, other, spec, 0)),
        *(
            (encoder, few, spec, 1),
            (encoder, few, replace(spec, steps=2), 0),
            (random_encoder(encoder, 1), few, spec, 0),
        ),
    ]
    for number, (own, data, changed, seed) in enumerate(runs, 1):
        for _ in range(2):  # the second time nothing is computed again
            run_protocol("finetune", own, data.again(), changed, Session(seed, tmp_path, out=tmp_path))
            assert len((tmp_path / "trials.jsonl").read_text().splitlines()) == 2 * number


def seen_by(module: nn.Module, run: Any) -> list[torch.Tensor]:
    """The batches that pass the module while `run` is called."""
    batches: list[torch.Tensor] = []
    hook = module.register_forward_pre_hook(lambda _, inputs: batches.append(inputs[0].detach().clone()))
    run()
    hook.remove()
    return batches


def test_spatial_augmentations_do_not_depend_on_the_run(encoder: Encoder, task: Task) -> None:
    """Breaks if an encoder pretrained without flips or crops is evaluated without them (appendix C.1)."""
    still = replace(STILL, flip=0.0)
    plain = replace(encoder, config=replace(encoder.config, views=Views(t=still, t_prime=still)))
    images = classifier.images_of(task.train.take(range(32)), encoder)
    train = lambda own: linear.train_bank(own, images, 10, Linear(batch=32), 0, 2)
    usual, other = (seen_by(own.module, lambda own=own: train(own)) for own in (encoder, plain))
    assert all(torch.equal(a, b) for a, b in zip(usual, other, strict=True))
    drawn = views.draw(0, 0, 4000, classifier.spatial(plain.config.views))[0]
    assert drawn["area"].min() < 0.1 < 0.97 < drawn["area"].max()
    assert 0.45 < drawn["flip"].float().mean() < 0.55
    assert drawn["log_ratio"].exp().min() == pytest.approx(3 / 4, abs=0.01)
    assert drawn["log_ratio"].exp().max() == pytest.approx(4 / 3, abs=0.01)
    assert not any(gate.any() for gate in (drawn["jitter"], drawn["grayscale"], drawn["blur"], drawn["solarize"]))


def test_the_variant_draws_both_distributions(encoder: Encoder, task: Task) -> None:
    """Breaks if the variant of linear evaluation trains on T alone: here T' solarizes every image and T none."""
    pair = Views(t=replace(STILL, flip=0), t_prime=replace(STILL, flip=0, solarize=1))
    own = replace(encoder, config=replace(encoder.config, views=pair))
    part = task.train.take(range(16))
    images = classifier.images_of(part, own)
    spec = Linear(batch=16, lrs=(0.1,), views="pretraining")
    batches = seen_by(own.module, lambda: linear.train_bank(own, images, 10, spec, 0, 4))
    pixels = torch.stack([part.read(i).image for i in range(16)]).float() / 255
    normal = lambda images: views.normalize(images, pair.mean, pair.std).sum((0, 2, 3))  # of any order
    both = [normal(pixels), normal(views.solarize(pixels))]
    for step, batch in enumerate(batches):
        torch.testing.assert_close(batch.sum((0, 2, 3)), both[step % 2], rtol=1e-3, atol=1.0)
    assert (both[0] - both[1]).abs().min() > 100


def test_the_head_that_was_chosen_is_the_one_that_is_tested(
    encoder: Encoder, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Breaks if `linear` trains again on train and validation together, which appendix C.1 does not."""
    banks, real = [], linear.train_bank
    monkeypatch.setattr(linear, "train_bank", lambda *given: banks.append(real(*given)) or banks[-1])
    found = run_protocol("linear", encoder, task.again(), spec_of("linear"), Session(cache=tmp_path))
    assert len(banks) == 1
    head = banks[0][[0.4, 0.05].index(found.chosen["lr"])]
    test = classifier.Held(task.test.again().open(), encoder)
    assert test.score(nn.Sequential(encoder.module, head), "top1") == found.test["top1"]


def test_an_untrained_encoder_is_marked(path: Path, tmp_path: Path) -> None:
    """Breaks if figures of random:RUN can be taken for those of the trained encoder."""
    usual: dict[str, Any] = {"cache": tmp_path, "settings": {"data.workers": 0}}
    for run, untrained in ((str(path), False), (f"random:{path}", True)):
        found = evaluate(run, "scenes:60", ["knn"], out=tmp_path / str(untrained), **usual)["knn"]
        assert found.encoder.untrained == untrained


def test_the_supervised_encoder_is_kept(encoder: Encoder, task: Task, tmp_path: Path) -> None:
    """Breaks if the baseline cannot be handed to the other protocols, or is the encoder that came in."""
    spec = Supervised(epochs=1, batch=16)
    supervised.evaluate(encoder, task.again(), spec, Session(cache=tmp_path, out=tmp_path))
    trained = open_encoder(tmp_path)
    assert trained.resolution == 32
    assert trained.checksum() != encoder.checksum()


def test_all_protocols_in_one_command(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Breaks if a protocol is missing from the table, or result.json lacks a choice, a seed or a checksum."""
    found = evaluate(
        path,
        "scenes:120",
        specs=SPECS,
        seeds=(0, 1),
        out=tmp_path / "out",
        cache=tmp_path / "cache",
        settings={"run.precision": "float32", "data.workers": 0},
        compare=False,
    )
    printed = capsys.readouterr().out
    assert list(found) == list(CLASSIFICATION)
    for name in CLASSIFICATION:
        assert name in printed
        stored = json.loads((tmp_path / "out" / name / "result.json").read_text())
        assert stored["protocol"] == name
        assert [run["seed"] for run in stored["runs"]] == [0, 1]
        assert sum(stored["data"]["images"].values()) == 120 + 24
        assert stored["encoder"]["checksum"] == found[name].encoder.checksum
        assert record.read(tmp_path / "out" / name / "result.json") == found[name]
        assert all({"setting", "validation"} == set(c) for run in stored["runs"] for c in run["choices"])
    assert (tmp_path / "out" / "semi-supervised" / "seed0" / "few_labels.png").stat().st_size > 5000


def test_a_budget_is_kept(path: Path, tmp_path: Path) -> None:
    """Breaks if the paper's 20,000 steps are begun in spite of a budget of seconds, or the cut is not recorded."""
    import time

    began = time.monotonic()
    found = evaluate(
        path,
        "scenes:120",
        ["finetune"],
        seconds=8.0,
        out=tmp_path / "out",
        cache=tmp_path / "cache",
        settings={"run.precision": "float32", "data.workers": 0},
    )
    assert time.monotonic() - began < 60  # the whole protocol takes hours; a busy machine may take longer than 8 s
    notes = found["finetune"].runs[0].notes
    assert any("of 56 settings" in note for note in notes)
    assert any("steps" in note for note in notes)


def test_names_of_protocols() -> None:
    """Breaks if a protocol can be asked for but not run, or the other way round, or a typing mistake passes."""
    for name, module in MODULES.items():
        assert callable(importlib.import_module(module).evaluate), name
    with pytest.raises(UsageError, match="linear"):
        evaluate("nowhere", "scenes", ["linaer"])
