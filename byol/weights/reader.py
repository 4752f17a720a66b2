"""Reads files of Python and PyTorch (.pkl, .pth, .pt, .ckpt) as plain data; nothing in a file is ever run.

A file is one or more programs for the machine of `unpickling`, and the bytes of tensors beside or behind them.
"""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any, BinaryIO

import torch

from byol.errors import BadData, DiskError
from byol.run.files import open_regular
from byol.weights import unpickling
from byol.weights.unpickling import Refused

MAGIC = 0x1950A86A20F9469CFC6C  # the first number of PyTorch's files before 1.6


def read(path: Path) -> Any:
    """The file's content as dictionaries, lists, text, numbers, numpy arrays and tensors."""
    try:
        file = open_regular(path)  # what fails after this is the file's fault
    except OSError as error:
        raise DiskError(f"Cannot read {path}: {error.strerror or error}.") from None
    try:
        with file:
            return _read(file)
    except Refused as error:
        raise Refused(f"{path} {error}") from None
    except Exception as error:
        reason = " ".join(str(error).split())[:80] or type(error).__name__
        raise BadData(f"{path} is damaged or no file of weights ({reason}).") from None


def _read(file: BinaryIO) -> Any:
    if file.read(2) == b"PK":
        return _zipped(file)
    file.seek(0)
    first = unpickling.run(file, _no_storage)
    return _legacy(file) if first == MAGIC else first


def _zipped(file: BinaryIO) -> Any:
    """PyTorch's files since 1.6: a zip of the tree and a member for each storage, stored as they are."""
    with zipfile.ZipFile(file) as archive:
        if any(member.compress_type != zipfile.ZIP_STORED for member in archive.infolist()):
            raise Refused("is a compressed archive: PyTorch writes none. Unpack it first.")
        tree = next((name for name in archive.namelist() if name.endswith("/data.pkl")), None)
        if tree is None:
            raise Refused("is a zip archive without weights of PyTorch.")
        root = tree.removesuffix("data.pkl")
        if f"{root}byteorder" in archive.namelist() and archive.read(f"{root}byteorder") != b"little":
            raise Refused("was written on a big-endian machine.")
        known: dict[str, torch.Tensor] = {}
        left = length = file.seek(0, io.SEEK_END)

        def member(name: str) -> bytes:
            nonlocal left
            left -= archive.getinfo(name).file_size  # members may overlap, and so be many times the file
            if left < 0:
                raise Refused("is an archive whose members are larger than itself.")
            return archive.read(name)

        def storage(reference: Any) -> torch.Tensor:
            _, kind, key, _, count = reference[:5]
            if unpickling.as_key(key) not in known:
                known[key] = _values(bytearray(member(f"{root}data/{key}")), kind, count)
            return known[key]

        return unpickling.run(io.BytesIO(member(tree)), storage, length)


def _legacy(file: BinaryIO) -> Any:
    """PyTorch's files before 1.6: version, system, tree, the storages' keys, then their bytes in that order."""
    for _ in range(2):
        unpickling.run(file, _no_storage)
    wanted: dict[str, tuple[torch.Tensor, int]] = {}
    place = file.tell()
    left = file.seek(0, io.SEEK_END)
    file.seek(place)

    def storage(reference: Any) -> torch.Tensor:
        nonlocal left
        _, kind, key, _, count, view = reference
        if view is not None:
            raise Refused("has storages that are views of others, which only very old versions of PyTorch wrote.")
        if unpickling.as_key(key) not in wanted:  # as long as it says, but all together not longer than the file
            dtype = unpickling.number_type(kind)
            left -= count * dtype.itemsize
            if count < 0 or left < 0:
                raise ValueError("a storage is longer than the file")
            wanted[key] = (
                torch.empty(count, dtype=unpickling.number_type(kind)),
                count * unpickling.number_type(kind).itemsize,
            )
        return wanted[key][0]

    tree = unpickling.run(file, storage)
    for key in unpickling.run(file, _no_storage):
        tensor, size = wanted.pop(key)
        if int.from_bytes(file.read(8), "little") != len(tensor):
            raise ValueError("a storage has another length than the tree says")
        content = bytearray(file.read(size))
        if len(content) != size:
            raise ValueError("truncated")
        if size:
            tensor.copy_(torch.frombuffer(content, dtype=tensor.dtype))
    if wanted:
        raise ValueError("a storage has no content")
    return tree


def _no_storage(reference: Any) -> torch.Tensor:
    raise Refused("refers to data outside itself.")


def _values(content: bytearray, kind: Any, count: int) -> torch.Tensor:
    dtype = unpickling.number_type(kind)
    if len(content) != count * dtype.itemsize:
        raise ValueError("a storage has another length than the tree says")
    return torch.frombuffer(content, dtype=dtype) if count else torch.empty(0, dtype=dtype)
