"""The speed part of the pages that benchmarks/render.py writes: a table beside the peers, and its plot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from byol.run.files import read_json

PLOT = "speed.png"
# In the order of the table; where a goal is not reached, what bounds it.
BOUNDS = {
    "pretrain-32": "the encoder's own passes, which all contestants compute: two thirds of a step are convolutions",
    "pretrain-224": "memory: weights, gradients and momentum; activations are those of one view",
    "step": "heads, views and optimizer",
    "views-32": "float32 arithmetic in a hundred small operations a batch; the crop is a quarter of it",
    "views-224": "decoding and crops are a quarter each; the rest is exact float32 arithmetic, not tables of bytes",
    "update": "memory: every weight is read and written by each of the operations",
    "features": "decoding of the files and float32 convolutions",
    "knn": "torch's matrix product, which alone takes as long as all of faiss with its own on this processor",
    "logistic": "float64 products of the features with 100 classes times the penalties",
    "startup": "the imports of the command line",
    "time-to-accuracy": "the encoder's own passes, which both compute, and a recipe that ends as BYOL's",
    "slopes": "small sizes that fit into the caches, large ones that do not",
}


def speeds(results: Path) -> list[dict[str, Any]]:
    """Of those measured on an idle machine, in the table's order."""
    found = [read_json(results / f"speed-{name}.json") for name in BOUNDS if (results / f"speed-{name}.json").exists()]
    return [record for record in found if record["idle"]]


def section(results: Path) -> str:
    """What docs/speed.md says."""
    found, precision = speeds(results), results / "precision.json"
    known = read_json(precision) if precision.exists() else None
    return speed_section(found, known) if found else "Not measured yet on an idle machine: `make bench` does it.\n"


def precision_lines(record: dict[str, Any]) -> list[str]:
    """Both precisions, each with its range over seeds."""
    said = {
        kind: f"{record[kind]['linear']['mean']:.1f} % ({record[kind]['linear']['low']:.1f} to "
        f"{record[kind]['linear']['high']:.1f})"
        for kind in ("default", "float32")
    }
    return [
        f"The default precision beside float32 (`benchmarks/precision.py`): linear accuracy {said['default']}",
        f"against {said['float32']} over {record['seeds']} seeds of the tables' cpu run, and at "
        f"{record['overlapping_looks']} of {record['all_looks']} looks along the",
        "way the ranges of the monitor's kNN overlap.",
    ]


def speed_section(found: list[dict[str, Any]], precision: dict[str, Any] | None) -> str:
    about = found[0]
    tried = {name: version for record in found for name, version in record.get("peers", {}).get("versions", {}).items()}
    missing = {name: why for record in found for name, why in record.get("peers", {}).get("missing", {}).items()}
    versions = ", ".join(f"{name} {version}" for name, version in sorted(tried.items()))
    peers = [
        f"Peers: {versions}, and a loop by hand with",
        "torchvision v2; tuned means bf16, channels-last and the best number of workers.",
    ]
    lines = [
        f"`make bench` on {about['versions']['cores']} idle cores with torch {about['versions']['torch']}:",
        "contestants of a line alternate in one run, each in its own process on the same files; medians of rounds",
        "(and their range).",
        *(peers if tried else ["Pretraining and views beside the peers are not measured yet."]),
        *(f"Not a contestant: {name} ({why})." for name, why in sorted(missing.items())),
        "",
        "| what | measured | goal | reached |",
        "|---|---|---|---|",
    ]
    lines += [speed_row(goal) for record in found for goal in record["goals"]]
    short = [record["entry"] for record in found if any(goal["reached"] is False for goal in record["goals"])]
    if short:
        lines += ["", "What bounds those that are not reached:", ""]
        lines += [f"- {name}: {BOUNDS[name]}." for name in short]
    if precision:
        lines += ["", *precision_lines(precision)]
    if tried:
        lines += ["", f"![Images a second beside the peers](../results/{PLOT})"]
    return "\n".join(lines) + "\n"


def speed_row(goal: dict[str, Any]) -> str:
    wanted = "" if goal["goal"] is None else f"{'≥' if goal['least'] else '≤'} {quantity(goal['goal'], goal['unit'])}"
    reached = {None: "", True: "yes", False: "no"}[goal["reached"]]
    spread = f" ({quantity(goal['low'], '')} to {quantity(goal['high'], '')})" if "low" in goal else ""
    return f"| {goal['what']} | {quantity(goal['figure'], goal['unit'])}{spread} | {wanted} | {reached} |"


def quantity(value: float, unit: str) -> str:
    number = f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
    return f"{number} {unit}".strip()


def plot(results: Path) -> None:
    """Images a second of every contestant, an axis each for pretraining and views."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    titles = {
        "pretrain-32": "pretraining, 32 px",
        "pretrain-224": "pretraining, 224 px",
        "views-32": "two views, 32 px",
        "views-224": "two views, 224 px",
    }
    chosen = [record for record in speeds(results) if record["entry"] in titles]
    if not chosen:
        return
    figure, axes = pyplot.subplots(1, len(chosen), figsize=(4.2 * len(chosen), 3.2), squeeze=False)
    for axis, record in zip(axes[0], chosen, strict=True):
        rates = {name: each.get("images_per_second", each) for name, each in record["figures"].items()}
        names = sorted(rates, key=lambda name: rates[name]["median"])
        middle = [rates[name]["median"] for name in names]
        spread = [
            [rates[n]["median"] - rates[n]["low"] for n in names],
            [rates[n]["high"] - rates[n]["median"] for n in names],
        ]
        colours = ["tab:blue" if name == "byol" else "lightgrey" for name in names]
        axis.barh(names, middle, xerr=spread, color=colours)
        axis.set_title(titles[record["entry"]])
        axis.set_xlabel("images/s")
    figure.tight_layout()
    figure.savefig(results / PLOT, dpi=110, metadata={"Software": None})
