"""The package as a notebook sees it: names to find, runs that show themselves, tables without holes, calm output."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import byol
from byol.errors import UsageError
from byol.run import progress


def test_every_name_can_be_found_and_used() -> None:
    """Breaks if tab completion hides a function, or a name of it leads nowhere."""
    wanted = {"pretrain", "load_encoder", "embed", "evaluate", "report", "search", "load_run", "presets"}
    assert wanted <= set(dir(byol))
    for name in dir(byol):
        assert getattr(byol, name) is not None
    assert callable(byol.report)
    assert "cifar10" in byol.presets.PRESETS
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = byol.nothing


def test_a_run_shows_itself(folder: Path, tmp_path: Path, tiny: dict[str, Any]) -> None:
    """Breaks if nested settings are refused, steps and looks share a table with empty cells, a call at each is missed,
    the card is markup of somebody's making, or a run read from disk is another one."""
    nested = {"optim": {"epochs": 1}, **{name: value for name, value in tiny.items() if name != "optim.epochs"}}
    steps: list[dict[str, Any]] = []
    looks: list[dict[str, Any]] = []
    out = tmp_path / "<b>run"
    run = byol.pretrain(folder, out, "cifar10-cpu", nested, on_step=steps.append, on_look=looks.append)
    assert run.config.optim.epochs == 1
    assert steps == run.steps
    assert looks == run.looks
    assert [line["step"] for line in steps] == [0, 1, 2]
    for table in (run.steps, run.looks):
        assert len({tuple(line) for line in table}) == 1  # all lines have the same columns
    assert len(run.steps) + len(run.looks) == len(run.metrics)
    shown = repr(run)
    assert shown.startswith(f"Run {out}\n")
    assert run.verdict.sentence in shown
    assert "24 at 32 px" in shown
    assert len(shown.splitlines()) < 10
    page = run._repr_html_()
    assert "<b>run" not in page.replace("&lt;b&gt;run", "")
    assert "&lt;b&gt;run" in page
    again = byol.load_run(out)
    assert again == run
    assert byol.report(out, images=0) == out / "report.html"
    with pytest.raises(UsageError, match=r"overrides: duplicate key 'optim.epochs'"):
        byol.pretrain(folder, out, "cifar10-cpu", {"optim": {"epochs": 1}, "optim.epochs": 2})
    with pytest.raises(UsageError, match="is no run directory"):
        byol.load_run(folder)


def test_a_notebook_is_not_red(monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks if progress in a notebook goes to standard error, which is shown in red, or fills the cell with lines."""
    kind = type("OutStream", (io.StringIO,), {"__module__": "ipykernel.iostream", "encoding": "utf-8"})
    streams = {"stdout": kind(), "stderr": kind()}
    for name, stream in streams.items():
        monkeypatch.setattr(sys, name, stream)
    pytest.importorskip("IPython", reason="needs IPython, which draws in a notebook")
    import IPython.display

    drawn, made = list[tuple[str, ...]](), 0

    def display(html: Any, display_id: bool) -> Any:
        nonlocal made
        made += 1
        drawn.append((html.data,))
        return SimpleNamespace(update=lambda html: drawn.append((html.data,)))

    monkeypatch.setattr(IPython.display, "display", display)
    clock = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    progress.say("Plan")
    with progress.bar("Pretraining", 10, "images", 0, 8) as shown:
        for _ in range(10):
            clock[0] += 2
            shown.advance()
    assert streams["stderr"].getvalue() == ""
    written = streams["stdout"].getvalue()
    assert written == "Plan\n"
    (first, *_), *again = drawn
    assert "Pretraining 1/10 · 4 images/s" in first
    assert 'value="1" max="10"' in first
    assert len(again) >= 9  # the same bar, drawn anew
    assert made == 1
    progress.complain("an error")
    assert streams["stderr"].getvalue() == "byol: an error\n"
