"""The report page: what it gathers, that it stays small and harmless, and that it works in a real browser."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import byol
from byol import checkpoint, data, pretraining, views
from byol.config import Data, View, Views
from byol.errors import DiskError, Interrupted, UsageError
from byol.evals import maps
from byol.evals.encoder import checksum, open_encoder
from byol.evals.record import EncoderFacts, EvaluationRecord, Figure, SeedResult, TaskFacts
from byol.evals.record import write as write_result
from byol.report import build, collect, page, samples
from byol.run import signals
from byol.run.record import read_run
from byol.run.remembered import remember
from byol.tables.record import CellRecord, Score
from byol.tables.record import write as write_cell
from tests.cli.test_cli import byol as command
from tests.cli.test_cli import refused
from tests.conftest import ALONE, TINY, write_images

HOSTILE = ['"><img src=x onerror=alert(1)>', "<script>alert(2)<", "a&amp;b'c", "%DATA% \u202eright"]
VERDICTS = {
    "learning": "It is learning.",
    "too early": "Too early to tell.",
    "stalled": "It has stalled.",
    "collapsing": "It is collapsing.",
}


def hostile_folder(root: Path) -> Path:
    """Class folders and files whose names would run, were they taken for HTML."""
    write_images(root, 24, classes=len(HOSTILE))
    for number, name in enumerate(HOSTILE):
        place = (root / f"class{number}").rename(root / name)
        for file in sorted(place.iterdir()):
            file.rename(place / f"{number}<b>{file.stem}&amp;{file.suffix}")
    return root


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("report"))


def trained(root: Path) -> Path:
    """A finished run on hostile names, with an evaluation beside it."""
    out = root / "run <i>one &amp;"
    byol.pretrain(hostile_folder(root / "images"), out, "cifar10-cpu", {**TINY, **ALONE})
    for place, value in (("images", 0.625), ("random-images", 0.25)):
        target = out / "evaluations" / place / "knn" / "result.json"
        target.parent.mkdir(parents=True)
        write_result(target, evaluation(out, value, untrained=place != "images"))
    return out


def evaluation(run: Path, value: float, untrained: bool) -> EvaluationRecord:
    """A result as `byol evaluate` keeps it."""
    network = checkpoint.encoder_header(run)["network"]
    encoder = EncoderFacts("run", checksum(byol.load_encoder(run)), network, 32, untrained)
    task = TaskFacts("<u>images</u>", 4, "top1", {"train": 16, "validation": 2, "test": 6}, {})
    test = {"top1": Figure(value, 0.03125, 2), "rms": Figure(0.5, 0.0, 1)}
    runs = [SeedResult(0, [], {"k": 20}, {}, ["cut </script> short"], 1.0)]
    return EvaluationRecord("knn", encoder, task, {}, test, runs, "2026-01-01", "", {}, {})


@pytest.fixture(scope="module")
def written(run: Path) -> Path:
    return build.report([run], run.parent / "one.html")


def data_of(path: Path) -> dict[str, Any]:
    """The data of a page, read as a browser would find it."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', path.read_text(), re.S)
    assert found
    data: dict[str, Any] = json.loads(found[1])
    return data


