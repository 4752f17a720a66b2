"""Folders as they come: any names, links, depths and strange files, always in the same order."""

from __future__ import annotations

import logging
import os
import pickle
import resource
import shutil
import socket
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from byol.data.folder import folder, parts_of
from byol.data.source import BadImage, without
from byol.errors import BadData, UsageError


def picture(path: Path | bytes, value: int = 0, size: tuple[int, int] = (4, 3), format: str = "PNG") -> None:
    """An image of one grey value, by which a test knows it again."""
    target = Path(os.fsdecode(path))
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb") as file:
        Image.new("RGB", size, (value, value, value)).save(file, format)


def names(source: Any) -> list[str]:
    return [source.describe(i) for i in range(len(source))]


def test_each_index_reads_its_own_file(tmp_path: Path) -> None:
    for i, name in enumerate(["b.png", "a.png", "sub/c.png", "sub/deeper/d.png"]):
        picture(tmp_path / name, 10 * i)
    source = folder(tmp_path)
    assert names(source) == ["a.png", "b.png", "sub/c.png", "sub/deeper/d.png"]
    assert [int(source.read(i).max()) for i in range(4)] == [10, 0, 20, 30]
    assert source.read(0).shape == (3, 3, 4)
    assert source.name == str(tmp_path)
    for outside in (-1, 4):
        with pytest.raises(IndexError):
            source.read(outside)


def test_order_is_that_of_the_bytes(tmp_path: Path) -> None:
    wanted = [b"A.png", b"a-b/x.png", b"a/x.png", b"a0.png", "\u00e4.png".encode(), b"\xff.png"]
    for name in reversed(wanted):
        picture(os.fsencode(tmp_path) + b"/" + name)
    assert names(folder(tmp_path)) == ["A.png", "a-b/x.png", "a/x.png", "a0.png", "\u00e4.png", "\\xff.png"]


def test_extensions_in_any_case_and_hidden_files_left_out(tmp_path: Path) -> None:
    for name in ["a.JPG", "b.Jpeg", "c.TIF", "d.jpe", "e.PGM", "f.webp"]:
        picture(tmp_path / name, format="PNG")  # the content decides how it is decoded
    for name in [".hidden.png", ".git/x.png", "__MACOSX/x.png", "sub/._f.jpg", "notes.txt", "jpg", "x.png.bak"]:
        picture(tmp_path / name)
    source = folder(tmp_path)
    assert names(source) == ["a.JPG", "b.Jpeg", "c.TIF", "d.jpe", "e.PGM", "f.webp"]
    assert all(source.read(i).shape == (3, 3, 4) for i in range(6))


def test_a_hidden_root_is_used(tmp_path: Path) -> None:
    picture(tmp_path / ".cache" / "a.png")
    assert len(folder(tmp_path / ".cache")) == 1


def test_strange_names(tmp_path: Path) -> None:
    raw = [b"\xff\xfe.png", b"line\nbreak.png", b"quote'\".png", b" .png", "\u202egnp.png".encode(), b"%s{0}.png"]
    for i, name in enumerate(raw):
        picture(os.fsencode(tmp_path) + b"/" + name, i + 1)
    source = folder(tmp_path)
    assert sorted(int(source.read(i).max()) for i in range(len(source))) == [1, 2, 3, 4, 5, 6]
    assert all(name.isprintable() for name in names(source))
    assert "line\\nbreak.png" in names(source)


def test_root_with_a_name_that_is_no_utf8(tmp_path: Path) -> None:
    root = os.fsencode(tmp_path) + b"/\xe9t\xe9"
    picture(root + b"/a.png", 5)
    source = folder(Path(os.fsdecode(root)))
    assert int(source.read(0).max()) == 5
    source.name.encode("utf-8")


def test_relative_roots_follow_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    picture(tmp_path / "set" / "a.png", 5)
    monkeypatch.chdir(tmp_path)
    assert int(folder(Path("set")).read(0).max()) == 5


