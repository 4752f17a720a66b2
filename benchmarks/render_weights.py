"""The figures of docs/from-weights.md, for benchmarks/render.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from byol.run.files import read_json


def from_weights(results: Path) -> str:
    """Going on from weights, distillation, fit and predict: what benchmarks/from_weights.py measured."""
    found = {path.stem.removeprefix("from-weights-"): read_json(path) for path in results.glob("from-weights-*.json")}
    lines: list[str] = []

    def row(name: str, steps: int, figures: dict[str, Any]) -> None:
        spread = f"{100 * figures['knn']:.1f} ± {100 * figures['half_range']:.1f} %"
        lines.append(f"| {name} | {steps} | {spread} |")

    if "continued" in found:
        lines += ["| encoder | steps on flowers5 | kNN on flowers5 |", "|---|---|---|"]
        part = found["continued"]
        row("random", 0, part["random"])
        row(f"start: CIFAR-10, {part['start']['steps']} steps", 0, part["start"])
        row("continued from the start", part["continued"]["steps"], part["continued"])
        row("its best look", part["continued"]["steps"], part["continued"]["best"])
        for name in ("scratch", "scratch_long"):
            row("from scratch", part[name]["steps"], part[name])
    if "bolder" in found:
        for part in (part for name, part in found["bolder"].items() if name.startswith("continued")):
            row("continued, the encoder at the full rate", part["steps"], part)
    if "negatives" in found:
        for name, words in (
            ("continued", "continued, full rate, with negatives"),
            ("scratch", "scratch, with negatives"),
        ):
            if name in found["negatives"]:
                row(words, found["negatives"][name]["steps"], found["negatives"][name])
    if "wrong" in found:
        part = found["wrong"]
        row("start, trained again", 0, part["start"])
        row("from the start, rate 30 times too high", part["last"]["steps"], part["last"])
        row("its best look", part["last"]["steps"], part["best"])
    if "distilled" in found:
        part = found["distilled"]
        lines += ["", "| encoder | steps on CIFAR-10 | kNN on CIFAR-10 |", "|---|---|---|"]
        row("fixed target, width 0.5", part["target"]["steps"], part["target"])
        row("width 0.25 by BYOL", part["scratch"]["steps"], part["scratch"])
        row("width 0.25 from the fixed target", part["distilled"]["steps"], part["distilled"])
    if "answers" in found:
        part = found["answers"]
        lines += [
            "",
            f"`fit` on flowers5 has {100 * part['fit_top1']:.2f} % on {part['test_images']} test images, the protocol "
            f"{100 * part['protocol_top1']:.2f} %; `predict` of {part['predicted']:,} images runs at "
            f"{part['predict_speed_over_embed']:.2f} of the speed of `embed` (CPU time).",
        ]
    if "cells" in found:
        part = found["cells"]
        lines[-1] += (
            f" On crops of blood cells (BCCD, three kinds), `fit` has {100 * part['fit_top1']:.2f} % on "
            f"{part['predicted']} test images, the protocol {100 * part['protocol_top1']:.2f} %."
        )
    if "photos" in found:
        lines += ["", "| encoder, at 64 px, seed 0 | steps on flowers5 | kNN on flowers5 |", "|---|---|---|"]
        for name, part in found["photos"]["seed 0"].items():
            words = f"start: CIFAR-10, {part['steps']} steps" if name == "start" else name.removesuffix(" steps")
            given = name not in ("random", "start") and not name.startswith("scratch")
            row(f"continued: {words}" if given else words, 0 if name in ("random", "start") else part["steps"], part)
    return "\n".join(lines) + "\n"
