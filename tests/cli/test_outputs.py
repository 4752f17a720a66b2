"""Every verb that writes × every place where nothing can be written: refused in a sentence before the work (G4)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.conftest import TINY, write_images
from tests.zygote import Zygote, pretrain

FILES = {
    "embed": ("npz", ["embed", "{run}", "{images}", "-o"]),
    "export": ("pth", ["export", "{run}", "--to", "torchvision", "-o"]),
    "export-own": ("safetensors", ["export", "{run}", "--to", "safetensors", "-o"]),
    "import": ("safetensors", ["import", "{weights}", "-o"]),
    "report": ("html", ["report", "{run}", "-o"]),
    "search": ("csv", ["search", "{image}", "{run}", "{images}", "-o"]),
    "sheet": ("png", ["search", "{image}", "{run}", "{images}", "-o", "{place}/found.csv", "--sheet"]),
    "dedupe": ("csv", ["dedupe", "{run}", "{images}", "-o"]),
    "outliers": ("json", ["outliers", "{run}", "{images}", "-o"]),
    "pick": ("csv", ["pick", "3", "{run}", "{images}", "-o"]),
    "predict": ("csv", ["predict", "{run}", "{images}", "-o"]),
    "views": ("png", ["views", "{images}", "-o"]),
    "paper": ("json", ["paper", "--check", "{run}", "-o"]),
}
FOLDERS = {
    "pretrain": ["pretrain", "{images}", "--out"],
    "doctor": ["doctor", "{images}", "--no-speed", "-o"],
    "table": ["table", "target-decay", "--scale=cpu", "--data=scenes:40", "--out"],
    "shard": ["shard", "{images}"],
    "evaluate": ["evaluate", "{run}", "--on", "{images}", "--protocol", "knn", "--out"],
    "cache": ["evaluate", "{run}", "--on", "{images}", "--protocol", "knn", "--out={place}/e", "--cache"],
    "fit": ["fit", "{run}", "--on", "{images}", "-o"],
    "demo": ["demo", "--out"],
    "export-hub": ["export", "{run}", "--to", "huggingface", "-o"],
}
BAD = {
    "below a file": "{place}/file/sub/out{ending}",
    "right below a file": "{place}/file/out{ending}",
    "in /proc": "/proc/nowhere/out{ending}",
    "below a closed place": "/proc/self/fdinfo/out{ending}",
    "the other kind": "{place}/other{ending}",
    "a pipe": "{place}/pipe{ending}",
    "a name too long": "{place}/" + "x" * 300 + "{ending}",
}
UNNAMED = {"empty": "", "dot": ".", "above": ".."}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, zygote: Zygote) -> dict[str, Path]:
    """Images, a run on them, and weights to import."""
    root = tmp_path_factory.mktemp("made")
    images = write_images(root / "images", 12)
    code, said = zygote.run(*pretrain(images, root / "run", TINY | {"optim.epochs": 1}))
    assert code == 0, said
    code, said = zygote.run("export", str(root / "run"), "--to=torchvision", "-o", str(root / "weights.pth"))
    assert code == 0, said
    paths = {"images": images, "run": root / "run", "weights": root / "weights.pth"}
    return paths | {"image": images / "class0" / "000.jpg"}


def refused(zygote: Zygote, words: list[str], place: Path) -> int:
    """The exit code; nothing but one sentence is said, so the work had not begun, and nothing is left behind."""
    before = sorted(place.rglob("*"))
    code, said = zygote.run(*words)
    assert said.startswith("byol: "), said
    assert len(said.splitlines()) == 1, said
    assert "should not happen" not in said
    assert code in (2, 73, 74), said
    assert sorted(place.rglob("*")) == before, "something was written"
    return code


def prepare(place: Path, ending: str) -> None:
    (place / "file").write_text("somebody's")
    (place / "real").mkdir()
    (place / "link").symlink_to(place / "real")
    os.mkfifo(place / f"pipe{ending}")


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("verb", FILES)
def test_a_file_that_cannot_be_written(
    verb: str, bad: str, made: dict[str, Path], tmp_path: Path, zygote: Zygote
) -> None:
    """Breaks if a verb works first and fails then, or ends with what the system raised."""
    ending, words = FILES[verb]
    prepare(tmp_path, f".{ending}")
    (tmp_path / f"other.{ending}").mkdir()
    names = {**made, "place": tmp_path, "ending": f".{ending}"}
    code = refused(zygote, [word.format(**names) for word in (*words, BAD[bad])], tmp_path)
    assert code in (73, 74) or bad == "a name too long"


@pytest.mark.parametrize("bad", UNNAMED)
@pytest.mark.parametrize("verb", FILES)
def test_a_file_without_a_name(verb: str, bad: str, made: dict[str, Path], tmp_path: Path, zygote: Zygote) -> None:
    """Breaks if a directory is taken for the file to write."""
    words = [word.format(**made, place=tmp_path) for word in (*FILES[verb][1], UNNAMED[bad])]
    refused(zygote, words, tmp_path)


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("verb", FOLDERS)
def test_a_folder_that_cannot_be_written(
    verb: str, bad: str, made: dict[str, Path], tmp_path: Path, zygote: Zygote
) -> None:
    """Breaks if a verb works first and fails then, or ends with what the system raised."""
    prepare(tmp_path, "")
    (tmp_path / "other").write_text("somebody's")
    names = {**made, "place": tmp_path, "ending": ""}
    code = refused(zygote, [word.format(**names) for word in (*FOLDERS[verb], BAD[bad])], tmp_path)
    assert code in (73, 74) or bad == "a name too long"
    assert (tmp_path / "other").read_text() == "somebody's"