def test_links_are_followed_and_loops_end(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    picture(root / "real" / "a.png", 1)
    picture(outside / "b.png", 2)
    picture(tmp_path / "single.png", 3)
    (root / "linked").symlink_to(outside)
    (root / "linked.png").symlink_to(tmp_path / "single.png")
    (root / "loop").symlink_to(root)
    (root / "real" / "up").symlink_to("..")
    (root / "self").symlink_to("self")
    (root / "self.png").symlink_to("self.png")
    (root / "gone.png").symlink_to(tmp_path / "nowhere.png")
    (outside / "back").symlink_to(root)
    started = time.process_time()
    source = folder(root)
    assert time.process_time() - started < 1
    assert names(source) == ["linked.png", "linked/b.png", "real/a.png"]
    assert [int(source.read(i).max()) for i in range(3)] == [3, 2, 1]


def test_a_real_folder_wins_over_a_link_to_it(tmp_path: Path) -> None:
    picture(tmp_path / "zebra" / "a.png")
    (tmp_path / "alias").symlink_to("zebra")
    assert names(folder(tmp_path)) == ["zebra/a.png"]


def test_pipes_sockets_and_folders_with_image_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    picture(tmp_path / "a.png")
    os.mkfifo(tmp_path / "pipe.jpg")
    picture(tmp_path / "folder.jpg" / "b.png")
    monkeypatch.chdir(tmp_path)  # a socket's path must be short
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("s.jpg")
        assert names(folder(tmp_path)) == ["a.png", "folder.jpg/b.png"]


def test_file_that_turns_bad_after_indexing(tmp_path: Path) -> None:
    for name in "abcde":
        picture(tmp_path / f"{name}.png", ord(name))
    source = folder(tmp_path)
    (tmp_path / "a.png").unlink()
    (tmp_path / "b.png").unlink()
    os.mkfifo(tmp_path / "b.png")
    (tmp_path / "c.png").write_bytes(b"")
    (tmp_path / "d.png").unlink()
    (tmp_path / "d.png").mkdir()
    started = time.process_time()
    for index, reason in enumerate(
        ["no such file or directory", "not a regular file", "empty file", "not a regular file"]
    ):
        with pytest.raises(BadImage, match=f"^{reason}$"):
            source.read(index)
    assert time.process_time() - started < 1
    assert int(source.read(4).max()) == ord("e")


def test_unreadable_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    picture(tmp_path / "a.png")
    source = folder(tmp_path)

    def refuse(*_: object, **__: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)  # chmod does not stop root
    with pytest.raises(BadImage, match=r"^permission denied$"):
        source.read(0)


@pytest.mark.parametrize("head", [b"", b"\xff\xd8\xff\xe0", b"\x89PNG\r\n\x1a\n", b"RIFF\0\0\0\0WEBPVP8 "])
@pytest.mark.parametrize(("size", "reason"), [(5 << 30, "5369 MB, too large"), (200 << 20, "header|not an image")])
def test_huge_sparse_files(tmp_path: Path, head: bytes, size: int, reason: str) -> None:
    path = tmp_path / "a.jpg"
    path.write_bytes(head)
    os.truncate(path, size)
    source = folder(tmp_path)
    before, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    with pytest.raises(BadImage, match=reason):
        source.read(0)
    assert time.process_time() - started < 1
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000  # KB


def test_size_limit_reaches_the_decoder(tmp_path: Path) -> None:
    picture(tmp_path / "a.png", size=(40, 50))
    assert folder(tmp_path, 0.002).read(0).shape == (3, 50, 40)
    with pytest.raises(BadImage, match=r"0\.002 megapixels, over the limit of 0\.0019"):
        folder(tmp_path, 0.0019).read(0)


def test_handles_are_closed(tmp_path: Path) -> None:
    picture(tmp_path / "a.png")
    (tmp_path / "b.png").write_bytes(b"no image")
    os.mkfifo(tmp_path / "pipe.png")
    source = folder(tmp_path)
    (tmp_path / "b.png").rename(tmp_path / "c")
    (tmp_path / "pipe.png").rename(tmp_path / "b.png")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        source.read(0)
        with pytest.raises(BadImage):
            source.read(1)
    assert len(os.listdir("/proc/self/fd")) == before


def test_labels_from_the_first_level(tmp_path: Path) -> None:
    for name in ["dog/1.png", "cat/x/2.png", "cat/1.png", "dog/y/z/3.png", "ant/1.png"]:
        picture(tmp_path / name)
    (tmp_path / "empty class").mkdir()
    source = folder(tmp_path)
    assert source.classes == ("ant", "cat", "dog")
    assert source.labels is not None
    assert source.labels.dtype == np.int64
    assert [source.classes[i] for i in source.labels] == [name.split("/")[0] for name in names(source)]


@pytest.mark.parametrize(
    "files",
    [["a.png", "b.png"], ["only/a.png", "only/b.png"], ["cat/a.png", "dog/a.png", "stray.png"]],
    ids=["flat", "one folder", "mixed"],
)
def test_no_labels_without_classes(tmp_path: Path, files: list[str]) -> None:
    for name in files:
        picture(tmp_path / name)
    source = folder(tmp_path)
    assert source.labels is None
    assert source.classes == ()
    assert len(source) == len(files)


def test_pickled_source_reads_the_same(tmp_path: Path) -> None:
    for i in range(3):
        picture(tmp_path / "ab"[i % 2] / f"{i}.png", i)
    source = folder(tmp_path)
    copy = pickle.loads(pickle.dumps(source))  # noqa: S301
    assert names(copy) == names(source)
    assert all((copy.read(i) == source.read(i)).all() for i in range(3))
    assert copy.classes == ("a", "b")


def test_paths_are_one_buffer(tmp_path: Path) -> None:
    """Forked workers copy each page on which they count a reference: one object for all paths, not one each."""
    for i in range(50):
        picture(tmp_path / f"{i:04}.png")
    paths = folder(tmp_path).read.args[0]  # type: ignore[attr-defined]
    assert isinstance(paths.buffer, bytes)
    assert len(paths.buffer) == 50 * len("0000.png")
    assert paths.ends.dtype == np.int64


def test_missing_folder_offers_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "flowers" / "train").mkdir(parents=True)
    with pytest.raises(UsageError, match=r"^There is no folder .*flowrs/train\. Did you mean flowers\?$") as caught:
        folder(tmp_path / "flowrs" / "train")
    assert caught.value.exit_code == 2
    with pytest.raises(UsageError, match=r"^There is no folder .*/qqqqqq\.$"):
        folder(tmp_path / "qqqqqq")


