"""Checkpoints: what is read is what was written, or it is refused by name."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn

from byol import checkpoint, method, networks, optim
from byol.checkpoint import State
from byol.config import Config, Network, Optim, apply
from byol.errors import DiskError, UsageError

SMALL = Network(encoder="resnet18", width=0.05, projector_hidden=8, predictor_hidden=8, projection=4)


def state(step: int, seed: int = 0, optimizer: str = "lars") -> State:
    """A method that has taken one step, so that every buffer is set."""
    torch.manual_seed(seed)
    model = method.build(SMALL, classes=3)
    chosen = optim.build(model, Optim(optimizer=optimizer))  # type: ignore[arg-type]
    out = [orders[0] for orders in model.orders(torch.randn(4, 3, 32, 32), torch.randn(4, 3, 32, 32))]
    (out[0].prediction.sum() + out[1].prediction.square().sum() + model.probe(out[0].representation).sum()).backward()
    chosen.param_groups[0]["lr"] = 0.1
    chosen.step()
    return State(model, chosen, step)


def tensors(value: State) -> dict[str, torch.Tensor]:
    found = dict(value.method.state_dict())
    for index, slots in enumerate(value.optimizer.state[p] for g in value.optimizer.param_groups for p in g["params"]):
        found |= {f"{index}.{slot}": torch.as_tensor(v) for slot, v in slots.items()}
    return found


@pytest.mark.parametrize("optimizer", ["lars", "sgd", "adamw"])
def test_round_trip_is_exact(tmp_path: Path, optimizer: str) -> None:
    """Breaks if a buffer, a momentum or a counter is left out."""
    before = state(7, optimizer=optimizer)
    checkpoint.save(tmp_path, before, keep=2)
    other = state(0, seed=1, optimizer=optimizer)
    assert checkpoint.load_newest(tmp_path, other.method, other.optimizer) == 7
    ours, theirs = tensors(before), tensors(other)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize("optimizer", ["lars", "sgd", "adamw"])
def test_the_step_after_loading_is_the_one_that_was_cut_off(tmp_path: Path, optimizer: str) -> None:
    """Breaks if buffers come back in another memory layout than their weights, which fused optimizers do not notice."""
    before = state(7, optimizer=optimizer)
    before.method.to(memory_format=torch.channels_last)
    for param in before.method.parameters():
        if param.grad is not None:
            param.grad = torch.empty_like(param).copy_(param.grad)
            for slot, value in before.optimizer.state[param].items():
                if value.shape == param.shape:
                    before.optimizer.state[param][slot] = torch.empty_like(param).copy_(value)
    checkpoint.save(tmp_path, before, keep=2)
    other = state(0, seed=1, optimizer=optimizer)
    other.method.to(memory_format=torch.channels_last)
    checkpoint.load_newest(tmp_path, other.method, other.optimizer)
    for ours, theirs in zip(before.method.parameters(), other.method.parameters(), strict=True):
        theirs.grad = None if ours.grad is None else torch.empty_like(theirs).copy_(ours.grad)
    for each in (before, other):
        for group in each.optimizer.param_groups:
            group["lr"] = 0.1
        each.optimizer.step()
    ours, theirs = tensors(before), tensors(other)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_equal_states_are_equal_files(tmp_path: Path) -> None:
    """Breaks if the header is written in an order of chance: what a killed save has left would not be written over."""
    same = state(3)
    assert len({checkpoint.save(tmp_path, same, keep=2) for _ in range(20)}) == 1


def test_what_a_killed_save_has_left_is_removed(tmp_path: Path) -> None:
    """Breaks if half a checkpoint of another try stays beside the whole ones for ever."""
    (tmp_path / ".step-000000002.0123456789abcdef.safetensors.tmp").write_bytes(b"half")
    path = checkpoint.save(tmp_path, state(3), keep=2)
    assert list(tmp_path.iterdir()) == [path]


def test_keeps_the_newest(tmp_path: Path) -> None:
    """Breaks if the wrong end of the list is dropped."""
    for step in (1, 2, 10, 9):
        checkpoint.save(tmp_path, state(step), keep=2)
    assert [int(p.name[5:14]) for p in checkpoint.found(tmp_path)] == [10, 9]
    assert len(list(tmp_path.iterdir())) == 2


def test_any_damage_is_seen_and_the_one_before_is_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Breaks if a flipped bit, a cut or an empty file is taken for a checkpoint (G2)."""
    older, newer = state(1), state(2)
    checkpoint.save(tmp_path, older, keep=2)
    path = checkpoint.save(tmp_path, newer, keep=2)
    whole = path.read_bytes()
    random = np.random.default_rng(0)
    damaged = [whole[: len(whole) * tenth // 10] for tenth in range(10)]
    for place in random.integers(0, len(whole) * 8, 200):
        flipped = bytearray(whole)
        flipped[place // 8] ^= 1 << (place % 8)
        damaged.append(bytes(flipped))
    for content in damaged:
        path.write_bytes(content)
        with pytest.raises(DiskError, match=path.name):
            checkpoint.read(path)
    target = state(0, seed=1)
    assert checkpoint.load_newest(tmp_path, target.method, target.optimizer) == 1
    assert path.name in capsys.readouterr().err
    for old in checkpoint.found(tmp_path):
        old.write_bytes(b"")
    with pytest.raises(DiskError, match="No checkpoint"):
        checkpoint.load_newest(tmp_path, target.method, target.optimizer)


def test_a_failed_write_leaves_the_last_checkpoint_and_no_litter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Breaks if a full disk costs the previous checkpoint or leaves a partial file (G5)."""
    kept = checkpoint.save(tmp_path, state(1), keep=1)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(DiskError, match=r"No space left on device \(.*MB needed, .*MB free\)") as error:
        checkpoint.save(tmp_path, state(2), keep=1)
    assert error.value.exit_code == 74
    assert list(tmp_path.iterdir()) == [kept]


def test_equal_encoders_are_equal_files(tmp_path: Path) -> None:
    """Breaks if the entries of the header stand in an order of chance, so that identical runs have two digests."""
    encoder = networks.encoder(SMALL)
    contents = {saved_encoder(tmp_path / f"{n}.safetensors", encoder).read_bytes() for n in range(20)}
    assert len(contents) == 1
    with safe_open(tmp_path / "0.safetensors", "pt") as opened:  # the library's own reader
        assert opened.metadata()["format"] == "pt"
        assert json.loads(opened.metadata()["byol"])["step"] == 1
    held = load_file(tmp_path / "0.safetensors")
    assert all(torch.equal(value, held[name]) for name, value in encoder.state_dict().items())


def test_only_checkpoints_are_removed(tmp_path: Path) -> None:
    """Breaks if clearing a run's checkpoints takes a file that another program put beside them, or follows a link."""
    folder = tmp_path / "checkpoints"
    checkpoint.save(folder, state(1), keep=2)
    others = ["my_phd_model.pt", "step-1.safetensors", "step-000000001.txt"]
    for name in others:
        (folder / name).write_text("mine")
    checkpoint.clear(folder)
    assert sorted(path.name for path in folder.iterdir()) == sorted(others)
    for name in others:
        (folder / name).unlink()
    whole = checkpoint.save(tmp_path / "elsewhere", state(1), keep=2)
    folder.rmdir()
    folder.symlink_to(whole.parent)
    with pytest.raises(DiskError, match="is a link"):
        checkpoint.clear(folder)
    assert whole.exists()
    folder.unlink()
    checkpoint.clear(whole.parent)
    assert not whole.parent.exists()


def saved_encoder(path: Path, module: nn.Module, **network: object) -> Path:
    config = apply(Config(), {f"network.{name}": value for name, value in network.items()})
    checkpoint.save_encoder(path, module, config, {"step": 1})
    return path


@pytest.mark.parametrize("depth", [18, 50])
def test_encoder_file_loads_into_torchvision_and_timm(tmp_path: Path, depth: int) -> None:
    """Breaks if a name, a buffer or the arithmetic differs from theirs."""
    import timm

    torch.manual_seed(0)
    encoder = networks.resnet(depth).train()
    encoder(torch.randn(2, 3, 64, 64))  # so that the statistics are not those of the start
    path = saved_encoder(tmp_path / "encoder.safetensors", encoder, encoder=f"resnet{depth}")
    theirs = getattr(torchvision.models, f"resnet{depth}")()
    theirs.fc = nn.Identity()
    timms = timm.create_model(f"resnet{depth}", num_classes=0)
    image = torch.randn(2, 3, 64, 64)
    expected = checkpoint.load_encoder(path)(image)
    for other in (theirs, timms):
        other.load_state_dict(load_file(path), strict=True)
        torch.testing.assert_close(other.eval()(image), expected, atol=1e-4, rtol=1e-4)


def test_encoder_file_rebuilds_any_width_and_stem(tmp_path: Path) -> None:
    """Breaks if the header forgets what the network was."""
    encoder = networks.resnet(18, 0.25, small_images=True, padding="same").eval()
    path = saved_encoder(
        tmp_path / "e.safetensors", encoder, encoder="resnet18", width=0.25, small_images=True, padding="same"
    )
    image = torch.randn(1, 3, 32, 32)
    assert torch.equal(checkpoint.load_encoder(path)(image), encoder(image))


def test_wrong_encoder_files_are_refused_in_a_sentence(tmp_path: Path) -> None:
    """Breaks if a stranger's or damaged file ends in a traceback."""
    for content in (b"", b"not safetensors", b"\xff" * 64):
        path = tmp_path / "wrong.safetensors"
        path.write_bytes(content)
        with pytest.raises(DiskError, match=r"wrong\.safetensors"):
            checkpoint.load_encoder(path)
    with pytest.raises(UsageError, match="no encoder at"):
        checkpoint.load_encoder(tmp_path / "nowhere")
