"""Help that answers: presets, config, explain, completion, narrow screens, and the paper's constants beside a run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from byol.cli import cluster, help, main
from byol.cli.app import app
from byol.config import Config, View, apply, declared, flatten, resolve
from byol.errors import UsageError
from byol.presets import PRESETS, compose
from byol.run.record import RunRecord, decode, write_run
from byol.tables import constants


def run_record(preset: str = "paper-1000", overrides: dict[str, Any] | None = None, images: int = 1_281_167) -> Any:
    """The record of a run of this preset."""
    config = apply(compose(preset, {}, {})[0], overrides or {})
    value = {
        "format": 2,
        "request": {"data": "imagenet", "preset": preset, "overrides": overrides or {}},
        "created": "",
        "config": json.loads(json.dumps(flatten(config))),
        "reasons": [],
        "machine": {"device": "cpu", "device_name": "cpu", "precision": "float32", "threads": 1},
        "versions": {},
        "commit": "",
        "data": {"name": "imagenet", "images": images, "bad": 0, "classes": 0, "in_memory": False, "fingerprint": ""},
        "plan": resolve(config, images).__dict__,
    }
    return decode(RunRecord, value, Path("run.json"))


def test_config_is_whole_and_reads_back(capsys: pytest.CaptureFixture[str]) -> None:
    """Breaks if a field or its help is missing, or a comment changes a value."""
    for preset, make in PRESETS.items():
        help.config(preset)
        text = capsys.readouterr().out
        flat = flatten_yaml(yaml.safe_load(text))
        assert apply(Config(), flat) == make()
        assert all(len(line) <= 80 for line in text.splitlines())
        words = " ".join(text.replace("#", " ").split())
        assert all(" ".join(metadata["help"].split()) in words for _, _, metadata in declared())
    help.config("paper-300", images=4096 * 10)
    assert "40,960 images: 3,000 steps, 100 of warm-up, peak learning rate 4.8" in capsys.readouterr().out
    with pytest.raises(UsageError, match="doctor"):
        help.config("auto")


def flatten_yaml(node: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in node.items():
        flat |= flatten_yaml(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return flat


def test_presets_lists_every_preset(capsys: pytest.CaptureFixture[str]) -> None:
    """Breaks if a preset or where it comes from is not shown."""
    help.presets()
    text = capsys.readouterr().out
    words = " ".join(text.split())
    for name, make in PRESETS.items():
        assert f"\n{name} " in text
        assert " ".join((make.__doc__ or "").splitlines()[0].split()) in words
    assert "auto" in text
    assert all(len(line) <= 80 for line in text.splitlines())


def test_explain_knows_every_field(capsys: pytest.CaptureFixture[str]) -> None:
    """Breaks if a field cannot be asked for by its name, its flag or its last part, or its range is not said."""
    for name, _, metadata in declared():
        help.explain(name)
        text = capsys.readouterr().out
        assert text.startswith(f"{name}: ")
        assert " ".join(metadata["help"].split()) in " ".join(text.split())
    help.explain("--network.projector-hidden")
    assert "whole number, at least 1" in capsys.readouterr().out
    help.explain("tau")
    text = capsys.readouterr().out
    assert "at least 0 and at most 1" in text
    assert "paper-300 0.99" in text
    assert "the paper: 0.996 (section 3.3)" in text
    help.explain("views.t")
    assert capsys.readouterr().out.count("\nviews.t.") == len(fields(View)) - 1
    help.explain("linear.tclip")
    assert "default 0" in capsys.readouterr().out
    with pytest.raises(UsageError, match=r"optim\.tau"):
        help.explain("optim.taw")


def test_help_fits_eighty_columns() -> None:
    """Breaks if a verb's line wraps, a screen is wider than 80 columns, or a verb has no help."""
    environment = {**os.environ, "COLUMNS": "80", "TERM": "dumb"}

    def shown(*arguments: str) -> str:
        command = [sys.executable, "-m", "byol", *arguments, "--help"]
        return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60).stdout

    text = shown()
    verbs = [name for name in app if not name.startswith("-")]
    for verb in verbs:
        line = next(line for line in text.splitlines() if line.startswith(f"│ {verb} "))
        assert line.rstrip(" │").endswith("."), line
    assert all(len(line) <= 80 for line in text.splitlines())
    assert text.index(" Train ") < text.index(" Use ") < text.index(" Help ")
    for verb in ("pretrain", "doctor", "import", "pick"):
        assert all(len(line) <= 80 for line in shown(verb).splitlines())


def test_help_is_short_and_the_rest_is_one_flag_away() -> None:
    """Breaks if --help drowns what one needs among all fields, hides the way to them, or that way misses one."""
    shown = {}
    for flag, columns in (("--help", "80"), ("--help-all", "200")):
        environment = os.environ | {"COLUMNS": columns}
        command = [sys.executable, "-m", "byol", "pretrain", flag]
        shown[flag] = subprocess.run(command, capture_output=True, text=True, env=environment, check=True).stdout
    assert len(shown["--help"].splitlines()) < 60
    assert "byol pretrain --help-all lists every field" in shown["--help"].splitlines()[-1]
    for name, _, _ in declared():
        assert f"--{name.replace('_', '-')}" in shown["--help-all"], name


