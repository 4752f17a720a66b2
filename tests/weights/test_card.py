"""The model card of an exported folder: figures of its own weights, and nothing that a record can break out of."""

from __future__ import annotations

import json
import re
import types
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest

from byol.checkpoint import encoder_header, load_encoder
from byol.config import Config, apply
from byol.errors import ByolError
from byol.evals.encoder import checksum
from byol.evals.record import EncoderFacts, EvaluationRecord, Figure, TaskFacts
from byol.evals.record import write as write_result
from byol.run import record
from byol.run.record import RunRecord, encode
from byol.weights import card, exports
from tests.weights.test_weights import NARROW, check_lines, encoder_file


@pytest.fixture
def any_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records whose values `read_run` would refuse reach the card: it escapes whatever comes."""
    monkeypatch.setattr(card, "read_run", lambda run: record.read(RunRecord, run / record.NAME))


def result(name: str, protocol: str, checksum: str, test: dict[str, Figure], **encoder: Any) -> EvaluationRecord:
    """What `byol evaluate` keeps of one protocol on one data set."""
    facts = EncoderFacts("run", checksum, {}, 32, **encoder)
    return EvaluationRecord(protocol, facts, TaskFacts(name, 3, "top1", {}, {}), {}, test, [], "", "", {}, {})


def keep(run: Path, place: str, record: EvaluationRecord) -> None:
    (run / "evaluations" / place).mkdir(parents=True)
    write_result(run / "evaluations" / place / "result.json", record)


def test_the_model_card_lists_the_figures_of_its_own_weights(tmp_path: Path) -> None:
    """Breaks if figures of the untrained network or of other weights pass for the model's own, if metres are printed
    as a percentage, or if a seed's spread is lost. Every figure is chosen here, and the table is written by hand."""
    own = "0123456789abcdef"
    kept = {
        "pets/knn": result("pets|x", "knn", own, {"top1": Figure(0.5, 0.0, 1), "top5": Figure(0.875, 0.0125, 3)}),
        "random-pets/knn": result("pets|x", "knn", "f" * 16, {"top1": Figure(0.125, 0.0, 1)}, untrained=True),
        "old-pets/knn": result("pets|x", "knn", "e" * 16, {"top1": Figure(0.99, 0.0, 1)}),
        "rooms/depth": result("rooms", "depth", own, {"rms": Figure(0.573, 0.01, 2), "pct1.25": Figure(0.85, 0, 1)}),
    }
    for place, stored in kept.items():
        keep(tmp_path, place, stored)
    weights = card.Weights(own, {}, 32)
    assert card.results(tmp_path, weights).splitlines() == [
        "| data | protocol | figure | test | untrained network | seeds |",
        "|---|---|---|---|---|---|",
        "| pets&#124;x | knn | top1 | 50.00% | 12.50% | 1 |",
        "| pets&#124;x | knn | top5 | 87.50% ± 1.25 | – | 3 |",
        "| rooms | depth | rms | 0.573 ± 0.010 | – | 2 |",
        "| rooms | depth | pct1.25 | 85.00% | – | 1 |",
    ]
    assert "have not been evaluated" in card.results(tmp_path, card.Weights("d" * 16, {}, 32))
    assert "12.50%" not in card.results(tmp_path, card.Weights(own, {"width": 2.0}, 32))  # an untrained other network


def test_the_model_card_tells_results_data_and_settings(tmp_path: Path) -> None:
    """Breaks if the folder lacks what a reader of the card needs, a name of the user's breaks out of its cell, or the
    figures in it are not those of the weights in it."""
    import yaml

    run = tmp_path / "run"
    run.mkdir()
    file = encoder_file(run / "encoder.safetensors")
    record = {
        "format": 2,
        "request": {"data": "pets", "preset": "auto", "overrides": {}},
        "created": "",
        "config": {"optim.lr": 0.3},
        "reasons": [],
        "machine": {"device": "cpu", "device_name": "cpu", "precision": "float32", "threads": 1},
        "versions": {"torch": "2"},
        "commit": "",
        "data": {"name": "/home/me/my | <b>pets", "images": 1234, "bad": 2, "classes": 3}
        | {"in_memory": True, "fingerprint": "abc"},
        "verdict": {"word": "learning", "sentence": "It is learning."},
    }
    (run / "run.json").write_text(json.dumps(record))
    own = checksum(load_encoder(file))
    keep(run, "a", result("a", "knn", own, {"top1": Figure(0.5, 0.0, 1)}))
    keep(run, "b", result("b", "knn", "x", {"top1": Figure(0.5, 0.0, 1)}))
    exports.export(run, "huggingface", tmp_path / "folder")
    text = (tmp_path / "folder" / "README.md").read_text()
    assert yaml.safe_load(text.split("---")[1])["library_name"] == "byol"
    for words in ("1,234 images", "It is learning.", "| a | knn | top1 | 50.00% | – | 1 |", "optim.lr: 0.3"):
        assert words in text
    assert "| b |" not in text
    assert "<b>" not in text
    assert "/home/me" not in text
    with pytest.raises(ByolError, match="no exported model"):
        exports.export(run, "huggingface", run)


HOSTILE = """x</pre></details>`</code>
---
# heading
```
| a | b | <script>alert(1)</script> [l](http://evil) ![i](x) www.evil.com *b* _i_ \\ \x1b[31m \u202e &amp;"""


