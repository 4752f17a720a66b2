"""`byol doctor`: what is in a folder of images, what is wrong with it, and what training on it would wait for."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from byol import data, neighbours, presets, views
from byol.config import Config, View, apply
from byol.config_file import read_yaml
from byol.data.loader import names_of, sample, worker_count
from byol.data.source import Source
from byol.data.stored import fitted, is_eight_bit
from byol.data.values import settle
from byol.data.workers import loaded
from byol.errors import BadData, UsageError
from byol.explore import throughput
from byol.explore.examine import BITS, Look, Looks
from byol.presets import Reason
from byol.run import record
from byol.run.facts import facts
from byol.run.files import write_atomically
from byol.run.progress import bar, tell

TINY = 16  # pixels of the short side below which an image shows little, as a crop does
NEAR_BITS = 10  # of 128 that the fingerprints of near duplicates may differ in
NEAR_COLOUR = 12.0  # of 255, their mean difference of colours
FLAT_BITS = 4  # fewer bits set or unset than this: no structure to compare by
MARKS = {
    "grey": "grey",
    "CMYK": "CMYK",
    "deep": "16-bit or more",
    "fourth": "with a fourth channel",
    "rotated": "turned by EXIF",
    "animated": "animated",
}
BIT_DEPTHS = (10, 12, 14)  # that 16-bit files often hold


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


@dataclass(frozen=True)
class Findings:
    """What doctor.json holds: counts, and the names of the images with each trouble."""

    data: str
    images: int
    readable: int
    bytes: int
    formats: dict[str, int]
    modes: dict[str, int]
    values: dict[str, Any]  # channels and type of the numbers, by how many images have them, and their range
    short_side: dict[str, int]  # smallest, median and largest, in pixels
    megapixels: float
    classes: dict[str, int]
    unreadable: dict[str, str]  # name: reason
    unreadable_kinds: dict[str, int]
    tiny: list[str]
    duplicates: list[list[str]]  # groups
    near_duplicates: list[list[str]]
    kinds: dict[str, list[str]]  # by the names of MARKS
    warnings: list[str] = field(default_factory=list)
    speed: dict[str, Any] | None = None
    auto: list[Any] = field(default_factory=list)  # why `auto` chose what it chose
    left_out: dict[str, str] = field(default_factory=dict)  # name: reason


def doctor(request: Request) -> Findings:
    """Examines every image, writes doctor.json and bad-files.txt, and prints what matters."""
    in_file = read_yaml(request.config_file) if request.config_file else {}
    values = {**in_file, **(request.overrides or {})}
    first, _ = presets.compose(request.preset, values, {})
    source = data.open_stored(request.data, first.data)
    looks = scan(source, first)
    good = [look for look in looks if not look.reason]
    config, reasons = _recipe(request, values, source, good)
    findings = describe(source, looks)
    findings = replace(
        findings,
        warnings=[*channel_warnings(good, config), *page_warnings(good), *warnings(good, config)],
        speed=throughput.measure(fitted(source, config.data), good, config) if request.speed and good else None,
        auto=list(reasons),
        left_out=left_out(findings, request.leave_out),
    )
    request.out.mkdir(parents=True, exist_ok=True)
    record.write(request.out / "doctor.json", findings)
    lines = [f"{name}\t{reason}\n" for name, reason in findings.left_out.items()]
    write_atomically(request.out / "bad-files.txt", "".join(lines).encode())
    tell("\n".join(summary(findings, request)))
    if not good:
        why = f"the first is {looks[0].reason}" if looks else "there are none"
        raise BadData(f"None of the {len(looks)} images of {source.name} can be read: {why}.")
    return findings


def scan(source: Source, config: Config) -> list[Look]:
    """Every image examined, in order, by loader workers."""
    chunks = Looks(source, config.data.max_megapixels)
    workers = min(worker_count(config), len(chunks) // 4)
    looks: list[Look] = []
    with bar("Looking", len(source), "images") as shown:
        for chunk in loaded(chunks, range(len(chunks)), workers):
            looks += chunk
            shown.advance(len(chunk))
    return looks


def describe(source: Source, looks: Sequence[Look]) -> Findings:
    """Counts, sizes, kinds and duplicates, by name."""
    good = [look for look in looks if not look.reason]
    names = {look.number: source.describe(look.number) for look in looks}
    shorts = np.array([min(look.height, look.width) for look in good] or [0])
    sides = np.percentile(shorts, [0, 50, 100], method="nearest").astype(int).tolist()
    exact = exact_groups(good)
    return Findings(
        data=source.name,
        images=len(looks),
        readable=len(good),
        bytes=sum(look.size for look in looks),
        formats=_counted(look.format for look in good if look.format),
        modes=_counted(look.mode for look in good if look.mode),
        values=_values(good),
        short_side=dict(zip(("smallest", "median", "largest"), sides, strict=True)),
        megapixels=round(sum(look.height * look.width for look in good) / 1e6, 1),
        classes=_counted(source.classes[label] for label in _labels(source)),
        unreadable={names[look.number]: look.reason for look in looks if look.reason},
        unreadable_kinds=_counted(look.kind for look in looks if look.reason),
        tiny=[names[look.number] for look in good if min(look.height, look.width) < TINY],
        duplicates=_named(names, exact),
        near_duplicates=_named(names, near_groups(good, exact)),
        kinds={mark: [names[look.number] for look in good if mark in look.marks] for mark in MARKS},
    )


def _values(good: Sequence[Look]) -> dict[str, Any]:
    """The numbers of the images: how many channels, of which type, from where to where."""
    kinds = _counted(f"{look.channels} of {look.values}" for look in good)
    lows, highs = [look.low for look in good], [look.high for look in good]
    return {"channels": kinds, "lowest": min(lows, default=0.0), "highest": max(highs, default=0.0)}


def _named(names: Mapping[int, str], groups: Sequence[Sequence[int]]) -> list[list[str]]:
    return [[names[number] for number in group] for group in groups]


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
    """Numbers of the images that look nearly alike; of exact duplicates only the first is compared.

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
    alike = 1 - (2 * NEAR_BITS + 1) / BITS  # the cosine between those of NEAR_BITS and of one more differing bit
    lowest = np.arange(len(some))
    with bar("Comparing", len(some), "images") as shown:
        for one, two, _ in neighbours.pairs(bits, alike, shown.advance):
            far = np.abs(colours[one] - colours[two]).mean(1) > NEAR_COLOUR
            kept = clear[one] & clear[two] & ~far
            neighbours.join(lowest, one[kept], two[kept])
    return [[some[i].number for i in group] for group in neighbours.groups(lowest)]


