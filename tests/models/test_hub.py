"""Models sent to folders, URLs and the hub, and brought back: the same bytes, or a sentence and nothing."""

from __future__ import annotations

import http.server
import json
import socket
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from byol.errors import BadData, DiskError, OutputBusy, UsageError
from byol.models import hub
from byol.models.fit import Options, fit
from byol.models.model import load_model


@pytest.fixture(scope="module")
def model(encoder: Path, classes: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("hub")
    fit(encoder, classes, root / "model", options=Options(cache=root / "cache"), settings={"data.workers": 0})
    return root / "model"


@pytest.fixture
def served(tmp_path: Path) -> Iterator[str]:
    """A folder, `tmp_path / "served"`, at a port of this machine."""
    (tmp_path / "served").mkdir()

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path / "served")))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/flowers"
    server.shutdown()
    server.server_close()
    thread.join()


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name in hub.FILES}


def test_the_same_bytes_come_back(model: Path, tmp_path: Path, served: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Breaks if a file is left behind or changed, by way of a folder or of HTTP, or a second pull brings it again."""
    hub.push(model, str(tmp_path / "served" / "flowers"))
    for number, place in enumerate((str(tmp_path / "served" / "flowers"), served)):
        hub.pull(place, tmp_path / f"mine{number}")
        assert contents(tmp_path / f"mine{number}") == contents(model)
        assert load_model(tmp_path / f"mine{number}").classes == load_model(model).classes
    stamp = (tmp_path / "mine0" / "encoder.safetensors").stat().st_mtime_ns
    hub.pull(served, tmp_path / "mine0")
    assert (tmp_path / "mine0" / "encoder.safetensors").stat().st_mtime_ns == stamp
    assert "byol predict" in capsys.readouterr().out


@pytest.mark.parametrize("harm", ["flipped", "half", "longer", "missing", "escape", "bomb", "no contents"])
def test_what_is_not_whole_is_not_taken(harm: str, model: Path, tmp_path: Path) -> None:
    """Breaks if a byte can change on the way, what is no part of a model is brought, or a name leads elsewhere."""
    there = tmp_path / "there"
    hub.push(model, str(there))
    head, listed = there / "head.safetensors", there / hub.CONTENTS
    whole, record = head.read_bytes(), json.loads(listed.read_text())
    fact = record["files"]["head.safetensors"]
    if harm in ("flipped", "half", "longer"):
        flipped = whole[:-1] + bytes([whole[-1] ^ 1])
        head.write_bytes({"flipped": flipped, "half": whole[: len(whole) // 2], "longer": whole + b"x"}[harm])
    elif harm == "missing":
        head.unlink()
    elif harm == "escape":
        record["files"]["../../escaped.json"] = fact
        listed.write_text(json.dumps(record))
    elif harm == "bomb":
        fact["bytes"] = 10**15
        listed.write_text(json.dumps(record))
    else:
        listed.unlink()
    with pytest.raises(UsageError if harm == "no contents" else BadData) as said:
        hub.pull(str(there), tmp_path / "mine")
    assert "\n" not in str(said.value)
    assert not (tmp_path / "mine" / "model.json").exists()
    assert not (tmp_path / "escaped.json").exists()


def test_what_is_there_stays(model: Path, tmp_path: Path) -> None:
    """Breaks if a pull replaces another model unasked, or writes into a folder of somebody else."""
    hub.push(model, str(tmp_path / "there"))
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_bytes(b"cat")
    with pytest.raises(OutputBusy, match=r"cat\.jpg"):
        hub.pull(str(tmp_path / "there"), tmp_path / "photos", overwrite=True)
    hub.pull(str(tmp_path / "there"), tmp_path / "mine")
    other = (tmp_path / "mine" / "model.json").read_text().replace('"done"', '"done" ')
    (tmp_path / "mine" / "model.json").write_text(other)
    with pytest.raises(OutputBusy, match="--overwrite"):
        hub.pull(str(tmp_path / "there"), tmp_path / "mine")
    hub.pull(str(tmp_path / "there"), tmp_path / "mine", overwrite=True)
    assert contents(tmp_path / "mine") == contents(model)


def test_places_that_cannot_be(model: Path, tmp_path: Path, served: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks if a URL that only reads, one that could run a program, or a hub out of reach ends in a traceback."""
    with pytest.raises(UsageError, match="not written"):
        hub.push(model, served)
    with pytest.raises(UsageError, match="is not opened"):
        hub.push(model, "ssh://somewhere/flowers")
    with pytest.raises(UsageError, match="is not a model"):
        hub.push(tmp_path, str(tmp_path / "there"))
    with pytest.raises(UsageError, match="no model at"):
        hub.pull(served, tmp_path / "mine")
    monkeypatch.setattr(pytest.importorskip("huggingface_hub.constants"), "HF_HUB_OFFLINE", True)
    with pytest.raises(DiskError, match="did not give"):
        hub.pull("hf:somebody/flowers", tmp_path / "mine")
    assert not (tmp_path / "mine").exists()


def test_a_server_that_does_not_answer_is_not_one_without_the_model(tmp_path: Path, served: str) -> None:
    """Breaks if a user whose network is down is told that the model is not there."""
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{nobody.getsockname()[1]}/flowers"
    with pytest.raises(DiskError, match=r"Cannot read .*The same command tries again"):
        hub.pull(address, tmp_path / "out")
    with pytest.raises(UsageError, match="There is no model at"):
        hub.pull(f"{served}-other", tmp_path / "out")


def test_the_hub_gets_one_commit(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks if anything but the model's files goes to the hub, or they do not come back from there."""
    client = pytest.importorskip("huggingface_hub")
    sent: dict[str, str] = {}

    class Api:
        def create_repo(self, name: str, *, exist_ok: bool, private: bool) -> None:
            assert (name, exist_ok, private) == ("me/flowers", True, True)

        def create_commit(self, name: str, adds: list[Any], *, commit_message: str) -> None:
            assert not sent
            sent.update({add.path_in_repo: add.path_or_fileobj for add in adds})

    monkeypatch.setattr(client, "HfApi", Api)
    monkeypatch.setattr(client, "hf_hub_download", lambda name, each: sent[each])
    hub.push(model, "hf:me/flowers", private=True)
    assert set(sent) == {*contents(model), hub.CONTENTS}
    hub.pull("hf:me/flowers", tmp_path / "mine")
    assert contents(tmp_path / "mine") == contents(model)
