"""Parquet, Arrow and the hub: the same images as from the folder they were made of; columns by type or by name."""

from __future__ import annotations

import io
import json
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from byol import data
from byol.config import Data
from byol.data import arrow_files, huggingface
from byol.data.address import parse
from byol.data.folder import folder as open_folder
from byol.data.source import BadImage, Source
from byol.errors import BadData, UsageError

arrow = pytest.importorskip("pyarrow", reason="needs pyarrow, of the extra hf")
parquet = pytest.importorskip("pyarrow.parquet", reason="needs pyarrow, of the extra hf")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing is kept in the user's cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def table(folder: Path, told: bool = True, nested: bool = True) -> Any:
    """The images of a folder as the hub stores them: bytes and path, a class number, and what the columns are."""
    source, files = open_folder(folder), sorted(folder.rglob("*.jpg"))
    assert source.labels is not None
    content = [path.read_bytes() for path in files]
    images = [{"bytes": c, "path": p.name} for c, p in zip(content, files, strict=True)] if nested else content
    found = arrow.table({"image": images, "label": source.labels})
    features = {"image": {"_type": "Image"}, "label": {"_type": "ClassLabel", "names": list(source.classes)}}
    facts = {b"huggingface": json.dumps({"info": {"features": features}}).encode()}
    return found.replace_schema_metadata(facts) if told else found


def same_images(one: Source, other: Source, classes: bool = True) -> None:
    assert len(one) == len(other)
    assert all(torch.equal(one.read(i), other.read(i)) for i in range(len(one)))
    assert np.array_equal(one.labels, other.labels)  # type: ignore[arg-type]
    assert one.classes == other.classes or not classes


@pytest.mark.parametrize(("told", "nested"), [(True, True), (False, True), (False, False)])
def test_parquet_equals_the_folder(folder: Path, tmp_path: Path, told: bool, nested: bool) -> None:
    """Breaks if a row group is mixed up with another, or a column is not recognised by its type."""
    found = table(folder, told, nested)
    parquet.write_table(found.slice(0, 11), tmp_path / "d-0.parquet", row_group_size=4, compression="zstd")
    parquet.write_table(found.slice(11), tmp_path / "d-1.parquet", row_group_size=5)
    source = data.open_source(f"hf:{tmp_path}/d-*.parquet", Data())
    same_images(open_folder(folder), source, classes=told)
    assert [source.describe(i) for i in (0, 10, 11)] == ["d-0.parquet row 0", "d-0.parquet row 10", "d-1.parquet row 0"]


