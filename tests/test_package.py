"""The wheel that is built from the tree holds all of it, and runs outside the checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

import byol

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, without the network."""
    if not (find_spec("setuptools") and find_spec("pip")):
        pytest.skip("needs pip and setuptools, to build a wheel without the network")
    place = tmp_path_factory.mktemp("wheel")
    shutil.copytree(ROOT / "byol", place / "tree" / "byol", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, place / "tree")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    built = subprocess.run([*command, "-w", str(place), str(place / "tree")], capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    return next(place.glob("*.whl"))


def test_the_wheel_holds_every_file(wheel: Path) -> None:
    """Breaks if a package or a file that code reads, such as a page's style, is left out."""
    with zipfile.ZipFile(wheel) as archive:
        packed = set(archive.namelist())
    files = {p.relative_to(ROOT).as_posix() for p in (ROOT / "byol").rglob("*") if p.is_file()}
    assert {name for name in files if "__pycache__" not in name} <= packed
    assert "byol/py.typed" in packed
    assert not any(name.startswith(("tests", "benchmarks", "results")) for name in packed)


def test_the_installed_command_runs_elsewhere(wheel: Path, tmp_path: Path) -> None:
    """Breaks if the console script or an import works only inside the checkout."""
    target = tmp_path / "site"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(target)]
    done = subprocess.run([*install, str(wheel)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    environment = {**os.environ, "PYTHONPATH": str(target)}

    def run(*command: str) -> str:
        result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
        assert result.returncode == 0, result.stderr
        return result.stdout

    assert run(str(target / "bin" / "byol"), "--version").splitlines()[0] == f"byol {byol.__version__}"
    assert "paper-1000" in run(str(target / "bin" / "byol"), "presets")
    where = run(
        sys.executable, "-c", "import byol.explore.doctor, byol.weights.imports; print(byol.explore.doctor.__file__)"
    )
    assert Path(where.strip()).is_relative_to(target)


def test_versions_agree() -> None:
    """Breaks if a release changes the version in one place only."""
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert cited["version"] == byol.__version__
    assert f'version = "{byol.__version__}"' in (ROOT / "pyproject.toml").read_text()
    assert f"## {byol.__version__}" in (ROOT / "CHANGELOG.md").read_text()
    assert len(cited["preferred-citation"]["authors"]) == 14
