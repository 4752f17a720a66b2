"""Objectives, encoders and view operations of a user's file: they train as the plan says, and no record loads them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import byol
from byol import method, objectives, plugins, views
from byol.config import Config, Network, Objective, View, Views
from byol.errors import UsageError
from byol.run.record import read_run
from tests.zygote import Zygote

MINE = """
import torch
from torch import nn

from byol.views import Operation


def clipped(phi, psi, own, config):
    return (phi - psi).abs().clamp(max=1).square().sum(-1).mean()


class Tiny(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3)
        self.num_features = 6

    def forward(self, images):
        return self.conv(images).relu().mean((2, 3))


def darker(images, choices, config):
    return images * choices("darkness")[:, None, None, None]


OBJECTIVES = {"clipped": clipped}
ENCODERS = {"tiny_mine": lambda network: Tiny()}
VIEWS = {
    "turned": lambda images, choices, config: images.rot90(1, (2, 3)),
    "darker": Operation(darker, lambda view, config: {"darkness": (0.5, 0.5)}),
}
"""


@pytest.fixture
def mine(tmp_path: Path) -> Iterator[Path]:
    file = tmp_path / "mine.py"
    file.write_text(MINE)
    yield file
    plugins.unload()


def test_what_a_plugin_adds(mine: Path) -> None:
    """Breaks if vectors reach a user's loss without the normalization that the plan names, or a view operation misses
    its probability, its strength or its place before colours are normalized."""
    plugins.load(mine)
    one, other = torch.tensor([[3.0, 0.0], [0.0, 2.0]]), torch.tensor([[-1.0, 0.0], [0.0, 5.0]])
    for normalization, expected in (("l2", 0.5), ("none", 1.0)):  # opposite units are 2 apart, which counts as 1
        loss = objectives.build(Objective(name="clipped", normalization=normalization))  # type: ignore[arg-type]
        assert loss(one, other, other).item() == expected
    assert method.build(Network(encoder="tiny_mine", projector_hidden=4, predictor_hidden=4)).online.encoder.conv
    plain = {"jitter": 0, "grayscale": 0, "blur": 0, "flip": 0}
    images, as_is = torch.rand(5, 3, 8, 8), views.unnormalized(Views())
    before, untouched = views.draw(0, 3, 5, Views(t=View(**plain, plugin=1), t_prime=View(**plain)))
    changed = views.finish_(images.clone(), before, as_is)
    torch.testing.assert_close(changed, images.rot90(1, (2, 3)) / 2)
    assert torch.equal(views.finish_(images.clone(), untouched, as_is), images)
    plugins.unload()
    after, _ = views.draw(0, 3, 5, Views(t=View(**plain)))
    assert after.keys() == before.keys() - {"turned", "darker", "darkness"}
    assert all(torch.equal(before[name], after[name]) for name in after)


def test_a_run_names_its_plugin_and_does_not_load_it(
    mine: Path, folder: Path, tmp_path: Path, tiny: dict[str, Any]
) -> None:
    """Breaks if run.json forgets the plug-in, a run goes on without it or with another one, or a record loads code."""
    asked = tiny | {"network.encoder": "tiny_mine", "objective.name": "clipped", "views.t.plugin": 0.5}
    out = tmp_path / "run"
    run = byol.pretrain(folder, out, "cifar10-cpu", asked | {"optim.epochs": 1}, plugin=mine)
    assert torch.isfinite(torch.tensor(run.steps[-1]["loss"]))
    stored = read_run(out).plugin
    assert stored == plugins.loaded()
    assert byol.load_encoder(out).num_features == 6
    plugins.unload()
    with pytest.raises(UsageError, match=r"There is no encoder 'tiny_mine'.*--plugin FILE"):
        byol.load_encoder(out)
    with pytest.raises(UsageError, match=r"needs --plugin FILE|with the plug-in mine.py: add --plugin mine.py"):
        byol.pretrain(folder, out, "cifar10-cpu", asked)
    mine.write_text(MINE + "\n# changed\n")
    with pytest.raises(UsageError, match=r"made with the plug-in mine.py of digest .* has the digest"):
        byol.pretrain(folder, out, "cifar10-cpu", asked, plugin=mine)


@pytest.mark.parametrize(
    ("content", "answer"),
    [
        ("x = 1 +", "cannot be loaded: SyntaxError"),
        ("raise ValueError('no')", "cannot be loaded: ValueError: no. Add --debug"),
        ("x = 1", "defines none of the dicts OBJECTIVES, ENCODERS, VIEWS"),
        ("OBJECTIVES = {'byol': print}", "names byol, which byol has itself"),
        ("VIEWS = {'flip': print}", "names flip, which byol has itself"),
        ("ENCODERS = {'mine': 3}", "holds 'mine': it maps names to functions"),
    ],
)
def test_a_wrong_plugin_is_a_sentence(tmp_path: Path, content: str, answer: str) -> None:
    """Breaks if a mistake in the user's file is called ours, or half of a plug-in stays."""
    file = tmp_path / "wrong.py"
    file.write_text(content)
    with pytest.raises(UsageError, match=answer):
        plugins.load(file)
    assert plugins.loaded() is None
    assert objectives.OBJECTIVES.keys() == {"byol", "info-nce", "simclr-to-byol"}


def test_what_fails_inside_a_plugin_is_said_to_be_there(tmp_path: Path) -> None:
    """Breaks if an error of the user's own code ends in `This should not happen`."""
    file = tmp_path / "failing.py"
    file.write_text("OBJECTIVES = {'off': lambda a, b, c, d: a @ b, 'wide': lambda a, b, c, d: a - b}")
    plugins.load(file)
    vectors = torch.rand(3, 4)
    try:
        with pytest.raises(UsageError, match="The objective off of the plug-in failed: RuntimeError"):
            objectives.build(Objective(name="off"))(vectors, vectors, vectors)
        with pytest.raises(UsageError, match=r"one number, the batch's mean, not a tensor of shape \(3, 4\)"):
            objectives.build(Objective(name="wide"))(vectors, vectors, vectors)
    finally:
        plugins.unload()


def test_every_verb_takes_a_plugin(mine: Path, folder: Path, tmp_path: Path, zygote: Zygote) -> None:
    """Breaks if a verb does not know the flag, or it is taken for the verb's own."""
    code, said = zygote.run("views", str(folder), f"--plugin={mine}", "--preset=cifar10-cpu", "--views.t.plugin=1",
                            "--images=2", "-o", str(tmp_path / "v.png"))  # fmt: skip
    assert code == 0, said
    assert zygote.run("presets", "--plugin", str(mine))[0] == 0
    code, said = zygote.run("presets", "--plugin", str(tmp_path / "none.py"))
    assert (code, "Cannot read the plug-in" in said) == (2, True)
    assert Config().views.t.plugin == 0
