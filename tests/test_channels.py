"""Images of any number of channels and any depth: what reaches the network, which bits stay, and every verb on them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
import torch
from torch import Tensor, nn

from byol import crops, data, method, networks, pretraining, views
from byol.config import Config, View, Views, apply, resolve
from byol.data import loader, values
from byol.data.shards.writing import shard
from byol.data.stored import fitted
from byol.errors import BadData, Interrupted, UsageError
from byol.evals import evaluation, features
from byol.evals.spec import Segmentation
from byol.explore import search
from byol.models.fit import fit
from byol.models.model import load_model
from byol.pretraining import pretrain
from byol.report.build import report
from byol.run import signals
from byol.run.machine import choose, represent
from byol.weights.exports import export
from byol.weights.imports import load_encoder
from tests.test_pretraining import digest

pytestmark = pytest.mark.usefixtures("one_thread")

# Views of fixed 8-bit images, recorded before images could be anything else, with the processor's instructions and the
# version of torch on which their bits depend.
RECORDED_WITH = ("AVX512", "2.15")
RECORDED = {
    ("byol", "one by one"): "3e379d7e32d6545b6bc89c0024487576a210148ea3d0b3c6ffa144f03d667105",
    ("byol", "at once"): "963161a8a84ccb8dce58376e4fad5d0f8dc5ae9e60bf22dfe0b39f76d9b4b338",
    ("torchvision", "one by one"): "ac6a8e361b5316dbd5f99c3dd23e110ad3013effb5275dd178741ceedc5e17c1",
    ("torchvision", "at once"): "06811865df387a99306f47648bfb7019059a477aaded9dae1bd56712443e2a57",
}
WHOLE = View(area_min=1, ratio_min=1, ratio_max=1, flip=0, jitter=0, grayscale=0, blur=0)


@pytest.mark.parametrize(("arithmetic", "how"), RECORDED)
def test_views_of_8_bit_colours_keep_their_bits(arithmetic: str, how: str) -> None:
    """Breaks if uint8 images are scaled before they are resized, or in any other order than before."""
    here = (torch.backends.cpu.get_cpu_capability(), ".".join(torch.__version__.split(".")[:2]))
    if here != RECORDED_WITH:
        pytest.skip(f"needs {' and torch '.join(RECORDED_WITH)}, on which the views were recorded")
    other = Views(crop="torchvision", colour="torchvision", antialias=True, border="reflect")
    config = Views() if arithmetic == "byol" else other
    random, found = np.random.default_rng(7), hashlib.sha256()
    images: Tensor | list[Tensor]
    if how == "one by one":
        images = []
        for _ in range(12):
            height, width = random.integers(40, 90), random.integers(40, 90)
            images.append(torch.from_numpy(random.integers(0, 256, (3, height, width)).astype(np.uint8)))
    else:
        images = torch.from_numpy(random.integers(0, 256, (12, 3, 48, 56)).astype(np.uint8))
    for draw in views.draw(3, 5, 12, config):
        found.update(views.make(images, draw, config, 32).numpy().tobytes())
    if how == "one by one":
        for image in images:
            found.update(crops.center_crop(image, 32).numpy().tobytes())
            found.update(crops.shrink(image, 24).numpy().tobytes())
    assert found.hexdigest() == RECORDED[arithmetic, how]


KINDS: dict[str, Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]] = {
    "uint8": lambda random, shape: random.integers(0, 256, shape).astype(np.uint8),
    "12 bits in 16": lambda random, shape: random.integers(0, 4096, shape).astype(np.uint16),
    "uint16": lambda random, shape: random.integers(0, 65536, shape).astype(np.uint16),
    "int16": lambda random, shape: random.normal(200, 300, shape).clip(-1024, 3071).astype(np.int16),
    "float32": lambda random, shape: random.gamma(2.0, 3.0, shape).astype(np.float32),
}


def written(folder: Path, kind: str, channels: int, count: int = 4, side: int = 16) -> list[np.ndarray]:
    """Arrays (C, side, side) in .npy files of a folder."""
    random = np.random.default_rng(channels)
    folder.mkdir(exist_ok=True)
    images = [KINDS[kind](random, (channels, side, side)) for _ in range(count)]
    for number, image in enumerate(images):
        np.save(folder / f"{number}.npy", image)
    return images


def settled_of(folder: Path, **asked: Any) -> Config:
    """The config of a run on a folder, at the images' own size and without augmentations."""
    given = {"data.resolution": 16, **asked}
    config = apply(Config(views=Views(t=WHOLE, t_prime=WHOLE)), given)
    return apply(config, values.settle(data.open_stored(str(folder), config.data), config, asked, {}).fields)


