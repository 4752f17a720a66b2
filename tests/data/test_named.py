"""torchvision's data sets by name: built from what is on disk, downloaded else, and one sentence when neither works."""

from __future__ import annotations

import pickle
import socket
import struct
import sys
import time
from pathlib import Path
from typing import Any
from urllib.error import URLError

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import datasets

from byol import data
from byol.config import Data
from byol.data.source import BadImage, Source
from byol.errors import DiskError, UsageError


def torchvision_source(spec: str, root: Path) -> Source:
    return data.open_source(spec, Data(root=str(root)))


def write_mnist(root: Path, name: str = "MNIST") -> dict[str, np.ndarray]:
    """The four files of MNIST with 7 and 4 images, in the idx format of its home page."""
    raw = root / name / "raw"
    raw.mkdir(parents=True)
    rng, images = np.random.default_rng(0), {}
    for part, count in [("train", 7), ("t10k", 4)]:
        images[part] = rng.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        labels = np.arange(count, dtype=np.uint8)[::-1]
        (raw / f"{part}-images-idx3-ubyte").write_bytes(
            struct.pack(">4I", 2051, count, 28, 28) + images[part].tobytes()
        )
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">2I", 2049, count) + labels.tobytes())
    return images


def write_stl10(root: Path) -> np.ndarray:
    base = root / "stl10_binary"
    base.mkdir(parents=True)
    images = np.random.default_rng(1).integers(0, 256, (3, 3, 96, 96), dtype=np.uint8)
    for part in ("train", "test", "unlabeled"):
        # Column by column, as the set's home page says.
        (base / f"{part}_X.bin").write_bytes(images.transpose(0, 1, 3, 2).tobytes())
        (base / f"{part}_y.bin").write_bytes(bytes([2, 10, 1]))
    (base / "class_names.txt").write_text("\n".join(f"kind{i}" for i in range(10)) + "\n")
    return images


def no_network(*_: object, **__: object) -> None:
    raise URLError("Name or service not known")


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("urllib.request.urlopen", no_network)


@pytest.mark.parametrize(("spec", "part"), [("mnist", "train"), ("MNIST:train", "train"), ("MNIST:test", "t10k")])
def test_set_with_a_train_flag(tmp_path: Path, spec: str, part: str) -> None:
    images = write_mnist(tmp_path)[part]
    source = torchvision_source(f"torchvision:{spec}", tmp_path)
    assert len(source) == len(images)
    for i, image in enumerate(images):
        assert (source.read(i).numpy() == image).all()
        assert source.read(i).shape == (3, 28, 28)
    assert source.labels is not None
    assert source.labels.dtype == np.int64
    assert source.labels.tolist() == list(range(len(images)))[::-1]
    assert source.classes[3] == "3 - three"
    assert source.describe(2) == f"{source.name} image 2"
    assert source.name.startswith("torchvision:MNIST")
    for outside in (-1, len(images)):
        with pytest.raises(IndexError):
            source.read(outside)


def test_set_with_named_splits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = write_stl10(tmp_path)
    monkeypatch.setattr(datasets.STL10, "_check_integrity", lambda self: True)  # of the 2.5 GB original
    for spec in ("STL10", "stl10:test"):
        source = torchvision_source(f"torchvision:{spec}", tmp_path)
        assert (source.read(1).numpy() == images[1]).all()
        assert source.labels is not None
        assert source.labels.tolist() == [1, 9, 0]
        assert source.classes[9] == "kind9"
    unlabelled = torchvision_source("torchvision:STL10:unlabeled", tmp_path)
    assert len(unlabelled) == 3
    assert unlabelled.labels is None
    assert unlabelled.classes == ()


