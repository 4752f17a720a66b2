"""Files are written where they were meant to be and read only when they are plain files, whatever others prepared."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from byol.errors import DiskError, OutputBusy
from byol.run import files


def test_prepared_links_lead_no_byte_elsewhere(tmp_path: Path) -> None:
    """Breaks if the temporary file's name can be guessed, or a link in its place is followed."""
    victim = tmp_path / "victim"
    victim.write_text("mine")
    out = tmp_path / "run"
    out.mkdir()
    for name in (".report.html.tmp", f".report.html.{os.getpid()}.tmp", "report.html"):
        (out / name).symlink_to(victim)
    files.write_atomically(out / "report.html", b"page")
    assert victim.read_text() == "mine"
    assert not (out / "report.html").is_symlink()
    assert (out / "report.html").read_bytes() == b"page"


def test_a_directory_that_is_a_link_is_not_written_into(tmp_path: Path) -> None:
    """Breaks if a prepared sub-directory of a run leads its files to another place."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "evaluations").symlink_to(elsewhere)
    with pytest.raises(DiskError, match="is a link"):
        files.write_atomically(tmp_path / "run" / "evaluations" / "result.json", b"{}")
    assert not list(elsewhere.iterdir())


def test_many_writers_of_one_file_leave_one_whole(tmp_path: Path) -> None:
    """Breaks if writers share a temporary name: one then fails, or a reader sees half of each."""
    contents = [bytes([65 + number]) * 200_000 for number in range(8)]
    path, torn, failed = tmp_path / "shared.bin", list[bytes](), list[Exception]()
    files.write_atomically(path, contents[0])

    def write(content: bytes) -> None:
        try:
            for _ in range(12):
                files.write_atomically(path, content)
                seen = path.read_bytes()
                if seen not in contents:
                    torn.append(seen)
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=write, args=(content,)) for content in contents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert not torn
    assert [entry.name for entry in tmp_path.iterdir()] == ["shared.bin"]


def test_leftovers_of_killed_processes_go_and_those_of_living_ones_stay(tmp_path: Path) -> None:
    """Breaks if a killed writer's bytes stay for ever, or another writer's file is taken away from it."""
    dead, living = tmp_path / ".a.json.4194305.0123456789abcdef.tmp", tmp_path / ".a.json.1.0123456789abcdef.tmp"
    dead.write_bytes(b"half")
    living.write_bytes(b"half")
    files.write_atomically(tmp_path / "a.json", b"{}")
    assert not dead.exists()
    assert living.exists()


def test_the_longest_name_is_written_too(tmp_path: Path) -> None:
    """Breaks if the temporary name of a file is longer than a file system takes."""
    path = tmp_path / ("a" * files.LONGEST_NAME)
    files.write_atomically(path, b"whole")
    assert path.read_bytes() == b"whole"


def test_files_are_no_programs(tmp_path: Path) -> None:
    """Breaks if what is written may be executed, or may not be read by those whom the user allows."""
    before = os.umask(0o022)
    try:
        files.write_atomically(tmp_path / "a.json", b"{}")
    finally:
        os.umask(before)
    assert (tmp_path / "a.json").stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("kind", ["pipe", "device", "directory", "missing", "endless link", "too large"])
def test_only_plain_files_of_a_bounded_size_are_read(kind: str, tmp_path: Path) -> None:
    """Breaks if a pipe is waited for, a device is read until memory is full, or a file is read past the limit."""
    path = tmp_path / "file"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "directory":
        path.mkdir()
    elif kind == "endless link":
        path.symlink_to(path)
    elif kind == "too large":
        path.write_bytes(b"x" * 1001)
    with pytest.raises(OSError) as refused:  # noqa: PT011 (the kinds have different numbers)
        files.read_regular(path, 1000)
    assert refused.value.strerror


def log(path: Path, *steps: int) -> list[str]:
    """Lines of metrics.jsonl for these steps."""
    path.write_text("".join(json.dumps({"step": step, "loss": 1.5}) + "\n" for step in steps))
    return path.read_text().splitlines()


GARBAGE = ["\0\0\0\0", "{", "5", "null", "[1]", "", "{}", '{"step": "1"}', '{"step": true}', '{"step": 3, "loss": "x"}']


@pytest.mark.parametrize("garbage", [*GARBAGE, "[" * 100_000])
def test_a_damaged_line_costs_no_other_line(garbage: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Breaks if what stands after a damaged line of metrics.jsonl is lost when a run goes on, or goes in silence."""
    path = tmp_path / "metrics.jsonl"
    lines = log(path, *range(28))
    path.write_text("\n".join([*lines[:5], garbage, *lines[5:]]) + "\n")
    metrics = files.Metrics(path, step=20)
    metrics.add({"step": 20, "loss": 1.5})
    metrics.close()
    assert path.read_text().splitlines() == lines[:21]
    said = capsys.readouterr().err
    assert "1 of its lines (6)" in said
    assert str(path) in said


