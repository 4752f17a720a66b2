"""A run directory: what is refused, what goes and when, and what a record that somebody damaged leads to."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import byol
from byol import checkpoint
from byol.errors import BadData, ByolError, DiskError, Interrupted, OutputBusy, UsageError
from byol.report import collect
from byol.run import choosing, directory, files, planning, record
from tests.conftest import TINY, write_images

SHORT: dict[str, Any] = TINY | {"optim.epochs": 1, "data.workers": 0}


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, but for those of the lock."""
    paths = (path for path in folder.rglob("*") if path.is_file() and path.name not in (files.LOCK, files.HOLDER))
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("data") / "images", 24)


@pytest.fixture(scope="module")
def finished(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole run, which tests copy."""
    return byol.pretrain(images, tmp_path_factory.mktemp("runs") / "run", "cifar10-cpu", SHORT).out


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


def train(images: Path, out: Path, **options: Any) -> byol.pretraining.Run:
    return byol.pretrain(images, out, "cifar10-cpu", SHORT | options.pop("overrides", {}), **options)


# What --overwrite may delete, and when.


def test_overwrite_leaves_a_stranger_s_folder_alone(images: Path, tmp_path: Path) -> None:
    """Breaks if files of our names make a folder ours: only run.json does."""
    mine = tmp_path / "mine"
    (mine / "checkpoints").mkdir(parents=True)
    for name in ("metrics.jsonl", "checkpoints/my_phd_model.pt", "report.html"):
        (mine / name).write_text("mine")
    before = contents(mine)
    with pytest.raises(OutputBusy, match="not a run of byol"):
        train(images, mine, overwrite=True)
    assert contents(mine) == before


@pytest.mark.parametrize("text", ["{}", "[]", "5", "not json", '{"format": 2}', '{"config": {}}', "\xff"])
def test_overwrite_wants_a_record_of_ours(text: str, images: Path, tmp_path: Path) -> None:
    """Breaks if any file called run.json lets --overwrite delete what is beside it."""
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "run.json").write_text(text, encoding="latin-1")
    (mine / "metrics.jsonl").write_text("mine")
    before = contents(mine)
    with pytest.raises(OutputBusy, match="is not the record of a run"):
        train(images, mine, overwrite=True)
    assert contents(mine) == before


def test_overwrite_deletes_the_old_run_and_nothing_else(run: Path, images: Path) -> None:
    """Breaks if a stranger's file goes with the old run, or something of the old run stays."""
    strangers = ["checkpoints/my_phd_model.pt", "notes.txt", "evaluations/a.csv"]
    (run / "evaluations").mkdir()
    for name in strangers:
        (run / name).write_text("mine")
    (run / "diverged.json").write_text("[]")
    (run / "report.html").write_text("of the old run")
    old = contents(run)
    train(images, run, overrides={"run.seed": 1}, overwrite=True)
    new = contents(run)
    assert {name: new[name] for name in strangers} == {name: old[name] for name in strangers}
    assert not {"diverged.json", "report.html"} & new.keys()
    kept = {name for name in old.keys() & new.keys() if old[name] == new[name]}
    assert kept <= {*strangers, "neighbours.json"}
    assert json.loads(new["run.json"])["config"]["run.seed"] == 1


def bad_images(folder: Path) -> Path:
    folder.mkdir()
    for number in range(40):
        (folder / f"{number}.jpg").write_text("not an image")
    return folder


REFUSED: dict[str, tuple[dict[str, Any], type[ByolError]]] = {
    "a device that is not here": ({"run.device": "mps"}, UsageError),
    "bad images, read first": ({"data.in_memory": "always"}, BadData),
    "bad images, read while training": ({"data.in_memory": "never"}, BadData),
    "no images": ({}, ByolError),
    "a batch that gives no step": ({"optim.batch": 4096}, UsageError),
    "a full disk": ({}, DiskError),
    "a signal while the plan is made": ({}, Interrupted),  # type: ignore[dict-item]
}


@pytest.mark.parametrize("why", REFUSED)
def test_an_old_run_stays_until_the_new_one_has_begun(
    why: str, run: Path, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Breaks if --overwrite deletes a run, and then the command that was to replace it is refused."""
    overrides, error = REFUSED[why]
    before = contents(run)
    if why.startswith("bad images"):
        images = bad_images(tmp_path / "bad")
    elif why == "no images":
        images = tmp_path / "empty"
        images.mkdir()
    elif why == "a full disk":
        monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**9, 10**9, 1000))  # type: ignore[attr-defined]
    elif why.startswith("a signal"):

        def stop(*_: Any) -> None:
            raise Interrupted("stopped")

        monkeypatch.setattr(planning.cost, "pace", stop)
    with pytest.raises(error):
        train(images, run, overrides={"run.seed": 1} | overrides, overwrite=True)
    assert contents(run) == before


# Deaths at the beginning.


class Death(BaseException):
    """Stands for SIGKILL: nothing of ours catches it."""


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("point", range(6))
def test_the_same_command_goes_on_after_a_death_while_the_run_is_put_on_disk(
    point: int, overwrite: bool, finished: Path, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Breaks if a death between any two files of the beginning, such as skipped.txt and run.json, makes the directory
    a stranger's (73)."""
    folder = Path(shutil.copytree(images, tmp_path / "images"))
    (folder / "class0" / "empty.jpg").write_bytes(b"")
    run = tmp_path / "run"
    if overwrite:
        shutil.copytree(finished, run)
    begun, calls = list[bool](), list[int]()

    def dying(real: Any) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            if begun == [True]:
                calls.append(1)
                if len(calls) > point:
                    begun.append(False)
                    raise Death
            return real(*arguments, **named)

        return call

    def begin(setup: directory.Setup) -> None:
        begun.append(True)
        real(setup)

    real = directory.Setup.begin
    with monkeypatch.context() as patch:
        patch.setattr(files, "write_atomically", dying(files.write_atomically))
        patch.setattr(Path, "unlink", dying(Path.unlink))
        patch.setattr(directory.Setup, "begin", begin)
        with pytest.raises(Death):
            train(folder, run, overrides={"run.seed": 1}, overwrite=overwrite)
    done = train(folder, run, overrides={"run.seed": 1}, overwrite=overwrite)
    assert (run / "skipped.txt").read_text().startswith("class0/empty.jpg")
    assert done.config.run.seed == 1


# Whose images.


def test_other_images_of_the_same_names_are_refused(finished: Path, images: Path, tmp_path: Path) -> None:
    """Breaks if a second folder of the same file names "finishes" at once with the first one's encoder (73)."""
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    other = Path(shutil.copytree(images, tmp_path / "other" / "images"))
    for path in other.rglob("*.jpg"):
        path.write_bytes((images / "class0" / "000.jpg").read_bytes())
    before = contents(run)
    with pytest.raises(OutputBusy) as refused:
        train(other, run)
    assert str(images) in str(refused.value)
    assert str(other) in str(refused.value)
    assert contents(run) == before


def test_images_that_were_moved_are_the_same(
    run: Path, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Breaks if a run cannot go on after its folder was moved, or goes on without a word."""
    moved = Path(shutil.copytree(images, tmp_path / "moved"))
    longer = train(moved, run, overrides={"optim.epochs": 2})
    assert longer.plan.steps == 6
    assert f"moved from {images} to {moved}" in capsys.readouterr().err
    assert record.read_run(run).data.location == str(moved)


def test_two_folders_of_one_name_have_two_runs(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Breaks if `byol pretrain A/images; byol pretrain B/images` gives A's encoder for B."""
    monkeypatch.chdir(tmp_path)
    runs = []
    for name in ("a", "b"):
        folder = Path(shutil.copytree(images, tmp_path / name / "images"))
        if name == "b":
            for path in folder.rglob("*.jpg"):
                path.write_bytes((images / "class0" / "000.jpg").read_bytes())
        runs.append(byol.pretrain(f"{name}/images", None, "cifar10-cpu", SHORT))
    assert [run.out for run in runs] == [Path("runs/images-cifar10-cpu"), Path("runs/b-images-cifar10-cpu")]
    assert runs[0].encoder.read_bytes() != runs[1].encoder.read_bytes()
    said = capsys.readouterr().err
    assert str(tmp_path / "a" / "images") in said
    assert str(tmp_path / "b" / "images") in said
    monkeypatch.chdir(tmp_path / "b")
    assert directory.Request.make("images", None, "cifar10-cpu", SHORT, None).location == str(tmp_path / "b" / "images")


# A finished run.


def test_a_removed_encoder_is_written_again_and_nothing_else(run: Path, images: Path) -> None:
    """Breaks if the same command leaves a finished run without its encoder, or touches any other file of it."""
    before = contents(run)
    train(images, run)
    assert contents(run) == before
    (run / checkpoint.ENCODER).unlink()
    done = train(images, run)
    assert contents(run) == before
    assert [line["step"] for line in done.metrics if "loss" in line] == [0, 1, 2]


def test_the_plan_of_a_longer_run_is_in_its_record(run: Path, images: Path) -> None:
    """Breaks if run.json keeps the plan of the first epochs, so that a run is at step 6 of 3."""
    train(images, run, overrides={"optim.epochs": 2})
    plan = record.read_run(run).plan
    assert plan
    assert plan.steps == 6


# Records that somebody damaged.

WRONG: dict[str, Any] = {
    "text": "wrong",
    "number": -7,
    "huge": 10**400,
    "large": 1e300,
    "nan": math.nan,
    "infinite": math.inf,
    "list": [[[]]],
    "object": {"a": {"b": 1}},
    "nothing": None,
    "yes": True,
}
# Text that may be any text. Settings may be any value that the config takes, so only their types are tried here.
FREE = {
    "name",
    "ended",
    "in_memory",
    "created",
    "commit",
    "why",
    "sentence",
    "data",
    "preset",
    "device",
    "fingerprint",
    "location",
    "sample",
}


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every field of a JSON value, at every depth."""
    if path:
        yield path
    items: Any = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, member in items:
        yield from leaves(member, (*path, key))


def damaged(value: Any, path: tuple[Any, ...], kind: str) -> Any:
    """A copy of a JSON value with one field wrong, or missing."""
    value = json.loads(json.dumps(value))
    holder = value
    for key in path[:-1]:
        holder = holder[key]
    if kind == "missing":
        del holder[path[-1]]
    else:
        holder[path[-1]] = WRONG[kind]
    return value


@pytest.mark.parametrize("kind", [*WRONG, "missing"])
def test_every_damaged_field_of_a_record_is_refused_by_name_or_harmless(kind: str, run: Path) -> None:
    """Breaks if a wrong value in run.json is found out later than when it is read, by anything but a sentence of 65 or
    74 (a format of another number: 73) that names run.json and the field."""
    whole, refused = json.loads((run / "run.json").read_text()), dict[tuple[Any, ...], str]()
    for path in leaves(whole):
        (run / "run.json").write_text(json.dumps(damaged(whole, path, kind)))
        name = str(path[-1])
        try:
            stored = record.read_run(run)
            config = choosing._config(run, stored)
            choosing._machine(stored, config)
            described = collect.planned(stored, config)
        except (DiskError, BadData, OutputBusy) as error:
            refused[path] = str(error)
        else:
            assert record.encode(stored)
            assert all(isinstance(line, tuple) for line in described)
            setting = path[0] in ("config", "request") and kind in ("text", "number", "large", "yes")
            assert setting or name in FREE or path[0] == "versions" or kind in ("missing", "nothing"), path
    for path, sentence in refused.items():
        named = [word for part in path if isinstance(part, str) for word in part.split(".")]
        assert "run.json" in sentence
        assert any(part in sentence for part in named), (path, sentence)
    assert len(refused) > (20 if kind in ("missing", "nothing") else 80)


@pytest.mark.parametrize(
    "change",
    [
        {"machine": {"device_name": "cpu", "precision": "float16", "threads": 1}},
        {"machine": {"device_name": "banana", "precision": "float32", "threads": 1}},
        {"machine": {"device_name": "cpu", "precision": "float32", "threads": 10**6}},
        {"config": {"optim.epochs": 0}},
        {"config": {"network.encoder": "resnet7"}},
        {"config": {"objective.name": "nothing"}},
        {"config": {"no.such.field": 1}},
        {"sessions": [{"ended": "", "seconds": -1.0, "status": "finished"}]},
        {"plan": 5},
    ],
)
def test_a_damaged_record_ends_a_resume_and_a_report_with_a_sentence(
    change: dict[str, Any], run: Path, images: Path
) -> None:
    """Breaks if training or the report begins with values that no run can have."""
    whole = json.loads((run / "run.json").read_text())
    (name, value), = change.items()  # fmt: skip
    whole[name] = whole[name] | value if isinstance(value, dict) else value
    (run / "run.json").write_text(json.dumps(whole))
    with pytest.raises(DiskError, match=r"run\.json"):
        train(images, run, overrides={"optim.epochs": 2})
    if name != "config":
        with pytest.raises(DiskError, match=r"run\.json"):
            collect.read(run)


# Values of other libraries.


def test_overrides_of_numpy_s_types_are_plain_numbers(images: Path, tmp_path: Path) -> None:
    """Breaks if a sweep over np.arange or np.linspace cannot be written into run.json, or gives other settings."""
    values = {"optim.lr": np.float32(0.25), "run.seed": np.int64(3), "optim.probe": np.bool_(False)}
    values |= {"views.mean": np.array([0.5, 0.25, 0.125])}
    request = directory.Request.make(images, tmp_path / "run", "cifar10-cpu", SHORT | values, None)
    config = request.config
    assert (config.optim.lr, config.run.seed, config.optim.probe, config.views.mean) == (
        *(0.25, 3, False),
        (0.5, 0.25, 0.125),
    )
    with directory.open_run(request, overwrite=False) as setup:
        setup.write("interrupted")
    assert record.read_run(tmp_path / "run").request.overrides["optim.lr"] == 0.25


def test_a_run_directory_below_a_name_that_is_not_utf8(images: Path, tmp_path: Path) -> None:
    """Breaks if the location of the images cannot be written into run.json."""
    folder = tmp_path / os.fsdecode(b"\xff images")
    shutil.copytree(images, folder)
    request = directory.Request.make(folder, tmp_path / "run", "cifar10-cpu", SHORT, None)
    with directory.open_run(request, overwrite=False) as setup:
        setup.write("interrupted")
    assert record.read_run(tmp_path / "run").data.location == str(folder)