def test_set_without_splits(tmp_path: Path) -> None:
    for name in ("Forest/a.png", "River/b.png", "River/c.png"):
        path = tmp_path / "eurosat" / "2750" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 6), (ord(path.stem), 0, 0)).save(path)
    source = torchvision_source("torchvision:EuroSAT", tmp_path)
    assert source.classes == ("Forest", "River")
    assert source.labels is not None
    assert source.labels.tolist() == [0, 1, 1]
    assert [int(source.read(i)[0, 0, 0]) for i in range(3)] == [ord(c) for c in "abc"]
    (tmp_path / "eurosat" / "2750" / "River" / "c.png").write_bytes(b"gone bad")
    with pytest.raises(BadImage, match="cannot identify image file"):
        source.read(2)
    with pytest.raises(UsageError, match=r"EuroSAT of torchvision has no splits; leave out ':test'\."):
        torchvision_source("torchvision:EuroSAT:test", tmp_path)


def test_generated_set_needs_no_files(tmp_path: Path) -> None:
    source = torchvision_source("torchvision:fakedata", tmp_path / "never made")
    expected, _ = datasets.FakeData()[5]
    assert len(source) == 1000
    assert (source.read(5).permute(1, 2, 0).numpy() == np.asarray(expected)).all()
    assert source.labels is None
    assert not (tmp_path / "never made").exists()


def test_labels_are_found_without_decoding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_mnist(tmp_path)

    def decoded(*_: object) -> None:
        raise AssertionError("an image was decoded")

    monkeypatch.setattr(datasets.MNIST, "__getitem__", decoded)
    assert torchvision_source("torchvision:MNIST", tmp_path).labels is not None


