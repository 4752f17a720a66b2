"""Depth from one image: fast against slow up-projection, the loss and the figures by hand, its data, learning."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from byol.config import Data
from byol.data.dense.depths import open_depth
from byol.data.dense.rendered import rendered
from byol.errors import BadData, UsageError
from byol.evals.dense import depth
from byol.evals.dense.backbone import backbone
from byol.evals.dense.depth import (
    DepthNetwork,
    FastUnpool,
    Prediction,
    UpProjection,
    make_batch,
    recolour,
    reverse_huber,
)
from byol.evals.dense.training import hold
from byol.evals.fit import Recipe
from byol.evals.protocol import Session
from byol.evals.spec import Depth
from tests.evals.dense.shared import encoder_of, write_image, write_map


def slow_unpool(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Every value becomes the upper left of 2 × 2 with zeros, then the whole 5 × 5 kernel."""
    batch, channels, height, width = x.shape
    large = x.new_zeros(batch, channels, 2 * height, 2 * width)
    large[:, :, ::2, ::2] = x
    return F.conv2d(large, weight, padding=2)


def five_by_five(fast: FastUnpool) -> torch.Tensor:
    """The kernel whose weights at even and odd rows and columns the four convolutions hold."""
    first = fast.parts[0]
    assert isinstance(first, torch.nn.Conv2d)
    weight = first.weight.new_zeros(first.out_channels, first.in_channels, 5, 5)
    for part, (row, column) in zip(fast.parts, ((0, 0), (0, 1), (1, 0), (1, 1)), strict=True):
        assert isinstance(part, torch.nn.Conv2d)
        weight[:, :, row::2, column::2] = part.weight
    return weight


@pytest.mark.parametrize("size", [(1, 1), (4, 5), (7, 3)])
def test_fast_unpooling_is_the_slow_one(size: tuple[int, int]) -> None:
    """Breaks if a padding, a parity or the weaving of the four convolutions is wrong."""
    torch.manual_seed(0)
    fast = FastUnpool(3, 4).double()
    x = torch.randn(2, 3, *size, dtype=torch.float64)
    torch.testing.assert_close(fast(x), slow_unpool(x, five_by_five(fast)), rtol=1e-12, atol=1e-12)


def test_fast_up_projection_is_the_slow_one() -> None:
    """Breaks if a branch, a normalization or a ReLU of the block is missing or in another place."""
    torch.manual_seed(0)
    block = UpProjection(6, 5).double().eval()
    for norm in (block.bn1, block.bn2, block.bn3):
        for value in (norm.weight, norm.bias, norm.running_mean):
            torch.nn.init.normal_(value)
    x = torch.randn(2, 6, 3, 4, dtype=torch.float64)
    main = F.relu(block.bn1(slow_unpool(x, five_by_five(block.unpool))))
    expected = F.relu(block.bn2(block.conv(main)) + block.bn3(slow_unpool(x, five_by_five(block.project))))
    with torch.no_grad():
        torch.testing.assert_close(block(x), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("small", "filters"), [(False, [64, 32, 16, 8]), (True, [64, 32])])
def test_network(small: bool, filters: list[int]) -> None:
    """Breaks if a block is missing, or the prediction is coarser than half the image or finer than the image."""
    model = DepthNetwork(backbone(encoder_of(50, 0.0625, small)), (64, 32, 16, 8)).eval()
    blocks = [layer for layer in model.head if isinstance(layer, UpProjection)]
    assert [block.conv.out_channels for block in blocks] == filters
    sizes = []
    model.head.register_forward_hook(lambda module, args, out: sizes.append(tuple(out.shape[2:])))
    height, width = (45, 61) if small else (228, 304)
    assert model(torch.rand(1, 3, height, width)).shape == (1, height, width)
    assert sizes == [(24, 32)] if small else sizes == [(128, 160)]


def test_reverse_huber_by_hand() -> None:
    """Breaks if c is not a fifth of the largest error, the pieces are swapped, or a missing reading counts.

    Errors 0.5, 1, 2 and 5: c is 1, so 0.5, 1, (4 + 1) / 2 and (25 + 1) / 2; the mean is 17 / 4.
    """
    depths = torch.tensor([[[3.0, 3.0, 3.0, 3.0, 0.0]]])
    found = torch.tensor([[[3.5, 2.0, 5.0, -2.0, 99.0]]], requires_grad=True)
    loss = reverse_huber(found, depths)
    assert loss.item() == pytest.approx(17 / 4)
    loss.backward()
    assert found.grad is not None
    # 1 within c, e / c beyond, over four readings; c itself is a constant.
    assert found.grad[0, 0].tolist() == pytest.approx([0.25, -0.25, 0.5, -1.25, 0.0])
    nothing = reverse_huber(found, torch.zeros_like(depths))
    nothing.backward()
    assert nothing.item() == 0
    assert torch.isfinite(reverse_huber(depths, depths))


