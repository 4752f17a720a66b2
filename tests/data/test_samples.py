"""Folders of files that hold several images, or one band each: every image once, by its name, with its own values."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import byol
from byol import data, pretraining
from byol.checkpoint import encoder_header, encoder_settings
from byol.config import Config, Data, apply
from byol.data.address import FILES, parse
from byol.data.formats import FORMATS
from byol.data.formats import format as form
from byol.data.shards.writing import shard
from byol.data.source import BadImage, Source
from byol.errors import BadData, Interrupted, UsageError
from byol.explore import doctor
from tests.conftest import TINY
from tests.data.formats import files
from tests.data.formats.files import numbers
from tests.test_pretraining import digest


def folder_of(root: Path, content: dict[str, bytes]) -> Path:
    for name, body in content.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(body)
    return root


def opened(root: Path, **fields: Any) -> Source:
    return data.open_stored(str(root), Data(**fields))


def named(source: Source) -> dict[str, np.ndarray]:
    """Every image by its name."""
    found = {source.describe(i): source.read(i).numpy() for i in range(len(source))}
    assert len(found) == len(source)
    return found


def test_slices_are_images_with_the_labels_of_their_files(tmp_path: Path) -> None:
    """Breaks if a slice is lost, read from another volume or place, or has another file's class."""
    volumes = {f"{kind}/{n}.nii{'.gz' * n}": numbers((6, 7, 3 + n), "i2") + n for kind in "ab" for n in range(2)}
    root = folder_of(tmp_path, {name: files.nifti(v, name.endswith("gz")) for name, v in volumes.items()})
    source = opened(root)
    expected = {f"{name}#{k}": v[:, :, k].T[::-1][None] for name, v in volumes.items() for k in range(v.shape[2])}
    found = named(source)
    assert list(found) == list(expected)
    assert all(np.array_equal(found[name], values) for name, values in expected.items())
    assert source.labels is not None
    assert [source.classes[label] for label in source.labels] == [name[0] for name in expected]
    assert source.stamp is not None
    assert source.stamp(0) == source.stamp(2) != source.stamp(3)


def test_pages_are_the_first_images_or_channels(tmp_path: Path) -> None:
    """Breaks if data.pages does not say what becomes of the pages of a TIFF or the frames of a DICOM file."""
    deep, plain, frames = numbers((3, 9, 7), "u2"), numbers((2, 9, 7), "u1"), numbers((4, 9, 7), "i2")
    tiffs = {"a.tif": files.tiff(deep[:, None]), "b.tif": files.tiff(plain[:, None])}
    root = folder_of(tmp_path / "tiff", tiffs)
    grey = np.repeat(plain[:, None], 3, 1)  # a picture of 8 bits stays one of three colours
    for pages in ("auto", "first"):
        found = named(opened(root, pages=pages))
        assert list(found) == ["a.tif", "b.tif"]
        assert np.array_equal(found["a.tif"], deep[:1])
        assert np.array_equal(found["b.tif"], grey[0])
    found = named(opened(root, pages="images"))
    assert list(found) == ["a.tif#0", "a.tif#1", "a.tif#2", "b.tif#0", "b.tif#1"]
    assert np.array_equal(found["a.tif#2"], deep[2:])
    assert np.array_equal(found["b.tif#1"], grey[1])
    found = named(opened(root, pages="channels"))
    assert np.array_equal(found["a.tif"], deep)
    assert np.array_equal(found["b.tif"], plain)
    scans = folder_of(tmp_path / "dicom", {"a.dcm": files.dicom(frames)})
    assert len(opened(scans)) == 1
    found = named(opened(scans, pages="images", voi="none"))
    assert np.array_equal(found["a.dcm#3"], frames[3:].astype(np.float32))


def test_a_band_a_file(tmp_path: Path) -> None:
    """Breaks if bands of different samples or folders are mixed, out of order, or a missing one goes unsaid."""
    content, expected = {}, {}
    for stem in ("x/S1", "x/S2", "y/S1"):
        bands = {name: numbers((1, 8, 6), "u2") + len(expected) * 7 + i for i, name in enumerate(("2", "10", "8A"))}
        bands["8A"] = bands["8A"][:, ::2, ::2]
        content |= {f"{stem}_B{name}.tif": files.tiff(values) for name, values in bands.items()}
        coarse = bands["8A"].repeat(2, 1).repeat(2, 2)
        expected[stem] = np.concatenate([bands["2"], coarse, bands["10"]])
    del content["y/S1_B10.tif"]
    content["x/readme.tif"] = files.tiff(numbers((1, 3, 3), "u2"))
    root = folder_of(tmp_path, content)
    source = opened(root, pattern="{stem}_B{band}.tif")
    assert [source.describe(i) for i in range(len(source))] == list(expected)
    for index, values in enumerate(list(expected.values())[:2]):
        assert np.array_equal(source.read(index), values)
    with pytest.raises(BadImage, match=r"^band 10 is missing$"):
        source.read(2)
    assert source.labels is not None
    assert source.labels.tolist() == [0, 0, 1]
    chosen = opened(root, pattern="{stem}_b{band:10,2}.tif")
    assert np.array_equal(chosen.read(0), expected["x/S1"][[2, 0]])
    with pytest.raises(BadData, match=r"No file of .* fits data\.pattern '\{stem\}-\{band\}\.tif'; they are like"):
        opened(root, pattern="{stem}-{band}.tif")


