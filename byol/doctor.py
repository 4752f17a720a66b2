"""`byol doctor`: what is in a folder of images, what is wrong with it, and what training on it would wait for."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from byol import data, neighbours, presets, speed, views
from byol.config import Config, View
from byol.config_file import read_yaml
from byol.data.examine import BITS, Look, Looks
from byol.data.loader import loaded, worker_count
from byol.data.source import Source
from byol.errors import BadData, UsageError
from byol.progress import bar
from byol.records import write_atomically, write_json
from byol.rundir import facts

TINY = 16  # pixels of the short side below which an image shows little, as a crop does
NEAR_BITS = 10  # of 128 that the fingerprints of near duplicates may differ in
NEAR_COLOUR = 12.0  # of 255, their mean difference of colours
FLAT_BITS = 4  # fewer bits set or unset than this: no structure to compare by
MARKS = {"grey": "grey", "CMYK": "CMYK", "deep": "16-bit or more", "rotated": "turned by EXIF", "animated": "animated"}


@dataclass(frozen=True)
class Request:
    """What to look at, for training by which recipe, and what to leave out of it."""

    data: str
    out: Path
    preset: str = "auto"
    overrides: dict[str, Any] | None = None
    config_file: Path | None = None
    leave_out: tuple[str, ...] = ("unreadable", "tiny", "duplicates")
    speed: bool = True


def doctor(request: Request) -> dict[str, Any]:
    """Looks at every image, writes doctor.json and bad-files.txt, and prints what matters."""
    in_file = read_yaml(request.config_file) if request.config_file else {}
    values = {**in_file, **(request.overrides or {})}
    first, _ = presets.compose(request.preset, values, {})
    source = data.open_source(request.data, first.data)
    looks = scan(source, first)
    good = [look for look in looks if not look.reason]
    found = describe(source, looks)
    config, reasons = _recipe(request, values, good)
    found["warnings"] = warnings(good, config)
    if request.speed and good:
        found["speed"] = speed.measure(source, good, config)
    found["auto"] = reasons
    found["left_out"] = left_out(found, request.leave_out)
    request.out.mkdir(parents=True, exist_ok=True)
    write_json(request.out / "doctor.json", found)
    lines = [f"{name}\t{reason}\n" for name, reason in found["left_out"].items()]
    write_atomically(request.out / "bad-files.txt", "".join(lines).encode())
    print("\n".join(summary(found, request)))
    if not good:
        raise BadData(f"None of the {len(looks)} images of {source.name} can be read.")
    return found


def scan(source: Source, config: Config) -> list[Look]:
    """Every image looked at, in order, by loader workers."""
    looks = Looks(source, config.data.max_megapixels)
    workers = min(worker_count(config), len(looks) // 4)
    found: list[Look] = []
    with bar("Looking", len(source), "images") as shown:
        for chunk in loaded(looks, range(len(looks)), workers):
            found += chunk
            shown.advance(len(chunk))
    return found


def describe(source: Source, looks: Sequence[Look]) -> dict[str, Any]:
    """Counts, sizes, kinds and twins, by name."""
    good = [look for look in looks if not look.reason]
    names = {look.number: source.describe(look.number) for look in looks}
    shorts = np.array([min(look.height, look.width) for look in good] or [0])
    exact = exact_groups(good)
    return {
        "data": source.name,
        "images": len(looks),
        "readable": len(good),
        "bytes": sum(look.size for look in looks),
        "formats": _counted(look.format for look in good if look.format),
        "modes": _counted(look.mode for look in good if look.mode),
        "short_side": {
            name: int(value)
            for name, value in zip(
                ("smallest", "median", "largest"), np.percentile(shorts, [0, 50, 100], method="nearest"), strict=True
            )
        },
        "megapixels": round(sum(look.height * look.width for look in good) / 1e6, 1),
        "classes": _counted(source.classes[label] for label in _labels(source)),
        "unreadable": {names[look.number]: look.reason for look in looks if look.reason},
        "tiny": [names[look.number] for look in good if min(look.height, look.width) < TINY],
        "duplicates": [[names[i] for i in group] for group in exact],
        "near_duplicates": [[names[i] for i in group] for group in near_groups(good, exact)],
        **{mark: [names[look.number] for look in good if mark in look.marks] for mark in MARKS},
    }


def _labels(source: Source) -> list[int]:
    return [] if source.labels is None or source.labels.ndim > 1 else source.labels.tolist()


def _counted(items: Iterable[str]) -> dict[str, int]:
    return dict(Counter(items).most_common())


def exact_groups(good: Sequence[Look]) -> list[list[int]]:
    """Numbers of the images whose bytes (or pixels, where there are no files) are equal."""
    by_digest: dict[bytes, list[int]] = {}
    for look in good:
        by_digest.setdefault(look.digest, []).append(look.number)
    return [group for group in by_digest.values() if len(group) > 1]


def near_groups(good: Sequence[Look], exact: Sequence[Sequence[int]]) -> list[list[int]]:
    """Numbers of the images that look nearly alike, each kind of exact duplicates counted once.

    The fingerprints of all pairs are compared; a pair stands when the colours agree too.
    """
    again = {index for group in exact for index in group[1:]}
    some = [look for look in good if look.number not in again]
    if len(some) < 2:
        return []
    bits = torch.from_numpy(np.stack([look.bits for look in some if look.bits is not None])).float() * 2 - 1
    colours = np.stack([look.colours for look in some if look.colours is not None]).astype(np.int16)
    colours = colours.reshape(len(some), -1)
    clear = (bits.sum(1).abs() <= BITS - 2 * FLAT_BITS).numpy()
    lowest = np.arange(len(some))
    with bar("Comparing", len(some), "images") as shown:
        for one, two in neighbours.pairs(bits, BITS - 2 * NEAR_BITS, shown.advance):
            far = np.abs(colours[one] - colours[two]).mean(1) > NEAR_COLOUR
            kept = clear[one] & clear[two] & ~far
            neighbours.join(lowest, one[kept], two[kept])
    return [[some[i].number for i in group] for group in neighbours.groups(lowest)]


def _recipe(request: Request, values: dict[str, Any], good: Sequence[Look]) -> tuple[Config, list[str]]:
    """The config that training would have."""
    first, reasons = presets.compose(request.preset, values, {})
    if request.preset != "auto" or not good:
        return first, reasons
    sides = [min(look.height, look.width) for look in good]
    return presets.compose(request.preset, values, {}, "", facts(len(good), sides, first))


def warnings(good: Sequence[Look], config: Config) -> list[str]:
    """What the views of this recipe would do badly to these images."""
    if not good:
        return []
    found, size = [], config.data.resolution
    small = small_crops(good, config)
    if small > 0.05:
        found.append(
            f"{small:.0%} of the crops are less than {TINY} px wide or high before they are resized to {size} px: "
            "raise views.t.area_min and views.t_prime.area_min"
        )
    grey = sum("grey" in look.marks for look in good) / len(good)
    both: list[View] = [config.views.t, config.views.t_prime]
    if grey > 0.5 and any((view.jitter and (view.hue or view.saturation)) or view.grayscale for view in both):
        found.append(
            f"{grey:.0%} of the images are grey: hue, saturation and colour dropping do nothing for them; contrast, "
            "brightness, blur and crops remain (set hue, saturation and grayscale of both views to 0)"
        )
    enlarged = sum(min(look.height, look.width) < size for look in good) / len(good)
    if enlarged > 0.5:
        found.append(f"{enlarged:.0%} of the images are smaller than data.resolution, {size} px: lower it")
    if any(view.blur and view.sigma_max > 1 for view in both) and views.blur_taps(size) <= 3:
        found.append(
            f"the blur has {views.blur_taps(size)} taps at {size} px and cannot reach its sigma: set blur to 0"
        )
    if len(good) < config.optim.batch:
        found.append(f"{len(good)} images are fewer than optim.batch, {config.optim.batch}: lower it")
    return found


def small_crops(good: Sequence[Look], config: Config, most: int = 2000) -> float:
    """The share of drawn crops, over both views, with a side under TINY pixels of the image itself."""
    some = [good[i] for i in np.linspace(0, len(good) - 1, min(len(good), most)).astype(int)]
    heights, widths = (torch.tensor([float(getattr(look, side)) for look in some]) for side in ("height", "width"))
    shares = []
    for draw in views.draw(config.run.seed, 0, len(some), config.views):
        box = views.boxes(draw, heights, widths, config.views)
        shares.append(float((torch.minimum(box.height, box.width) < TINY).float().mean()))
    return sum(shares) / 2


def left_out(found: dict[str, Any], kinds: Sequence[str]) -> dict[str, str]:
    """Names and reasons of what training should not see; of twins the first stays."""
    wrong = set(kinds) - set(KINDS)
    if wrong:
        raise UsageError(f"--leave-out does not know {', '.join(sorted(wrong))}; it knows {', '.join(KINDS)}.")
    listed: dict[str, str] = {}
    if "unreadable" in kinds:
        listed |= found["unreadable"]
    if "tiny" in kinds:
        listed |= dict.fromkeys(found["tiny"], f"under {TINY} px")
    for kind, word in (("duplicates", "same as"), ("near_duplicates", "nearly the same as")):
        if kind.replace("_", "-") in kinds:
            listed |= {name: f"{word} {group[0]}" for group in found[kind] for name in group[1:]}
    return listed


def summary(found: dict[str, Any], request: Request) -> list[str]:
    """For people, within 80 columns where names allow."""
    short, bad = found["short_side"], found["unreadable"]
    size = f", {found['bytes'] / 1e6:,.0f} MB" if found["bytes"] else ""
    lines = [f"{found['images']:,} images in {found['data']}{size}; {found['readable']:,} can be read"]

    def line(title: str, text: str) -> None:
        lines.append(f"  {title:<12}{text}")

    if found["formats"]:
        line("formats", " · ".join(f"{name} {count:,}" for name, count in found["formats"].items()))
    line("short side", f"{short['smallest']} to {short['largest']} px, half of them at least {short['median']}")
    if found["classes"]:
        counts = found["classes"].values()
        line("folders", f"{len(counts)} classes of {min(counts):,} to {max(counts):,} images")
    if bad:
        kinds = _counted("too large" if "mega" in reason else reason.split(":")[0] for reason in bad.values())
        line("unreadable", f"{len(bad)}: " + ", ".join(f"{count} {kind}" for kind, count in list(kinds.items())[:4]))
    if found["tiny"]:
        line("tiny", f"{len(found['tiny'])} under {TINY} px")
    for kind, title in (("duplicates", "duplicates"), ("near_duplicates", "nearly same")):
        groups = found[kind]
        if groups:
            more = sum(len(group) - 1 for group in groups)
            many = f"{len(groups)} group{'s' * (len(groups) > 1)}"
            line(title, f"{more} more than needed, in {many}, such as {groups[0][0]} and {groups[0][1]}")
    marks = [f"{len(found[mark]):,} {word}" for mark, word in MARKS.items() if found[mark]]
    if marks:
        line("kinds", " · ".join(marks))
    for title, text in speed.lines(found.get("speed")):
        line(title, text)
    for text in found["warnings"]:
        line("warning", text)
    lines.append(f"Details: {request.out / 'doctor.json'}")
    if found["left_out"]:
        command = shlex.join(["byol", "pretrain", request.data, "--data.exclude", str(request.out / "bad-files.txt")])
        lines.append(f"{len(found['left_out'])} to leave out: {command}")
    return lines


KINDS = ("unreadable", "tiny", "duplicates", "near-duplicates")