def test_figures_by_hand() -> None:
    """Breaks if a threshold, the root or the divisor is wrong, or missing readings count, or images weigh alike.

    Ratios 1.2, 1.5, 1.9 and 3: one, two and three of four are below 1.25, 1.5625 and 1.953.
    """
    first = Prediction(torch.zeros(3, 1, 2), torch.tensor([[2.0, 3.0, 0.0]]), torch.tensor([[2.4, 2.0, 50.0]]))
    second = Prediction(torch.zeros(3, 1, 2), torch.tensor([[1.0, 3.0]]), torch.tensor([[1.9, 1.0]]))
    found = depth.scores(iter([first, second]))
    assert found["pct<1.25"] == 0.25
    assert found["pct<1.25^2"] == 0.5
    assert found["pct<1.25^3"] == 0.75
    assert found["rms"] == pytest.approx(np.sqrt((0.4**2 + 1 + 0.9**2 + 4) / 4))
    assert found["rel"] == pytest.approx((0.4 / 2 + 1 / 3 + 0.9 + 2 / 3) / 4)


def test_colours_change_as_drawn() -> None:
    """Breaks if a strength is another than the paper's, greys are not 3 in 10, or a step's draw is not its own."""
    images = torch.rand(400, 3, 2, 2, generator=torch.Generator().manual_seed(0)) * 0.4 + 0.3
    spec = Depth()
    found = recolour(images, spec, 0, 0)
    grey = (found.amax(1) - found.amin(1)).amax((1, 2)) < 1e-6
    assert 90 < grey.sum() < 150
    assert torch.equal(found, recolour(images, spec, 0, 0))
    assert not torch.equal(found, recolour(images, spec, 0, 1))
    # Saturation and hue leave V of HSV, the largest channel, as it is: its change is the brightness's.
    change = (found.amax(1) - images.amax(1)).mean((1, 2))[~grey]
    assert 0.12 < change.abs().max() < 0.1256
    plain = recolour(images, Depth(grayscale=0, brightness=0, saturation=0, hue=0), 0, 0)
    torch.testing.assert_close(plain, images)
    strong = recolour(images, Depth(grayscale=0, brightness=0, hue=0), 0, 0)
    chroma = lambda x: (x.amax(1) - x.amin(1)) / x.amax(1)
    ratio = (chroma(strong) / chroma(images)).mean((1, 2))
    assert 0.5 <= ratio.min() < 0.52
    assert 1.4 < ratio.max() <= 1.5


def test_batches_flip_both(tmp_path: Path) -> None:
    """Breaks if image and depth are flipped apart: here the depth is written into the image."""
    values = (np.random.default_rng(0).integers(0, 5, (16, 24)) * 50).astype(np.uint16)
    for i in range(6):
        write_map(tmp_path / "rgb" / f"{i}.png", np.repeat(values[..., None], 3, 2).astype(np.uint8))
        write_map(tmp_path / "depth" / f"{i}.png", values)
    task = open_depth(str(tmp_path), Data(), unit=1 / 255)
    spec = Depth(shrink=1.0, crop=(20, 12), grayscale=0, brightness=0, saturation=0, hue=0)
    batch = make_batch(spec, task.train, Recipe(1, 12, 0.1, 0.0), 0)
    assert batch.images.shape == (12, 3, 12, 20)
    torch.testing.assert_close(batch.images[:, 0], batch.depths)
    flipped = [not torch.equal(image, batch.images[0]) for image in batch.images]
    assert 0 < sum(flipped) < 12


