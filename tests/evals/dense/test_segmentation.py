"""Semantic segmentation: the network layer by layer, the figure against two others, data in every layout, learning."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.metrics import jaccard_score

from byol import checkpoint
from byol.config import Data
from byol.data.dense.masks import CAMVID, open_masks, read_colours
from byol.data.parts import VOID
from byol.data.scenes import KINDS, render
from byol.errors import BadData, UsageError
from byol.evals.dense import segmentation
from byol.evals.dense.backbone import backbone
from byol.evals.dense.segmentation import FCN, Batch, counted, crop_of, make_batch, mean_iou
from byol.evals.dense.training import hold
from byol.evals.evaluation import evaluate
from byol.evals.fit import Recipe
from byol.evals.spec import Segmentation, Specs
from tests.evals.dense.shared import encoder_of, write_image, write_map


def masks(seed: int, classes: int = 3, height: int = 16, width: int = 24) -> np.ndarray:
    values = np.random.default_rng(seed).integers(0, classes, (height, width)).astype(np.uint8)
    values[0, 0] = VOID
    return values


def test_mean_iou_by_hand() -> None:
    """Breaks if void counts, a class that is nowhere counts as 0, or images are averaged instead of pixels summed.

    Truth 0 0 1 1 void / found 0 1 1 1 0: class 0 has 1 of 2, class 1 has 2 of 3, class 2 is nowhere: (1/2 + 2/3) / 2.
    """
    truth = np.array([[0, 0, 1, 1, VOID]], np.uint8)
    found = np.array([[0, 1, 1, 1, 0]], np.uint8)
    counts = counted(truth, found, 3)
    assert counts.tolist() == [[1, 1, 0], [0, 2, 0], [0, 0, 0]]
    assert mean_iou(counts) == pytest.approx((1 / 2 + 2 / 3) / 2)
    # Second image: class 0 alone, all wrong. Summed: class 0 has 1 of 2 + 4, class 1 2 of 3 + 4.
    counts += counted(np.zeros((1, 4), np.uint8), np.ones((1, 4), np.uint8), 3)
    assert mean_iou(counts) == pytest.approx((1 / 6 + 2 / 7) / 2)
    assert mean_iou(np.zeros((3, 3), int)) == 0


def test_mean_iou_is_scikit_learns() -> None:
    """Breaks if rows and columns are mixed up or a union is counted twice."""
    random = np.random.default_rng(0)
    truth, found = random.integers(0, 7, (2, 60, 50)).astype(np.uint8)
    truth[random.random(truth.shape) < 0.2] = VOID
    real = truth != VOID
    expected = jaccard_score(truth[real], found[real], average="macro")
    assert mean_iou(counted(truth, found, 7)) == pytest.approx(expected)


def test_network_layer_by_layer() -> None:
    """Breaks if a layer of the head has another kernel, dilation or width (paper, appendix D.4)."""
    model = FCN(backbone(encoder_of(50, 0.0625, small=False)), 21, 256, 6)
    first, norm, relu, second, _, _, last = model.head
    for layer, inputs in ((first, 128), (second, 256)):
        assert (layer.in_channels, layer.out_channels) == (inputs, 256)
        assert (layer.kernel_size, layer.dilation, layer.padding) == ((3, 3), (6, 6), (6, 6))
    assert (last.kernel_size, last.out_channels) == ((1, 1), 21)
    assert isinstance(norm, torch.nn.BatchNorm2d)
    assert isinstance(relu, torch.nn.ReLU)
    sizes = []
    model.head.register_forward_hook(lambda module, args, out: sizes.append(tuple(out.shape)))
    assert model.eval()(torch.rand(1, 3, 70, 97)).shape == (1, 21, 70, 97)
    assert sizes == [(1, 21, 5, 7)]  # a sixteenth


def test_void_pixels_teach_nothing() -> None:
    """Breaks if void pixels have a gradient, or count in the mean, or a batch of nothing but void gives NaN."""
    encoder = encoder_of(width=0.05)
    model = lambda images: scores
    truth = torch.tensor([[[0, 1], [VOID, 1]]], dtype=torch.uint8)
    scores = torch.randn(1, 3, 2, 2, requires_grad=True)
    loss = segmentation._loss(encoder, model, Batch(torch.zeros(1, 3, 2, 2, dtype=torch.uint8), truth))  # type: ignore[arg-type]
    logs = torch.log_softmax(scores.detach().double(), 1)
    assert loss.item() == pytest.approx(-float(logs[0, 0, 0, 0] + logs[0, 1, 0, 1] + logs[0, 1, 1, 1]) / 3, rel=1e-5)
    loss.backward()
    assert scores.grad is not None
    assert scores.grad[0, :, 1, 0].abs().sum() == 0
    empty = Batch(torch.zeros(1, 3, 2, 2, dtype=torch.uint8), torch.full_like(truth, VOID))
    assert segmentation._loss(encoder, model, empty).item() == 0  # type: ignore[arg-type]


def test_batches_pad_with_what_does_not_count(tmp_path: Path) -> None:
    """Breaks if a small image is padded with a class, or the padding is not the mean colour, or a step repeats."""
    task = open_masks("scenes:20", Data(resolution=32))
    spec, recipe = Segmentation(crop=48, scales=(0.5, 1.0)), Recipe(2, 4, 0.1, 0.0)
    mean = [124 / 255, 116 / 255, 104 / 255]
    first, second = (make_batch(48, spec, mean, task.train, recipe, step) for step in (0, 1))
    assert first.images.shape == (4, 3, 48, 48)
    around = first.masks == VOID
    assert around.float().mean() > 0.5
    assert (first.images.permute(0, 2, 3, 1)[around] == torch.tensor([124, 116, 104])).all()
    assert not torch.equal(first.masks, second.masks)
    assert torch.equal(first.images, make_batch(48, spec, mean, task.train, recipe, 0).images)
    assert crop_of(task.train, Segmentation()) == 64  # 32 px twice as large fill no more
    assert crop_of(task.train, Segmentation(crop=40)) == 40


def test_it_learns(tmp_path: Path) -> None:
    """Breaks if the network cannot be trained: it must be clearly better than calling every pixel background."""
    encoder = encoder_of(width=0.125)
    file = tmp_path / checkpoint.ENCODER
    checkpoint.save_encoder(file, encoder.module, encoder.config, {"step": 1})
    spec = Segmentation(steps=130, batch=16, lrs=(0.2,), crop=32, scales=(0.8, 1.25), channels=32, dilation=2)
    settings = {"run.precision": "float32", "data.workers": 0}
    asked: dict[str, Any] = {"out": tmp_path / "out", "settings": settings, "compare": False}
    found = evaluate(file, "scenes:200", ["segmentation"], specs=Specs(segmentation=spec), **asked)["segmentation"]
    truth = np.stack([render(i, split="test").semantic.numpy() for i in range(40)])
    constant = mean_iou(counted(truth, np.zeros_like(truth), 11))
    assert found.test["mIoU"].mean > 1.5 * constant
    assert found.test["pixels"].mean > (truth == 0).mean() - 0.02
    stored = json.loads((tmp_path / "out" / "segmentation" / "result.json").read_text())
    assert stored["data"]["images"] == {"train": 180, "validation": 20, "test": 40}
    assert stored["runs"][0]["extra"]["iou"].keys() == {"background", *KINDS}
    with Image.open(tmp_path / "out" / "segmentation" / "predictions.png") as picture:
        assert picture.size[0] == 3 * 192 + 4 * 2


def write_camvid(root: Path, void: int = 11) -> None:
    for number, (part, count) in enumerate({"train": 4, "val": 2, "test": 3}.items()):
        for i in range(count):
            write_image(root / part / f"{i}.jpg", seed=i)
            values = masks(10 * number + i, 11)
            values[0, 0] = void
            write_map(root / f"{part}annot" / f"{i}.png", values)


def test_camvid(tmp_path: Path) -> None:
    """Breaks if CamVid's twelfth number becomes a class, or its parts are mixed."""
    write_camvid(tmp_path)
    task = open_masks(str(tmp_path), Data())
    assert task.classes == CAMVID
    assert (len(task.train), len(task.validation)) == (4, 2)
    test = task.test.open()
    assert len(test) == 3
    image, mask = test.read(1)
    expected = masks(21, 11)
    assert mask.numpy().tolist() == expected.tolist()
    assert image.shape == (3, 16, 24)


