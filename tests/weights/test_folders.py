"""Exports to a folder: whose it is, and what a killed export leaves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from byol import networks
from byol.checkpoint import save_encoder
from byol.config import Config, apply
from byol.errors import OutputBusy
from byol.run import files
from byol.weights import exports


def encoder_file(folder: Path) -> Path:
    narrow = {"network.encoder": "resnet18", "network.width": 0.05, "network.small_images": True, "data.resolution": 32}
    config, path = apply(Config(), narrow), folder / "encoder.safetensors"
    save_encoder(path, networks.encoder(config.network), config, {"step": 3})
    return path


@pytest.mark.parametrize("text", ["{}", '{"model_type": "bert"}', "[]", "not json", '"byol"'])
def test_a_stranger_s_model_folder_is_left_alone(text: str, tmp_path: Path) -> None:
    """Breaks if any folder with a config.json counts as an export of ours and is written over (73)."""
    mine = tmp_path / "bert"
    mine.mkdir()
    for name in ("config.json", "model.safetensors", "README.md"):
        (mine / name).write_text(text)
    with pytest.raises(OutputBusy, match="no exported model"):
        exports.export(encoder_file(tmp_path), "huggingface", mine)
    assert {path.name: path.read_text() for path in mine.iterdir()} == dict.fromkeys(
        ("config.json", "model.safetensors", "README.md"), text
    )


@pytest.mark.parametrize("point", range(3))
def test_an_export_that_was_killed_is_made_by_the_same_command(
    point: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Breaks if a death before or between the files of a folder makes the folder a stranger's for ever (73)."""
    file, out = encoder_file(tmp_path), tmp_path / "folder"
    real, calls = files.replacing, list[Path]()

    @contextmanager
    def dying(path: Path, needed: int) -> Iterator[Any]:
        calls.append(path)
        if len(calls) > point:
            (path.parent / f".{path.name}.4194305.0123456789abcdef.tmp").write_bytes(b"half")
            raise KeyboardInterrupt
        with real(path, needed) as opened:
            yield opened

    with monkeypatch.context() as patch:
        patch.setattr(files, "replacing", dying)
        with pytest.raises(KeyboardInterrupt):
            exports.export(file, "huggingface", out)
    exports.export(file, "huggingface", out)
    assert sorted(path.name for path in out.iterdir()) == ["README.md", "config.json", "model.safetensors"]


def test_a_folder_that_the_user_names_by_a_link_is_written(tmp_path: Path) -> None:
    """Breaks if --out may not be a link, or a link inside the folder is written through."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "folder").symlink_to(tmp_path / "disk")
    (tmp_path / "victim").write_text("mine")
    exports.export(encoder_file(tmp_path), "huggingface", tmp_path / "folder")
    (tmp_path / "disk" / "README.md").unlink()
    (tmp_path / "disk" / "README.md").symlink_to(tmp_path / "victim")
    exports.export(encoder_file(tmp_path), "huggingface", tmp_path / "folder")
    assert (tmp_path / "victim").read_text() == "mine"
    assert "library_name: byol" in (tmp_path / "disk" / "README.md").read_text()
