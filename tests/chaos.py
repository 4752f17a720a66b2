"""How long the tests of the reliability suite go on: seconds in `make test`, minutes in `make chaos`."""

from __future__ import annotations

import os


def often(short: int, long: int) -> int:
    """The number of tries: `long` when BYOL_CHAOS is set, as `make chaos` does."""
    return long if os.environ.get("BYOL_CHAOS") else short