def test_classes_of_a_folder(tmp_path: Path) -> None:
    """Breaks if the numbers in the masks, classes.txt or --void are not heeded, or parts are not made."""
    for i in range(10):
        write_image(tmp_path / "images" / f"{i}.jpg", seed=i)
        write_map(tmp_path / "masks" / f"{i}.png", masks(i))
    task = open_masks(str(tmp_path), Data())
    assert task.classes == ("0", "1", "2")
    assert (len(task.train), len(task.validation), len(task.test.open())) == (7, 1, 2)
    assert open_masks(str(tmp_path), Data(), void=2).classes == ("0", "1")
    assert set(open_masks(str(tmp_path), Data(), void=2).train.read(0).target.unique().tolist()) == {0, 1, VOID}
    (tmp_path / "classes.txt").write_text("sea\nsand\nsky\ncloud\n")
    assert open_masks(str(tmp_path), Data()).classes == ("sea", "sand", "sky", "cloud")
    (tmp_path / "classes.txt").write_text("sea\nsand\n")
    with pytest.raises(BadData, match=r"mask masks/.*\.png: has class 2, .* 2 classes"):
        hold(open_masks(str(tmp_path), Data()).train, encoder_of(width=0.05).config)


def test_masks_in_colours(tmp_path: Path) -> None:
    """Breaks if a colour is given another class, an unnamed colour counts, or colours are guessed."""
    palette = np.array([[0, 0, 0], [128, 64, 0], [0, 64, 128], [9, 9, 9]], np.uint8)
    numbers = np.random.default_rng(0).integers(0, 4, (16, 24))
    for i in range(4):
        write_image(tmp_path / "images" / f"{i}.jpg", seed=i)
        write_map(tmp_path / "masks" / f"{i}.png", palette[numbers])
    colours = tmp_path / "label_colors.txt"
    colours.write_text("128 64 0\t\tRoad\n0 64 128\tCar lane\n0 0 0 Void\n1 1 1 Road\n")
    assert read_colours(colours) == (("Road", "Car lane"), {(128, 64, 0): 0, (0, 64, 128): 1, (1, 1, 1): 0})
    task = open_masks(str(tmp_path), Data(), colours=str(colours))
    assert task.classes == ("Road", "Car lane")
    assert task.train.read(0).target.numpy().tolist() == np.array([VOID, 0, 1, VOID])[numbers].tolist()
    with pytest.raises(BadData, match="hold 0 classes"):
        open_masks(str(tmp_path), Data())
    colours.write_text("128 64 Road\n")
    with pytest.raises(UsageError, match="line 1, should be: red green blue name"):
        open_masks(str(tmp_path), Data(), colours=str(colours))


