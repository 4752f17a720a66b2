"""Small data and the smallest whole config, shared by the tests of runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from byol.data.shards import writing
from byol.run.machine import bf16_survives
from tests import brief, guarantees  # noqa: F401
from tests.zygote import Zygote

bf16_survives()  # what a convolution may not use is heard only before the first one of a process

TINY = {
    "data.resolution": 32,
    "data.holdout": 0.0,
    "network.encoder": "resnet18",
    "network.width": 0.05,
    "network.small_images": True,
    "network.projector_hidden": 16,
    "network.predictor_hidden": 16,
    "network.projection": 8,
    "optim.optimizer": "lars",
    "optim.batch": 8,
    "optim.epochs": 2,
    "optim.warmup_epochs": 0.5,
    "optim.lr": 0.4,
    "optim.predictor_lr": 10.0,
    "optim.trust_coefficient": 0.005,
    "optim.tau": 0.97,
    "run.precision": "float32",
    "run.monitor_images": 16,
    "run.log_every": 1,
    "run.threads": 1,
}

# BYOL alone, where the preset cifar10-cpu begins as SimCLR.
ALONE = {"objective.name": "byol", "objective.fade": 0.0, "network.zero_init_last": False, "optim.tau": 0.98}


@pytest.fixture
def tiny() -> dict[str, object]:
    """Overrides of a run that takes a second."""
    return dict(TINY)


def write_images(root: Path, count: int, classes: int = 2, sides: tuple[int, ...] = (40, 48)) -> Path:
    """JPEG files of smooth colours in class folders, of varying size."""
    random = np.random.default_rng(0)
    for index in range(count):
        folder = root / f"class{index % classes}"
        folder.mkdir(parents=True, exist_ok=True)
        height, width = sides[index % len(sides)], sides[(index // 2) % len(sides)]
        coarse = random.integers(0, 255, (4, 4, 3), dtype=np.uint8)
        Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC).save(folder / f"{index:03d}.jpg")
    return root


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """24 JPEG images of two classes."""
    return write_images(tmp_path / "images", 24)


@pytest.fixture(scope="session")
def zygote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zygote]:
    """Commands that begin at once."""
    found = Zygote(tmp_path_factory.mktemp("zygote"))
    yield found
    found.close()


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Small tensors: on a busy machine, waiting for a second thread takes longer than the work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def recorded() -> dict[str, torch.Tensor]:
    """An image, and what the augmentations of the reference code make of it: (1, 3, H, W) each."""
    file = Path(__file__).parent / "fixtures" / "parity" / "augment_ops.npz"
    with np.load(file, allow_pickle=False) as arrays:
        return {name: torch.from_numpy(arrays[name]).permute(2, 0, 1)[None].contiguous() for name in arrays}


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing is kept in the user's cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def shards(folder: Path, tmp_path: Path) -> Path:
    """The 24 images of `folder` in six shards or so, of four each."""
    writing.shard(folder, tmp_path / "shards", 20_000)
    assert len(list((tmp_path / "shards").glob("*.tar"))) >= 5
    return tmp_path / "shards"


# Begun first, so that at the end of a run no process waits for another's long file.
LONGEST = [
    *("test_docs", "parallel/test_processes", "chaos/test_kill", "run/test_signals", "run/test_collapse"),
    *("chaos/test_matrix", "test_walk", "tables/test_jobs", "chaos/test_fuzz", "chaos/test_faults", "chaos/test_many"),
    *("report/test_page", "data/test_zoo", "test_properties", "weights/test_untrusted"),
]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The order of the files; tests of a file stay together, because they share what the file has made."""
    rank = {Path(__file__).parent / f"{name}.py": place for place, name in enumerate(LONGEST)}
    assert all(path.exists() for path in rank)
    items.sort(key=lambda item: rank.get(item.path, len(rank)))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The last lines of a run say how many of the guarantees it exercised, and why not the others."""
    outcomes: dict[str, set[str]] = {}
    reasons: dict[str, str] = {}
    for outcome, heading in (("passed", "passed"), ("failed", "failed"), ("failed", "error"), ("skipped", "skipped")):
        for report in terminalreporter.stats.get(heading, []):
            test = report.nodeid.split("[")[0]
            outcomes.setdefault(test, set()).add(outcome)
            if outcome == "skipped":
                reasons[test] = report.longrepr[2].removeprefix("Skipped: ")
    if len(outcomes) > 100:  # the whole suite, or much of it
        terminalreporter.section("guarantees (docs/guarantees.md)")
        terminalreporter.write_line("\n".join(guarantees.summary(outcomes, reasons)))
