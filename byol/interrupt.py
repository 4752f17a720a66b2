"""Ctrl-C and SIGTERM: at once where nothing is at stake, after the step where work would be lost."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from byol.errors import Interrupted

_state = {"requested": False, "deferred": False}
_asked = {"at": 0.0}
ECHO_SECONDS = 2.0  # torchrun passes on the Ctrl-C that its processes have had from the terminal already


def requested() -> bool:
    """Whether somebody asked to stop while `deferred` was on."""
    return _state["requested"]


def handle(number: int, frame: FrameType | None) -> None:
    """The answer to a signal."""
    if _state["deferred"]:
        echo = "TORCHELASTIC_RUN_ID" in os.environ and time.monotonic() - _asked["at"] < ECHO_SECONDS
        if _state["requested"] and number == signal.SIGINT and not echo:
            os._exit(130)  # a second Ctrl-C means now
        _state["requested"], _asked["at"] = True, time.monotonic()
        return
    raise Interrupted("Interrupted before anything was at stake; start the same command again.")


@contextmanager
def handled() -> Iterator[None]:
    """Both signals become `Interrupted`, or a request while `deferred`; outside the main thread nothing changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before: dict[int, Any] = {n: signal.signal(n, handle) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def deferred() -> Iterator[None]:
    """Inside, a signal is only remembered: the caller asks `requested()` and saves first."""
    _state["deferred"], _state["requested"] = True, False
    try:
        yield
    finally:
        _state["deferred"] = False