def by_hand(images: list[np.ndarray], kind: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What reaches the network, (N, C, side, side), and the mean and deviation it is normalized by: in numpy alone."""
    stored = np.stack(images).astype(np.float64)
    flat = stored.transpose(1, 0, 2, 3).reshape(stored.shape[1], -1)
    low, high = {
        "uint8": lambda: (0.0, 255.0),
        "12 bits in 16": lambda: (0.0, 4095.0),
    }.get(kind, lambda: np.percentile(flat, (0.1, 99.9), axis=1))()
    low, high = (np.broadcast_to(end, len(flat))[None, :, None, None] for end in (low, high))
    unit = np.clip((stored - low) / (high - low), 0, 1)
    pixels = unit.transpose(1, 0, 2, 3).reshape(len(flat), -1)
    return unit, pixels.mean(1), pixels.std(1)


@pytest.mark.parametrize("channels", [1, 2, 4, 13])
@pytest.mark.parametrize("kind", KINDS)
def test_what_reaches_the_network_equals_numpy(tmp_path: Path, kind: str, channels: int) -> None:
    """Breaks if values are rounded to 8 bits, mapped by another range, or normalized by other figures, in training or
    in evaluation."""
    images = written(tmp_path / "images", kind, channels)
    config = settled_of(tmp_path / "images")
    assert (config.data.channels, config.network.channels) == (channels, channels)
    unit, mean, std = by_hand(images, kind)
    np.testing.assert_allclose(config.views.mean, mean, atol=2e-6)
    np.testing.assert_allclose(config.views.std, std, atol=2e-6)
    source = data.open_source(str(tmp_path / "images"), config.data)

    seen: list[Tensor] = []
    network = nn.Flatten()
    network.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0].clone()))
    for chunk in features.centre_crops(source, config.data):
        represent(network, chunk.pixels, config, choose(apply(config, {"run.precision": "float32"})))
    draw, _ = views.draw(0, 0, len(images), config.views)
    scale = crops.scale_of(config.data)
    stored = [source.read(index) for index in range(len(source))]
    alone = views.make(stored, draw, config.views, 16, scale)
    together = views.make(torch.stack(stored), draw, config.views, 16, scale)
    for found in (torch.cat(seen), alone, together):
        shown = found.double().numpy() * np.array(config.views.std)[:, None, None]
        np.testing.assert_allclose(shown + np.array(config.views.mean)[:, None, None], unit, atol=1e-6)


def test_a_narrow_range_far_from_0_is_resized_without_loss(tmp_path: Path) -> None:
    """Breaks if raw values are summed in float32 and mapped afterwards: 30000 to 30100 would lose four digits."""
    random = np.random.default_rng(0)
    stored = (30000 + random.integers(0, 101, (2, 40, 40))).astype(np.uint16)
    scale = crops.Scale((30000.0,), (30100.0,))
    box = (3, 5, 31, 24)
    found = crops.crop_resize_one(torch.from_numpy(stored), box, 16, scale=scale)
    exact = crops.crop_resize(
        torch.from_numpy((stored.astype(np.float64) - 30000) / 100)[None], views.Box(*torch.tensor(box)[:, None]), 16
    )[0]
    np.testing.assert_allclose(found.double(), exact, atol=1e-6)


def test_values_beyond_the_range_are_cut_and_holes_are_0() -> None:
    """Breaks if an outlier or a NaN reaches the sums of its neighbours when an image is resized."""
    image = torch.full((1, 8, 8), 0.5)
    image[0, 3, 3], image[0, 6, 6], image[0, 0, 0] = 1e30, float("nan"), float("-inf")
    found = crops.crop_resize_one(image, (0, 0, 8, 8), 8, scale=crops.Scale((0.0,), (1.0,)))[0]
    assert torch.isfinite(found).all()
    assert (found[3, 3], found[6, 6], found[0, 0], found[5, 1]) == (1.0, 0.0, 0.0, 0.5)


def test_a_range_is_taken_as_it_is_asked_for(tmp_path: Path) -> None:
    """Breaks if dtype, percentiles or given numbers are replaced by what auto would choose."""
    written(tmp_path / "images", "12 bits in 16", 2)
    folder = tmp_path / "images"
    assert settled_of(folder).data.range == "0,4095"
    assert settled_of(folder, **{"data.range": "dtype"}).data.range == "0,65535"
    assert settled_of(folder, **{"data.range": "10,2000;0,100.5"}).data.range == "10,2000;0,100.5"
    told = crops.scale_of(settled_of(folder, **{"data.range": "percentiles"}).data)
    assert told
    assert all(0 < low < 50 for low in told.low)
    with pytest.raises(UsageError, match="3 pairs of numbers, and the images 2 channels"):
        settled_of(folder, **{"data.range": "0,1;0,1;0,1"})
    with pytest.raises(UsageError, match=r"views\.mean has 3 numbers, and the images 2 channels"):
        settled_of(folder, **{"views.mean": [0.5, 0.5, 0.5]})
    with pytest.raises(UsageError, match=r"network\.channels 4 contradicts the images"):
        settled_of(folder, **{"network.channels": 4})


def test_8_bit_colours_leave_the_config_as_it_was(folder: Path) -> None:
    """Breaks if ordinary pictures settle anything: configs, cells of tables and stored runs would change."""
    source = data.open_stored(str(folder), Config().data)
    assert values.settle(source, Config(), {}, {}) == ({}, [])
    grey = settled_of(folder, **{"data.channels": 1})
    assert (grey.network.channels, grey.data.range, len(grey.views.mean)) == (1, "auto", 1)
    asked = settled_of(folder, **{"views.mean": "auto"})
    pixels = np.concatenate([image.numpy().reshape(3, -1) for image in map(source.read, range(len(source)))], 1) / 255
    np.testing.assert_allclose(asked.views.mean, pixels.mean(1), atol=1e-5)
    assert asked.views.std == Config().views.std


@pytest.mark.parametrize(("before", "after"), [(3, 1), (3, 2), (3, 5), (3, 13), (5, 3), (4, 1)])
def test_weights_for_other_channels_keep_the_response_to_grey(before: int, after: int) -> None:
    """Breaks if channels are repeated without K/C, or if the sum is left where the mean belongs."""
    torch.manual_seed(0)
    one, other = (networks.resnet(18, 0.05, small_images=True, channels=c).eval() for c in (before, after))
    other.load_state_dict(method.for_channels(one.state_dict(), other))
    grey = torch.randn(2, 1, 16, 16)
    with torch.no_grad():
        was, found = one(grey.expand(-1, before, -1, -1)), other(grey.expand(-1, after, -1, -1))
    torch.testing.assert_close(found, was, rtol=1e-4, atol=1e-5)
    assert torch.equal(one.layer1[0].conv1.weight, other.layer1[0].conv1.weight)  # type: ignore[union-attr,index]


def five(root: Path, count: int = 16, suffix: str = "npy") -> Path:
    """Stripes along or across in five 16-bit channels, in files of various sizes; a folder a class."""
    random = np.random.default_rng(0)
    for index in range(count):
        place, (height, width) = root / "ab"[index % 2], ((24, 28), (26, 24))[(index // 2) % 2]
        place.mkdir(parents=True, exist_ok=True)
        y, x = np.mgrid[:height, :width]
        stripes = 0.5 + 0.4 * np.sin((x if index % 2 else y) / (2 + index % 3))
        planes = [stripes * 10000 * (k + 1) + random.normal(2000, 300, stripes.shape) for k in range(5)]
        values, file = np.stack(planes).clip(0, 65535).astype(np.uint16), place / f"{index:02d}.{suffix}"
        if suffix == "npy":
            np.save(file, values)
        else:
            tifffile.imwrite(file, values, photometric="minisblack", planarconfig="separate")
    return root


FEW = {"data.resolution": 16, "optim.epochs": 1, "run.checkpoint_steps": 1}


def test_five_deep_channels_train_the_same_with_any_workers_and_after_a_stop(
    tmp_path: Path, tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Breaks if deep images are cropped by other bits in a loader process, or if a run that goes on measures its range,
    mean or deviation anew from images in another order."""
    folder, asked = five(tmp_path / "images", suffix="tif"), {**tiny, **FEW, "data.in_memory": "never"}
    ends = []
    for workers in (0, 2):
        run = pretrain(folder, tmp_path / f"workers{workers}", "cifar10-cpu", {**asked, "data.workers": workers})
        ends.append(digest(run.out))
    update = pretraining.update

    def stopped(*arguments: Any, **named: Any) -> Any:
        signals._state.requested = True
        return update(*arguments, **named)

    with monkeypatch.context() as patched:
        patched.setattr(pretraining, "update", stopped)
        with pytest.raises(Interrupted, match="saved"):
            pretrain(folder, tmp_path / "stopped", "cifar10-cpu", {**asked, "data.workers": 0})
    run = pretrain(folder, tmp_path / "stopped", "cifar10-cpu", {**asked, "data.workers": 0})
    ends.append(digest(run.out))
    assert ends[0] == ends[1] == ends[2]
    stored = json.loads((run.out / "run.json").read_text())["config"]
    assert stored["data.channels"] == stored["network.channels"] == len(stored["views.mean"]) == 5
    assert len(stored["data.range"].split(";")) == 5


@pytest.fixture(scope="module")
def run5(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A folder of five deep channels and a run on it."""
    from tests.conftest import TINY

    root = tmp_path_factory.mktemp("five")
    folder = five(root / "images", 24)
    return folder, pretrain(folder, root / "run", "cifar10-cpu", {**TINY, **FEW}).out


def test_every_verb_takes_five_channels(run5: tuple[Path, Path], tmp_path: Path) -> None:
    """Breaks if a verb takes images for 8-bit colours, or does not hear of the range that the run has stored."""
    folder, run = run5
    config = json.loads((run / "run.json").read_text())["config"]
    found, names = features.embed(run, folder)
    assert found.shape[0] == len(names) == 24
    assert np.unique(found, axis=0).shape == found.shape
    first = np.load(folder / names[0]).astype(np.float64)
    low, high = np.array([[float(n) for n in pair.split(",")] for pair in config["data.range"].split(";")]).T
    module = load_encoder(run)
    unit = np.clip((first - low[:, None, None]) / (high - low)[:, None, None], 0, 1)
    whole = crops.center_crop(torch.from_numpy(unit.astype(np.float32)), 16, scale=crops.Scale((0.0,), (1.0,)))
    mean, std = (torch.tensor(config[f"views.{name}"])[:, None, None] for name in ("mean", "std"))
    with torch.no_grad():
        expected = module(((whole - mean) / std)[None])[0]
    np.testing.assert_allclose(found[0], expected, rtol=1e-3, atol=1e-4)

    scored = evaluation.evaluate(str(run), str(folder), ["knn"], out=tmp_path / "scores", cache=tmp_path / "cache")
    assert scored["knn"].test["top1"].mean >= 0
    page = report([run], tmp_path / "report.html").read_text()
    assert "first three principal components of 5 channels are red, green and blue" in page
    answer = search.search(folder / names[0], str(run), str(folder))
    assert answer.rows[0][1] == names[0]
    assert answer.read
    assert answer.read(0).shape[0] == 3
    assert "principal components" in answer.colours
    made = fit(run, str(folder), tmp_path / "model")
    assert made.predict([folder / names[0]]).probabilities.shape == (1, 2)
    assert load_model(tmp_path / "model").predict(str(folder)).names == names
    given = np.load(folder / names[0]).transpose(1, 2, 0)
    np.testing.assert_array_equal(made.predict([given]).probabilities, made.predict([folder / names[0]]).probabilities)


def test_an_onnx_graph_has_the_channels_and_names_the_range(run5: tuple[Path, Path], tmp_path: Path) -> None:
    """Breaks if an export is made for three channels, or leaves out how stored values become its input."""
    onnx = pytest.importorskip("onnx")
    done = export(run5[1], "onnx", tmp_path / "encoder.onnx")
    assert done.difference < 1e-5
    graph = onnx.load(tmp_path / "encoder.onnx")
    assert [side.dim_value for side in graph.graph.input[0].type.tensor_type.shape.dim][1:] == [5, 16, 16]
    told = {entry.key: json.loads(entry.value) for entry in graph.metadata_props}
    assert told["range"] == json.loads((run5[1] / "run.json").read_text())["config"]["data.range"]


def test_other_channels_end_in_one_sentence(run5: tuple[Path, Path], folder: Path, tmp_path: Path) -> None:
    """Breaks if an encoder is shown images of another number of channels, or if each of them is called bad instead."""
    written(tmp_path / "four", "uint16", 4)
    for images, have in ((folder, 3), (tmp_path / "four", 4)):
        with pytest.raises(BadData, match=f"have {have} channels, and 5 are wanted") as told:
            features.embed(run5[1], images)
        assert told.value.exit_code == 65
        assert str(told.value).count(".") <= 3
    with pytest.raises(BadData, match="have 3 channels, and 5 are wanted"):
        evaluation.open_data("segmentation", "scenes:20", settled_of(run5[0]).data, Segmentation())


def test_weights_of_three_channels_begin_a_run_of_five(
    run5: tuple[Path, Path], folder: Path, tmp_path: Path, tiny: dict[str, Any]
) -> None:
    """Breaks if given weights settle mean and deviation of images that have other channels, or are not made to fit."""
    colours = pretrain(folder, tmp_path / "colours", "cifar10-cpu", {**tiny, **FEW})
    asked = {**tiny, **FEW, "network.init": str(colours.encoder)}
    for name in ("network.encoder", "network.width", "network.small_images"):
        del asked[name]
    run = pretrain(run5[0], tmp_path / "five", "cifar10-cpu", asked)
    stored = json.loads((run.out / "run.json").read_text())
    assert len(stored["config"]["views.mean"]) == 5
    assert any("times 3/5" in reason["why"] for reason in stored["reasons"])
    adapted = load_encoder(colours.encoder, channels=5)
    assert adapted.conv1.weight.shape[1] == 5  # type: ignore[union-attr,index]


def test_shards_of_five_channels_train_as_their_folder(run5: tuple[Path, Path], tmp_path: Path) -> None:
    """Breaks if shards pack deep images as pictures, or a run on them reads other values."""
    from tests.conftest import TINY

    shard(run5[0], tmp_path / "shards", 10**6, shuffle=False)
    run = pretrain(tmp_path / "shards", tmp_path / "run", "cifar10-cpu", {**TINY, **FEW})
    assert digest(run.out) == digest(run5[1])


def test_networks_of_timm_have_the_channels_of_the_images(
    run5: tuple[Path, Path], tmp_path: Path, tiny: dict[str, Any]
) -> None:
    """Breaks if a network of timm is built for colours, or cannot be opened again."""
    pytest.importorskip("timm")
    own = {name: value for name, value in tiny.items() if not name.startswith("network.")}
    run = pretrain(run5[0], tmp_path / "run", "cifar10-cpu", {**own, **FEW, "network.encoder": "timm:resnet10t"})
    found, names = features.embed(run.out, run5[0])
    assert (found.shape[0], len(names)) == (24, 24)
    first = next(iter(load_encoder(run.out).parameters()))
    assert first.shape[1] == 5


def test_in_memory_and_streamed_images_make_the_same_crops(tmp_path: Path, tiny: dict[str, Any]) -> None:
    """Breaks if images of one type and size, which are cropped at once, are mapped by another range than others."""
    written(tmp_path / "images", "int16", 3, count=8)
    config = apply(settled_of(tmp_path / "images"), {**tiny, "data.resolution": 12})
    config = apply(config, {"views.t.area_min": 0.3, "optim.epochs": 1})
    found = []
    for kept in ("always", "never"):
        own = apply(config, {"data.in_memory": kept, "data.workers": 0})
        images = loader.prepare(fitted(data.open_stored(str(tmp_path / "images"), own.data), own.data), own)
        assert (images.pixels is None) == (kept == "never")
        found.append(next(loader.batches(images, own, resolve(own, 8), 0, torch.device("cpu"))).crops[0])
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-5)