class Elements(HTMLParser):
    """The elements of a page, and every attribute that could run or load something."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.suspicious: list[tuple[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append(tag)
        self.suspicious += [(k, v) for k, v in attrs if k.startswith("on") or k in ("src", "srcset", "style", "action")]


def test_the_page_is_one_file_that_asks_for_nothing(written: Path) -> None:
    """Breaks if a name reaches the page as HTML, something is loaded, or the policy does not fit script and style."""
    text = written.read_text()
    parser = Elements()
    parser.feed(text)
    assert parser.suspicious == []
    assert not {"link", "iframe", "img", "object", "embed", "i", "b", "u"} & set(parser.found)
    assert (parser.found.count("script"), parser.found.count("style")) == (2, 1)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy
    assert "default-src 'none'" in policy[1]
    assert "unsafe" not in policy[1]
    style = text.split("<style>")[1].split("</style>")[0]
    script = text.rsplit("<script>")[-1].rsplit("</script>")[0]
    assert f"style-src '{page._hash(style)}'" in policy[1]
    assert f"script-src '{page._hash(script)}'" in policy[1]
    assert "http:" not in text.split("<script>")[-1].replace("http://www.w3.org/2000/svg", "")


def test_what_the_page_says_of_a_run(run: Path, written: Path) -> None:
    """Breaks if verdict, curves, views, neighbours, map, results, environment or checksums are missing or wrong."""
    model = data_of(written)
    found = model["runs"][0]
    record = json.loads((run / "run.json").read_text())
    assert found["verdict"] == record["verdict"]
    assert found["config"] == record["config"]
    plan = dict(found["plan_rows"])
    assert plan["steps"] == f"{record['plan']['steps']} of {record['plan']['batch']} images: 2 epochs"
    assert (plan["target"], plan["objective"]) == ("moving-average, tau 0.98", "byol; predictor mlp")
    assert plan["time"].startswith("about ")
    curves = {"loss", "lr", "tau", "spread", "rank_representation", "retrieval", "knn", "probe_accuracy"}
    assert curves <= set(found["series"])
    losses = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert found["series"]["loss"][1] == [float(f"{m['loss']:.6g}") for m in losses if "loss" in m]
    assert len(found["views"]["rows"]) == samples.IMAGES
    assert [view["kind"] for view in found["views"]["rows"][0]] == ["image", *["T", "T′"] * samples.PAIRS]
    assert [[part["kind"] for part in row] for row in found["parts"]["rows"]] == [list(maps.COLUMNS)] * samples.IMAGES
    assert [e["test"]["top1"]["mean"] for e in found["evaluations"]] == [0.625, 0.25]
    assert [e["encoder"] for e in found["evaluations"]] == ["this run's", "random"]
    assert ["torch", torch.__version__.split("+")[0]] in [[k, v.split("+")[0]] for k, v in found["environment"]]
    sums = {entry["name"]: entry for entry in found["checksums"]}
    assert sums["checkpoint after step 6"]["state"] == "verified"
    assert len(model["galleries"][0]["names"]) == 24
    assert any("<b>" in name for name in model["galleries"][0]["names"])


def test_the_components_are_those_of_the_maps_that_embed_writes(run: Path, tmp_path: Path) -> None:
    """Breaks if the page shows other maps than `byol embed --map` gives, or an image beside another's components."""
    source = data.open_source(str(run.parent / "images"), Data())
    encoder = open_encoder(run)
    maps.write_maps(run, source.name, tmp_path / "maps.npy", "train")
    names = json.loads((tmp_path / "maps.json").read_text())["names"]
    stored = dict(zip(names, np.load(tmp_path / "maps.npy"), strict=True))
    few = [0, 5, 9]
    for (_, found), index in zip(maps.few(encoder, [source.read(i) for i in few]), few, strict=True):
        np.testing.assert_allclose(found.numpy(), stored[source.describe(index)], atol=2e-3)
    sheet = samples.drawn_maps(source, encoder)
    assert sheet is not None
    assert sheet["places"] == list(found.shape[1:])
    assert all(len({part["text"] for part in row}) == 1 for row in sheet["rows"])


def test_the_map_shows_the_encoder_s_own_neighbours(run: Path, written: Path) -> None:
    """Breaks if points, names and representations are out of step: against `byol.embed` and a full sort."""
    model = data_of(written)
    features, names = byol.embed(run, run.parent / "images")
    assert model["galleries"][0]["names"] == names
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    cosines = unit @ unit.T
    np.fill_diagonal(cosines, -2)
    shown = np.array(model["runs"][0]["map"]["cosines"])
    assert np.allclose(shown, -np.sort(-cosines, axis=1)[:, :8], atol=0.02)  # the page may compute in bf16


def test_the_last_moment_is_what_the_encoder_finds(run: Path) -> None:
    """Breaks if neighbours.json holds other images, another order or another network than it says."""
    record = json.loads((run / "neighbours.json").read_text())
    assert [look["step"] for look in record["looks"]] == sorted({look["step"] for look in record["looks"]})
    assert record["looks"][0]["step"] == -1  # before the first step
    assert record["looks"][-1]["step"] == 5
    features, names = byol.embed(run, run.parent / "images")
    assert sorted(record["names"]) == sorted(names)
    ordered = features[[names.index(name) for name in record["names"]]]
    unit = ordered / np.linalg.norm(ordered, axis=1, keepdims=True)
    cosines = unit @ unit.T
    np.fill_diagonal(cosines, -2)
    last = record["looks"][-1]
    assert np.allclose(np.array(last["cosines"]), -np.sort(-cosines, axis=1)[:12, :8], atol=2e-3)
    kept = np.take_along_axis(cosines[:12], np.array(last["nearest"]), 1)
    assert np.allclose(kept, last["cosines"], atol=2e-3)