def test_file_instead_of_folder(tmp_path: Path) -> None:
    picture(tmp_path / "a.png")
    with pytest.raises(UsageError, match=r"a\.png is not a folder"):
        folder(tmp_path / "a.png")


def test_nothing_found_says_what_was_there(tmp_path: Path) -> None:
    for i in range(9):
        (tmp_path / f"{i}.txt").touch()
    for i in range(3):
        (tmp_path / f"{i}.CSV").touch()
    with pytest.raises(BadData, match=r"it holds 12 other files \(\.txt, \.csv\)\. Supported: jpg, jpeg") as caught:
        folder(tmp_path)
    assert caught.value.exit_code == 65
    (tmp_path / "none").mkdir()
    with pytest.raises(BadData, match=r"none: it holds no files\. Supported"):
        folder(tmp_path / "none")
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "README").touch()
    with pytest.raises(BadData, match=r"it holds 1 other file \(without extension\)\."):
        folder(tmp_path / "one")


def forbid(monkeypatch: pytest.MonkeyPatch, ending: str) -> None:
    real = os.scandir

    def scandir(path: Any = ".") -> Any:
        if os.fsdecode(path).rstrip("/").endswith(ending):
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)  # chmod does not stop root


def test_unreadable_folder_is_left_out_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    picture(tmp_path / "open" / "a.png")
    picture(tmp_path / "locked" / "b.png")
    forbid(monkeypatch, "locked")
    with caplog.at_level(logging.WARNING):
        assert names(folder(tmp_path)) == ["open/a.png"]
    assert "1 folder in" in caplog.text
    assert "locked/" in caplog.text
    with pytest.raises(BadData, match=r"Cannot read the folder .*locked: Permission denied\.") as caught:
        folder(tmp_path / "locked")
    assert caught.value.exit_code == 65
    (tmp_path / "open" / "a.png").unlink()
    with pytest.raises(BadData, match=r"holds no files, and 1 folder in .* could not be read, such as locked/\."):
        folder(tmp_path)


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (["train", "test"], {"train": "train", "test": "test"}),
        (["Train", "VALID", "test"], {"train": "Train", "val": "VALID", "test": "test"}),
        (["train", "val", "validation"], {"train": "train", "val": "val"}),
        (["train", "bus", "car"], {}),
        (["val", "test"], {}),
        (["train"], {}),
        ([], {}),
    ],
)
def test_parts_of(tmp_path: Path, made: list[str], expected: dict[str, str]) -> None:
    for name in made:
        (tmp_path / name).mkdir()
    assert parts_of(tmp_path) == {split: str(tmp_path / name) for split, name in expected.items()}


