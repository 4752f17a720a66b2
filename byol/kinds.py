"""Views for images that are not photographs: what a kind of images switches and why, and how the kind is recognized.

Each kind is a preset: the recipe that `auto` chooses, with these views. `auto` itself takes a kind only where the files
leave no doubt; three channels of 8 bits stay photographs. Needs no torch.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from byol.config import View, Views

COLOURS = 3
FLAT = 0.5  # share of the values in the lowest twentieth of their range from which on images have an empty ground
TIFF = (".tif", ".tiff")
MEDICAL = (".dcm", ".dicom", ".nii", ".nii.gz")


@dataclass(frozen=True)
class Switch:
    """Fields of both views that a kind sets, and why."""

    fields: tuple[tuple[str, float], ...]
    why: str
    where: Literal["any", "colours", "bands", "several"] = "any"  # colours: 3 channels; bands: any other number

    def applies(self, channels: int) -> bool:
        colours = channels == COLOURS
        return {"any": True, "colours": colours, "bands": not colours, "several": channels > 1 and not colours}[
            self.where
        ]

    def __str__(self) -> str:
        return ", ".join(f"{name} {value:g}" for name, value in self.fields)


class Look(NamedTuple):
    """What is seen of some images before anything is chosen."""

    channels: int = 3
    grey: float = 0.0  # share of them without colour
    bits: int = 8  # of a value; 32 for floats
    flat: float = 0.0  # share of their values that are next to the lowest
    suffixes: tuple[str, ...] = ()  # of their files


class Recognized(NamedTuple):
    """A kind of images and why they are taken for it; no kind for photographs."""

    kind: str
    why: str


def views(kind: str, base: Views, channels: int) -> tuple[Views, list[Switch]]:
    """Both views of a recipe with what the kind switches for so many channels, and the switches that changed one."""
    both, told = base, []
    for switch in SWITCHES.get(kind, ()):
        if switch.applies(channels):
            changed = replace(both, t=_set(both.t, switch), t_prime=_set(both.t_prime, switch))
            told += [switch] if changed != both else []
            both = changed
    return both, told


def _set(view: View, switch: Switch) -> View:
    return replace(view, **dict(switch.fields))


def recognized(look: Look) -> Recognized:
    """By rules that a reader can check; doubt means photographs where there are colours, else the mildest views."""
    medical = [suffix for suffix in look.suffixes if suffix in MEDICAL]
    if medical and len(medical) == len(look.suffixes):
        return Recognized("medical", f"the files are {' and '.join(medical)}")
    if look.channels == COLOURS:
        return Recognized("", "three channels are taken for colours")
    if look.channels == 1 or look.grey == 1:
        depth = f" of {look.bits} bits" if look.bits > 8 else ""
        ground = f", {look.flat:.0%} of it an empty ground" if look.flat >= FLAT else ""
        if look.bits > 8 and look.flat >= FLAT:
            return Recognized("microscopy", f"one channel{depth}{ground}")
        return Recognized("grey", f"one channel{depth}")
    if look.flat >= FLAT:
        return Recognized(
            "microscopy", f"{look.channels} channels, and {look.flat:.0%} of their values an empty ground"
        )
    if look.suffixes and set(look.suffixes) <= set(TIFF):
        return Recognized("satellite", f"{look.channels} channels without an empty ground, in TIFF files")
    return Recognized("bands", f"{look.channels} channels without an empty ground")


def suffix_of(name: str) -> str:
    """`.nii.gz` for `scans/a.NII.GZ`, `` for a name without one."""
    last = re.sub(r"#\d+$", "", name.replace("\\", "/").rpartition("/")[2].lower())  # the number of an image in a file
    return ".nii.gz" if last.endswith(".nii.gz") else "." * ("." in last) + last.rpartition(".")[2] * ("." in last)


def suffixes_of(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(sorted({suffix_of(name) for name in names}))


NO_UP = Switch((("flip_vertical", 0.5), ("quarter_turn", 1.0)), "nothing in these images says where up is")
NO_NEGATIVE = Switch((("solarize", 0.0),), "a value means the same in every image, and its negative nothing")
BANDS = "channels are measurements, and colour operations need colours"

SWITCHES: dict[str, tuple[Switch, ...]] = {
    "grey": (
        Switch(
            (("channel_jitter", 0.8), ("channel_brightness", 0.4), ("channel_contrast", 0.4)),
            "exposure differs, and colour operations, which would change it, need colours",
            "bands",
        ),
        Switch(
            (("saturation", 0.0), ("hue", 0.0), ("grayscale", 0.0)), "three equal channels have no colour", "colours"
        ),
    ),
    "bands": (
        Switch(
            (("channel_jitter", 0.8), ("channel_brightness", 0.4), ("channel_contrast", 0.4)),
            f"the strength of single channels differs between images of one kind; {BANDS}",
        ),
        Switch((("saturation", 0.0), ("hue", 0.0), ("grayscale", 0.0)), "these channels are no colours", "colours"),
    ),
    "microscopy": (
        NO_UP,
        NO_NEGATIVE,
        Switch(
            (("channel_jitter", 0.8), ("channel_brightness", 0.2), ("channel_contrast", 0.4)),
            "each stain has an intensity of its own that differs between slides",
            "bands",
        ),
        Switch((("channel_drop", 0.2), ("drop_share", 0.3)), "a stain may be missing", "several"),
        Switch((("hue", 0.05), ("grayscale", 0.0)), "the colour of a stain tells it, and differs a little", "colours"),
        Switch((("noise", 0.3), ("deviation", 0.05)), "detectors count few photons"),
        Switch((("area_min", 0.2),), "the scale is that of the microscope, and small crops are often empty"),
    ),
    "satellite": (
        NO_UP,
        NO_NEGATIVE,
        Switch(
            (("channel_jitter", 0.8), ("channel_brightness", 0.2), ("channel_contrast", 0.2)),
            f"haze and sun change each band a little; {BANDS}",
            "bands",
        ),
        Switch((("channel_drop", 0.2), ("drop_share", 0.3)), "no single band should carry the answer", "several"),
        Switch((("hue", 0.05), ("grayscale", 0.0)), "colour tells land covers apart", "colours"),
        Switch((("area_min", 0.2),), "the ground's scale is nearly the same in all images"),
    ),
    "medical": (
        Switch((("flip", 0.0),), "left and right of a body differ"),
        NO_NEGATIVE,
        Switch((("rotate", 0.5), ("angle", 15.0)), "bodies lie a little askew"),
        Switch(
            (("channel_jitter", 0.8), ("channel_brightness", 0.2), ("channel_contrast", 0.2)),
            f"exposure and window differ, and values carry meaning; {BANDS}",
            "bands",
        ),
        Switch((("hue", 0.02), ("grayscale", 0.0)), "the colour of tissue tells it", "colours"),
        Switch((("noise", 0.3), ("deviation", 0.03)), "dose and coil set the noise"),
        Switch((("sigma_max", 1.0),), "findings are small, and a strong blur removes them"),
        Switch((("area_min", 0.3),), "a small crop often misses the finding"),
    ),
}
