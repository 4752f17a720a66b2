"""Weights of others are read without running anything in them, as their own libraries would read them."""

from __future__ import annotations

import io
import os
import pickle
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from byol import networks
from byol.config import Config, apply
from byol.errors import BadData, ByolError
from byol.weights import imports, reader, resnets


class Harm:
    """Would make a file if it were run."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


def harms(flag: Path) -> list[Any]:
    touch = f"open({str(flag)!r}, 'w')"
    return [
        Harm(os.system, f"touch {flag}"),
        Harm(eval, touch),
        Harm(exec, touch),
        Harm(open, str(flag), "w"),
        Harm(subprocess.Popen, ["touch", str(flag)]),
        Harm(getattr, Harm(__import__, "os"), "system"),
        Harm(__import__, "os"),
        Harm(torch.load, str(flag)),
        Harm(np.load, str(flag)),
        Harm(map, print, ["x"]),
        {"state_dict": {"conv1.weight": Harm(os.mkdir, str(flag))}},
    ]


@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize("which", range(11))
def test_a_malicious_file_is_refused_and_does_nothing(which: int, protocol: int, tmp_path: Path) -> None:
    """Breaks if anything that a file names is imported or called, in a bare file or inside PyTorch's archive."""
    flag = tmp_path / "harm"
    content = pickle.dumps(harms(flag)[which], protocol)
    (tmp_path / "bare.pkl").write_bytes(content)
    with zipfile.ZipFile(tmp_path / "archive.pth", "w") as archive:
        archive.writestr("archive/data.pkl", content)
    for name in ("bare.pkl", "archive.pth"):
        with pytest.raises(BadData, match=r"It was not run|Nothing of it was run"):
            imports.import_encoder(tmp_path / name, tmp_path / "out.safetensors")
    assert not flag.exists()
    assert not (tmp_path / "out.safetensors").exists()


def test_hand_written_programs_are_refused(tmp_path: Path) -> None:
    """Breaks if an instruction that calls by another way, or an array of objects, is let through."""
    harmful = [
        b"(S'touch harm'\nios\nsystem\n.",  # INST
        b"(cos\nsystem\nS'touch harm'\no.",  # OBJ
        b"\x80\x02cnumpy\ndtype\n(X\x02\x00\x00\x00O8\x89\x88tR.",  # an array's type: objects
        b"\x80\x04\x8c\x02os\x8c\x06system\x93.",
        b"\x80\x02\x82\x01.",  # an extension's number
        b"Pname\n.",  # a reference to somewhere else
    ]
    for content in harmful:
        (tmp_path / "x.pkl").write_bytes(content)
        with pytest.raises(reader.Refused):
            reader.read(tmp_path / "x.pkl")
    for content in (
        b"",
        b"\x80",
        b"hello",
        b"\x80\x02]",
        b"\x80\x02K\x01K\x02s.",
        b"\x80\x02j\x00\x00\x00\x00.",
        b"PK",
    ):
        (tmp_path / "x.pkl").write_bytes(content)
        with pytest.raises(BadData):
            reader.read(tmp_path / "x.pkl")


def test_damaged_files_only_raise_our_errors(tmp_path: Path) -> None:
    """Breaks if a flipped or missing byte is a traceback or is believed."""
    content = io.BytesIO()
    torch.save({"a": torch.arange(6.0), "b": [1, "x"]}, content)
    raw = content.getvalue()
    random = np.random.default_rng(0)
    for _ in range(300):
        changed = bytearray(raw[: random.integers(1, len(raw))] if random.random() < 0.3 else raw)
        changed[random.integers(len(changed))] ^= 1 << random.integers(8)
        (tmp_path / "x.pth").write_bytes(changed)
        try:
            found = reader.read(tmp_path / "x.pth")
        except ByolError:
            continue
        if isinstance(found, dict) and isinstance(found.get("a"), torch.Tensor):
            assert torch.equal(found["a"], torch.arange(6.0)) or found["a"].shape != (6,)


def test_the_reader_agrees_with_the_libraries(tmp_path: Path) -> None:
    """Breaks if containers, arrays in either order, byte orders, views or number types are read wrongly."""
    tree = {
        "f": np.asfortranarray(np.arange(12.0).reshape(3, 4)),
        "big": np.arange(3, dtype=">i4"),
        "zero": np.float32(2.5),
        "list": [1, 2**70, -1, 1.5, None, True, "é", b"raw", (), (1,), (1, 2, 3, 4)],
        "set": {3},
        "empty": np.zeros((0, 2)),
        "half": np.ones(2, np.float16),
    }
    for protocol in range(2, 6):
        (tmp_path / "x.pkl").write_bytes(pickle.dumps(tree, protocol))
        found = reader.read(tmp_path / "x.pkl")
        for name in ("f", "big", "empty", "half"):
            assert found[name].dtype == np.asarray(tree[name]).dtype.newbyteorder("=")
            np.testing.assert_array_equal(found[name], tree[name])
        assert (found["zero"], found["list"], found["set"]) == (2.5, tree["list"], [3])
    base = torch.arange(24.0).reshape(4, 6)
    tensors = {
        "whole": base,
        "view": base[1:, ::2],
        "turned": base.T,
        "bf16": base.bfloat16(),
        "half": base.half(),
        "int": base.long(),
        "bool": base > 3,
        "scalar": torch.tensor(4),
        "parameter": nn.Parameter(base[0]),
        "none": torch.empty(0, 3),
    }
    for new in (True, False):
        torch.save(tensors, tmp_path / "x.pth", _use_new_zipfile_serialization=new)
        for name, value in reader.read(tmp_path / "x.pth").items():
            assert value.dtype == tensors[name].dtype
            assert torch.equal(value, tensors[name].detach()), name


def test_a_stretched_tensor_is_no_memory_bomb(tmp_path: Path) -> None:
    """Breaks if a tensor may claim more numbers than its storage has."""
    torch.save({"x": torch.zeros(1).expand(10**7)}, tmp_path / "x.pth")
    with pytest.raises(BadData, match="larger than its storage"):
        reader.read(tmp_path / "x.pth")


@pytest.mark.parametrize("width", [0.03, 0.05, 0.1, 0.125, 0.3, 0.37, 0.5, 0.77, 1.0, 2.0])
@pytest.mark.parametrize("kind", ["BasicBlock", "Bottleneck"])
def test_a_width_that_rounds_is_imported(tmp_path: Path, kind: str, width: float) -> None:
    """Breaks if the width is taken from the stem alone, which is rounded: our own export at 0.1 was refused."""
    blocks = [2, 2, 2, 2] if kind == "BasicBlock" else [3, 4, 6, 3]
    with torch.device("meta"):
        state = resnets.torchvision_resnet(kind, blocks, width, small_images=False).state_dict()
    channels = [state[f"layer{group}.0.conv1.weight"].shape[0] for group in range(1, 5)]
    assert imports._width(channels) == pytest.approx(width, abs=0.003)
    found = imports.Found("torchvision", dict(state), [], {}, [])
    config = apply(Config(), imports.infer(found, tmp_path / "x.pth"))
    assert networks.shapes(config.network) == {name: tuple(value.shape) for name, value in state.items()}
