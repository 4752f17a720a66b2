"""`byol fit`: the protocol's figure, calibration, labels of every form, mistakes in a sentence, the same bytes."""

from __future__ import annotations

import csv
import json
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import byol
from byol.checkpoint import ENCODER
from byol.config import Data
from byol.errors import BadData, DiskError, OutputBusy, UsageError
from byol.evals.encoder import open_encoder
from byol.evals.evaluation import evaluate
from byol.evals.spec import Finetune, Specs, Transfer
from byol.models import calibrate
from byol.models.fit import Options, fit
from byol.models.labels import folds, open_labelled, read_csv
from byol.models.model import NAME, load_model, read_record
from byol.models.predicting import predict
from tests.models.conftest import write_classes
from tests.zygote import Zygote

FEW = Transfer(penalties=(1e-3, 1e-1, 10.0))
QUICK = Options(transfer=FEW)


@pytest.fixture(scope="module")
def parted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set in parts."""
    root = tmp_path_factory.mktemp("parted")
    for number, (part, each) in enumerate((("train", 12), ("val", 5), ("test", 9))):
        write_classes(root / part, each, seed=number)
    return root


def accuracy(table: Path) -> float:
    """Of the answers in a .csv of predictions, whose files are in class folders."""
    rows = list(csv.DictReader(table.read_text().splitlines()))
    return float(np.mean([row["label"] == row["file"].split("/")[0] for row in rows]))


def test_the_figure_is_the_protocols(encoder: Path, parted: Path, classes: Path, tmp_path: Path) -> None:
    """Breaks if fit chooses another penalty, trains on fewer images or crops otherwise than linear transfer does, or
    if predict answers otherwise than the model was scored."""
    for data in (parted, classes):
        told = evaluate(encoder, str(data), ["transfer-linear"], specs=Specs(transfer=FEW), out=tmp_path / data.name)
        model = fit(encoder, data, tmp_path / f"{data.name}-model", options=Options(transfer=FEW, test=True))
        assert model.facts.test["top1"] == told["transfer-linear"].test["top1"].mean
        assert model.facts.setting == told["transfer-linear"].runs[0].chosen
    model = load_model(tmp_path / f"{parted.name}-model")
    assert 0.4 < model.facts.test["top1"] < 1
    table = predict(tmp_path / f"{parted.name}-model", parted / "test", tmp_path / "answers.csv")
    assert accuracy(table) == model.facts.test["top1"]


def test_finetuning_is_the_protocols(encoder: Path, parted: Path, tmp_path: Path) -> None:
    """Breaks if --finetune trains by another sweep, seed or schedule than the protocol, or saves other weights than
    those it scored."""
    spec = Finetune(steps=3, batch=16, lrs=(0.01, 0.1), weight_decays=(0.0,))
    at_float32 = {"run.precision": "float32"}
    told = evaluate(
        encoder, str(parted), ["finetune"], specs=Specs(finetune=spec), out=tmp_path / "e", settings=at_float32
    )["finetune"]
    options = Options("finetune", finetune=spec)
    model = fit(encoder, parted, tmp_path / "model", options=options, settings=at_float32)
    assert model.facts.test["top1"] == told.test["top1"].mean
    assert model.facts.setting == told.runs[0].chosen
    assert open_encoder(tmp_path / "model").checksum() != open_encoder(encoder).checksum()
    table = predict(tmp_path / "model", parted / "test", tmp_path / "answers.csv")
    assert accuracy(table) == model.facts.test["top1"]


def test_a_handful_of_labels(encoder: Path, tmp_path: Path) -> None:
    """Breaks if few images a class are an error, or figures are claimed where no image could be spared."""
    three = fit(encoder, write_classes(tmp_path / "three", 3), tmp_path / "model3", options=QUICK)
    assert three.facts.images == {"train": 9}
    assert 0 <= three.facts.validation["top1"] <= 1
    one = fit(encoder, write_classes(tmp_path / "one", 1), tmp_path / "model1", options=QUICK)
    assert one.facts.validation == {}
    assert one.facts.temperature == 1.0
    assert "label more" in one.facts.notes[0]
    assert sorted(one.predict(tmp_path / "one").labels) == ["blue", "green", "red"]


def test_validation_in_turns_never_sees_its_own_image() -> None:
    """Breaks if an image is in two turns or none, or a class loses all its images to one turn."""
    targets = np.array([0] * 11 + [1] * 2 + [2])
    turns = folds(targets)
    assert turns[-1] == -1
    assert sorted(np.bincount(turns[:11])) == [2, 2, 2, 2, 3]
    assert len(set(turns[11:13])) == 2


def test_the_temperature_is_the_best_one() -> None:
    """Breaks if the loss is not that of the targets, or the search ends elsewhere than a fine grid in torch finds."""
    random = np.random.default_rng(0)
    logits = random.normal(size=(400, 5)) * 6
    targets = np.array([random.choice(5, p=p) for p in calibrate.probabilities(logits, 3.0, False)])
    grid = np.exp(np.linspace(np.log(0.2), np.log(12), 4000))
    losses = [
        torch.nn.functional.cross_entropy(torch.tensor(logits / t), torch.tensor(targets), reduction="sum")
        for t in grid
    ]
    best = grid[int(np.argmin([float(loss) + np.log(t) ** 2 for loss, t in zip(losses, grid, strict=True)]))]
    found = calibrate.temperature(logits, targets)
    assert found == pytest.approx(best, rel=0.003)
    assert found == pytest.approx(3.0, rel=0.2)
    before, after = (
        calibrate.calibration_error(*calibrate.answers(calibrate.probabilities(logits, t, False), targets))
        for t in (1.0, found)
    )
    assert after < before / 2


def test_the_threshold_gives_the_precision() -> None:
    """Breaks if an answer below the precision is let through, more are withheld than needed, or ties are split."""
    confidence = np.array([0.9, 0.8, 0.7, 0.7, 0.6, 0.5])
    right = np.array([True, True, False, True, True, False])
    assert calibrate.threshold(confidence, right, 0.0) == 0.0
    assert calibrate.threshold(confidence, right, 1.0) == 0.8
    assert calibrate.threshold(confidence, right, 0.75) == 0.6
    assert calibrate.threshold(confidence, right, 0.8) == 0.6
    assert calibrate.threshold(confidence, right, 0.81) == 0.8
    assert calibrate.threshold(confidence, ~right, 1.0) is None


def test_a_model_that_does_not_answer_at_any_price(encoder: Path, classes: Path, tmp_path: Path) -> None:
    """Breaks if answers on validation images that the thresholds let through are less precise than asked for."""
    model = fit(encoder, classes, tmp_path / "model", options=Options(transfer=FEW, precision=0.9))
    seen = json.loads((tmp_path / "model" / "validation.json").read_text())
    given, targets = np.array(seen["probabilities"]), np.array(seen["targets"])
    limit = model.facts.thresholds[0]
    assert limit is not None
    sure = given.max(1) >= limit
    assert (given.argmax(1) == targets)[sure].mean() >= 0.9
    assert 0 < sure.sum() < len(sure)
    assert any(label == "" for label in model.predict(classes).labels)


def test_labels_from_a_csv(encoder: Path, classes: Path, tmp_path: Path) -> None:
    """Breaks if a CSV that says what the folders say gives another model, several labels an image are read as one, or
    an unknown label counts as absent."""
    names = sorted(str(path.relative_to(classes)) for path in classes.rglob("*.png"))
    one = tmp_path / "one.csv"
    one.write_text("file,class\n" + "".join(f"{name},{name.split('/')[0]}\n" for name in reversed(names)))
    listed = fit(encoder, classes, tmp_path / "listed", labels=one, options=QUICK)
    foldered = fit(encoder, classes, tmp_path / "foldered", options=QUICK)
    assert listed.classes == foldered.classes == ("blue", "green", "red")
    assert torch.equal(listed.head.weight, foldered.head.weight)
    joint, columns = tmp_path / "joint.csv", tmp_path / "columns.csv"
    dark = {name: int(name.endswith(("1.png", "3.png"))) for name in names}
    both = [(name, [name.split("/")[0]] + ["odd"] * dark[name]) for name in names]
    joint.write_text("file,labels\n" + "".join(f"{name},{'; '.join(labels)}\n" for name, labels in both))
    order = ["blue", "green", "odd", "red"]
    lines = [f"{name}," + ",".join(str(int(label in labels)) for label in order) for name, labels in both]
    columns.write_text(f"file,{','.join(order)}\n" + "\n".join(lines) + "\n")
    several = fit(encoder, classes, tmp_path / "several", labels=joint, options=QUICK)
    assert several.classes == tuple(order)
    assert several.facts.metric == "map11"
    assert torch.equal(
        several.head.weight, fit(encoder, classes, tmp_path / "c", labels=columns, options=QUICK).head.weight
    )
    answers = several.predict(classes)
    assert all(isinstance(label, tuple) for label in answers.labels)
    assert np.all(answers.probabilities.sum(1) != 1)
    columns.write_text("file,a,b\nx.png,1,\ny.png,0,1\n")
    assert read_csv(columns)[1]["x.png"].tolist() == [1, 0]
    (classes / "labels.csv").write_text(one.read_text())  # beside its images, it is enough to name it
    beside = open_labelled(str(classes / "labels.csv"), None, Data(), False)
    (classes / "labels.csv").unlink()
    assert beside.train.targets.tolist() == [0] * 20 + [1] * 20 + [2] * 20


CSVS = {
    "file,class\nblue/000.png,a\ngone.png,b\n": "names 1 of 2 files that are not among the images",
    "file,class\nblue/000.png,a\nblue/001.png,a\n": "one class only",
    "file,class\n": "holds no labels",
    "file,class\nblue/000.png\n": "line 2: 1 cells where the header has 2",
    "file,class\n,a\n": "the first cell, which names the file, is empty",
    "file,class\nblue/000.png,\n": "no class",
    "file,a,b\nblue/000.png,1,2\n": "'2' is neither 1",
    "file,a,b\nblue/000.png,1,0\nblue/000.png,0,1\n": "has a line already",
    "file,a,a\nblue/000.png,1,0\n": "same name",
    "file,a,b\nblue/000.png,1,0\nblue/001.png,1,0\n": "No image in .* is labelled b",
}


@pytest.mark.parametrize("text", CSVS)
def test_wrong_labels_are_a_sentence(encoder: Path, classes: Path, tmp_path: Path, text: str) -> None:
    """Breaks if a CSV that cannot be meant is guessed at, or ends in a traceback."""
    (tmp_path / "labels.csv").write_text(text)
    with pytest.raises(BadData, match=CSVS[text]):
        fit(encoder, classes, tmp_path / "model", labels=tmp_path / "labels.csv", options=QUICK)
    assert not (tmp_path / "model" / NAME).exists()


def test_wrong_images_are_a_sentence(encoder: Path, tmp_path: Path) -> None:
    """Breaks if a class without images, one class, no class or no readable image is fitted anyway."""
    empty = write_classes(tmp_path / "empty", 2)
    (empty / "yellow").mkdir()
    one = write_classes(tmp_path / "one", 2)
    for name in ("red", "green"):
        for path in sorted((one / name).iterdir()):
            path.unlink()
        (one / name).rmdir()
    broken = write_classes(tmp_path / "broken", 2)
    for path in broken.rglob("*.png"):
        path.write_bytes(b"no image")
    lost = write_classes(tmp_path / "lost", 12)
    for path in (lost / "green").iterdir():
        path.write_bytes(b"no image")
    wrong = {empty: "class yellow .* has no image", one: "one class only", broken: "can be read", lost: "class green"}
    for data, said in wrong.items():
        with pytest.raises(BadData, match=said):
            fit(encoder, data, tmp_path / "model", options=QUICK)


def test_wrong_weights_and_folders(encoder: Path, classes: Path, tmp_path: Path) -> None:
    """Breaks if half an encoder is used, a folder of somebody else's or another model is written over, or a model that
    is damaged or unfinished answers."""
    half = tmp_path / "half.safetensors"
    half.write_bytes(encoder.read_bytes()[:5000])
    with pytest.raises(DiskError):
        fit(half, classes, tmp_path / "model", options=QUICK)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("")
    with pytest.raises(OutputBusy, match="no model of byol"):
        fit(encoder, classes, tmp_path / "mine", options=QUICK)
    out = tmp_path / "model"
    fit(encoder, classes, out, options=QUICK)
    other = Options(transfer=FEW, precision=0.5)
    with pytest.raises(OutputBusy, match="another model"):
        fit(encoder, classes, out, options=other)
    fit(encoder, classes, out, options=other, overwrite=True)
    head = (out / "head.safetensors").read_bytes()
    (out / "head.safetensors").write_bytes(head[:-4])
    with pytest.raises(DiskError, match=r"head\.safetensors is damaged"):
        byol.load_model(out)
    (out / "head.safetensors").write_bytes(head)
    text = (out / NAME).read_text()
    (out / NAME).write_text(text.replace('"done"', '"fitting"'))
    with pytest.raises(UsageError, match="not finished"):
        byol.load_model(out)
    (out / NAME).write_text(text.replace('"blue",', ""))
    with pytest.raises(DiskError, match="head"):
        byol.load_model(out)
    with pytest.raises(UsageError, match=f"no {NAME}"):
        byol.load_model(tmp_path / "mine")


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if not path.name.startswith(".")}


def test_killed_at_any_write_and_run_again(encoder: Path, classes: Path, tmp_path: Path, zygote: Zygote) -> None:
    """Breaks if a fit or a prediction that was killed leaves half a file, cannot be run again, or then differs."""
    whole, cut = tmp_path / "whole" / "model", tmp_path / "cut" / "model"
    flags = ["--penalties", "0.1", "1", "--run.precision=float32", "--data.workers=0"]

    def fitting(out: Path) -> list[str]:
        return ["fit", str(encoder), "--on", str(classes), "-o", str(out), *flags]

    code, said = zygote.run(*fitting(whole))
    assert code == 0, said
    expected: dict[str, Any] = content(whole)
    assert {NAME, ENCODER, "head.safetensors", "validation.json", "README.md"} == expected.keys()
    for at in (9, 40, 75, 110, 130):  # among some 140 points, of which the first are the lock's
        code, said = zygote.run(*fitting(cut), act="die", at=at)
        assert code == -signal.SIGKILL, (at, said)
        if (cut / NAME).exists():
            assert read_record(cut).status == "fitting" or content(cut) == expected
    assert zygote.run(*fitting(cut))[0] == 0
    assert content(cut) == expected
    table = tmp_path / "answers.csv"
    predicting = ["predict", str(whole), str(classes), "-o", str(table), "--data.workers=0"]
    assert zygote.run(*predicting)[0] == 0
    answers = table.read_bytes()
    table.unlink()
    for at in (3, 8, 15):
        assert zygote.run(*predicting, act="die", at=at)[0] == -signal.SIGKILL
        assert not table.exists()
    assert zygote.run(*predicting)[0] == 0
    assert table.read_bytes() == answers
    assert not [path for path in tmp_path.iterdir() if path.name.endswith(".tmp")]
