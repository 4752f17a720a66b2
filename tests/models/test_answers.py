"""A model in use: predictions in three forms, from files, arrays and shards, exports that agree, a page about it."""

from __future__ import annotations

import csv
import html
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision
from PIL import Image
from torch import nn

import byol
from byol.cli import main
from byol.data.shards import writing
from byol.errors import BadData, DiskError, UsageError
from byol.evals.spec import Transfer
from byol.models import exports
from byol.models.fit import Options, fit
from byol.models.predicting import predict
from byol.report import model as page
from tests.models.conftest import write_classes

FEW = Options(transfer=Transfer(penalties=(1e-3, 1e-1, 10.0)))


@pytest.fixture(scope="module")
def folder(encoder: Path, classes: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("answers") / "model"
    fit(encoder, classes, out, options=FEW)
    return out


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """Seven images, one of which cannot be read."""
    root = write_classes(tmp_path / "new", 2, seed=9)
    (root / "green" / "broken.png").write_bytes(b"no image")
    return root


def by_hand(folder: Path, file: Path) -> np.ndarray:
    """Probabilities of one image by the definition: resize, crop, normalize, encoder, head, temperature."""
    facts = json.loads((folder / "model.json").read_text())
    model, encoder = byol.load_model(folder), byol.load_encoder(folder)
    pixels = torch.from_numpy(np.array(Image.open(file).convert("RGB"))).permute(2, 0, 1)
    from byol.crops import center_crop

    crop = (center_crop(pixels, 32, margin=facts["margin"]) * 255).round() / 255
    mean, std = (torch.tensor(facts["preprocessing"][name])[:, None, None] for name in ("mean", "std"))
    with torch.no_grad():
        logits = encoder(((crop - mean) / std)[None])[0] @ model.head.weight.T + model.head.bias
    return torch.softmax(logits.double() / facts["temperature"], 0).numpy()


def test_the_three_files_say_the_same(folder: Path, mixed: Path, tmp_path: Path) -> None:
    """Breaks if a form loses an image, a probability or the reason of an unreadable one, if top-k is not the likeliest,
    or if a probability is not that of the definition."""
    rows = list(csv.DictReader(predict(folder, mixed, tmp_path / "a.csv").read_text().splitlines()))
    parsed = json.loads(predict(folder, mixed, tmp_path / "a.json").read_text())
    parquet = pytest.importorskip("pyarrow.parquet", reason="pip install 'byol[hf]'")
    table = parquet.read_table(predict(folder, mixed, tmp_path / "a.parquet")).to_pylist()
    names = ["blue/000.png", "blue/001.png", "green/000.png", "green/001.png", "green/broken.png"]
    assert [row["file"] for row in rows] == [*names, "red/000.png", "red/001.png"]
    for row, entry, line in zip(rows, parsed, table, strict=True):
        assert row["file"] == entry["file"] == line["file"]
        if row["file"] == "green/broken.png":
            assert row["problem"] == entry["problem"] == line["problem"] == "not an image"
            assert (row["label"], row["p:red"], line["p:red"], entry.get("label")) == ("", "", None, None)
            continue
        expected = by_hand(folder, mixed / row["file"])
        for number, name in enumerate(("blue", "green", "red")):
            assert float(row[f"p:{name}"]) == entry["probabilities"][name]
            assert float(row[f"p:{name}"]) == pytest.approx(expected[number], abs=1e-5)
            assert line[f"p:{name}"] == pytest.approx(expected[number], abs=1e-5)
        assert row["label"] == entry["label"] == line["label"] == ("blue", "green", "red")[int(expected.argmax())]
    top = list(csv.DictReader(predict(folder, mixed, tmp_path / "top.csv", top=2).read_text().splitlines()))
    for row, entry in zip(top, parsed, strict=True):
        if "problem" not in entry:
            best = sorted(entry["probabilities"].items(), key=lambda pair: -pair[1])[:2]
            assert [(row["class 1"], float(row["p 1"])), (row["class 2"], float(row["p 2"]))] == best


def test_one_image_or_many_however_they_come(folder: Path, classes: Path, tmp_path: Path) -> None:
    """Breaks if an answer depends on the batch, or a file, a PIL image, an array, a tensor or a shard is another image
    than the same file in a folder."""
    model = byol.load_model(folder)
    whole = model.predict(classes)
    assert model.classes == ("blue", "green", "red")
    assert (len(whole.names), whole.probabilities.shape, whole.unreadable) == (60, (60, 3), {})
    assert np.allclose(whole.probabilities.sum(1), 1)
    files = [classes / name for name in whole.names[::12]]
    pictures = [Image.open(file).convert("RGB") for file in files]
    arrays = [np.array(picture) for picture in pictures]
    tensors = torch.stack([torch.from_numpy(array).permute(2, 0, 1) for array in arrays])
    for given in (files, pictures, arrays, tensors):
        assert np.abs(model.predict(given).probabilities - whole.probabilities[::12]).max() <= 1e-5
        assert np.abs(model.predict(given[2:3]).probabilities[0] - whole.probabilities[24]).max() <= 1e-5
    writing.shard(classes, tmp_path / "shards", 20_000)
    sharded = model.predict(tmp_path / "shards")
    assert sorted(sharded.names) == sorted(whole.names)
    order = [whole.names.index(name) for name in sharded.names]
    assert np.abs(sharded.probabilities - whole.probabilities[order]).max() <= 1e-5
    wrong = model.predict([files[0], tmp_path / "gone.png", np.zeros((4, 4))])
    assert list(wrong.unreadable) == [str(tmp_path / "gone.png"), "image 2"]
    alone = model.predict(files[0])
    assert alone.names == [str(files[0])]
    assert np.abs(alone.probabilities[0] - whole.probabilities[0]).max() <= 1e-5
    with pytest.raises(UsageError, match="empty"):
        model.predict([])


def test_nothing_readable_leaves_no_file(folder: Path, mixed: Path, tmp_path: Path) -> None:
    """Breaks if a folder without a readable image is answered with an empty table, or a form that is not known."""
    for file in mixed.rglob("*.png"):
        file.write_bytes(b"no image")
    with pytest.raises(BadData, match="None of the 7 images"):
        predict(folder, mixed, tmp_path / "a.csv")
    assert not (tmp_path / "a.csv").exists()
    with pytest.raises(UsageError, match=r"\.parquet"):
        predict(folder, mixed, tmp_path / "a.xlsx")
    with pytest.raises(UsageError, match="between 0"):
        predict(folder, mixed, tmp_path / "a.csv", top=4)


@pytest.mark.parametrize("to", exports.EXPORTS)
def test_exports_answer_alike(folder: Path, tmp_path: Path, to: str) -> None:
    """Breaks if normalization, temperature or softmax is left out of a graph, or the layout is not the library's."""
    if to == "onnx":
        pytest.importorskip("onnxruntime", reason="pip install 'byol[onnx]'")
        pytest.importorskip("onnxscript", reason="pip install 'byol[onnx]'")
    out = tmp_path / f"model{exports.EXPORTS[to][1][0]}"
    done = exports.export(folder, to, out)
    assert done.difference <= 1e-5
    space: dict[str, object] = {}
    exec("\n".join(done.lines), space)  # the lines that are printed to be pasted
    model = byol.load_model(folder)
    images = torch.rand(5, 3, 32, 32)
    with torch.no_grad():
        expected = model(images)
    if to == "onnx":
        found = torch.from_numpy(space["session"].run(None, {"images": images.numpy()})[0])  # type: ignore[attr-defined]
    elif to == "torch-export":
        found = space["model"](images)  # type: ignore[operator]
    else:
        other = space["model"]
        assert isinstance(other, nn.Module)
        assert to != "torchvision" or isinstance(other, torchvision.models.ResNet)
        with torch.no_grad():
            found = torch.softmax(other((images - space["mean"][:, None, None]) / space["std"][:, None, None]), 1)  # type: ignore[index]
    assert (found - expected).abs().max() <= 1e-5


def test_the_page_shows_what_is_confused_and_escapes_names(encoder: Path, tmp_path: Path) -> None:
    """Breaks if the matrix miscounts, a wrong image is not shown, or a class name can be read as HTML."""
    root, evil = write_classes(tmp_path / "images", 12), '"><img src=x onerror=alert(1)>\u202e'
    (root / "red").rename(root / evil)
    fit(encoder, root, tmp_path / "model", options=FEW)
    text = page.report(tmp_path / "model", tmp_path / "page.html", str(root)).read_text()
    for never in ("<img src=x", "\u202e", "<script"):
        assert never not in text
    assert html.escape('"><img src=x') in text
    assert "default-src 'none'" in text
    seen = json.loads((tmp_path / "model" / "validation.json").read_text())
    answers, targets = np.array(seen["probabilities"]).argmax(1), np.array(seen["targets"])
    counts = [int(n) for n in re.findall(r": (\d+) of \d+</title></rect>", text)]
    assert counts == [int(((targets == a) & (answers == b)).sum()) for a in range(3) for b in range(3)]
    assert (answers != targets).any()
    assert text.count('src="data:image/jpeg') == min(12, int((answers != targets).sum()))
    (tmp_path / "model" / "validation.json").write_text(
        '{"names": ["a"], "targets": [7], "probabilities": [[1, 0, 0]]}'
    )
    with pytest.raises(DiskError, match="does not fit the model"):
        page.report(tmp_path / "model", tmp_path / "page.html")


def test_a_page_about_several_labels(encoder: Path, classes: Path, tmp_path: Path) -> None:
    """Breaks if several labels an image are drawn as one, or precision is not that of the answers."""
    names = sorted(str(path.relative_to(classes)) for path in classes.rglob("*.png"))
    lines = [f"{name},{int(name[0] == 'b')},{int(name[0] != 'g')},{int(i % 2)}" for i, name in enumerate(names)]
    (tmp_path / "labels.csv").write_text("file,blue,no green,odd\n" + "\n".join(lines))
    fit(encoder, classes, tmp_path / "model", labels=tmp_path / "labels.csv", options=FEW)
    text = page.report(tmp_path / "model", tmp_path / "page.html").read_text()
    seen = json.loads((tmp_path / "model" / "validation.json").read_text())
    given, targets = np.array(seen["probabilities"]), np.array(seen["targets"])
    said = given[:, 0] >= 0.5
    assert f"<td>blue</td><td>20</td><td>{(targets[said, 0] > 0).mean():.1%}</td>" in text
    table = predict(tmp_path / "model", classes, tmp_path / "a.csv").read_text().splitlines()
    row = next(csv.DictReader(table))
    expected = [name for name in ("blue", "no green", "odd") if float(row[f"p:{name}"]) >= 0.5]
    assert row["label"].split(";") == expected


def command(*arguments: object) -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["byol", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
    return int(ended.value.code or 0)


def test_commands_and_their_codes(
    encoder: Path, classes: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Breaks if a mistake in a command is found out late, has another exit code or more than a sentence."""
    out = ["-o", tmp_path / "model"]
    assert command("fit", encoder, "--on", classes, *out, "--penalties", "0.1", "1") == 0
    assert command("report", tmp_path / "model", "-o", tmp_path / "page.html") == 0
    assert command("predict", tmp_path / "model", classes, "-o", tmp_path / "a.json", "--top", "2") == 0
    (tmp_path / "labels.csv").write_text("file,class\ngone.png,a\nred/000.png,b\n")
    capsys.readouterr()
    wrong = [
        (2, ["fit", tmp_path / "no", "--on", classes, *out]),
        (2, ["fit", encoder, "--on", classes, *out, "--abstain-below", "1.5"]),
        (2, ["fit", encoder, "--on", classes, *out, "--budget", "5m"]),
        (2, ["fit", encoder, "--on", classes, *out, "--penalties", "0"]),
        (2, ["fit", encoder, "--on", tmp_path / "no", *out]),
        (65, ["fit", encoder, "--on", classes, "--labels", tmp_path / "labels.csv", *out]),
        (65, ["fit", encoder, "--on", classes / "red", *out]),
        (73, ["fit", encoder, "--on", classes, *out, "--penalties", "0.2"]),
        (2, ["predict", tmp_path / "no", classes]),
        (2, ["predict", classes, classes, "-o", tmp_path / "b.csv"]),
        (2, ["export", tmp_path / "model", "--to", "huggingface", "-o", tmp_path / "hub"]),
        (2, ["report", tmp_path / "model", folder]),
    ]
    for code, arguments in wrong:
        assert command(*arguments) == code, arguments
        said = capsys.readouterr().err
        assert "Traceback" not in said
        assert said.count("\n") == 1, said