def write_voc(root: Path, train: int, val: int) -> Path:
    tree = root / "VOCdevkit" / "VOC2012"
    names = [f"2007_{i:06d}" for i in range(train + val)]
    for i, name in enumerate(names):
        write_image(tree / "JPEGImages" / f"{name}.jpg", seed=i)
        picture = Image.fromarray(masks(i, 21)).convert("P")
        picture.putpalette([value for n in range(256) for value in (n, 255 - n, n // 2)])
        picture.save(_parent(tree / "SegmentationClass" / f"{name}.png"))
    lists = tree / "ImageSets" / "Segmentation"
    _parent(lists / "train.txt").write_text("\n".join(names[:train]) + "\n")
    (lists / "val.txt").write_text("\n".join(names[train:]) + "\n")
    return tree


def _parent(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def test_voc2012(tmp_path: Path) -> None:
    """Breaks if palette colours are read instead of numbers, val is trained on, or train_aug is not used when there."""
    tree = write_voc(tmp_path, 8, 3)
    task = open_masks("voc2012", Data(root=str(tmp_path)))
    assert len(task.classes) == 21
    assert (len(task.train), len(task.validation)) == (7, 1)
    test = task.test.open()
    assert [test.describe(i) for i in range(3)] == [f"JPEGImages/2007_{i:06d}.jpg" for i in (8, 9, 10)]
    assert test.read(0).target.numpy().tolist() == masks(8, 21).tolist()
    for i in (0, 1, 2, 3, 8):  # 8 is a test image, whose augmented mask must not be trained on
        write_map(tree / "SegmentationClassAug" / f"2007_{i:06d}.png", masks(i, 21))
    augmented = open_masks(str(tree), Data())
    both = [part.describe(i) for part in (augmented.train, augmented.validation) for i in range(len(part))]
    assert sorted(both) == [f"JPEGImages/2007_{i:06d}.jpg" for i in range(4)]
    with pytest.raises(UsageError, match="voc2012 needs"):
        open_masks("voc2012", Data(root=str(tmp_path / "elsewhere")))


def test_masks_that_do_not_fit(tmp_path: Path) -> None:
    """Breaks if a mask of another size, a mask of one class, or three files too few end in a traceback."""
    for i in range(12):
        write_image(tmp_path / "images" / f"{i}.jpg", 24, 17, seed=i)
        write_map(tmp_path / "masks" / f"{i}.png", masks(i))
    with pytest.raises(BadData, match=r"its mask has 24×16 pixels, the image 24×17"):
        hold(open_masks(str(tmp_path), Data()).train, encoder_of(width=0.05).config)
    write_image(tmp_path / "one" / "images" / "a.jpg")
    write_map(tmp_path / "one" / "masks" / "a.png", np.zeros((16, 24), np.uint8))
    with pytest.raises(BadData, match="hold 1 class: segmentation needs two"):
        open_masks(str(tmp_path / "one"), Data())
    write_map(tmp_path / "one" / "masks" / "a.png", masks(0))
    with pytest.raises(BadData, match="at least 3"):
        open_masks(str(tmp_path / "one"), Data())
