"""Where results go: data sets of one name apart, nothing through a link."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from byol import networks
from byol.checkpoint import save_encoder
from byol.config import Config, apply
from byol.errors import DiskError, OutputBusy
from byol.evals import record
from byol.evals.evaluation import evaluate
from tests.conftest import write_images


@pytest.fixture
def run(tmp_path: Path, own_cache: Path) -> Path:
    """An encoder in a directory of its own."""
    narrow = {"network.encoder": "resnet18", "network.width": 0.05, "network.small_images": True, "data.resolution": 32}
    config = apply(Config(), narrow)
    (tmp_path / "run").mkdir()
    save_encoder(tmp_path / "run" / "encoder.safetensors", networks.encoder(config.network), config, {"step": 3})
    return tmp_path / "run"


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    """Two data sets of one name, with other images under the same file names."""
    first = write_images(tmp_path / "a" / "images", 40)
    second = Path(shutil.copytree(first, tmp_path / "b" / "images"))
    for place, path in enumerate(sorted(second.rglob("*.jpg"))):
        if place % 2:
            path.write_bytes((first / "class0" / "000.jpg").read_bytes())
    return [first, second]


def knn(run: Path, on: Path, **options: Any) -> None:
    evaluate(run, str(on), ["knn"], settings={"run.device": "cpu", "data.workers": 0}, **options)


def test_results_on_data_of_one_name_stay_apart(run: Path, folders: list[Path]) -> None:
    """Breaks if the result on A/images is replaced by that on B/images, or an evaluation does not come back to the
    folder of its own results."""
    for on in (*folders, *folders):
        knn(run, on)
    places = sorted(path.parent.parent.name for path in run.rglob(record.NAME))
    assert places == ["b-images", "images", "random-b-images", "random-images"]
    notes = list[str]()
    checksums = {path.parent.parent.name: result.data.checksums for path, result in record.read_all(run, notes)}
    assert not notes
    assert checksums["images"] != checksums["b-images"]


def test_a_place_of_other_results_is_refused(run: Path, folders: list[Path], tmp_path: Path) -> None:
    """Breaks if --out lets the result on one data set be replaced by that on another (73)."""
    knn(run, folders[0], out=tmp_path / "results")
    before = (tmp_path / "results" / "knn" / record.NAME).read_bytes()
    with pytest.raises(OutputBusy, match="another data set"):
        knn(run, folders[1], out=tmp_path / "results")
    assert (tmp_path / "results" / "knn" / record.NAME).read_bytes() == before
    knn(run, folders[0], out=tmp_path / "results")


@pytest.mark.parametrize("name", ["evaluations", "evaluations/images", "evaluations/images/knn"])
def test_no_result_goes_through_a_link_inside_the_run(
    name: str, run: Path, folders: list[Path], tmp_path: Path
) -> None:
    """Breaks if a link that somebody prepared in a run leads results to another place; that of the user may."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (run / name).parent.mkdir(parents=True, exist_ok=True)
    (run / name).symlink_to(elsewhere)
    with pytest.raises(DiskError, match="is a link"):
        knn(run, folders[0])
    assert not list(elsewhere.iterdir())
    (run / name).unlink()
    (tmp_path / "link").symlink_to(run)
    knn(tmp_path / "link", folders[0])
    assert (run / "evaluations" / "images" / "knn" / record.NAME).exists()
