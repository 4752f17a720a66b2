"""The verb that packs images for reading in bulk: shard."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from byol.cli.app import USE, app
from byol.errors import UsageError
from byol.run import output

UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9}
LEAST = 10_000


@app.command(group=USE)
def shard(
    folder: Path,
    out: Annotated[Path, Parameter(alias="-o")],
    *,
    shard_size: str = "256MB",
    shuffle: bool = True,
    overwrite: bool = False,
) -> object:
    """Pack a folder of images into tar shards.

    The same command again goes on, or checks every finished shard.

    Parameters
    ----------
    folder
        A folder of images, with or without class folders or train, val and test parts.
    out
        Where the shards go, with shards.json (names and SHA-256) and shards.npz (where each image lies).
    shard_size
        The most that a shard holds, such as 256MB or 1GB.
    shuffle
        Store the images in a mixed order, for readers that read on and on; ours gives them in the folder's order.
    overwrite
        Start again when the folder holds shards of other images.
    """
    size = _bytes(shard_size)
    if not folder.is_dir():
        raise UsageError(f"There is no folder {folder}.")
    output.check_folder(out)
    from byol.data.shards import writing

    writing.shard(folder, out, size, shuffle, overwrite)
    return {"out": out}


def _bytes(text: str) -> int:
    """`256MB` in bytes."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?(B|KB|MB|GB|)", text.strip().upper())
    size = int(float(match[1]) * UNITS[match[2]]) if match else 0
    if size < LEAST:
        raise UsageError(f"--shard-size should be a size such as 256MB or 1GB, not '{text}'.")
    return size
