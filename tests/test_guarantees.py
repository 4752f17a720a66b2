"""docs/guarantees.md says what is so: each promise has tests that exist, and figures that were measured."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests import guarantees
from tests.guarantees import NUMBERS, ROOT, Guarantee, proving_tests

ROWS = {row.number: row for row in guarantees.table()}
RECORDS = [json.loads(path.read_text()) for path in sorted(ROOT.glob("results/guarantees-*.json"))]
FIGURES: dict[str, Any] = {number: value for record in RECORDS for number, value in record["figures"].items()}


def test_every_guarantee_has_a_row() -> None:
    """Breaks if a promise is dropped from the page, or a row is not read because its columns are not five."""
    assert list(ROWS) == NUMBERS


@pytest.mark.parametrize("number", NUMBERS)
def test_a_guarantee_names_its_tests(number: str) -> None:
    """Breaks if a row names no test, one that was renamed, or an abbreviation that means several."""
    assert proving_tests(ROWS[number].proofs)


@pytest.mark.parametrize("number", NUMBERS)
def test_a_figure_is_measured(number: str) -> None:
    """Breaks if a figure was typed instead of measured: it stands in a result file, or the row says there is none."""
    reached = ROWS[number].reached
    assert (number in FIGURES) != reached.startswith("no figure: ")
    assert number not in FIGURES or FIGURES[number]["reached"] == reached
    for path in re.findall(r"tests/[\w/]+\.py", str(FIGURES.get(number, {}).get("command", ""))):
        assert (ROOT / path).is_file(), path


@pytest.mark.parametrize(
    "name", ["chaos/test_gone.py", "chaos/test_kill.py::test_gone", "chaos/test_kill.py::test_kills…"]
)
def test_a_wrong_name_is_noticed(name: str) -> None:
    """Breaks if a file or test that is not there, or several tests under one abbreviation, count as a proof."""
    with pytest.raises(LookupError, match=re.escape(name)):
        proving_tests([name])


def test_what_was_not_exercised_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks if a skipped, failed or absent proof counts as one that passed."""
    proofs = [f"chaos/test_kill.py::{name}" for name in ("test_kills_of_a_table", "test_sigkill_at_random_moments")]
    rows = [Guarantee(f"G{number}", proofs[:1] if number == 2 else proofs, "") for number in range(1, len(NUMBERS) + 1)]
    monkeypatch.setattr(guarantees, "table", lambda: rows)
    table, kill = (f"tests/{proof}" for proof in proofs)
    reasons = {table: "needs time"}
    assert guarantees.summary({table: {"skipped"}, kill: {"passed"}}, reasons) == [
        f"guarantees exercised: {len(NUMBERS) - 1} of {len(NUMBERS)}",
        "  not G2: needs time",
    ]
    failing = guarantees.summary({table: {"passed"}, kill: {"passed", "failed"}}, {})
    assert failing[0] == f"guarantees exercised: 1 of {len(NUMBERS)}"
    assert guarantees.summary({}, {})[1] == "  not G1: its tests were not asked for"


def test_make_chaos_runs_every_long_version() -> None:
    """Breaks if a file with a long version is not in the Makefile's list, or the list names one that is gone."""
    listed = re.search(r"^CHAOS := ((?:.*\\\n)*.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert listed
    paths = [ROOT / name for name in listed[1].replace("\\\n", " ").split()]
    assert all(path.exists() for path in paths)
    files = (ROOT / "tests").rglob("test_*.py")
    long = [path for path in files if re.search(r"^from tests\.chaos\.scale", path.read_text("utf-8"), re.MULTILINE)]
    assert len(long) > 5
    assert not [path.name for path in long if not any(map(path.is_relative_to, paths))]