def _recipe(
    request: Request, values: dict[str, Any], source: Source, good: Sequence[Look]
) -> tuple[Config, list[Reason]]:
    """The config that training would have, and why `auto` chose it."""
    first, reasons = presets.compose(request.preset, values, {})
    if not good:
        return first, reasons
    settled, whys = settle(source, first, values, {})
    if presets.chooses(request.preset):
        source = fitted(source, apply(first, settled, "images", check=False).data)
        seen = facts(len(good), sample(source), first, names_of(source), settled)
        first, reasons = presets.compose(request.preset, values, {}, "", seen)
    return apply(first, settled, "images"), [*reasons, *whys]


def channel_warnings(good: Sequence[Look], config: Config) -> list[str]:
    """What of the files' numbers does not reach the training."""
    sentences = []
    fourth = sum("fourth" in look.marks for look in good)
    if fourth:
        sentences.append(
            f"{fourth:,} images have a fourth channel, which is taken for transparency: transparent pixels turn white, "
            "and only red, green and blue are trained on. A fourth band, such as infrared, is lost"
        )
    channels = config.data.channels or 3
    others = sum(look.channels not in (channels, 1 if channels == 3 else channels) for look in good)
    if others:
        sentences.append(f"{others:,} images do not have the {channels} channels of the others, and are left out")
    deep = [look.high for look in good if look.values == "uint16" and is_eight_bit(config.data)]
    bits = next((bits for bits in BIT_DEPTHS if deep and max(deep) < 2**bits), 0)
    if bits:
        sentences.append(
            f"{len(deep):,} images of 16 bits hold values of at most {bits} bits, which makes them nearly black beside "
            f"the others: multiply their values by {2 ** (16 - bits)} before training"
        )
    return sentences


def page_warnings(good: Sequence[Look]) -> list[str]:
    """Images in files of which only the first is used."""
    several = [look.pages for look in good if look.pages > 1]
    if not several:
        return []
    return [
        f"{len(several):,} files hold {sum(several):,} images, of which the first of each is used: --data.pages images "
        "takes all of them, --data.pages channels takes them for the channels of one"
    ]


def warnings(good: Sequence[Look], config: Config) -> list[str]:
    """What the views of this recipe would do badly to these images."""
    if not good:
        return []
    sentences, size = _colour_warnings(good, config), config.data.resolution
    small = small_crops(good, config)
    if small > 0.05:
        sentences.append(
            f"{small:.0%} of the crops are less than {TINY} px wide or high before they are resized to {size} px: "
            "raise views.t.area_min and views.t_prime.area_min"
        )
    enlarged = sum(min(look.height, look.width) < size for look in good) / len(good)
    if enlarged > 0.5:
        sentences.append(f"{enlarged:.0%} of the images are smaller than data.resolution, {size} px: lower it")
    if len(good) < config.optim.batch:
        sentences.append(f"{len(good)} images are fewer than optim.batch, {config.optim.batch}: lower it")
    return sentences