def test_a_plan_for_auto_and_for_cards_at_home(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Breaks if `byol plan` cannot say what auto would choose for some images on a device, and how it would fit."""
    cluster.plan("auto", data=str(folder), device_type="rtx-3060")
    told = capsys.readouterr().out
    assert "auto: data.resolution 32" in told
    assert "1 x rtx-3060" in told
    cluster.plan("auto", images=5000, side=300, device_type="rtx-4090")
    told = capsys.readouterr().out
    assert "auto: data.resolution 224" in told
    assert "5000 images" in told
    with pytest.raises(UsageError, match="auto looks at images: add --data"):
        cluster.plan("auto", images=5000)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_knows_verbs_and_fields(shell: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Breaks if the script lacks a verb or a field, or bash cannot read it."""
    help.completion(shell)
    text = capsys.readouterr().out
    for word in ("pretrain", "doctor", "explain", "optim.tau"):
        assert word in text
    if shell == "bash":
        checked = subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True)
        assert checked.returncode == 0, checked.stderr
        asked = 'COMP_WORDS=(byol pret); COMP_CWORD=1; _byol; echo "${COMPREPLY[@]}"'
        answer = subprocess.run(["bash"], input=f"{text}\n{asked}", text=True, capture_output=True)
        assert "pretrain" in answer.stdout, answer


def test_the_papers_recipes_are_the_papers() -> None:
    """Breaks if a preset's constant is edited away from what was typed from the paper, or the reverse."""
    known = {"network.head_bias", "network.target_init"}
    for recipe in constants.RECIPES:
        lines = constants.check(run_record(recipe))
        assert {line.what for line in lines if not line.equal} == known, recipe
        assert all("reference code" in line.why for line in lines if not line.equal)
    followed = run_record(overrides={"network.head_bias": True, "network.target_init": "same"})
    assert all(line.equal for line in constants.check(followed))


def test_every_departure_has_its_reason() -> None:
    """Breaks if a changed constant is called equal, or its reason is not named: user, auto or preset."""
    asked = {line.what: line for line in constants.check(run_record(overrides={"optim.tau": 0.9, "optim.batch": 512}))}
    assert (asked["optim.tau"].equal, asked["optim.tau"].why) == (False, "asked for")
    assert asked["peak_lr"].run == pytest.approx(0.4)
    assert not asked["steps"].equal
    small = {line.what: line for line in constants.check(run_record("cifar10-cpu", images=50_000))}
    assert small["views.t.blur"].why == "preset cifar10-cpu"
    assert (small["blur kernel"].run, small["blur kernel"].equal) == (1, False)
    chosen = run_record(overrides={"data.resolution": 64})
    asked_nothing = replace(chosen.request, preset="auto", overrides={})
    why = "the images' short side is typically 70 px"
    chosen = replace(chosen, request=asked_nothing, reasons=[SimpleNamespace(field="data.resolution", why=why)])
    lines = {line.what: line for line in constants.check(chosen)}
    assert lines["data.resolution"].why == "auto: the images' short side is typically 70 px"
    with pytest.raises(UsageError, match="paper-300"):
        constants.check(run_record(), "paper-30")


def test_paper_check_from_a_run_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Breaks if the verb does not read a run, print each constant or write the comparison."""
    write_run(tmp_path, run_record(overrides={"optim.lr": 0.45}))
    help.paper(check=tmp_path, out=tmp_path / "paper.json")
    text = capsys.readouterr().out
    lines = json.loads((tmp_path / "paper.json").read_text())
    assert sum(not line["equal"] for line in lines) == 4  # with the peak rate that follows
    assert f"{len(lines) - 4} of {len(lines)} constants are the paper's; 4 depart." in text
    assert "departs: asked for" in text
    assert all(len(line) <= 80 for line in text.splitlines())
    help.paper()
    assert "views.t_prime.solarize" in capsys.readouterr().out
    with pytest.raises(UsageError, match=r"no run\.json"):
        help.paper(check=tmp_path / "nothing")


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["import", "missing.pth"], 2, "no file missing.pth"),
        (["import", "text.pkl"], 65, "damaged or no file of weights"),
        (["import", "text.pkl", "-o", "x.pth"], 2, ".safetensors"),
        (["export", "missing", "--to", "onnx", "-o", "x.onnx"], 2, "no encoder at missing"),
        (["export", "missing", "--to", "onx", "-o", "x.onnx"], 2, "onnx"),
        (["doctor", "nowhere"], 2, "no folder nowhere"),
        (["doctor", "broken", "--no-speed", "--data.workers", "0"], 65, "None of the 2 images"),
        (["doctor", "broken", "--leave-uot", "tiny"], 2, "--leave-out"),
        (["views", "broken"], 65, "can be read"),
        (["search", "x.jpg", "missing"], 2, "no encoder at missing"),
        (["dedupe", "missing.npz"], 2, "missing.npz"),
        (["outliers", "missing.npz", "-o", "x.png"], 2, ".csv"),
        (["pick", "0", "missing.npz"], 2, "missing.npz"),
        (["explain", "optim.ta"], 2, "optim.tau"),
        (["paper", "--check", "broken"], 2, "no run.json"),
    ],
    ids=lambda value: "-".join(value)[:30] if isinstance(value, list) else None,
)
def test_mistakes_are_one_sentence(
    arguments: list[str], code: int, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """Breaks if a mistake in one of these verbs is a traceback, has another exit code, or writes a file."""
    (tmp_path / "broken").mkdir()
    for name in ("a.jpg", "b.jpg"):
        (tmp_path / "broken" / name).write_text("no image")
    (tmp_path / "text.pkl").write_text("hello")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["byol", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr().err
    assert ended.value.code == code, said
    line = next(line for line in said.splitlines() if line.startswith("byol: "))
    assert text in line
    assert "should not happen" not in line
    assert {path.name for path in tmp_path.iterdir()} <= {"broken", "text.pkl", "doctor"}