def test_it_learns(tmp_path: Path) -> None:
    """Breaks if the network cannot be trained: it must be clearly better than the best constant for each figure."""
    encoder = encoder_of(width=0.125)
    task = rendered("depth", "scenes:200", encoder.config.data)
    test = task.test.again().open()
    truth = np.stack([test.read(i).target.numpy() for i in range(len(test))]).astype(np.float64)
    spec = Depth(steps=100, batch=16, lrs=(0.5,), shrink=1.0, filters=(32, 16))
    found = depth.evaluate(encoder, task, spec, Session(out=tmp_path / "deep" / "out"))
    assert found.test["rms"] < 0.8 * truth.std()
    constants = np.linspace(truth.min(), truth.max(), 50)
    assert found.test["rel"] < min((np.abs(truth - c) / truth).mean() for c in constants)
    wide = max((np.maximum(truth / c, c / truth) < 1.25**3).mean() for c in constants)
    assert found.test["pct<1.25^3"] > wide
    assert found.chosen == {"lr": 0.5 * 16 / 256}
    assert (tmp_path / "deep" / "out" / "predictions.png").stat().st_size > 5000


def write_pairs(root: Path, count: int, values: np.ndarray) -> None:
    height, width = values.shape[:2]
    for i in range(count):
        write_image(root / f"frame-{i:03d}.color.jpg", width, height, seed=i)
        write_map(root / f"frame-{i:03d}.depth.png", values)


def test_sixteen_bit_depth(tmp_path: Path) -> None:
    """Breaks if deep grey is cut to 8 bits, the unit is forgotten, or 0 and 65535 count as readings."""
    values = np.array([[0, 1, 1500], [65535, 3528, 65534]], np.uint16)
    for part, count in (("train", 10), ("test", 3)):
        write_pairs(tmp_path / part, count, values)
    task = open_depth(str(tmp_path), Data())
    assert (len(task.train), len(task.validation), len(task.test.open())) == (9, 1, 3)
    expected = [[0, 0.001, 1.5], [0, 3.528, 65.534]]
    torch.testing.assert_close(task.train.read(0).target, torch.tensor(expected))
    metres = open_depth(str(tmp_path), Data(), unit=0.01).train.read(0).target
    torch.testing.assert_close(metres, 10 * torch.tensor(expected))


def test_depth_that_does_not_fit(tmp_path: Path) -> None:
    """Breaks if depth in colours, of another size, or a file that is not NYU's ends in a traceback."""
    write_pairs(tmp_path / "colours", 3, np.zeros((4, 6, 3), np.uint8))
    config = encoder_of(width=0.05).config
    with pytest.raises(BadData, match=r"depth map frame-.*: is in colours"):
        hold(open_depth(str(tmp_path / "colours"), Data()).train, config)
    write_pairs(tmp_path / "sizes", 3, np.ones((4, 6), np.uint16))
    for i in range(3):
        write_image(tmp_path / "sizes" / f"frame-{i:03d}.color.jpg", 5, 4)
    with pytest.raises(BadData, match="its depth map has 6×4 pixels, the image 5×4"):
        hold(open_depth(str(tmp_path / "sizes"), Data()).train, config)
    with pytest.raises(UsageError, match=r"There is no file .*nyu_depth_v2_labeled.mat"):
        open_depth("nyu", Data(root=str(tmp_path)))


def test_nyu(tmp_path: Path) -> None:
    """Breaks if MATLAB's order of rows and columns, or its counting from 1, is not undone."""
    h5py = pytest.importorskip("h5py", reason="needs h5py, of the extra nyu")
    from scipy.io import savemat

    random = np.random.default_rng(0)
    images = random.integers(0, 255, (7, 3, 8, 6), dtype=np.uint8)  # as MATLAB writes: width before height
    depths = random.uniform(0.5, 9, (7, 8, 6)).astype(np.float32)
    with h5py.File(tmp_path / "nyu_depth_v2_labeled.mat", "w") as file:
        file["images"], file["depths"] = images, depths
    with pytest.raises(UsageError, match=r"needs the official split splits.mat"):
        open_depth(str(tmp_path), Data())
    savemat(tmp_path / "splits.mat", {"trainNdxs": [[1], [3], [4], [7]], "testNdxs": [[2], [5], [6]]})
    for on in (str(tmp_path), str(tmp_path / "nyu_depth_v2_labeled.mat"), "nyu"):
        task = open_depth(on, Data(root=str(tmp_path)))
        assert (len(task.train), len(task.validation)) == (3, 1)
        test = task.test.open()
        assert [test.describe(i).split("/")[-1] for i in range(3)] == ["2", "5", "6"]
        image, metres = test.read(1)
        assert image.numpy().tolist() == images[4].transpose(0, 2, 1).tolist()
        assert metres.numpy().tolist() == depths[4].T.tolist()
    (tmp_path / "nyu_depth_v2_labeled.mat").write_bytes(b"nothing")
    with pytest.raises(BadData, match="damaged"):
        open_depth(str(tmp_path), Data())