def test_a_file_of_several_images_is_data_by_itself(tmp_path: Path) -> None:
    """Breaks if an HDF5 file of one array has to be put into a folder, or a file that is not there is looked into."""
    assert {f".{ending}" for ending in FORMATS} == set(FILES)
    stack = numbers((6, 3, 9, 7), "u1")
    root = folder_of(tmp_path, {"all.h5": files.hdf5({"images": stack, "labels": np.arange(6)}, chunks=(1, 3, 9, 7))})
    found = named(opened(root / "all.h5"))
    assert list(found) == [f"all.h5#{n}" for n in range(6)]
    assert all(np.array_equal(found[f"all.h5#{n}"], stack[n]) for n in range(6))
    assert parse(str(root / "all.h5"), "").check().kind == "folder"
    with pytest.raises(UsageError, match=r"There is no folder .*none\.h5"):
        parse(str(root / "none.h5"), "").check()


def test_shards_of_deep_files(tmp_path: Path) -> None:
    """Breaks if an image of another format is lost or changed on its way through shards, or slices are cut to one."""
    content = {f"{n}.dcm": files.dicom(numbers((9, 7 + n), "i2"), RescaleIntercept=-5) for n in range(3)}
    for kind, folder in (
        ("dcm", content),
        ("npy", {f"{n}.npy": files.npy(numbers((5, 9, 7 + n), "u2")) for n in range(3)}),
    ):
        root = folder_of(tmp_path / kind, folder)
        shard(root, tmp_path / f"{kind}-shards", 10**6)
        before, after = named(opened(root, voi="none")), named(opened(tmp_path / f"{kind}-shards", voi="none"))
        assert list(before) == list(after)
        assert all(np.array_equal(before[name], after[name]) for name in before)
    volumes = folder_of(tmp_path / "volumes", {"a.nii": files.nifti(numbers((6, 7, 3), "i2"))})
    with pytest.raises(UsageError, match="several images, which are not sharded"):
        shard(volumes, tmp_path / "none", 10**6)


@pytest.mark.parametrize(
    "wrong",
    [
        {"axes": "NYYX"},
        {"axes": "YC"},
        {"voi": "40"},
        {"voi": "40/0"},
        {"pattern": "a_{band}.tif"},
        {"pattern": "{stem}/{band}"},
    ],
)
def test_wrong_words_are_told_before_anything_is_read(wrong: dict[str, str]) -> None:
    """Breaks if a wrong pattern, window or order of axes is found out only by the images that cannot be read."""
    (name, value), *_ = wrong.items()
    with pytest.raises(UsageError, match=f"data.{name} must be"):
        apply(Config(), {f"data.{name}": value})


def test_one_kind_of_files_is_taken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Breaks if an array beside photographs is taken for one of them, or a screenshot beside scans for a scan."""
    scans = {f"{n}.dcm": files.dicom(numbers((9, 7), "u2")) for n in range(3)}
    root = folder_of(tmp_path, {**scans, "features.npy": files.npy(np.ones((5, 9)))})
    assert len(opened(root)) == 3
    assert "Passed over, as they are of another kind: 1 NumPy files." in capsys.readouterr().err


def test_what_to_install_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks if files whose library is missing are called no images, or the extra is not named."""
    monkeypatch.setattr(form, "_found", lambda module: False)
    root = folder_of(tmp_path / "scans", {"a.dcm": b"", "b.dcm": b""})
    with pytest.raises(UsageError, match=r"holds 2 DICOM files: to read them, pip install 'byol\[dicom\]'\."):
        opened(root)
    bands = opened(folder_of(tmp_path / "bands", {"a.tif": files.tiff(numbers((5, 9, 7), "u2"))}))
    with pytest.raises(UsageError, match=r"Reading TIFF files needs more packages: pip install 'byol\[tiff\]'\."):
        bands.read(0)
    grey = opened(folder_of(tmp_path / "grey", {"a.tif": files.tiff(numbers((1, 9, 7), "u2"))}))
    assert np.array_equal(grey.read(0), numbers((1, 9, 7), "u2"))


