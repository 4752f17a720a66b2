"""The house rules that a reader relies on: imports point one way, nothing is unpickled, the loop stays short."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "byol"
MODULES = sorted(PACKAGE.rglob("*.py"))

# A module imports only from rooms before it; a tuple is one room whose modules may not import each other.
ORDER = [
    ("errors",),
    (
        "config",
        "config_file",
        "progress",
        "interrupt",
        "schedules",
        "data.source",
        "crops",
        "neighbours",
        "distributed",
    ),
    ("collectives",),
    ("norms", "presets", "records", "networks", "objectives", "optim", "views", "machine"),
    ("data.decode", "data.arrays", "data.matlab", "data.task", "evals.spec", "paper"),
    ("method", "data.folder", "data.named", "data.scenes", "data.dense", "data.examine", "evals.metrics"),
    ("data.tars", "data.places", "data.columns", "evals.logistic", "pictures"),
    ("data.layouts", "data.rendered", "data.pairs", "data.index"),
    ("data.benchmarks", "data.masks", "data.depths", "data.boxes", "data.shards", "data.sharding"),
    ("data.huggingface",),
    ("data", "checkpoint", "algorithm"),
    ("data.loader", "evals.encoder", "costs"),
    ("evals.features", "evals.backbone", "evals.geometry"),
    ("evals.sweep", "evals.training"),
    ("evals.dense", "evals.average_precision", "evals.faster_rcnn"),
    ("evals.knn", "evals.linear", "evals.transfer", "evals.semi_supervised", "evals.finetune", "evals.supervised"),
    ("evals.segmentation", "evals.detection", "evals.depth"),
    ("monitor", "moments"),
    ("rundir",),
    ("estimate", "evaluation"),
    ("pretraining", "speed", "viewing", "search"),
    ("doctor",),
    ("demo", "tables.table", "launching"),
    ("tables.ablations", "tables.cells", "tables.render"),
    ("tables.results", "tables.measure", "tables.figures"),
    ("tables.compute", "tables.paper"),
    ("tables.jobs",),
    ("tables.run",),
    ("weights.unpickling",),
    ("weights.reader", "weights.compare", "weights.card"),
    ("weights.imports", "weights.exports"),
    ("report.tiles", "report.embedding", "report.collect", "report.page"),
    ("report.gallery",),
    ("report.samples",),
    ("report.build",),
    ("cli.app",),
    ("cli.training", "cli.scoring", "cli.cluster", "cli.weights", "cli.images", "cli.help", "cli.pages", "cli.shards"),
    ("cli",),
]
RANK = {name: rank for rank, room in enumerate(ORDER) for name in room}


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts[1:]).removesuffix("__init__").strip(".")


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("byol"):
            base = node.module.removeprefix("byol").removeprefix(".")
            for alias in node.names:
                full = f"{base}.{alias.name}".strip(".")
                found.add(full if full in RANK else base)
        elif isinstance(node, ast.Import):
            found |= {a.name.removeprefix("byol.") for a in node.names if a.name.startswith("byol.")}
    return found - {""}


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_imports_point_one_way(path: Path) -> None:
    """Breaks if a module imports from a room above its own, such as evals from pretraining."""
    name = name_of(path)
    if name in ("", "__main__", "evals", "tables", "weights", "report"):
        return
    assert name in RANK, f"{name} has no room in ORDER"
    for other in imports(path):
        assert RANK[other] < RANK[name], f"{name} imports {other}"


def test_nothing_is_unpickled_or_evaluated() -> None:
    """Breaks if untrusted bytes could run (G16)."""
    forbidden = re.compile(
        r"\b(pickle|marshal|shelve)\b|import dill|torch\.load\((?!.*weights_only=True)"
        r"|\beval\(|\bexec\(|allow_pickle=True"
    )
    for path in MODULES:
        for line in path.read_text().splitlines():
            code = line.split("#")[0]
            assert not (forbidden.search(code) and not re.search(r"\.eval\(|literal_eval", code)), (
                f"{path.name}: {line}"
            )


def test_the_loop_fits_on_a_screen() -> None:
    """Breaks if the loop or the step grows past what a reader can hold."""
    for module, function, most in (("pretraining", "train", 60), ("algorithm", "update", 40)):
        tree = ast.parse((PACKAGE / f"{module}.py").read_text())
        node = next(n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == function)
        assert node.end_lineno is not None
        assert node.end_lineno - node.lineno < most
