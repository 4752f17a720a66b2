"""docs/guarantees.md says what is so: the tests that it names exist, its figures are those of the result files."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ROWS = [line.strip("| \n").split(" | ") for line in (ROOT / "docs/guarantees.md").read_text().splitlines()]
ROWS = [row for row in ROWS if re.fullmatch(r"G\d+", row[0])]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_guarantee_names_its_tests_and_figures(row: list[str]) -> None:
    """Breaks if a test was renamed, or a figure was typed instead of measured."""
    number, _, proofs, reached, _ = row
    source, named = "", re.findall(r"`([^`]+)`", proofs)
    assert named
    for name in named:
        file, _, test = name.rpartition("::") if "::" in name else (name, "", "") if ".py" in name else ("", "", name)
        source = (ROOT / "tests" / file).read_text() if file else source
        assert not test or f"def {test.rstrip('…')}" in source, name
    for path in ROOT.glob("results/guarantees-*.json"):
        figures = json.loads(path.read_text())["figures"]
        assert number not in figures or figures[number]["reached"] == reached
