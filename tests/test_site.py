"""The documentation site: built from pages and code without the network, whole, with every link leading somewhere."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest

import byol
from byol.cli.app import app
from byol.config import Config, declared
from byol.evals.spec import Specs
from byol.presets import PRESETS
from byol.tables.catalog import TABLES

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Strict: a link or anchor that leads nowhere, or a page that no menu shows, fails here."""
    pytest.importorskip("material", reason="needs mkdocs-material, which builds the site")
    spec = importlib.util.spec_from_file_location("docs_build", ROOT / "docs" / "build.py")
    assert spec
    assert spec.loader
    builder: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(builder)
    built: Path = builder.build(tmp_path_factory.mktemp("site"))
    return built


def text(path: Path) -> str:
    return re.sub(r"<[^>]+>", "", path.read_text(encoding="utf-8"))


def test_the_reference_names_everything(site: Path) -> None:
    """Breaks if a verb, a flag, a field, a preset, a public function or a table has no place on the site."""
    fields = text(site / "reference" / "config.html")
    assert not [name for kind in (Config, Specs) for name, _, _ in declared(kind) if name not in fields]
    python = text(site / "reference" / "python.html")
    assert not [name for name in byol.__all__ if f"byol.{name}" not in python]
    assert "def regression_loss" not in python  # words of the code, not the code
    assert "byol.objectives.regression_loss" in python
    presets = text(site / "reference" / "presets.html")
    assert not [name for name in PRESETS if name not in presets]
    for verb in (name for name in app if not name.startswith("-")):
        page = text(site / "reference" / "commands" / f"{verb}.html")
        for argument in app[verb].assemble_argument_collection(parse_docstring=True):
            own = argument.parameter.help and "Fields of" not in str(argument.parameter.group[0].name)
            name = argument.name if argument.index is None else argument.name.lstrip("-").upper()
            assert not own or name in page, f"byol {verb}: {name}"
    for name, table in TABLES.items():
        page = text(site / "paper" / f"{name}.html")
        assert all(
            figure.replace("±", " ± ").replace(" ", "\u00a0") in page.replace(" ", "\u00a0")
            for row in table.rows
            for figure in row.printed.split()
        )
    for record in (ROOT / "results" / "tables").glob("*.json"):
        assert "Ours beside the paper" in text(site / "paper" / f"{json.loads(record.read_text())['table']}.html")


def test_the_site_asks_nobody(site: Path) -> None:
    """Breaks if a page loads a script, a style, a font or a picture from another place."""
    loads = re.compile(
        r"""<(?:script|img|iframe|source)[^>]+src="?(?:https?:)?//|<link[^>]+href="?(?:https?:)?//[^>]*|@import|url\((?:https?:)?//"""
    )
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 60
    for page in [*pages, *site.rglob("*.css")]:
        assert not loads.search(page.read_text(encoding="utf-8")), page


def test_the_search_knows_the_words(site: Path) -> None:
    """Breaks if the index is not there for pages that are opened from a folder, or misses the generated reference."""
    index = (site / "search" / "search_index.js").read_text(encoding="utf-8")
    found = json.loads(index.partition("=")[2])["docs"]
    places = {entry["location"].split("#")[0] for entry in found}
    assert {
        "index.html",
        "reference/config.html",
        "reference/commands/pretrain.html",
        "paper/target-decay.html",
    } <= places
    assert "iframe-worker.js" in (site / "index.html").read_text(encoding="utf-8")
