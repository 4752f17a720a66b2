"""The house rules that a reader relies on: imports point one way, nothing is unpickled, code stays short."""

from __future__ import annotations

import ast
import graphlib
import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "byol"
MODULES = sorted(PACKAGE.rglob("*.py"))

# From the bottom up: a module imports from its own layer and from those before it. A name stands for all below it.
LAYERS = [
    "errors", "config config_values schedules", "run.progress run.signals run.files config_file", "parallel",
    "convolutions crops networks neighbours objectives operations optim predictors views presets kinds auto",
    "method run.machine",
    "algorithm run.pictures parallel.engines", "data",
    "checkpoint weights.compare weights.unpickling weights.reader run plugins",
    "pretraining run.cards evals weights models parallel.launching", "explore tables report tune", "cli library",
]  # fmt: skip


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts[1:]).removesuffix("__init__").strip(".")


NAMES = {name_of(path): path for path in MODULES if path.name != "__main__.py"}


def layer(module: str) -> int:
    """Of the longest name that holds the module."""
    holds = {name: rank for rank, names in enumerate(LAYERS) for name in names.split()}
    return holds[max((name for name in holds if f"{module}.".startswith(f"{name}.")), key=len)]


def imports(path: Path, nested: bool) -> set[str]:
    """The modules of ours that a file imports: when it is loaded, or, `nested`, at any time."""
    tree = ast.parse(path.read_text())
    nodes = ast.walk(tree) if nested else tree.body
    modules = set()
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "byol":
            base = str(node.module).removeprefix("byol").strip(".")
            members = {f"{base}.{alias.name}".strip(".") for alias in node.names}
            modules |= {member if member in NAMES else base for member in members}
    return modules - {""}


@pytest.mark.parametrize("name", sorted(NAMES.keys() - {""}))
def test_imports_point_down(name: str) -> None:
    """Breaks if a module imports from a layer above its own, such as evals from the command line."""
    above = [other for other in imports(NAMES[name], nested=True) if layer(other) > layer(name)]
    assert not above


def test_no_module_needs_itself() -> None:
    """Breaks if modules import each other in a circle when they are loaded."""
    graphlib.TopologicalSorter({name: imports(path, nested=False) for name, path in NAMES.items()}).prepare()


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


def functions(path: Path) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    nodes = ast.walk(ast.parse(path.read_text()))
    return [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def length(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    assert function.end_lineno is not None
    return function.end_lineno - function.lineno + 1


BRANCHES = (
    *(ast.If, ast.IfExp, ast.For, ast.While, ast.Try, ast.ExceptHandler),
    *(ast.With, ast.BoolOp, ast.comprehension, ast.Assert),
)


def test_files_and_functions_stay_short() -> None:
    """Breaks if a file or function grows two responsibilities: past 400 lines, past 60 lines or 15 branches."""
    long = [f"{name_of(path)}: {n} lines" for path in MODULES if (n := path.read_text().count("\n")) > 400]
    for path in MODULES:
        for function in functions(path):
            branches = sum(isinstance(node, BRANCHES) for node in ast.walk(function))
            if length(function) > 60 or branches > 15:
                long.append(f"{name_of(path)}: {function.name} has {length(function)} lines, {branches} branches")
    assert not long


def test_the_loop_fits_on_a_screen() -> None:
    """Breaks if the loop or the step grows past what a reader can hold."""
    for module, name, most in (("pretraining", "train", 60), ("algorithm", "update", 40)):
        assert [length(f) <= most for f in functions(PACKAGE / f"{module}.py") if f.name == name] == [True]


def test_a_protocol_says_only_what_is_its_own() -> None:
    """Breaks if a classification protocol weaves sweep, budget or training by hand again: past 110 lines."""
    evaluations = {path for path in (PACKAGE / "evals").glob("*.py") for f in functions(path) if f.name == "evaluate"}
    protocols = evaluations - {PACKAGE / "evals" / "evaluation.py"}
    assert len(protocols) >= 6
    assert not [path.name for path in protocols if path.read_text().count("\n") > 110]


def test_pretraining_loads_few_modules() -> None:
    """Breaks if the loop reaches for rooms that it does not need, or loads a kind of data before it is asked for."""
    loaded, waiting = set(), ["pretraining"]
    while waiting:
        name = waiting.pop()
        if name not in loaded:
            loaded.add(name)
            waiting += [*imports(NAMES[name], nested=False), name.rpartition(".")[0]]
    assert len(loaded) <= 33, sorted(loaded)
