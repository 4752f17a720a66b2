"""Sections of the pages about views: by kind of images, and how well `byol tune` chooses them."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from byol.run.files import read_json

FEWEST = 8  # policies, in benchmarks/tune.py


def kinds(results: Path) -> str:
    """Views of a kind of images against those of photographs: what benchmarks/kinds.py measured."""
    runs = read_json(results / "kinds.json")["runs"]
    lines = ["| images | begins as | steps | views | seeds | linear | kNN |", "|---|---|---|---|---|---|---|"]
    starts = {"simclr-to-byol": "SimCLR", "info-nce": "BYOL with negatives"}

    def line(kind: tuple[str, str, int], views: str, some: list[dict[str, float]]) -> None:
        images, objective, steps = kind
        means = [f"{100 * statistics.mean(each[name] for each in some):.1f} %" for name in ("linear", "knn")]
        lines.append(f"| {images} | {starts[objective]} | {steps} | {views} | {len(some)} | {' | '.join(means)} |")

    def kind_of(run: dict[str, Any]) -> tuple[str, str, int]:
        return run["images"], run["objective"], run["steps"]

    for kind in sorted({kind_of(run) for run in runs}, reverse=True):
        own = [run for run in runs if kind_of(run) == kind]
        line(kind, "untrained", [run["untrained"] for run in own if run["views"] == "photo"])
        for views in dict.fromkeys(run["views"] for run in own):
            some = [run["trained"] for run in own if run["views"] == views]
            name, _, more = views.partition(", ")
            said = f"of the preset `{name}`" if name != "photo" else "of photographs"
            line(kind, f"{said}, {more}" if more else said, some)
    return "\n".join(lines) + "\n"


def calibration(results: Path) -> str:
    """How well each measure of `byol tune` chooses: what benchmarks/tune.py measured."""
    record = read_json(results / "tune-calibration.json")
    found = record["summary"]
    domains = list(found["regret"]["default"])[:-2]
    cells = [cell for cell in record["cells"] if cell["policy"] != "untrained"]
    policies, seeds = ({cell[name] for cell in cells} for name in ("policy", "seed"))
    lines = [
        f"{len(policies)} policies on each of {len(domains)} kinds of images, {len(seeds)} seeds, {len(cells)} runs",
        f"of {cells[0]['steps']} steps of 64 images at 16 px; linear accuracy on 2,000 test images, 500 of",
        "imagenette-subset, as the mean of the seeds. *Rank correlation* compares a measure's order of the policies",
        "with that of linear accuracy; *lost* are the points of accuracy between the best policy and the one that is",
        f"chosen, which counts luck of the best one too. A kind and a seed with fewer than {FEWEST} policies are not",
        "counted.",
        "",
        f"| who chooses | rank correlation | lost, mean | at worst | {' | '.join(domains)} |",
        f"|{'---|' * (4 + len(domains))}",
    ]
    names = {"labels": "ten labels a class", "labels50": "fifty labels a class", "default": "always the usual views"}
    names["random"] = "any policy"
    for name, lost in found["regret"].items():
        order = found["correlation"].get(name)
        shown = f"{order['mean']:+.2f}" if order else ""
        each = " | ".join(f"{lost[domain]:.1f}" for domain in domains)
        told = names.get(name, f"`{name}`")
        lines.append(f"| {told} | {shown} | {lost['mean']:.1f} | {lost['largest']:.1f} | {each} |")
    held = "; ".join(f"{domain} {lost:.1f} by {name}" for domain, (name, lost) in found["held out"].items())
    lines += ["", "Lost on each kind by the measure without labels that lost least on all the others:", f"{held}."]
    lines += ["", *searched(read_json(results / "tune-search.json"))]
    return "\n".join(lines) + "\n"


def searched(record: dict[str, Any]) -> list[str]:
    """Whole searches, and runs with what they chose beside runs of auto."""
    lines = [
        "Searches of ten minutes on 1,600 images, one thread of a core that other work shared, fifty labels a class,",
        "and then runs of `auto` of two or three minutes with the chosen views and with its own; 2,000 test images,",
        "one seed:",
        "",
        "| images | chosen | kNN | with auto's views | linear | with auto's views |",
        "|---|---|---|---|---|---|",
    ]
    for run in record["runs"]:
        each = [f"{100 * run[who][what]:.1f} %" for what in ("knn", "linear") for who in ("tuned", "auto")]
        lines.append(f"| {run['images']} | {run['choice']} | {' | '.join(each)} |")
    return lines
