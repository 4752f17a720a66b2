"""Depth data sets: the labelled file of NYU v2, any folder of images and 16-bit depth images, or the scenes."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from byol.config import Data
from byol.data.benchmarks import matlab
from byol.data.decode import printable
from byol.data.dense.pairs import Words, find_pairs, part_of, task_of
from byol.data.dense.rendered import rendered
from byol.data.parts import Metric, Sample, Task, of_samples
from byol.data.source import BadImage
from byol.errors import BadData, UsageError
from byol.run.files import open_regular, read_regular

WORDS = Words("depth map", "depths?(?:maps?)?|sync_depth")
METRIC: Metric = "pct<1.25"
FULL = 65535
NYU, NYU_SPLITS = "nyu_depth_v2_labeled.mat", "splits.mat"


def open_depth(on: str, config: Data, unit: float = 1e-3) -> Task:
    """`scenes[:COUNT]`, `nyu` below the root, its .mat file, or a folder of pairs whose numbers are `unit` metres."""
    if on == "scenes" or on.startswith("scenes:"):
        return rendered("depth", on, config)
    path = Path(config.root) / NYU if on == "nyu" and not Path(on).is_dir() else Path(on)
    file = path / NYU if (path / NYU).is_file() else path
    if file.suffix == ".mat" or on == "nyu":
        return _nyu(on, file)
    parts = find_pairs(path, WORDS, config)
    read = partial(_metres, unit)
    return task_of(on, (), METRIC, {k: part_of(path, v, read, WORDS.what, config) for k, v in parts.items()})


def _metres(unit: float, values: np.ndarray) -> Tensor:
    """float32 (H, W); what is no reading is 0, as is the highest number of 16 bits, by which sensors say too far."""
    if values.ndim == 3:
        raise BadImage("is in colours; depth has one number a pixel")
    metres = values.astype(np.float32) * np.float32(unit)
    there = np.isfinite(metres) & (metres > 0) & ((values != FULL) | (values.dtype.kind == "f"))
    return torch.from_numpy(np.where(there, metres, np.float32(0)))


def _nyu(name: str, file: Path) -> Task:
    """795 images to train and 654 to test by the official split, which lies beside the file."""
    if not file.is_file():
        raise UsageError(f"There is no file {printable(file)}, the labelled part of NYU Depth v2.")
    with _opened(file) as opened:
        missing = {"images", "depths"} - set(opened)
        if missing:
            raise BadData(f"{printable(file)} is not NYU Depth v2: it has no {min(missing)}.")
        count = len(opened["images"])
    every = of_samples(
        printable(file), count, partial(_nyu_read, file), partial(_nyu_name, file), partial(_stamp, file)
    )
    split = file.with_name(NYU_SPLITS)
    if not split.exists():
        raise UsageError(f"{printable(file)} needs the official split {NYU_SPLITS} beside it.")
    train, test = (every.take(_nyu_split(split, part, count)) for part in ("train", "test"))
    return task_of(name, (), METRIC, {"train": train, "test": test})


def _opened(file: Path) -> Any:
    try:
        import h5py
    except ImportError:
        raise UsageError("The .mat file of NYU v2 needs h5py: pip install 'byol[nyu]'.") from None
    try:
        open_regular(file).close()  # a pipe would be waited for
        return h5py.File(file, "r")
    except OSError:
        raise BadData(f"{printable(file)} is damaged or no HDF5 file.") from None


def _nyu_read(file: Path, index: int) -> Sample[Tensor]:
    """Opened for every image: a handle does not survive the fork of a loader worker. MATLAB writes columns first."""
    with _opened(file) as opened:
        try:
            image, depth = opened["images"][index], opened["depths"][index]
        except OSError as error:
            raise BadImage(f"cannot be read: {error}") from None
    image, depth = image.transpose(0, 2, 1), np.ascontiguousarray(depth.T, np.float32)
    return Sample(torch.from_numpy(np.ascontiguousarray(image)), _metres(1.0, depth))


def _nyu_name(file: Path, index: int) -> str:
    return f"{file.name}/{index + 1}"


def _stamp(file: Path, index: int) -> bytes:
    status = file.stat()
    return b"%d %d" % (status.st_size, status.st_mtime_ns)


def _nyu_split(path: Path, part: str, count: int) -> np.ndarray:
    """Positions from 0 of a part."""
    try:
        numbers = matlab.numbers(read_regular(path, matlab.MOST_BYTES), f"{part}Ndxs")
    except (ValueError, OSError) as error:
        raise BadData(f"{printable(path)} is not the split of NYU Depth v2: {error}.") from None
    if not len(numbers) or not ((numbers >= 1) & (numbers <= count)).all():
        raise BadData(f"{printable(path)} names images that {NYU} does not have.")
    return numbers.astype(np.int64) - 1