@pytest.mark.parametrize(
    ("name", "channels"), [("tif", "5 of uint16"), ("dcm", "1 of float32"), ("nii.gz", "1 of int16")]
)
def test_doctor_describes_and_damages_nothing(tmp_path: Path, name: str, channels: str) -> None:
    """Breaks if a sound file of a format is called damaged, counted wrongly, or all slices of a file duplicates."""
    kinds = {
        "tif": lambda n: files.tiff(numbers((5, 20 + n, 20), "u2")),
        "dcm": lambda n: files.dicom(numbers((20 + n, 20), "i2")),
    }
    kinds["nii.gz"] = lambda n: files.nifti(numbers((20, 20, 3 + n), "i2"), packed=True)
    root = folder_of(tmp_path / "in", {f"{n}.{name}": kinds[name](n) for n in range(3)})
    found = doctor.doctor(doctor.Request(str(root), tmp_path / "out", "cifar10-cpu", speed=False))
    assert found.images == found.readable == (12 if name == "nii.gz" else 3)
    assert found.values["channels"] == {channels: found.images}
    assert list(found.formats) == [{"tif": "TIFF", "dcm": "DICOM", "nii.gz": "NIfTI"}[name]]
    assert not found.duplicates
    assert not found.left_out
    assert abs(found.bytes - sum(path.stat().st_size for path in root.iterdir())) < 12


def test_doctor_tells_of_pages_that_are_not_used(tmp_path: Path) -> None:
    """Breaks if images that training never sees go without a word, or with one where all are used."""
    root = folder_of(
        tmp_path / "in",
        {"a.tif": files.tiff(numbers((3, 1, 20, 20), "u2")), "b.tif": files.tiff(numbers((1, 20, 20), "u2"))},
    )

    def said(**asked: Any) -> str:
        return " ".join(
            doctor.doctor(doctor.Request(str(root), tmp_path / "out", "cifar10-cpu", asked, speed=False)).warnings
        )

    assert "1 files hold 3 images, of which the first of each is used: --data.pages images" in said()
    assert "of which the first" not in said(**{"data.pages": "images"})


@pytest.mark.parametrize("kind", ["tif", "dcm", "nii.gz"])
def test_a_run_goes_on_exactly_for_any_workers(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks if a batch of deep images depends on the workers or on where a run was stopped, or an encoder forgets how
    its files are read."""
    ramps = np.add.outer(np.arange(24), np.arange(28)) * 40
    rng = np.random.default_rng(0)
    content = {}
    for n in range(3 if kind == "nii.gz" else 24):
        if kind == "tif":
            content[f"{n}.tif"] = files.tiff(
                (ramps + rng.integers(0, 3000, (5, 24, 28))).astype("u2"), compression="deflate"
            )
        elif kind == "dcm":
            content[f"{n}.dcm"] = files.dicom(
                (ramps + rng.integers(0, 3000, (24, 28))).astype("i2"), WindowCenter=n, WindowWidth=9
            )
        else:
            content[f"{n}.nii.gz"] = files.nifti(rng.integers(0, 3000, (24, 28, 8)).astype("i2"), packed=True)
    root = folder_of(tmp_path / "in", content)
    asked = {**TINY, "data.in_memory": "never", "data.voi": "1000/4000", "optim.epochs": 2}
    byol.pretrain(root, tmp_path / "whole", "cifar10-cpu", asked | {"data.workers": 0})
    with monkeypatch.context() as patch:
        patch.setattr(pretraining, "update", stopping(pretraining.update))
        with pytest.raises(Interrupted, match="saved"):
            byol.pretrain(root, tmp_path / "parts", "cifar10-cpu", asked | {"data.workers": 2})
    byol.pretrain(root, tmp_path / "parts", "cifar10-cpu", asked | {"data.workers": 1})
    assert digest(tmp_path / "whole") == digest(tmp_path / "parts")
    features, names = byol.embed(tmp_path / "whole", root)
    assert len(features) == len(names) == 24
    assert torch.isfinite(torch.as_tensor(features)).all()
    assert encoder_settings(encoder_header(tmp_path / "whole"))["data.voi"] == "1000/4000"


def stopping(update: Any) -> Any:
    """The step of the loop; the second one is interrupted."""
    steps = []

    def stopped(*args: Any, **named: Any) -> Any:
        steps.append(1)
        if len(steps) == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return update(*args, **named)

    return stopped
