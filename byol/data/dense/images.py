"""The images of the dense data sets: 8-bit colours as they are decoded, or what an encoder of other images wants."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from byol.config import Data
from byol.crops import scale_of, scaled
from byol.data.decode import decode, image_size, open_image
from byol.data.folder import supported
from byol.data.formats import FORMATS, format_of
from byol.data.parts import Part, Sample, Sealed, Task
from byol.data.samples import reading_of
from byol.data.source import BadImage
from byol.data.stored import fit, is_eight_bit, read_stored, require_channels


def is_plain(config: Data) -> bool:
    """Whether the encoder was trained on 8-bit colours."""
    return config.channels in (0, 3) and is_eight_bit(config)


def suffixes(config: Data) -> tuple[str, ...]:
    """How the names of image files end: also those of other formats where the encoder can use them."""
    others = () if is_plain(config) else tuple(FORMATS)
    return tuple(f".{extension}" for extension in (*supported(), *others))


def read_image(path: Path, config: Data) -> Tensor:
    """uint8 (3, H, W) for an encoder of 8-bit colours, else as the file stores it; one image a file."""
    with open_image(os.fsencode(path)) as file:
        if is_plain(config):
            return decode(file, config.max_megapixels)
        if kind := format_of(path.name):
            kind.check()
            count = kind.describe(file, config.max_megapixels, reading_of(config)).images
            if count != 1:
                raise BadImage(f"{count} images in a file, where one is wanted", "several images in a file")
        file.seek(0)
        return read_stored(file, config.max_megapixels, path.name, 0, reading_of(config))


def size_of(path: Path, config: Data) -> tuple[int, int]:
    """(height, width) from the header alone."""
    kind = None if is_plain(config) else format_of(path.name)
    if kind is None or not kind.installed():
        return image_size(path)
    with open_image(os.fsencode(path)) as file:
        described = kind.describe(file, config.max_megapixels, reading_of(config))
    return described.height, described.width


def adapted(task: Task, config: Data) -> Task:
    """The task with every image as the encoder takes it: other than 8-bit ones as float32 (C, H, W) in [0, 1]."""
    if is_plain(config):
        return task
    require_channels(task.train.source, config)

    def of(part: Part) -> Part:
        assert part.samples is not None
        return replace(part, samples=partial(_adapted, part.samples, config))

    return replace(
        task,
        train=of(task.train),
        validation=of(task.validation),
        test=Sealed(lambda: of(task.test.again().open())),
    )


def _adapted(read: Callable[[int], Sample[Any]], config: Data, index: int) -> Sample[Any]:
    sample, scale = read(index), scale_of(config)
    image = fit(sample.image, config.channels or 3, scale is None)
    return sample._replace(image=image if scale is None else scaled(image, scale))