def test_moments_of_an_interrupted_run_are_those_of_a_whole_one(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Breaks if a resumed run repeats, loses or changes a look."""
    byol.pretrain(folder, tmp_path / "whole", "cifar10-cpu", TINY)
    calls, real = [], pretraining.update

    def update(*arguments: Any, **named: Any) -> Any:
        calls.append(1)
        signals._state.requested = len(calls) == 3
        return real(*arguments, **named)

    monkeypatch.setattr(pretraining, "update", update)
    with pytest.raises(Interrupted):
        byol.pretrain(folder, tmp_path / "cut", "cifar10-cpu", TINY)
    half = collect.described(collect.read(tmp_path / "cut"))
    assert (half["status"], half["done"]) == ("interrupted", 3)
    byol.pretrain(folder, tmp_path / "cut", "cifar10-cpu", TINY)
    assert (tmp_path / "cut" / "neighbours.json").read_bytes() == (tmp_path / "whole" / "neighbours.json").read_bytes()


def copied(run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(run, tmp_path / "copy"))


def test_no_labels_no_images_no_encoder(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Breaks if a run whose images or encoder are gone has no page, or a page that does not say so."""
    copy = copied(run, tmp_path)
    record = json.loads((copy / "run.json").read_text())
    record["request"]["data"] = str(tmp_path / "no longer there")
    record["status"] = "interrupted"
    del record["verdict"]
    (copy / "run.json").write_text(json.dumps(record))
    remember(read_run(copy), Data())
    (copy / "encoder.safetensors").write_bytes(b"garbage")
    (copy / "evaluations" / "images" / "knn" / "result.json").write_text("{")
    found = data_of(build.report([copy], tmp_path / "gone.html"))["runs"][0]
    assert [note for note in found["notes"] if "There is no folder" in note and "--data" in note]
    assert [note for note in found["notes"] if "encoder.safetensors" in note]
    assert [note for note in found["notes"] if "result.json" in note]
    assert "map" not in found
    assert found["verdict"]["word"]
    flat = tmp_path / "flat"
    flat.mkdir()
    for number, file in enumerate(sorted((run.parent / "images").rglob("*.jpg"))):
        shutil.copy(file, flat / f"{number}.jpg")
    (copy / "encoder.safetensors").write_bytes((run / "encoder.safetensors").read_bytes())
    model = data_of(build.report([copy], tmp_path / "moved.html", images=10, moved=str(flat)))
    assert model["galleries"][0]["labels"] is None
    assert len(model["galleries"][0]["names"]) == 10
    assert "not the ones the run began with" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("file", "content", "error"),
    [
        ("run.json", None, UsageError),
        ("run.json", b"{", DiskError),
        ("run.json", b"[1]", DiskError),
        ("run.json", b'{"request": {}}', DiskError),
        ("metrics.jsonl", b'{"loss": 1}\n', DiskError),
        ("metrics.jsonl", b'{"step": 1, "spread": "x"}\n{"step": 2, "spread": "x"}\n', DiskError),
        ("metrics.jsonl", b"\xff\xfe", DiskError),
    ],
)
def test_a_damaged_run_is_one_sentence(
    run: Path, tmp_path: Path, file: str, content: bytes | None, error: type[Exception]
) -> None:
    """Breaks if damage is a traceback, or goes unnoticed."""
    copy = copied(run, tmp_path)
    record = json.loads((copy / "run.json").read_text())
    (copy / "run.json").write_text(json.dumps(record | {"status": "running"}))
    if content is None:
        (copy / file).unlink()
    else:
        (copy / file).write_bytes(content)
    with pytest.raises(error, match=r"run\.json|metrics\.jsonl") as caught:
        collect.read(copy)
    assert "\n" not in str(caught.value)


def test_a_damaged_checkpoint_is_called_so(run: Path, tmp_path: Path) -> None:
    """Breaks if checksums are printed without being compared."""
    copy = copied(run, tmp_path)
    file = next((copy / "checkpoints").glob("step-*"))
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    assert [sum["state"] for sum in collect.checksums(collect.read(copy))][-1] == "damaged"


