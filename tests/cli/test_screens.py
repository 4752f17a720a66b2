"""The command without a verb, its version, and --json and --quiet, which every verb takes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from byol import cli
from byol.cli.app import app
from byol.cli.screens import TASKS, plain
from tests.chaos.formats import SMALLEST
from tests.test_docs import ROOT, parsed

FLAGS = [f"--{name.replace('_', '-')}={value}" for name, value in SMALLEST.items() if value is not True]
FLAGS += [f"--{name.replace('_', '-')}" for name, value in SMALLEST.items() if value is True]


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["byol", *words])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return int(ended.value.code or 0)


def test_without_a_verb_the_five_tasks_are_shown() -> None:
    """Breaks if `byol` lists verbs instead, waits for torch or rich, or shows a wrong command."""
    script = "import sys; from byol import cli; sys.argv = ['byol']\ntry: cli.main()\nfinally: print(*sys.modules)"
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout
    *lines, modules = shown.splitlines()
    assert "\n".join(lines) == TASKS
    assert not {"torch", "rich"} & set(modules.split())
    titles = re.findall(r"^  (?! )(.*)$", TASKS, re.MULTILINE)
    assert len(titles) == 5
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for command in re.findall(r"^ {6}(byol .*)$", TASKS, re.MULTILINE):
        parsed(command)
        assert command.split(" --")[0] in readme, command
    assert all(len(line) <= 80 for line in lines[:-1])


def test_the_version_tells_what_would_compute(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Breaks if the version of torch, the device or the precision is not said, or is another than a run would take."""
    from byol.config import Config
    from byol.run import machine

    assert run(monkeypatch, "--version") == 0
    first, libraries, device = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"byol \d+\.\d+\.\d+", first)
    assert f"torch {torch.__version__.split('+')[0]}" in libraries
    assert f"precision {machine.choose(Config()).precision}" in device
    assert device.startswith("device cpu (" if not torch.cuda.is_available() else "device cuda (")


def test_a_program_gets_one_object(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Breaks if anything but one JSON object is on standard output, its verdict is not the run's, or --quiet speaks."""
    monkeypatch.chdir(tmp_path)
    assert (
        run(monkeypatch, "pretrain", "scenes:16", "--preset", "cifar10-cpu", "--out", "r", *FLAGS, "--json", "--quiet")
        == 0
    )
    said = capsys.readouterr()
    assert said.err == ""
    told = json.loads(said.out)
    stored = json.loads(Path("r/run.json").read_text())
    assert (told["verb"], told["exit_code"], told["error"]) == ("pretrain", 0, None)
    assert told["result"]["verdict"] == stored["verdict"]
    assert told["result"]["plan"]["steps"] == stored["plan"]["steps"]
    assert Path(told["result"]["encoder"]).is_file()
    assert run(monkeypatch, "embed", "r", "scenes:16", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["result"] == {"out": "features.npz"}
    assert "features.npz" in told["said"][0]


def test_a_mistake_for_a_program(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Breaks if a mistake is not one object with the sentence and the exit code, beside the sentence for people."""
    for words, text in ((["pretrain", "nowhere"], "There is no folder nowhere"), (["presets", "--wrong"], "--wrong")):
        assert run(monkeypatch, *words, "--json", "--quiet") == 2
        said = capsys.readouterr()
        told = json.loads(said.out)
        assert text in told["error"]
        assert told["exit_code"] == 2
        assert told["result"] is None
        assert said.err == f"byol: {told['error']}\n"


@pytest.mark.parametrize("verb", sorted(name for name in app if not name.startswith("-")))
def test_every_verb_takes_both_flags(
    verb: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Breaks if a verb reads --json or --quiet as its own, or writes past the object."""
    monkeypatch.chdir(tmp_path)
    words = ["--no-such-flag"] if verb != "presets" else []
    code = run(monkeypatch, verb, *words, "--json", "--quiet")
    told = json.loads(capsys.readouterr().out)
    assert (told["verb"], told["exit_code"]) == (verb, code)
    if words:
        assert "no-such-flag" in told["error"]
        assert "json" not in told["error"]
    else:
        assert any("paper-1000" in line for line in told["said"])


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["completion", "bash"], lambda result: "_byol" in result["script"]),
        (["presets"], lambda result: result["paper-1000"]["optim.epochs"] == 1000),
        (["config", "paper-300"], lambda result: result["optim.epochs"] == 300),
        (["explain", "optim.tau"], lambda result: result["optim.tau"]["default"] == 0.996),
        (["paper"], lambda result: {"field": "optim.tau", "value": 0.996} in [_without(r, "where") for r in result]),
        (["table", "--list"], lambda result: "target-decay" in [each["table"] for each in result]),
        (
            ["plan", "paper-300", "--devices", "64", "--device-type", "a100"],
            lambda result: (
                result["plan"]["steps"] == 93_835 and result["devices"] == 64 and result["step"]["weights"] > 0
            ),
        ),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_short_verbs_give_data_as_well(
    words: list[str], found: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Breaks if a verb that only prints gives a program words without data, or prints past the object."""
    assert run(monkeypatch, *words, "--json", "--quiet") == 0
    assert found(json.loads(capsys.readouterr().out)["result"])


def _without(record: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in record.items() if key != name}


def test_what_is_written_is_named_alike() -> None:
    """Breaks if a verb takes --out without -o, so that one has to remember which verbs do."""
    found = {
        verb: argument.names
        for verb in app
        if not verb.startswith("-")
        for argument in app[verb].assemble_argument_collection()
        if "--out" in argument.names
    }
    assert len(found) > 15
    assert [verb for verb, names in found.items() if "-o" not in names] == []


def test_what_a_program_reads() -> None:
    """Breaks if a path, a number that is not finite, a number of torch or a record is lost, or a network kept."""
    from byol.evals.record import Choice

    value: dict[str, Any] = {"path": Path("a/b"), "nan": float("nan"), "one": torch.tensor(1.5), "f": print}
    value |= {"net": torch.nn.Linear(1, 1), "many": torch.zeros(3), "choice": Choice({"lr": (0.1, 1)}, 0.5)}
    expected = {"path": "a/b", "nan": None, "one": 1.5, "choice": {"setting": {"lr": [0.1, 1]}, "validation": 0.5}}
    assert plain(value) == expected
