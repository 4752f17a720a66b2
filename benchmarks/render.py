"""Renders results/ into the README, so that no figure there is typed by hand: `python benchmarks/render.py`."""

from __future__ import annotations

import re
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

from byol.config import flatten
from byol.evals.metrics import shown
from byol.evals.spec import PROTOCOLS, Specs
from byol.records import read_json, write_atomically
from byol.tables.render import markdown

ROOT = Path(__file__).resolve().parents[1]
BLOCK = re.compile(r"(<!-- results:.*?-->\n).*?(<!-- /results -->)", re.DOTALL)
TABLES = re.compile(r"(<!-- tables:.*?-->\n).*?(<!-- /tables -->)", re.DOTALL)


def percent(values: list[float]) -> str:
    mean = f"{100 * statistics.mean(values):.1f}"
    return f"{mean} ± {100 * statistics.stdev(values):.1f} %" if len(values) > 1 else f"{mean} %"


def table(results: list[tuple[str, list[dict[str, Any]]]]) -> str:
    lines = [
        "CIFAR-10 from re-compressed JPEG files (not comparable with published CIFAR-10), `cifar10-cpu`: ResNet-18 of",
        "width 0.25 at 32 px on two CPU cores. Test accuracy; mean ± deviation over seeds.",
        "",
        "| run | seeds | minutes | images/s | BYOL linear | BYOL kNN | random linear | random kNN |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, runs in results:
        minutes = statistics.mean(r["pretraining_minutes"] for r in runs)
        speed = statistics.mean(r["images_per_second"] for r in runs)
        scores = [percent([r[who][what] for r in runs]) for who in ("byol", "random") for what in ("linear", "knn")]
        lines.append(f"| {name} | {len(runs)} | {minutes:.1f} | {speed:.0f} | {' | '.join(scores)} |")
    return "\n".join(lines) + "\n"


def evaluations(records: list[tuple[str, dict[str, Any]]]) -> str:
    """The protocols beside each other; a budget's cuts are below."""
    names = ("byol", "random", "supervised")
    lines = [
        "Protocols of `byol evaluate` on the encoder of cifar10-45min (`benchmarks/evaluations.py`): test figures,",
        "mean ± half the range over three seeds of the evaluation, each choice made on validation images;",
        "minutes by the clock, for linear and finetune on a core shared with other work.",
        "",
        f"| data | protocol | figure | {' | '.join(names)} | minutes | settings |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for stem, record in records:
        encoders = record["encoders"]
        for figure in encoders["byol"]["test"]:
            values = [half_range(encoders[n]["test"][figure]) if n in encoders else "" for n in names]
            shares = [note for e in encoders.values() for run in e["runs"] for note in run["notes"] if "steps" in note]
            cut = "cut by the budget" if shares else departures(record)
            data = stem.split("-")[1]
            lines.append(
                f"| {data} | {record['protocol']} | {figure} | {' | '.join(values)} | {record['minutes']:.1f} | {cut} |"
            )
    return "\n".join(lines) + "\n"


def departures(record: dict[str, Any]) -> str:
    """Which fields of the protocol were set to other values than the paper's."""
    usual = flatten(getattr(Specs(), PROTOCOLS[record["protocol"]]))
    found = []
    for name, value in record["spec"].items():
        if name in usual and value != (list(usual[name]) if isinstance(usual[name], tuple) else usual[name]):
            shown = f"{len(value)} of {len(usual[name])}" if isinstance(value, list) else f"{value:g}"
            found.append(f"{name} {shown}")
    return ", ".join(found) or "as in the paper"


def dense(records: list[tuple[str, dict[str, Any]]]) -> str:
    """Segmentation, detection and depth beside each other."""
    names = ("byol", "random", "supervised")
    minutes = [record["minutes"] / len(names) for _, record in records]
    lines = [
        "Dense protocols (`benchmarks/dense.py`) on a ResNet-18 of width 0.25 pretrained at 96 px on 1,500 photos of",
        "Imagenette and the training images of the three data sets without their labels (results/encoders-dense.json);",
        "supervised: on the same 1,500 photos with labels. The same steps for each encoder,",
        f"{min(minutes):.0f} to {max(minutes):.0f} minutes a cell on one core of a busy machine.",
        "The highest is not the best of rms and rel, which are errors.",
        "",
        f"| data | protocol | figure | {' | '.join(names)} | seeds |",
        "|---|---|---|---|---|---|---|",
    ]
    for stem, record in records:
        encoders = record["encoders"]
        for figure in encoders["byol"]["test"]:
            tests = [encoders[name]["test"][figure] for name in names]
            values = [shown(figure, test["mean"]) + _spread(figure, test) for test in tests]
            place = f"{stem.removeprefix('dense-')} | {record['protocol']} | {figure}"
            lines.append(f"| {place} | {' | '.join(values)} | {len(record['seeds'])} |")
    return "\n".join([*lines, "", _helps(records)]) + "\n"


def _helps(records: list[tuple[str, dict[str, Any]]]) -> str:
    """Whether BYOL helps, counted over all figures."""
    better = {"random": 0, "supervised": 0}
    figures = [(e["encoders"], figure) for _, e in records for figure in e["encoders"]["byol"]["test"]]
    for encoders, figure in figures:
        sign = -1 if figure in ("rms", "rel") else 1
        ours, *others = (sign * encoders[name]["test"][figure]["mean"] for name in ("byol", *better))
        for name, other in zip(better, others, strict=True):
            better[name] += ours > other
    return (
        f"BYOL is better than random in {better['random']} and than supervised in {better['supervised']} of "
        f"{len(figures)} figures. One seed a cell: a point or two means nothing.\nThe random detector trains with its "
        "batch norm frozen at mean 0 and variance 1, which handicaps it.\n"
    )


def scaling(record: dict[str, Any]) -> str:
    """Ratios of one run, and the cost model beside measured steps."""
    planned, rounds = record["planned_over_measured"], max(map(len, record["rounds"].values()))
    lines = [
        f"Several processes and the features for large runs (`benchmarks/scaling.py`) on {record['cores']} CPU cores: "
        f"batch {record['batch']},",
        f"one thread a process, the best of up to {rounds} rounds in turns, with a load of "
        f"{record['load_before']:.1f} before.",
        "",
        "| variant | images/s | worst / best round | ratio |",
        "|---|---|---|---|",
    ]
    ratios = {each["of"]: f"{each['ratio']:.2f} of {each['to']}: {each['meaning']}" for each in record["ratios"]}
    for name, rate in record["best"].items():
        lines.append(f"| {name} | {rate:.0f} | {record['worst_over_best'][name]:.2f} | {ratios.get(name, '')} |")
    if planned:
        lines += ["", f"`byol plan --device-type here` / measured step: {', '.join(f'{p:.2f}' for p in planned)}."]
    return "\n".join(lines) + "\n"


def _spread(figure: str, test: dict[str, float]) -> str:
    return f" ± {shown(figure, test['half_range'])}" if test["seeds"] > 1 else ""


def half_range(value: dict[str, float]) -> str:
    return f"{100 * value['mean']:.1f} ± {100 * value['half_range']:.1f} %"


def with_tables(readme: str, results: Path) -> str:
    """The README with every NAME-SCALE.json that `byol table` wrote and somebody committed to `results`."""
    found = [markdown(read_json(path)) for path in sorted(results.glob("*.json"))]
    text = "\n".join(found) or "No table has been run at the cpu scale and committed yet.\n"
    return TABLES.sub(lambda match: match[1] + text + match[2], readme)


def main() -> None:
    groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for path in sorted((ROOT / "results").glob("cifar10-*-seed*.json")):
        groups[path.stem.rsplit("-seed", 1)[0]].append(read_json(path))
    text = table(sorted(groups.items()))
    found = [(path.stem, read_json(path)) for path in sorted((ROOT / "results").glob("evaluation-*.json"))]
    compared = [(stem, record) for stem, record in found if "encoders" in record]
    if compared:
        text += "\n" + evaluations(compared)
    pixels = [(path.stem, read_json(path)) for path in sorted((ROOT / "results").glob("dense-*.json"))]
    if pixels:
        text += "\n" + dense(pixels)
    if (ROOT / "results" / "scaling.json").exists():
        text += "\n" + scaling(read_json(ROOT / "results" / "scaling.json"))
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    rendered = BLOCK.sub(lambda match: match[1] + text + match[2], readme)
    write_atomically(ROOT / "README.md", with_tables(rendered, ROOT / "results" / "tables").encode())


if __name__ == "__main__":
    main()
