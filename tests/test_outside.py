"""Every file that comes from outside, in every state a file can be in: each is answered at once, with its own code."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from byol import checkpoint, data, method, optim
from byol.checkpoint import State, load_encoder, save_encoder
from byol.config import Config, Data, apply
from byol.config_file import read_yaml
from byol.data import parts
from byol.data.dense import masks
from byol.data.folder import folder as open_folder
from byol.data.shards import writing
from byol.data.source import BadImage, read_list
from byol.errors import ByolError
from byol.evals import features
from byol.explore import search
from byol.models import labels, model
from byol.networks import encoder
from byol.report import collect, samples
from byol.report import model as about_model
from byol.run import monitor
from byol.run.files import read_metrics, regular_text
from byol.run.record import read_run
from byol.weights import imports
from tests.conftest import TINY, write_images

pytestmark = pytest.mark.usefixtures("own_cache")
SECONDS = 20
SPARSE = 1 << 38


@pytest.fixture(autouse=True)
def impatient() -> Iterator[None]:
    """A file that is waited for is a failed test, not a test that never ends."""

    def late(*_: object) -> None:
        raise AssertionError(f"no answer within {SECONDS} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def fifo(path: Path) -> None:
    os.mkfifo(path)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def directory(path: Path) -> None:
    path.mkdir()


def vanished(path: Path) -> None:
    """Nothing is left of it."""


def dangling(path: Path) -> None:
    path.symlink_to(path.with_name("nothing there"))


def damaged(path: Path) -> None:
    path.write_bytes(b"\xff\xfe\0garbage\n" * 50)


def sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, SPARSE)


FAULTS: list[Callable[[Path], None]] = [fifo, device, directory, vanished, dangling, damaged, sparse]


class Case(NamedTuple):
    """A file in a folder, what reads it, and the exit codes that are right; 0 stands for going on without it."""

    name: str
    read: Callable[[Path], Any]
    codes: set[int]


def shard_folder(path: Path) -> Path:
    """Four images in shards, around the place of the bad file."""
    writing.shard(write_images(path.parent / "images", 4), path.parent / "shards", 20_000)
    return path.parent / "shards"


def in_shards(name: str) -> Callable[[Path], Any]:
    def read(path: Path) -> None:
        shards = shard_folder(path)
        own = next(shards.glob(name))
        own.unlink()
        if path.is_symlink() or path.exists():
            path.rename(own)
        source = data.open_source(str(shards), Data())
        for index in range(len(source)):
            try:
                source.read(index)
            except BadImage:
                continue

    return read


def tars(path: Path) -> Any:
    return data.open_source(str(path.with_name("*.tar")), Data())


def one_image(path: Path) -> None:
    write_images(path.parent / "images", 3)
    source = open_folder(path.parent / "images")
    own = path.parent / "images" / "class0" / "000.jpg"
    own.unlink()
    if path.is_symlink() or path.exists():
        path.rename(own)
    with pytest.raises(BadImage):
        source.read(0)


def one_checkpoint(path: Path) -> Any:
    return checkpoint.read(path)


MODEL = model.ModelRecord(1, "done", "", "", "", ["a", "b"], False, "logistic", 1.0, "top1")

CASES = [
    Case("config.yaml", read_yaml, {2}),
    Case("exclude.txt", read_list, {2}),
    Case("labelled.txt", lambda path: parts.listed(None, path), {2}),  # type: ignore[arg-type]
    Case("colours.txt", masks.read_colours, {2}),
    Case("a.jpg", one_image, {0}),
    Case("shards.json", in_shards("shards.json"), {0, 65}),
    Case("shards.npz", in_shards("shards.npz"), {0, 65}),
    Case("x.tar", in_shards("*.tar"), {0, 65}),
    Case("a.tar", tars, {2, 65}),
    Case("a.parquet", lambda path: data.open_source(f"hf:{path}", Data()), {2, 65}),
    Case("a.arrow", lambda path: data.open_source(f"hf:{path}", Data()), {2, 65}),
    Case("run.json", lambda path: read_run(path.parent), {74}),
    Case("metrics.jsonl", read_metrics, {0, 74}),
    Case("skipped.txt", lambda path: collect.skipped(path.parent), {0}),
    Case("neighbours.json", lambda path: samples.drawn_neighbours(path.parent, None), {0}),  # type: ignore[arg-type]
    Case("features.npz", lambda path: search.open_space(str(path)), {2, 65}),
    Case("cached.npy", lambda path: features._mapped(path, (3, 4)), {0}),
    Case("labels.csv", labels.read_csv, {2, 65}),
    Case("model.json", lambda path: model.read_record(path.parent), {2, 74}),
    Case("validation.json", lambda path: about_model.read_seen(path.parent, MODEL), {74}),
    Case("head.safetensors", lambda path: model._head(path, 2, 3), {65, 74}),
    Case("encoder.safetensors", imports.load_encoder, {2, 65, 74}),
    Case("own.safetensors", load_encoder, {2, 65, 74}),
    Case("weights.pth", imports.load_encoder, {2, 65, 74}),
    Case("step-000000001.0123456789abcdef.safetensors", one_checkpoint, {74}),
]
assert samples.monitor.NEIGHBOURS == monitor.NEIGHBOURS == "neighbours.json"


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_no_file_from_outside_is_waited_for(case: Case, fault: Callable[[Path], None], tmp_path: Path) -> None:
    """Breaks if any reader opens a file by its name alone, reads all of it whatever its size, or lets an error of
    another library through."""
    path = tmp_path / case.name
    fault(path)
    code, sentence = 0, ""
    try:
        case.read(path)
    except ByolError as error:
        code, sentence = error.exit_code, str(error)
    assert code in case.codes, sentence
    assert "\n" not in sentence


def test_sound_files_are_read(tmp_path: Path) -> None:
    """Breaks if the opener refuses what it should read: the matrix above would not notice."""
    (tmp_path / "list").write_text("a.png\tits reason\nb\\\\c.png\r\n")
    assert read_list(tmp_path / "list") == ["a.png", "b\\\\c.png"]
    (tmp_path / "link").symlink_to(tmp_path / "list")
    assert regular_text(tmp_path / "link").startswith("a.png")
    np.savez(tmp_path / "f.npz", features=np.eye(3, dtype=np.float32), names=np.array(["a", "b", "c"]))
    assert search.open_space(str(tmp_path / "f.npz")).names == ["a", "b", "c"]
    config = apply(Config(), TINY)
    save_encoder(tmp_path / "e.safetensors", encoder(config.network), config, {"step": 1})
    assert load_encoder(tmp_path / "e.safetensors")
    model = method.build(config.network, 0, config.objective)
    (tmp_path / "checkpoints").mkdir()
    assert checkpoint.read(
        checkpoint.save(tmp_path / "checkpoints", State(model, optim.build(model, config.optim), 3), 1)
    )


@pytest.mark.parametrize("value", [40_000, 10**9, 10**30, 1e300, float("inf"), float("nan"), -1, "9" * 5000, None])
def test_an_encoder_that_asks_for_too_much_is_refused(tmp_path: Path, value: Any) -> None:
    """Breaks if the resolution of a file's header has no bound: memory for the crops would be taken before anything
    is looked at."""
    import json

    from safetensors.torch import load_file, save_file

    config = apply(Config(), TINY)
    file = tmp_path / "e.safetensors"
    save_encoder(file, encoder(config.network), config, {"step": 1})
    header = checkpoint.encoder_header(file) | {"resolution": value}
    save_file(load_file(file), file, {"byol": json.dumps(header)})
    with pytest.raises(ByolError) as caught:
        imports.open_weights(file)
    assert caught.value.exit_code == 74
