"""The model card and the config of an exported folder: what was trained on what, and how good it was found to be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from byol.config import Config, flatten
from byol.crops import MARGIN
from byol.records import meaning_of, read_object

FEW = ("data.resolution", "network.encoder", "network.width", "network.small_images", "network.padding")


def config(settings: Config, features: int, plain: bool) -> dict[str, Any]:
    """As timm writes it when timm has the network, so that `local-dir:` finds it; ours is kept under `byol`."""
    size = settings.data.resolution
    own = {name: value for name, value in flatten(settings).items() if name in FEW}
    shared = {
        "num_classes": 0,
        "num_features": features,
        "pretrained_cfg": {
            "input_size": [3, size, size],
            "mean": list(settings.views.mean),
            "std": list(settings.views.std),
            "interpolation": "bicubic",
            "crop_pct": round(1 / MARGIN, 3),
            "crop_mode": "center",
            "num_classes": 0,
            "first_conv": "conv1",
            "classifier": "fc",
        },
        "byol": own,
    }
    return {"architecture": settings.network.encoder, **shared} if plain else shared


def text(run: Path, settings: Config, header: Mapping[str, Any], lines: Sequence[str]) -> str:
    """Markdown with the front matter that the hub reads."""
    record = read_object(run / "run.json") if (run / "run.json").exists() else {}
    results = _results(run)
    front = {
        "library_name": "byol",
        "pipeline_tag": "image-feature-extraction",
        "tags": ["byol", "self-supervised-learning", "image-feature-extraction"],
    }
    network = settings.network
    parts = [
        f"---\n{yaml.safe_dump(front, sort_keys=False)}---",
        f"# {_escape(run.name)}: {network.encoder} pretrained by BYOL",
        f"An encoder of {network.encoder} at width {network.width:g}, for images of {settings.data.resolution} px, "
        + (f"imported from {_escape(str(header['origin']))}." if "origin" in header else "trained without labels."),
        "## Use\n```python\n" + "\n".join(lines) + "\n```",
        "## Results\n" + (results or "No evaluation has been run: `byol evaluate RUN --on DATA` makes one."),
    ]
    if record:
        with meaning_of(run / "run.json"):
            parts += ["## Data\n" + _data(record), "## Training\n" + _training(record, header)]
            table = "\n".join(f"{name}: {value}" for name, value in record["config"].items())
        parts.append(f"<details><summary>All settings</summary>\n\n```\n{table}\n```\n</details>")
    return "\n\n".join(parts) + "\n"


def _results(run: Path) -> str:
    """A row for each figure that `byol evaluate` has kept with the run; empty when there is none."""
    lines = ["| data | protocol | figure | test | seeds |", "|---|---|---|---|---|"]
    for path in sorted((run / "evaluations").glob("*/*/result.json")):
        record = read_object(path, "test", "data", "protocol")
        with meaning_of(path):
            lines += _rows(record)
    return "\n".join(lines) if len(lines) > 2 else ""


def _rows(record: Mapping[str, Any]) -> list[str]:
    rows = []
    for figure, value in record["test"].items():
        spread = f" ± {100 * value['half_range']:.1f}" if value["seeds"] > 1 else ""
        score = f"{100 * value['mean']:.1f}{spread} %"
        cells = (record["data"]["name"], record["protocol"], figure, score, str(value["seeds"]))
        rows.append("| " + " | ".join(map(_escape, cells)) + " |")
    return rows


def _data(record: Mapping[str, Any]) -> str:
    data = record["data"]
    labels = f", in {data['classes']} classes that training did not look at" if data["classes"] else ""
    return (
        f"{data['images']:,} images of {_escape(Path(data['name']).name)}{labels}; {data['bad']} could not be read. "
        f"Fingerprint of their names: `{data['fingerprint']}`."
    )


def _training(record: Mapping[str, Any], header: Mapping[str, Any]) -> str:
    verdict = record.get("verdict", {}).get("sentence", "")
    versions = ", ".join(f"{name} {value}" for name, value in record["versions"].items() if name != "platform")
    plan = record.get("plan", {})
    steps = f"Step {header.get('step', 0):,} of {plan['steps']:,}, {plan['batch']} images each. " if plan else ""
    return f"{steps}{_escape(verdict)}\n\nPreset `{record['request']['preset']}`; {versions}."


def _escape(text: str) -> str:
    """Names of folders are the user's own: they may not end a table's cell or begin markup."""
    return "".join(f"&#{ord(c)};" if c in "|<>&`*[]\\" else c for c in " ".join(text.split()))