def fields_of(kind: Any, value: Any) -> Any:
    """A record of this type with a hostile text at every place that may hold one, and `value` for every number."""
    origin, inner = get_origin(kind), get_args(kind)
    if kind is bool:
        return True
    if kind in (str, int, float):
        return kind(HOSTILE if kind is str else value)
    if kind is Any:
        return HOSTILE
    if origin in (Union, types.UnionType):
        return fields_of(inner[0], value)
    if origin is Literal:
        return inner[0]
    if origin in (list, tuple):
        return origin([fields_of(inner[0], value)])
    if origin is dict:
        return {HOSTILE: fields_of(inner[1], value)}
    hints = get_type_hints(kind)
    return kind(**{item.name: fields_of(hints[item.name], value) for item in fields(kind)})


@pytest.mark.usefixtures("any_record")
@pytest.mark.parametrize("number", [0, 10**300, -1])
def test_no_value_of_a_record_breaks_out_of_the_card(tmp_path: Path, number: int) -> None:
    """Breaks if a text at any field of run.json, result.json or the encoder's header can end its cell, span, block or
    the front matter: the card's own lines are told by comparing it with the card of a harmless record."""
    import yaml

    texts = {}
    for name, harmless in (("hostile", False), ("plain", True)):
        run = tmp_path / name / "run"
        run.mkdir(parents=True)
        file = encoder_file(run / "encoder.safetensors")
        own = checksum(load_encoder(file))
        made = fields_of(RunRecord, number), fields_of(EvaluationRecord, number)
        stored = replace(made[0], format=2)
        result = replace(made[1], encoder=replace(made[1].encoder, checksum=own, untrained=False))
        kept = [encode(value) for value in (stored, result)]
        if harmless:
            kept = [json.loads(json.dumps(value).replace(json.dumps(HOSTILE)[1:-1], "harmless")) for value in kept]
        (run / "run.json").write_text(json.dumps(kept[0]))
        (run / "evaluations" / "a").mkdir(parents=True)
        (run / "evaluations" / "a" / "result.json").write_text(json.dumps(kept[1]))
        (run / "evaluations" / HOSTILE.replace("/", "")[:100]).mkdir()
        header = encoder_header(file) | {"step": 3, "origin": HOSTILE, "seed": HOSTILE, "images": HOSTILE}
        if harmless:
            header |= {"origin": "harmless", "seed": "harmless", "images": "harmless"}
        whole = card.text(run, apply(Config(), NARROW), header, ["x = 1"], own)
        texts[name], settings, end = re.split("<pre>\n|\n</pre>", whole)  # inside, HTML alone is markup
        assert end == "\n</details>\n"
        assert not re.search("[<>]|\x1b|\u202e", settings)
    hostile, plain = (texts[name].splitlines() for name in ("hostile", "plain"))
    assert "harmless" in texts["plain"]
    marks = ("#", "|", "`", "<", "-", ">", "!", "[")
    shapes = [[(line[:1] if line.startswith(marks) else "text") for line in lines] for lines in (hostile, plain)]
    assert shapes[0] == shapes[1]
    assert [line.count("|") for line in hostile] == [line.count("|") for line in plain]
    assert [line.count("`") for line in hostile] == [line.count("`") for line in plain]
    texts = {name: re.sub("`[^`\n]*`", "``", text) for name, text in texts.items()}  # in a span nothing is markup
    for letters in ("<", "[", "]", "*", "_", "\x1b", "\u202e", "://", "www.", "http:"):
        assert texts["hostile"].count(letters) == texts["plain"].count(letters), letters
    assert yaml.safe_load(texts["hostile"].split("---\n")[1])["library_name"] == "byol"


@pytest.mark.usefixtures("any_record")
def test_the_step_in_a_card_is_the_encoder_s_own(tmp_path: Path) -> None:
    """Breaks if the step of one training stands beside the plan of another without a word ("step 49 of 24")."""
    stored = replace(fields_of(RunRecord, 24), format=2)
    (tmp_path / "run.json").write_text(json.dumps(encode(stored)))
    settings = apply(Config(), NARROW)
    text = card.text(tmp_path, settings, {"step": 49, "steps": 49}, [], "")
    assert "those of step 49 of 49" in text
    assert "steps in its plan 49, run.json says 24" in text
    assert "step 49, and the plan in run.json ends at 24" in text
    text = card.text(tmp_path, settings, {"step": 24, "steps": 24}, [], "")
    assert "those of step 24 of 24" in text
    assert "Contradiction" not in text
    assert "step" not in card.trained({"step": "x"})


def test_a_card_in_the_present_folder_has_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks if `--out .` takes the dots out of the lines of code, or a card of another folder names its old path."""
    file = encoder_file(tmp_path / "encoder.safetensors")
    place = tmp_path / "a.model"
    place.mkdir()
    monkeypatch.chdir(place)
    done = exports.export(file, "huggingface", Path())
    text = (place / "README.md").read_text()
    assert "encoder = byol.load_encoder('a.model/model.safetensors')" in text
    assert "features = encoder((images - mean[:, None, None]) / std[:, None, None])" in text
    check_lines(done.lines, file)