def test_table_rows_and_the_demo_are_found(run: Path, tmp_path: Path) -> None:
    """Breaks if results that `byol table` and `byol demo` keep elsewhere are overlooked."""
    place = tmp_path / "tables" / "runs" / "0123456789abcdef"
    shutil.copytree(run, place)
    cells = tmp_path / "tables" / "cells"
    cells.mkdir()
    scores = [Score("linear", "scenes", {}, {"top1": 0.5})]
    own = checksum(byol.load_encoder(run))
    cell = CellRecord("a", place.name, "no predictor", 1, "auto", {}, {}, "finished", scores=scores, weights=own)
    write_cell(cells / "a.json", cell)
    write_cell(cells / "b.json", replace(cell, run="another"))
    (cells / "c.json").write_text("{")
    write_cell(cells / "d.json", replace(cell, weights="f" * 16))
    compared = {"results": {"random": {"linear": 0.1}, "BYOL": {"linear": 0.4}}, "weights": own}
    (place / "demo.json").write_text(json.dumps(compared))
    found = collect.described(collect.read(place))
    tests = [{"protocol": "linear", "data": "scenes", "test": "top1 50.00%"}]
    assert found["table_rows"] == [{"label": "no predictor", "seed": 1, "tests": tests}]
    assert found["demo"]["BYOL"] == {"linear": 0.4}
    (place / "demo.json").write_text(json.dumps(compared | {"weights": "f" * 16}))
    assert collect.described(collect.read(place))["demo"] == {}


def test_figures_of_other_weights_stand_apart(run: Path, tmp_path: Path) -> None:
    """Breaks if figures of another encoder, of another shape before training, or of an encoder that is gone pass for
    those of this run; against records whose weights are chosen here."""
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    own = evaluation(run, 0.5, untrained=False)
    other = replace(own, encoder=replace(own.encoder, checksum="f" * 16))
    wider = replace(own, encoder=replace(own.encoder, network={"width": 9.0}, untrained=True))
    for place, result in (("images", own), ("other", other), ("wider", wider)):
        (copy / "evaluations" / place / "knn").mkdir(parents=True, exist_ok=True)
        write_result(copy / "evaluations" / place / "knn" / "result.json", result)
    found = collect.described(collect.read(copy))["evaluations"]
    assert [each["encoder"] for each in found] == ["this run's", "other weights", "random", "other weights"]
    (copy / "encoder.safetensors").unlink()
    found = collect.described(collect.read(copy))["evaluations"]
    assert {each["encoder"] for each in found} == {"other weights"}


def test_the_encoder_s_own_header_says_which_step_it_is(run: Path, tmp_path: Path) -> None:
    """Breaks if the step is taken from run.json, or an encoder of another seed, plan or data is not noticed."""
    record = collect.read(run)
    assert dict(collect.described(record)["plan_rows"])["weights"] == "those of step 6 of 6"
    assert not record.notes
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    stored = json.loads((copy / "run.json").read_text())
    stored["plan"]["steps"], stored["config"]["run.seed"], stored["data"]["fingerprint"] = 3, 7, "other"
    (copy / "run.json").write_text(json.dumps(stored))
    record = collect.read(copy)
    assert dict(collect.described(record)["plan_rows"])["weights"] == "those of step 6 of 6"
    said = " ".join(record.notes)
    assert all(words in said for words in ("plan 6, run.json says 3", "run.seed 0, run.json says 7", "says other"))


def test_views_are_described_as_they_were_drawn() -> None:
    """Breaks if the words under a view are another view's."""
    still = View(
        area_min=1.0, ratio_min=1.0, ratio_max=1.0, flip=1.0, jitter=0.0, grayscale=1.0, blur=0.0, solarize=1.0
    )
    config = Views(t=still)
    draw = views.draw(0, 0, 1, config)[0]
    words = samples.in_words(draw, torch.zeros(3, 30, 30, dtype=torch.uint8), config)
    assert words == "crop 30 × 30 of 30 × 30 px, flip, grayscale, solarize"


def test_mistakes_in_the_command(tmp_path: Path) -> None:
    """Breaks if a wrong run or file is a traceback, or is found only after minutes of work."""
    refused(command("report", cwd=tmp_path), 2, "byol report RUN")
    refused(command("report", "nowhere", cwd=tmp_path), 2, "no run directory nowhere")
    refused(command("report", str(tmp_path), "--out", "page.txt", cwd=tmp_path), 2, ".html")
    refused(command("report", str(tmp_path), "--image", "3", cwd=tmp_path), 2, "--images")
    refused(command("report", str(tmp_path), cwd=tmp_path), 2, "no run.json")
