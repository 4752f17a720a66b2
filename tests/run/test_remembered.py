"""A run directory of a stranger opens nothing: neither a URL nor a folder that no command of this user has named."""

from __future__ import annotations

import json
import shutil
import socket
from pathlib import Path
from typing import Any

import pytest

from byol import pretraining
from byol.config import Data
from byol.errors import UsageError
from byol.explore import search
from byol.report import build, collect
from byol.run.record import read_run
from byol.run.remembered import images_of
from tests.conftest import TINY, write_images

pytestmark = pytest.mark.usefixtures("own_cache", "one_thread")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with its images and the cache of the user who made it."""
    root = tmp_path_factory.mktemp("made")
    write_images(root / "images", 24)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(root / "cache"))
        patch.chdir(root)
        pretraining.pretrain("images", "run", "auto", {**TINY, "optim.epochs": 1})
    return root


@pytest.fixture
def strangers(made: Path, tmp_path: Path) -> Path:
    """The same run where nobody has ever named its images."""
    shutil.copytree(made / "run", tmp_path / "run")
    return tmp_path / "run"


def rewritten(run: Path, place: str, **config: Any) -> Path:
    record = json.loads((run / "run.json").read_text())
    record["request"]["data"] = place
    record["config"] |= {f"data.{name}": value for name, value in config.items()}
    (run / "run.json").write_text(json.dumps(record))
    return run


def test_the_users_own_run_is_opened_from_anywhere(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks if a run of this user asks for its images again: after a move, a copy, or from another folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(made / "cache"))
    monkeypatch.chdir(tmp_path)
    shutil.copytree(made / "run", tmp_path / "copy")
    named = images_of(read_run(tmp_path / "copy"), Data())
    assert named
    assert named.data == str(made / "images")
    assert len(search.open_space(str(tmp_path / "copy")).names) == 24
    assert build.modelled([collect.read(tmp_path / "copy")], 10)["galleries"]


PLACES = ["ftp://127.0.0.1/x", "simplecache::ftp://127.0.0.1/x", "zip://a.png::http://127.0.0.1/x", "hf:beans"]
PLACES += ["http://127.0.0.1/a.tar", "s3://bucket/a.tar", "torchvision:CIFAR10", "stl10", "FOLDER", "FOLDER/*.tar"]


@pytest.mark.parametrize("place", PLACES)
def test_a_strangers_run_opens_nothing(
    made: Path, strangers: Path, place: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Breaks if report or search follow what run.json names: a connection, or pictures of a folder of this machine."""

    def connect(*_: object) -> None:
        raise AssertionError("a connection was made")

    monkeypatch.setattr(socket.socket, "connect", connect)
    monkeypatch.setattr(socket, "getaddrinfo", connect)
    rewritten(strangers, place.replace("FOLDER", str(made / "images")), root=str(made), exclude=str(made / "run.json"))
    page = build.modelled([collect.read(strangers)], 10)
    assert page["galleries"] == []
    assert "views" not in page["runs"][0]
    assert [note for note in page["runs"][0]["notes"] if "--data" in note]
    with pytest.raises(UsageError, match="name the images"):
        search.open_space(str(strangers))


def test_scenes_and_named_images_are_shown(made: Path, strangers: Path) -> None:
    """Breaks if images that the command names are opened with a stranger's settings, or scenes are not drawn."""
    named = rewritten(strangers, "/nowhere", root="/nowhere", exclude="/nowhere")
    assert build.modelled([collect.read(named)], 10, str(made / "images"))["galleries"][0]["total"] == 24
    assert len(search.open_space(str(named), str(made / "images")).names) == 24
    assert images_of(read_run(rewritten(strangers, "scenes:20")), Data()) == ("scenes:20", Data())
