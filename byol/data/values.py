"""What the values of a data set are: channels, the range that becomes 0 to 1, and each channel's mean and deviation.

They are measured once, on some of the images that a run trains on, and stored with the run and its encoder.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from byol.config import Config, Data, Views, flatten
from byol.config_values import bounds
from byol.crops import scale_of, scaled
from byol.data import loader
from byol.data.source import Source
from byol.data.stored import fitted as fitted
from byol.data.stored import is_eight_bit, with_channels
from byol.errors import BadData, UsageError
from byol.presets import Reason

MEASURED = 256  # images by which range, mean and deviation are measured
PIXELS = 2**14  # of an image that are looked at, spread over it
TWELVE_BITS = 4095
PERCENTILES = (0.1, 99.9)
NORMALIZATION = ("views.mean", "views.std")
FIELDS = ("data.channels", "data.range", "network.channels", *NORMALIZATION)
TYPES = {torch.uint8: "8-bit", torch.uint16: "16-bit", torch.int16: "signed 16-bit", torch.int32: "32-bit"}
DTYPE_RANGES = {
    torch.uint8: (0, 255),
    torch.uint16: (0, 65535),
    torch.int16: (-32768, 32767),
    torch.int32: (-(2**31), 2**31 - 1),
    torch.float32: (0, 1),
}


class Settled(NamedTuple):
    """The config fields that the images settle, by name; none for 8-bit pictures. And why."""

    fields: dict[str, Any]
    reasons: list[Reason]


class Began(NamedTuple):
    """A run that is to go on: its config, the fields that were asked for then, and the reasons for others."""

    config: Config
    asked: Mapping[str, Any]
    reasons: list[Reason]


def settle(
    source: Source,
    config: Config,
    asked: Mapping[str, Any],
    given: Mapping[str, Any],
    began: Began | None = None,
) -> Settled:
    """What the images settle; as it was when a run began, if the same is asked of these fields now.

    `asked` are the fields that the user has set, `given` those that come with weights to go on from, whose range, mean
    and deviation are kept where they have as many channels.
    """
    if began and all(began.asked.get(name) == asked.get(name) for name in FIELDS):
        return Settled(_of(flatten(began.config), FIELDS), [r for r in began.reasons if r.field in FIELDS])
    return _looked_at(source, config, asked, given)


def _looked_at(source: Source, config: Config, asked: Mapping[str, Any], given: Mapping[str, Any]) -> Settled:
    """By some images as they are stored."""
    sample = loader.sample(source)
    if not sample:
        return Settled({}, [])
    count, dtype = commonest(sample)
    data = replace(config.data, channels=config.data.channels or count)
    _refuse_contradiction(config, asked, data.channels)
    deep = data.range != "8-bit" and (dtype != torch.uint8 or data.range != "auto")
    plain = data.channels == 3 and not deep
    if plain and len(config.views.mean) == len(config.views.std) == 3:
        return Settled({}, [])
    known = given if len(given.get("views.mean", ())) == data.channels else {}
    reasons = _why_channels(config.data.channels, count, dtype, given)
    if deep:
        found, why = _range(source, data, dtype, str(known.get("data.range", "")))
        reasons += [Reason("data.range", _short(found), why)] if why else []
        data = replace(data, range=found)
    own = [name for name in NORMALIZATION if plain or name in asked]
    normalization = _normalization(source, data, config.views, own) if own or not known else _of(known, NORMALIZATION)
    fields = {"data.channels": data.channels, "data.range": data.range, "network.channels": data.channels}
    return Settled(fields | normalization, reasons)


def commonest(sample: Sequence[Tensor]) -> tuple[int, torch.dtype]:
    """The number of channels and the type of values that most of some images have."""
    return Counter((len(image), image.dtype) for image in sample).most_common(1)[0][0]


def _of(fields: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: fields[name] for name in names}


def _refuse_contradiction(config: Config, asked: Mapping[str, Any], channels: int) -> None:
    if "network.channels" in asked and config.network.channels != channels:
        raise UsageError(
            f"network.channels {config.network.channels} contradicts the images, which have {channels} channels. "
            "Leave it out: it follows data.channels."
        )


def _why_channels(asked: int, count: int, dtype: torch.dtype, given: Mapping[str, Any]) -> list[Reason]:
    """Where the channels come from, and what becomes of weights that have others."""
    reasons, channels, before = list[Reason](), asked or count, len(given.get("views.mean", ()))
    if not asked:
        kind = TYPES.get(dtype, "float")
        why = f"the images have {count} channel{'s' * (count > 1)} of {kind} values"
        reasons.append(Reason("data.channels", count, why))
    if before not in (0, channels):
        why = f"the weights have {before}: each of {channels} gets the mean of those, times {before}/{channels}"
        reasons.append(Reason("network.channels", channels, why))
    return reasons


def _short(text: str) -> str:
    """The range in few words: that of one channel, or how many there are."""
    pairs = bounds(text)
    ends = ",".join(f"{end:g}" for end in pairs[0])
    return ends if len(pairs) == 1 else f"{ends};… ({len(pairs)} channels)"


def _range(source: Source, data: Data, dtype: torch.dtype, known: str) -> tuple[str, str]:
    """data.range as numbers, and what there is to say of it; `known` is that of weights to go on from."""
    if data.range == "auto" and known and bounds(known):
        return known, "as the weights were trained with"
    given = bounds(data.range)
    if given:
        if len(given) not in (1, data.channels):
            raise UsageError(f"data.range has {len(given)} pairs of numbers, and the images {data.channels} channels.")
        return data.range, ""
    if data.range == "dtype":
        return "{:g},{:g}".format(
            *DTYPE_RANGES[dtype]
        ), f"all values of {TYPES.get(dtype, 'float, of which 1 is white')}"
    pixels = np.concatenate(list(_pixels(source, data.channels, eight=False)), axis=1)  # (C, n)
    whole = dtype in (torch.uint16, torch.int16)
    if data.range == "auto" and whole and pixels.min() >= 0 and 255 < pixels.max() <= TWELVE_BITS:
        return f"0,{TWELVE_BITS}", "no value of the images looked at is above 4095: 12 bits in 16"
    lows, highs = np.percentile(pixels, PERCENTILES, axis=1)
    highs = np.where(highs > lows, highs, lows + 1)
    told = ";".join(f"{low:.9g},{high:.9g}" for low, high in zip(lows, highs, strict=True))
    return told, f"between percentiles {PERCENTILES[0]} and {PERCENTILES[1]} of each channel lie the values that count"


def _normalization(source: Source, data: Data, config: Views, kept: Sequence[str]) -> dict[str, tuple[float, ...]]:
    """Mean and deviation of each channel in [0, 1], as they are measured, but for those of the config that are kept."""
    fields: dict[str, tuple[float, ...]] = {}
    for name, value in zip(NORMALIZATION, (config.mean, config.std), strict=True):
        if name in kept and value:
            if len(value) not in (1, data.channels):
                raise UsageError(f"{name} has {len(value)} numbers, and the images {data.channels} channels.")
            fields[name] = value * data.channels if len(value) == 1 else value
    if len(fields) < 2:
        mean, std = measured(source, data)
        fields = dict(zip(NORMALIZATION, (mean, std), strict=True)) | fields
    return fields


def measured(source: Source, data: Data) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation of every channel over some images of a source, where the range is 0 to 1."""
    count, total, squares = 0, np.zeros(data.channels), np.zeros(data.channels)
    scale = scale_of(data)
    for stored in _pixels(source, data.channels, is_eight_bit(data)):
        values = torch.from_numpy(stored)[:, None]
        unit = (values.double() / 255 if scale is None else scaled(values, scale).double())[:, 0].numpy()
        count += unit.shape[1]
        total += unit.sum(1)
        squares += np.square(unit).sum(1)
    mean = total / count
    deviation = np.sqrt(np.maximum(squares / count - np.square(mean), 0))
    deviation = np.where(deviation > 1e-6, deviation, 1.0)  # of a channel that is the same everywhere
    return tuple(np.round(mean, 6).tolist()), tuple(np.round(deviation, 6).clip(1e-6).tolist())


def _pixels(source: Source, channels: int, eight: bool) -> Iterator[np.ndarray]:
    """Values (C, n) of some pixels of some images, stored or in 8 bits; images of other channels are left out."""
    wanted = with_channels(source, channels, eight)
    empty = True
    for _, image in loader.readable(wanted, loader.spread(source, MEASURED)):
        empty = False
        yield _some(image)
    if empty:
        raise BadData(f"No image of {source.name} that was looked at has {channels} channels (data.channels).")


def _some(image: Tensor) -> np.ndarray:
    """Up to PIXELS pixels on a grid over the image, finite ones where its values may be none."""
    step = max(1, int(np.ceil(np.sqrt(image[0].numel() / PIXELS))))
    values = image[:, ::step, ::step].reshape(len(image), -1).numpy()
    if image.is_floating_point():
        values = values[:, np.isfinite(values).all(0)]
    return values


def suited(given: Mapping[str, Any], channels: int) -> dict[str, Any]:
    """What weights to go on from settle for images of so many channels: not how other channels were normalized."""
    there = given.get("views.mean", ())
    return {
        name: value
        for name, value in given.items()
        if not name.startswith("data.") and (len(there) == channels or not name.startswith("views."))
    }