def test_parts_of_of_nothing(tmp_path: Path) -> None:
    assert parts_of(tmp_path / "missing") == {}
    (tmp_path / "train").touch()
    (tmp_path / "test").mkdir()
    assert parts_of(tmp_path) == {}


class Entry:
    """What os.scandir gives, without a million files."""

    def __init__(self, name: bytes) -> None:
        self.name = name

    def is_file(self) -> bool:
        return True

    def is_symlink(self) -> bool:
        return False


class Listing(list[Entry]):
    def __enter__(self) -> Listing:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def test_many_files_take_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listing = Listing(Entry(b"%07d.jpg" % (i * 7919 % 1_000_003)) for i in range(300_000))
    monkeypatch.setattr(os, "scandir", lambda _: listing)
    started = time.process_time()
    source = folder(tmp_path)
    assert time.process_time() - started < 5
    assert len(source) == 300_000
    assert source.describe(0) == "0000000.jpg"


def test_real_photographs(tmp_path: Path) -> None:
    """Breaks if a camera's photographs, here the two that scikit-learn brings along, are not what Pillow shows."""
    sklearn = find_spec("sklearn")
    if sklearn is None or sklearn.origin is None:
        pytest.skip("needs scikit-learn, of the extra eval, which brings two photographs along")
    for file in (Path(sklearn.origin).parent / "datasets" / "images").glob("*.jpg"):
        (tmp_path / file.stem).mkdir()
        shutil.copy(file, tmp_path / file.stem)
    source = folder(tmp_path)
    assert source.classes == ("china", "flower")
    for i in range(len(source)):
        with Image.open(tmp_path / source.describe(i)) as image:
            expected = np.asarray(image.convert("RGB"))
        assert expected.shape == (427, 640, 3)
        assert (source.read(i).permute(1, 2, 0).numpy() == expected).all()


def test_lists_of_images_tell_any_two_names_apart(tmp_path: Path) -> None:
    """Breaks if a name in a list means two files, none, or more than one line: a line break and a backslash with an n
    were once the same."""
    odd = [b"a\nb", rb"a\nb", rb"a\\nb", b"a\tb", b"a\rb", b" a ", b"\xff", rb"\xff", b"\x1b[2J", "\u2028".encode()]
    odd += ["\x85".encode(), b"#a", b"a\\", "\u202e".encode()]
    root = tmp_path / "images"
    root.mkdir()
    for name in odd:
        Image.new("RGB", (8, 8)).save(os.fsdecode(os.fsencode(root) + b"/" + name + b".png"))
    source = folder(root)
    shown = [source.describe(i) for i in range(len(source))]
    assert len(set(shown)) == len(odd)
    listing = tmp_path / "list.txt"
    for index, name in enumerate(shown):
        listing.write_text(f"{name}\tits reason\n", encoding="utf-8")
        kept = without(source, listing)
        assert [kept.describe(i) for i in range(len(kept))] == shown[:index] + shown[index + 1 :]
