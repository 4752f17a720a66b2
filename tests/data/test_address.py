"""What DATA means, by its text alone: each kind of data in its own grammar, and nothing is loaded too early."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from byol import data
from byol.config import Data
from byol.data.address import KINDS, parse
from byol.errors import UsageError
from tests.conftest import write_images


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("scenes", ("scenes", "", "")),
        ("scenes:500", ("scenes", "500", "")),
        ("torchvision:CIFAR10", ("torchvision", "CIFAR10", "")),
        ("torchvision:STL10:train+unlabeled", ("torchvision", "STL10", "train+unlabeled")),
        ("hf:someone/flowers@big:train[:10%]", ("hf", "someone/flowers@big", "train[:10%]")),
        ("hf:s3://bucket/a.parquet", ("hf", "s3://bucket/a.parquet", "")),
        ("pets", ("benchmark", "pets", "")),
        ("s3://bucket/folder", ("shards", "s3://bucket/folder", "")),
        ("file:///data/a%20b", ("folder", "/data/a b", "")),
        ("a-{000..009}.tar", ("shards", "a-{000..009}.tar", "")),
        ("a/b.tar", ("shards", "a/b.tar", "")),
        ("images", ("folder", "images", "")),
        ("scenery", ("folder", "scenery", "")),
        ("shards", ("folder", "shards", "")),
        ("C:images", ("folder", "C:images", "")),
    ],
)
def test_each_kind_by_its_text(text: str, expected: tuple[str, str, str]) -> None:
    """Breaks if a folder whose name begins like a kind is taken for it, or the colon of a URL for that of a split."""
    address = parse(text, "datasets")
    assert (address.kind, address.place, address.split) == expected
    assert address.text == text


def test_a_folder_wins_over_a_benchmark_unless_it_is_the_benchmark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Breaks if ./pets of somebody is read as Oxford's, or ./dtd below the root as a plain folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dtd").mkdir()
    assert parse("dtd", "datasets").kind == "folder"
    assert parse("dtd", ".").kind == "benchmark"
    assert parse("./dtd", ".").kind == "folder"


def test_a_missing_folder_is_refused_with_the_nearest_name() -> None:
    """Breaks if a slip in the name of a benchmark is answered without it, or other kinds are refused by their text."""
    with pytest.raises(UsageError, match=r"There is no folder flower102 .*flowers102"):
        parse("flower102", "datasets").check()
    for text in ("scenes:3", "torchvision:X", "hf:x", "pets", "a-*.tar"):
        parse(text, "datasets").check()


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_offers_what_a_kind_must(kind: str) -> None:
    """Breaks if a line of KINDS names a module that is not there or lacks one of the two functions."""
    module = importlib.import_module(KINDS[kind])
    assert callable(module.open_source)
    assert callable(module.parts)


def test_nothing_is_loaded_before_it_is_asked_for() -> None:
    """Breaks if parsing a command loads torch, or opening one kind of data loads another."""
    script = (
        "import sys; from byol.data.address import parse; parse('pets', 'datasets')\n"
        "assert not {'torch', 'numpy'} & set(sys.modules)\n"
        "from byol import data; from byol.config import Data; data.open_source('scenes:3', Data())\n"
        "kinds = ('huggingface', 'benchmarks.sets', 'torchvision_sets', 'folder', 'shards')\n"
        "print([k for k in kinds if f'byol.data.{k}' in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.stdout == "[]\n", done.stderr


def test_a_named_split_is_all_there_is(tmp_path: Path) -> None:
    """Breaks if a split that is asked for by name is both trained and tested on."""
    for text in ("torchvision:SVHN:train", "hf:someone/flowers:train"):
        address = parse(text, str(tmp_path))
        assert importlib.import_module(KINDS[address.kind]).parts(address) == set()


def test_parts_of_scenes_and_folders(tmp_path: Path) -> None:
    """Breaks if the test part of COUNT scenes is not a fifth of it, or a folder in parts is opened whole."""
    assert [len(data.open_source("scenes:50", Data(), split)) for split in ("train", "test")] == [50, 10]
    for part, count in (("train", 6), ("test", 4)):
        write_images(tmp_path / part, count)
    assert [len(data.open_source(str(tmp_path), Data(), split)) for split in ("train", "test")] == [6, 4]


@pytest.mark.parametrize("prefix", ["", "hf:"])
@pytest.mark.parametrize(
    "url",
    [
        *("ftp://host/a.tar", "sftp://host/a", "simplecache::ftp://host/a.tar", "filecache::s3://bucket/a.tar"),
        *("zip://a.png::http://host/a.zip", "http://host/a.tar::s3://b", "https://host/?u=ftp://other/a.tar"),
        *("local:///etc", "github://org:repo@/a.tar", "reference://x", "ssh://host/a", "HTTP://host/a", "://x"),
    ],
)
def test_only_a_short_list_of_urls_is_opened(prefix: str, url: str) -> None:
    """Breaks if a URL reaches fsspec that starts another protocol, unpacks an archive or leads on to another URL."""
    with pytest.raises(UsageError, match="is not opened"):
        parse(prefix + url, "datasets")