def test_pickled_source_reads_the_same(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    source = torchvision_source("torchvision:MNIST", tmp_path)
    copy = pickle.loads(pickle.dumps(source))  # noqa: S301
    assert (copy.read(3) == source.read(3)).all()


class Items(datasets.VisionDataset):  # type: ignore[misc]
    """A set whose items and labels a test chooses."""

    items: tuple[Any, ...] = ()
    targets: Any = None

    def __init__(self, root: str) -> None:
        super().__init__(root)

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        return self.items[index]


@pytest.fixture
def items(monkeypatch: pytest.MonkeyPatch) -> type[Items]:
    kind = type("Items", (Items,), {})
    monkeypatch.setattr(datasets, "Items", kind, raising=False)
    monkeypatch.setattr(datasets, "__all__", (*datasets.__all__, "Items"))
    return kind


@pytest.mark.parametrize(
    "item",
    [
        torch.tensor([[0, 51], [102, 255]], dtype=torch.uint8),
        torch.tensor([[[0, 51], [102, 255]]], dtype=torch.uint8),
        torch.tensor([[0, 0.2], [0.4, 1]]).expand(3, 2, 2),
        torch.tensor([[0.0, 51], [102, 255]]),
        torch.tensor([[-5, 51], [102, 300]], dtype=torch.int64),
        np.array([[0, 51], [102, 255]], np.uint8),
        np.array([[0, 51], [102, 255]], np.uint8)[..., None].repeat(3, -1),
        Image.fromarray(np.array([[0, 51], [102, 255]], np.uint8)),
        (Image.fromarray(np.array([[0, 51], [102, 255]], np.uint8)), 7, "more"),
    ],
)
def test_kinds_of_items(items: Any, item: object, tmp_path: Path) -> None:
    items.items = (item,)
    image = torchvision_source("torchvision:Items", tmp_path).read(0)
    assert image.dtype == torch.uint8
    assert image.is_contiguous()
    assert image.tolist() == [[[0, 51], [102, 255]]] * 3


@pytest.mark.parametrize("item", ["words", torch.zeros(4, 3, 5, 5), torch.zeros(7, 5, 5), torch.zeros(3, 0, 5), None])
def test_items_that_are_no_images(items: Any, item: object, tmp_path: Path) -> None:
    items.items = (item,)
    with pytest.raises(BadImage, match="not an image but"):
        torchvision_source("torchvision:Items", tmp_path).read(0)


@pytest.mark.parametrize(
    ("targets", "expected"),
    [
        ([2, 0], [2, 0]),
        ((2, 0), [2, 0]),
        (np.array([2, 0], np.uint8), [2, 0]),
        (torch.tensor([2, 0]), [2, 0]),
        ([2, 0, 1], None),
        ([-1, 0], None),
        ([0.5, 1.0], None),
        ([[0, 1], [1, 0]], None),
        ([[0], [1, 0]], None),
        (["a.xml", "b.xml"], None),
        ([None, None], None),
        (None, None),
    ],
)
def test_only_plain_class_numbers_are_labels(items: Any, targets: object, expected: object, tmp_path: Path) -> None:
    items.items, items.targets = (None, None), targets
    labels = torchvision_source("torchvision:Items", tmp_path).labels
    assert (None if labels is None else labels.tolist()) == expected


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("cifr10", r"^torchvision has no data set 'cifr10'\. Did you mean CIFAR10 or CIFAR100"),
        ("qqqqqqqq", r"^torchvision has no data set 'qqqqqqqq'\. Valid: .*CIFAR10"),
        ("", r"^torchvision has no data set ''\."),
        ("VisionDataset", r"^torchvision has no data set 'VisionDataset'"),
        ("CIFAR10:tset", r"^CIFAR10 of torchvision has no split 'tset'\. Did you mean test\?$"),
        (
            "SVHN:validation",
            r"^torchvision refused SVHN: Unknown value 'validation' for argument split.*extra",
        ),
        ("EMNIST", r"^EMNIST of torchvision needs a split: write torchvision:EMNIST:SPLIT\.$"),
        ("CocoCaptions", r"^CocoCaptions of torchvision cannot be used by name alone: it needs annFile\.$"),
        ("FER2013", r"^FER2013 was not found in .*sets and torchvision cannot download it \(train\.csv"),
    ],
)
def test_mistakes_are_one_sentence(spec: str, sentence: str, tmp_path: Path, offline: None) -> None:
    with pytest.raises(UsageError, match=sentence) as caught:
        torchvision_source(f"torchvision:{spec}", tmp_path / "sets")
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["CIFAR10", "MNIST", "SVHN", "EuroSAT", "EMNIST:letters", "QMNIST"])
def test_failed_download_is_quick_and_plain(name: str, tmp_path: Path, offline: None) -> None:
    started, before = time.perf_counter(), socket.getdefaulttimeout()
    with pytest.raises(UsageError, match=r"was not found in .*sets and could not be downloaded; is this .* offline"):
        torchvision_source(f"torchvision:{name}", tmp_path / "sets")
    assert time.perf_counter() - started < 5
    assert socket.getdefaulttimeout() == before


def test_download_is_tried_second_and_with_a_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def download(self: Any) -> None:
        calls.append(socket.getdefaulttimeout())
        write_mnist(Path(self.root))

    monkeypatch.setattr(datasets.MNIST, "download", download)
    assert len(torchvision_source("torchvision:MNIST:test", tmp_path)) == 4
    assert len(torchvision_source("torchvision:MNIST:test", tmp_path)) == 4
    assert len(calls) == 1
    assert calls[0] is not None


def test_full_disk_is_a_disk_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def download(self: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(datasets.MNIST, "download", download)
    with pytest.raises(DiskError, match=r"MNIST could not be downloaded to .*No space left on device") as caught:
        torchvision_source("torchvision:MNIST", tmp_path)
    assert caught.value.exit_code == 74


def test_missing_packages_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def needy(*_: Any, **__: Any) -> None:
        raise ImportError("No module named 'other'")

    monkeypatch.setattr(datasets.FakeData, "__init__", needy)
    with pytest.raises(UsageError, match=r"FakeData of torchvision needs another package: .*other"):
        torchvision_source("torchvision:FakeData", tmp_path)
    monkeypatch.setitem(sys.modules, "torchvision", None)
    with pytest.raises(UsageError, match="need the package torchvision"):
        torchvision_source("torchvision:MNIST", tmp_path)
