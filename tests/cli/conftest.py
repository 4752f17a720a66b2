"""What a command may cost before it answers, on the machine that runs the tests."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

LIBRARIES = "import cyclopts, rich.console, rich.table, yaml"  # what the command line is built on


def computing(*arguments: str) -> float:
    """CPU seconds of a Python process that is given these arguments."""
    began = os.times()
    subprocess.run([sys.executable, *arguments], capture_output=True, check=False)
    ended = os.times()
    return ended.children_user + ended.children_system - began.children_user - began.children_system


@pytest.fixture(scope="session")
def moment() -> float:
    """Half a second of computing, or on a slower machine five times what loading the libraries alone takes there.

    `byol --help` takes less than three times as long as the libraries; with torch it would take twenty times as long.
    """
    return max(0.5, 5 * min(computing("-c", LIBRARIES) for _ in range(5)))
