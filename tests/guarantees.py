"""The table of docs/guarantees.md as values: what is promised, which tests prove it, and what they reached."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
NUMBERS = [f"G{number}" for number in range(1, 40)]


class Guarantee(NamedTuple):
    number: str
    proofs: list[
        str
    ]  # `file.py::test`, `file.py` for all tests of a file, `test` of the file named before; … abbreviates
    reached: str


def table() -> list[Guarantee]:
    lines = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8").splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if re.match(r"\| G\d+ \|", line)]
    return [Guarantee(number, re.findall(r"`([^`]+)`", proofs), reached) for number, _, proofs, reached, _ in rows]


def proving_tests(proofs: list[str]) -> set[str]:
    """The tests that a row names, such as `tests/chaos/test_kill.py::test_kills`; each name must mean exactly one."""
    tests: set[str] = set()
    path = ROOT / "tests"
    for name in proofs:
        file, _, test = name.rpartition("::") if not name.endswith(".py") else (name, "", "")
        path = ROOT / "tests" / file if file else path
        if not path.is_file():
            raise LookupError(f"{name}: there is no such file of tests")
        defined = re.findall(r"^def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
        meant = [d for d in defined if d == test or not test or (test[-1] == "…" and d.startswith(test[:-1]))]
        if not meant or (test and len(meant) > 1):
            raise LookupError(f"{name}: {len(meant)} tests are called so")
        tests |= {f"{path.relative_to(ROOT)}::{d}" for d in meant}
    return tests


def summary(outcomes: Mapping[str, set[str]], reasons: Mapping[str, str]) -> list[str]:
    """Lines for the end of a test run: how many guarantees had a proof that passed and none that failed.

    `outcomes` are those of each test over its parameters; `reasons` say why a test was skipped.
    """
    left: list[str] = []
    for guarantee in table():
        tests = proving_tests(guarantee.proofs) & outcomes.keys()
        results = set().union(*(outcomes[test] for test in tests))
        if "failed" in results:
            left.append(f"{guarantee.number}: a proof failed")
        elif "passed" not in results:
            why = sorted({reasons[test] for test in tests if test in reasons})
            left.append(f"{guarantee.number}: {'; '.join(why) or 'its tests were not asked for'}")
    exercised = len(NUMBERS) - len(left)
    return [f"guarantees exercised: {exercised} of {len(NUMBERS)}", *(f"  not {line}" for line in left)]
