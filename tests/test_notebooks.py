"""The notebooks run from top to bottom in a kernel, and a run behaves there as a notebook's user expects."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))

pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A kernel of this Python, in a folder of its own."""
    pytest.importorskip("ipykernel", reason="needs ipykernel, which runs notebooks")
    manager = pytest.importorskip("jupyter_client", reason="needs jupyter_client, which runs notebooks")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    started, client = manager.manager.start_new_kernel(kernel_name="python3", cwd=str(tmp_path), env={**os.environ})
    yield started, client
    client.stop_channels()
    started.shutdown_kernel(now=True)


def outputs(client: Any, source: str, shown: Any = None) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """What a cell shows, and how it ended."""
    found: list[dict[str, Any]] = []

    def hook(message: dict[str, Any]) -> None:
        found.append(message)
        if shown:
            shown(message)

    reply = client.execute_interactive(source, timeout=600, output_hook=hook)
    return found, reply["content"]


def test_there_are_three_and_none_holds_outputs() -> None:
    """Breaks if a notebook is lost, or is stored with what it showed on somebody's machine."""
    assert [path.name[0] for path in NOTEBOOKS] == ["1", "2", "3"]
    for path in NOTEBOOKS:
        cells = [cell for cell in json.loads(path.read_text("utf-8"))["cells"] if cell["cell_type"] == "code"]
        assert not any(cell["outputs"] or cell["execution_count"] for cell in cells)


def test_every_cell_of_every_notebook_runs(kernel: Any) -> None:
    """Breaks if a cell fails, a card, a picture or a table is not shown, or progress is not a bar."""
    _, client = kernel
    kinds: dict[str, set[str]] = {}
    html = ""
    for path in NOTEBOOKS:
        for cell in json.loads(path.read_text("utf-8"))["cells"]:
            if cell["cell_type"] != "code":
                continue
            messages, reply = outputs(client, "".join(cell["source"]))
            assert reply["status"] == "ok", f"{path.name}: {''.join(cell['source'])}\n{reply}"
            for message in messages:
                data = message["content"].get("data", {})
                kinds.setdefault(path.name[0], set()).update(data)
                html += data.get("text/html", "")
    assert all("image/png" in kinds[name] for name in ("1", "3"))
    assert "<progress " in html
    assert "fields as usual" in html  # the config
    assert "<table" in html
    assert "knn" in html


def test_interrupting_the_kernel_saves_and_mistakes_are_sentences(kernel: Any, tmp_path: Path) -> None:
    """Breaks if interrupting loses the run, ends the kernel or shows a page of frames; or a mistake does."""
    started, client = kernel
    small = {
        "network.width": 0.05,
        "data.resolution": 32,
        "optim.batch": 8,
        "run.monitor_images": 16,
        "optim.epochs": 5000,
    }
    asked = [False]

    def interrupt(message: dict[str, Any]) -> None:
        if "<progress" in str(message["content"].get("data", "")) and not asked[0]:
            asked[0] = True
            started.interrupt_kernel()

    source = f"import byol\nrun = byol.pretrain('scenes:64', 'r', 'cifar10-cpu', {small})"
    messages, reply = outputs(client, source, interrupt)
    assert reply["ename"] == "Interrupted"
    assert list((tmp_path / "r" / "checkpoints").glob("step-*"))
    frames = [m["content"]["traceback"] for m in messages if m["msg_type"] == "error"]
    assert len(frames) == 1
    assert re.fullmatch(
        r"Interrupted: Interrupted after step \d+ of \d+, saved; the same command continues\.", "\n".join(frames[0])
    )
    messages, reply = outputs(client, "byol.pretrain('scenes:64', 'x', overrides={'optim.lrr': 1})")
    assert reply["ename"] == "UsageError"
    assert [m["content"]["traceback"] for m in messages if m["msg_type"] == "error"] == [
        [f"UsageError: {reply['evalue']}"]
    ]
    messages, reply = outputs(client, "1 + 1")
    assert reply["status"] == "ok"
