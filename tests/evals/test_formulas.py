"""What the protocols compute, by hand: losses, batches, grids, momenta and draws."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from byol.data.folder import folder as folder_source
from byol.data.parts import held_out_fraction, listed, whole
from byol.errors import UsageError
from byol.evals import classifier, finetune, linear, semi_supervised, supervised
from byol.evals.spec import (
    Finetune,
    SemiSupervised,
    Supervised,
)
from tests.conftest import write_images


def test_clipped_and_penalized_logits_by_hand() -> None:
    """Breaks if tclip or the penalty differ from appendix C: α tanh(x/α) of (20 artanh ½, 0) is (10, 0)."""
    logits = torch.tensor([[20 * math.atanh(0.5), 0.0]], dtype=torch.float64)
    target = torch.tensor([0])
    expected = math.log1p(math.exp(-10)) + 0.01 * (100 + 0) / 2
    assert linear.regularized_loss(logits, target, 20.0, 0.01).item() == pytest.approx(expected, rel=1e-12)
    plain = F.cross_entropy(logits, target).item()
    assert linear.regularized_loss(logits, target, 0.0, 0.0).item() == pytest.approx(plain, rel=1e-12)


def test_several_labels_an_image() -> None:
    """Breaks if entries that do not count reach the loss, or the mean is over all entries."""
    logits = torch.tensor([[2.0, -1.0, 0.5]], dtype=torch.float64)
    targets = torch.tensor([[1, -1, 0]], dtype=torch.int8)
    expected = (math.log1p(math.exp(-2)) + math.log1p(math.exp(-1))) / 2
    assert classifier.loss_of(logits, targets).item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("images", "batch"), [(12_811, 1024), (4500, 562), (310, 38), (31, 16), (5, 5)])
def test_small_sets_get_small_batches(images: int, batch: int) -> None:
    """Breaks if a few hundred images are one batch and thirty epochs thirty steps, or ImageNet's 1 % is cut."""
    assert semi_supervised.batch_of(SemiSupervised(), images) == batch


def test_a_list_of_labelled_images(tmp_path: Path) -> None:
    """Breaks if SimCLR's format (one file name a line) is not understood."""
    train, _ = held_out_fraction(whole(folder_source(write_images(tmp_path / "images", 12))), 0.2)
    names = [Path(train.source.describe(int(i))).name for i in train.indices[[1, 3]]]
    (tmp_path / "1percent.txt").write_text("\n".join([*names, "n01440764_10026.JPEG", ""]))
    assert listed(train, tmp_path / "1percent.txt").indices.tolist() == train.indices[[1, 3]].tolist()
    with pytest.raises(UsageError, match="Cannot read"):
        listed(train, tmp_path / "missing.txt")


def test_the_grid_of_fine_tuning() -> None:
    """Breaks if a pair is missing, or the decay is not divided by the learning rate (appendix D.3)."""
    settings = finetune.grid(Finetune())
    pairs = {(s["lr"], s["weight_decay"]) for s in settings}
    assert len(settings) == len(pairs) == 56
    assert sorted({lr for lr, _ in pairs}) == pytest.approx([1e-4 * 10 ** (i / 2) for i in range(7)])
    assert [s["weight_decay"] for s in settings[:7]] == [0.0] * 7
    recipe = finetune.recipe({"lr": 0.01, "weight_decay": 1e-4}, 10, 16, 0)
    assert recipe.weight_decay == pytest.approx(0.01)


@pytest.mark.parametrize(("steps", "expected"), [(5.0, 0.1), (100.0, 0.1), (200.0, 0.05), (1000.0, 0.01)])
def test_momentum_of_batch_statistics(steps: float, expected: float) -> None:
    """Breaks if max(1 − 10/s, 0.9) is taken for torch's momentum, which is one minus it."""
    model = nn.Sequential(nn.BatchNorm2d(3), nn.BatchNorm1d(2))
    finetune.set_statistics_momentum(model, steps)
    assert [m.momentum for m in model] == pytest.approx([expected] * 2)


def test_rand_augment_is_drawn_for_each_image_from_seed_and_step() -> None:
    """Breaks if all images of a batch get the same change, or the change depends on what was drawn before."""
    crops = torch.rand(1, 3, 16, 16).expand(8, 3, 16, 16)
    first = supervised.rand_augment(Supervised(), 1, crops, 4)
    torch.rand(100)
    assert torch.equal(first, supervised.rand_augment(Supervised(), 1, crops, 4))
    assert not torch.equal(first, supervised.rand_augment(Supervised(), 1, crops, 5))
    assert len({tuple(image.flatten().tolist()) for image in first}) > 4