def test_a_last_line_that_was_cut_short_is_dropped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Breaks if the usual trace of a kill is called damage, or stays in the log."""
    path = tmp_path / "metrics.jsonl"
    lines = log(path, *range(4))
    path.write_text("\n".join(lines)[:-3])
    assert files.read_metrics(path) == [{"step": step, "loss": 1.5} for step in range(3)]
    assert not capsys.readouterr().err


def appended(place: Path) -> None:
    metrics = files.Metrics(place / "metrics.jsonl")
    metrics.add({"step": 0})
    metrics.close()


def held(place: Path) -> None:
    with files.only_writer(place):
        pass


WRITERS: dict[str, tuple[str, Any]] = {
    "metrics": ("metrics.jsonl", appended),
    "lock": (".lock", held),
    "holder": (".holder", held),
    "record": ("run.json", lambda place: files.write_json(place / "run.json", {})),
}


@pytest.mark.parametrize("leads_to", ["file", "folder", "nowhere"])
@pytest.mark.parametrize("name", WRITERS)
def test_no_link_inside_a_run_directory_is_written_through(name: str, leads_to: str, tmp_path: Path) -> None:
    """Breaks if a file of a run is opened for writing where somebody else put a link: what the link leads to stays as
    it was, and the command writes the file anew or ends with a sentence that names the link."""
    link, write = WRITERS[name]
    elsewhere, run = tmp_path / "elsewhere", tmp_path / "run"
    run.mkdir()
    if leads_to == "file":
        elsewhere.write_text("mine")
    elif leads_to == "folder":
        elsewhere.mkdir()
    (run / link).symlink_to(elsewhere)
    try:
        write(run)
    except DiskError as error:
        assert str(run / link) in str(error)  # noqa: PT017 (to write a new file in the link's place is right too)
    else:
        assert not (run / link).is_symlink()
    if leads_to == "file":
        assert elsewhere.read_text() == "mine"
    else:
        assert elsewhere.exists() == (leads_to == "folder")
        assert not elsewhere.exists() or not list(elsewhere.iterdir())


def test_a_run_directory_that_the_user_names_by_a_link_is_followed_once(tmp_path: Path) -> None:
    """Breaks if `--out LINK` is refused, though the user named the link."""
    (tmp_path / "big disk").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "big disk")
    place = files.run_place("images", "/images", tmp_path / "run", "auto")
    files.write_json(place / "run.json", {})
    assert (tmp_path / "big disk" / "run.json").exists()


def test_a_second_thread_is_refused(tmp_path: Path) -> None:
    """Breaks if a directory that one thread holds may be taken by another of the same process (G18)."""
    refused = list[Exception]()

    def second() -> None:
        try:
            with files.only_writer(tmp_path / "run"):
                pass
        except OutputBusy as error:
            refused.append(error)

    with files.only_writer(tmp_path / "run"), files.only_writer(tmp_path / "run"):
        thread = threading.Thread(target=second)
        thread.start()
        thread.join()
    assert "another thread" in str(refused[0])
    second()
    assert len(refused) == 1


@pytest.mark.parametrize("name", ["plain", "日本", os.fsdecode(b"\xff\xfe"), "new\nline"])
def test_any_name_of_a_file_is_read_back_from_json(name: str, tmp_path: Path) -> None:
    """Breaks if a name that is not UTF-8 cannot be written into a record, or comes back as another one."""
    files.write_json(tmp_path / "a.json", [name])
    assert files.read_json(tmp_path / "a.json") == [name]


def test_data_of_one_name_have_directories_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Breaks if `A/images` and `B/images` share runs/images-auto, or a command does not come back to its own run."""
    monkeypatch.chdir(tmp_path)
    places = dict[str, Path]()
    for location in ("/a/images", "/b/images", "/c/b/images"):
        place = places[location] = files.run_place(location, location, None, "auto")
        place.mkdir(parents=True)
        files.write_json(place / "run.json", {"data": {"location": location}})
    assert len(set(places.values())) == 3
    assert places["/a/images"] == Path("runs/images-auto")
    assert places["/b/images"] == Path("runs/b-images-auto")
    assert "holds the run on /a/images" in capsys.readouterr().err
    for location, place in places.items():
        assert files.run_place(location, location, None, "auto") == place
    (tmp_path / "runs" / "images-auto" / "run.json").write_text("damaged")  # which is said when it is read
    assert files.run_place("/d/images", "/d/images", None, "auto") == Path("runs/images-auto")


def test_a_file_in_a_folder_that_the_user_names_by_a_link(tmp_path: Path) -> None:
    """Breaks if `-o LINK/page.html` is refused, or a link in the file's own place is followed."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "folder").symlink_to(tmp_path / "disk")
    (tmp_path / "victim").write_text("mine")
    (tmp_path / "disk" / "page.html").symlink_to(tmp_path / "victim")
    files.write_atomically(files.placed(tmp_path / "folder" / "page.html"), b"page")
    assert (tmp_path / "disk" / "page.html").read_bytes() == b"page"
    assert (tmp_path / "victim").read_text() == "mine"
    assert files.placed(tmp_path / "new" / "deep" / "a.txt").parent.is_dir()