def test_parquet_is_copied_once(folder: Path, tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks if every run unpacks the files again, or a changed file goes unnoticed."""
    path = tmp_path / "a.parquet"
    parquet.write_table(table(folder), path)
    data.open_source(f"hf:{path}", Data())
    with monkeypatch.context() as patch:
        patch.setattr(arrow_files, "_unpack", None)
        assert data.open_source(f"hf:{path}", Data()).read(3).shape[0] == 3
    parquet.write_table(table(folder).slice(4), path)
    assert len(data.open_source(f"hf:{path}", Data())) == 20
    copies = own_cache / "byol" / "shards" / "unpacked"
    assert len(list(copies.glob("*.arrow"))) == 2
    assert not list(copies.glob("*.tmp"))


@pytest.mark.parametrize("kind", ["stream", "file"])
def test_arrow_is_read_in_place(folder: Path, tmp_path: Path, own_cache: Path, kind: str) -> None:
    """Breaks if one of Arrow's two formats is not read, or a copy is made for nothing."""
    found = table(folder)
    path = tmp_path / "data-00000-of-00001.arrow"
    make: Callable[..., Any] = arrow.ipc.new_stream if kind == "stream" else arrow.ipc.new_file
    with make(str(path), found.schema) as writer:
        writer.write_table(found, max_chunksize=7)
    same_images(open_folder(folder), data.open_source(f"hf:{path}", Data()))
    assert not own_cache.exists()


def test_a_truncated_or_damaged_arrow_file_is_refused(folder: Path, tmp_path: Path) -> None:
    """Breaks if an offset that leads out of the file is followed, which ends the process instead of the command."""
    found = table(folder)
    path = tmp_path / "a.arrow"
    with arrow.ipc.new_stream(str(path), found.schema) as writer:
        writer.write_table(found)
    content = path.read_bytes()
    column = found["image"].chunk(0).field("bytes")
    offsets = column.buffers()[1].to_pybytes()
    place = content.index(offsets[:40])
    wild = content[: place + 8] + (2**31 - 1).to_bytes(4, "little") + content[place + 12 :]
    for damaged in (wild, content[: len(content) // 2], b"", b"arrow"):
        (tmp_path / "b.arrow").write_bytes(damaged)
        arrow_files._table.cache_clear()
        with pytest.raises(BadData, match=r"b\.arrow cannot be read"):
            data.open_source(f"hf:{tmp_path / 'b.arrow'}", Data())


def test_a_saved_data_set_of_the_library(folder: Path, tmp_path: Path) -> None:
    """Breaks if what `datasets` itself writes is not understood: save_to_disk, and its parts as folders."""
    datasets = pytest.importorskip("datasets", reason="needs datasets, of the extra hf")
    files = sorted(folder.rglob("*.jpg"))
    features = datasets.Features({"img": datasets.Image(), "y": datasets.ClassLabel(names=["class0", "class1"])})
    rows = {"img": [{"bytes": p.read_bytes(), "path": None} for p in files], "y": open_folder(folder).labels}
    whole = datasets.Dataset.from_dict(rows, features=features)
    whole.save_to_disk(tmp_path / "one")
    same_images(open_folder(folder), data.open_source(f"hf:{tmp_path / 'one'}", Data()))
    parts = datasets.DatasetDict({"train": whole, "test": whole.select(range(4))})
    parts.save_to_disk(tmp_path / "two")
    assert len(data.open_source(f"hf:{tmp_path / 'two'}", Data())) == 24
    assert len(data.open_source(f"hf:{tmp_path / 'two'}:test", Data())) == 4
    assert len(data.open_task(f"hf:{tmp_path / 'two'}", Data()).test.open()) == 4


def test_names_of_the_hub(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks if name, variant and part do not reach the library, or a part that is not there is guessed."""
    datasets = pytest.importorskip("datasets", reason="needs datasets, of the extra hf")
    files = sorted(folder.rglob("*.jpg"))
    rows = {"image": [str(p) for p in files], "label": open_folder(folder).labels}
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["class0", "class1"])})
    asked = []

    def load(name: str, variant: str | None, split: str) -> Any:
        asked.append((name, variant, split))
        return datasets.Dataset.from_dict(rows, features=features)

    monkeypatch.setattr(datasets, "load_dataset", load)
    monkeypatch.setattr(datasets, "get_dataset_split_names", lambda name, variant: ["train", "validation"])
    same_images(open_folder(folder), data.open_source("hf:someone/flowers", Data()))
    data.open_source("hf:someone/flowers@big:train[:10%]", Data())
    assert len(data.open_task("hf:flowers", Data()).test.open()) == 24
    assert asked[:2] == [("someone/flowers", None, "train"), ("someone/flowers", "big", "train[:10%]")]
    assert asked[-1] == ("flowers", None, "validation")

    def offline(*_: object, **__: object) -> Any:
        raise ConnectionError("no network")

    monkeypatch.setattr(datasets, "load_dataset", offline)
    with pytest.raises(UsageError, match=r"offline\? \(no network\)"):
        data.open_source("hf:someone/flowers:train", Data())


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("hf:beans", ("beans", "", True)),
        ("hf:beans:train", ("beans", "train", True)),
        ("hf:s3://bucket/a.parquet", ("s3://bucket/a.parquet", "", False)),
        ("hf:s3://bucket/a:test", ("s3://bucket/a", "test", False)),
        ("hf:/data/x-{0..3}.parquet:val", ("/data/x-{0..3}.parquet", "val", False)),
        ("hf:a/b@c:train[:10%]", ("a/b@c", "train[:10%]", True)),
        ("hf:file:///data/a", ("/data/a", "", False)),
    ],
)
def test_names_and_paths(spec: str, expected: tuple[str, str, bool]) -> None:
    """Breaks if the colon of a URL or of a part is taken for the other, or a path for a name of the hub."""
    address = parse(spec, "datasets")
    assert (address.place, address.split, huggingface.on_hub(address)) == expected


def test_columns_and_mistakes(folder: Path, tmp_path: Path) -> None:
    """Breaks if a column that was asked for is ignored, a guess is made between two, or a mistake is a traceback."""
    found = table(folder, told=False)
    two = found.append_column("other", found["image"]).rename_columns(["left", "label", "right"])
    path = tmp_path / "train.parquet"
    parquet.write_table(two.append_column("name", arrow.array(["b", "a"] * 12)), path)
    with pytest.raises(UsageError, match=r"choose one with --data\.image_column\. Valid: left, right"):
        data.open_source(f"hf:{path}", Data())
    source = data.open_source(f"hf:{path}", Data(image_column="left", label_column="name"))
    assert source.classes == ("a", "b")
    assert source.labels is not None
    assert source.labels.tolist() == [1, 0] * 12
    assert data.open_source(f"hf:{path}", Data(image_column="left", label_column="none")).labels is None
    for spec, text in (
        (f"hf:{path}:test", "has 'test' in its name"),
        (f"hf:{tmp_path}/nothing", "no Parquet or Arrow files"),
        ("hf:", "needs a name"),
    ):
        with pytest.raises(UsageError, match=text):
            data.open_source(spec, Data(image_column="left"))
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(BadData, match=r"train\.parquet cannot be read"):
        data.open_source(f"hf:{path}", Data())


def test_damaged_groups_and_empty_rows_cost_their_images(folder: Path, tmp_path: Path) -> None:
    """Breaks if a flipped bit in a row group ends the run, or moves the rows after it."""
    found = table(folder)
    rows = found["image"].to_pylist()
    rows[20] = {"bytes": None, "path": "/etc/passwd"}
    found = found.set_column(0, "image", arrow.array(rows))
    path = tmp_path / "a.parquet"
    parquet.write_table(found, path, row_group_size=6, use_dictionary=False, write_page_checksum=True)
    column = parquet.ParquetFile(path).metadata.row_group(1).column(0)
    content = bytearray(path.read_bytes())
    content[column.data_page_offset + column.total_compressed_size - 50] ^= 1
    path.write_bytes(content)
    source = data.open_source(f"hf:{path}", Data())
    bad = []
    for i in range(24):
        try:
            assert torch.equal(source.read(i), open_folder(folder).read(i))
        except BadImage:
            bad.append(i)
    assert bad == [6, 7, 8, 9, 10, 11, 20]


def test_numbers_of_text_and_missing_classes() -> None:
    """Breaks if a missing class becomes a class."""
    from byol.data.columns import numbered

    assert numbered([1, None], ("a", "b")) == (None, ())
    assert numbered([1, -1], ("a", "b")) == (None, ())
    labels, classes = numbered([2, 0], ("a",))
    assert labels is not None
    assert (labels.tolist(), classes) == ([2, 0], ("0", "1", "2"))


def test_nothing_but_images_is_in_the_copy(tmp_path: Path, own_cache: Path) -> None:
    """Breaks if the copy's bytes are not those of the rows, or other columns are copied with them."""
    from PIL import Image

    content = io.BytesIO()
    Image.new("RGB", (8, 8), "red").save(content, "PNG")
    rows = {"image": [content.getvalue()], "caption": [b"not an image"]}
    parquet.write_table(arrow.table(rows), tmp_path / "a.parquet")
    source = data.open_source(f"hf:{tmp_path / 'a.parquet'}", Data())
    assert source.labels is None
    copy = next(own_cache.rglob("*.arrow")).read_bytes()
    assert content.getvalue() in copy
    assert b"not an image" not in copy


def test_a_hub_that_does_not_answer_is_known_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks if a machine without a network waits for the library's tries, which take half a minute."""
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert huggingface._answers(f"http://127.0.0.1:{port}")
    begun = time.monotonic()
    assert not huggingface._answers(f"http://127.0.0.1:{port}/")
    assert not huggingface._answers("https://no.such.host.invalid")
    assert time.monotonic() - begun < 2 * huggingface.PATIENCE + 1
