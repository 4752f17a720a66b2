"""numpy's .npz files as they come: plain numbers and texts, never objects, never much more than the file holds."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import BinaryIO

import numpy as np

GROWTH, ROOM = 100, 1 << 24  # what comes out may be so many times the file and these bytes, and a quarter of memory
MOST_MEMBERS = 1000


def read_npz(file: Path | BinaryIO, length: int) -> dict[str, np.ndarray]:
    """Every array of a .npz file of `length` bytes; a `ValueError` that says why not, an `OSError` of the disk's."""
    try:
        with zipfile.ZipFile(file) as archive:
            members = archive.infolist()
            if len(members) > MOST_MEMBERS:
                raise ValueError(f"it has {len(members):,} members")
            unpacked = sum(member.file_size for member in members)
            if unpacked > min(GROWTH * length + ROOM, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4):
                raise ValueError("it would unpack to far more than it holds, or than memory does")
            return {m.filename.removesuffix(".npy"): _array(archive, m) for m in members}
    except OSError as error:
        if error.errno is None:
            raise ValueError("it is damaged") from None
        raise
    except (ValueError, MemoryError):
        raise
    except Exception as error:  # what zipfile, zlib and numpy's parser of headers raise for damage
        raise ValueError(f"it is damaged ({type(error).__name__})") from None


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    """Read by its header, which may claim a shape that its member has no bytes for."""
    with archive.open(member) as file:
        version = np.lib.format.read_magic(file)
        if version not in READERS:
            raise ValueError("an array is of an unknown version")
        shape, fortran, dtype = READERS[version](file, max_header_size=10_000)
        if dtype.hasobject:
            raise ValueError("it holds objects, which could run something")
        content = file.read()
    count = int(np.prod(shape, dtype=object))
    if count * dtype.itemsize != len(content) or any(side < 0 for side in shape):
        raise ValueError("an array has another length than it says")
    # A copy, because what numpy makes of bytes cannot be written to.
    return np.frombuffer(content, dtype, count).reshape(shape, order="F" if fortran else "C").copy()


READERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