def _colour_warnings(good: Sequence[Look], config: Config) -> list[str]:
    """Views that change colours which are not there, or blur less than they claim."""
    sentences, taps = [], views.blur_taps(config.data.resolution)
    both: list[View] = [config.views.t, config.views.t_prime]
    grey = sum("grey" in look.marks for look in good) / len(good)
    colours = (config.data.channels or 3) == 3  # elsewhere, operations on colours are left out
    coloured = [view for view in both if (view.jitter and (view.hue or view.saturation)) or view.grayscale]
    if colours and grey > 0.5 and coloured:
        sentences.append(
            f"{grey:.0%} of the images are grey: hue, saturation and colour dropping do nothing for them; contrast, "
            "brightness, blur and crops remain (set hue, saturation and grayscale of both views to 0)"
        )
    if any(view.blur and view.sigma_max > 1 for view in both) and taps <= 3:
        sentences.append(
            f"the blur has {taps} taps at {config.data.resolution} px and cannot reach its sigma: set blur to 0"
        )
    return sentences


def small_crops(good: Sequence[Look], config: Config, most: int = 2000) -> float:
    """The share of drawn crops, over both views, with a side under TINY pixels of the image itself."""
    some = [good[i] for i in np.linspace(0, len(good) - 1, min(len(good), most)).astype(int)]
    heights, widths = (torch.tensor([float(getattr(look, side)) for look in some]) for side in ("height", "width"))
    shares = []
    for draw in views.draw(config.run.seed, 0, len(some), config.views):
        box = views.boxes(draw, heights, widths, config.views)
        shares.append(float((torch.minimum(box.height, box.width) < TINY).float().mean()))
    return sum(shares) / 2


def left_out(findings: Findings, kinds: Sequence[str]) -> dict[str, str]:
    """Names and reasons of the images that training should not see; the first image of each group stays."""
    wrong = set(kinds) - set(KINDS)
    if wrong:
        raise UsageError(f"--leave-out does not know {', '.join(sorted(wrong))}; it knows {', '.join(KINDS)}.")
    listed: dict[str, str] = {}
    if "unreadable" in kinds:
        listed |= findings.unreadable
    if "tiny" in kinds:
        listed |= dict.fromkeys(findings.tiny, f"under {TINY} px")
    if "duplicates" in kinds:
        listed |= {name: f"same as {group[0]}" for group in findings.duplicates for name in group[1:]}
    if "near-duplicates" in kinds:
        listed |= {name: f"nearly the same as {group[0]}" for group in findings.near_duplicates for name in group[1:]}
    return listed


def summary(findings: Findings, request: Request) -> list[str]:
    """For people, within 80 columns where names allow."""
    size = f", {findings.bytes / 1e6:,.0f} MB" if findings.bytes else ""
    lines = [f"{findings.images:,} images in {findings.data}{size}; {findings.readable:,} can be read"]
    rows = [*_contents(findings), *_troubles(findings), *throughput.lines(findings.speed)]
    rows += [("warning", sentence) for sentence in findings.warnings]
    lines += [f"  {title:<12}{text}" for title, text in rows]
    lines.append(f"Details: {request.out / 'doctor.json'}")
    if findings.left_out and findings.readable:
        command = shlex.join(["byol", "pretrain", request.data, "--data.exclude", str(request.out / "bad-files.txt")])
        lines.append(f"{len(findings.left_out)} to leave out: {command}")
    return lines


def _contents(findings: Findings) -> Iterator[tuple[str, str]]:
    """Formats, sizes and classes, with a title each."""
    short, counts = findings.short_side, findings.classes.values()
    if findings.formats:
        yield "formats", " · ".join(f"{name} {count:,}" for name, count in findings.formats.items())
    kinds = findings.values["channels"]
    if set(kinds) - {"3 of uint8"}:
        held = " · ".join(f"{kind.replace(' of ', ' x ')} {count:,}" for kind, count in kinds.items())
        yield "channels", f"{held}; values from {findings.values['lowest']:g} to {findings.values['highest']:g}"
    taken = [reason for reason in findings.auto if reason.field == "views" and str(reason.value).startswith("of ")]
    for reason in taken:
        yield "views", f"{reason.value}: {reason.why}"
    if findings.readable:
        yield "short side", f"{short['smallest']} to {short['largest']} px, half of them at least {short['median']}"
    if counts:
        yield "folders", f"{len(counts)} classes of {min(counts):,} to {max(counts):,} images"


def _troubles(findings: Findings) -> Iterator[tuple[str, str]]:
    """What is wrong with how many images, with a title each."""
    if findings.unreadable:
        kinds = [f"{count} {kind}" for kind, count in findings.unreadable_kinds.items()]
        yield "unreadable", f"{len(findings.unreadable)}: {', '.join(kinds[:4])}"
    if findings.tiny:
        yield "tiny", f"{len(findings.tiny)} under {TINY} px"
    for title, groups in (("duplicates", findings.duplicates), ("nearly same", findings.near_duplicates)):
        if groups:
            more = sum(len(group) - 1 for group in groups)
            many = f"{len(groups)} group{'s' * (len(groups) > 1)}"
            yield title, f"{more} more than needed, in {many}, such as {groups[0][0]} and {groups[0][1]}"
    marked = [f"{len(findings.kinds[mark]):,} {word}" for mark, word in MARKS.items() if findings.kinds[mark]]
    if marked:
        yield "kinds", " · ".join(marked)


KINDS = ("unreadable", "tiny", "duplicates", "near-duplicates")
