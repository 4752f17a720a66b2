"""How long the tests of the reliability suite go on: seconds in `make test`, two hours in `make chaos`."""

from __future__ import annotations

import os

# `make chaos` raises this; the default keeps the test run short.
KILLS = int(os.environ.get("BYOL_CHAOS", "4"))
LONG = KILLS >= 10


def often(short: int, long: int) -> int:
    """The number of tries of what is not counted in kills."""
    return long if LONG else short
