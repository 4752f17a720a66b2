"""Ctrl-C and SIGTERM: at once where nothing is at stake, after the step where work would be lost."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from byol.errors import Interrupted

_state = {"requested": False, "deferred": False, "raised": False}
_asked = {"at": 0.0}
NOTHING_LOST = "Interrupted before anything was at stake; start the same command again."
AGAIN_SECONDS = 0.5
PATIENCE_SECONDS = 1.4  # for what is cleaned up on the way
ECHO_SECONDS = 2.0  # torchrun passes on the Ctrl-C that its processes have had from the terminal already


def requested() -> bool:
    """Whether somebody asked to stop while `deferred` was on."""
    return _state["requested"]


def handle(number: int, frame: FrameType | None) -> None:
    """The answer to a signal."""
    on_its_way = isinstance(sys.exc_info()[1], Interrupted)  # something is being cleaned up
    if _state["deferred"] or on_its_way:
        echo = "TORCHELASTIC_RUN_ID" in os.environ and time.monotonic() - _asked["at"] < ECHO_SECONDS
        if (_state["requested"] or on_its_way) and number == signal.SIGINT and not echo:
            os._exit(130)  # a second Ctrl-C means now
    if _state["deferred"]:
        _state["requested"], _asked["at"] = True, time.monotonic()
        return
    if _importing(frame):
        _end_now()
    if on_its_way and time.monotonic() - _asked["at"] > PATIENCE_SECONDS:
        _end_now()  # it came up where a lock was held, and that is waited for
    if not on_its_way:
        _asked["at"] = time.monotonic()
    _state["raised"] = True
    again = threading.Timer(AGAIN_SECONDS, _come_again)
    again.daemon = True
    again.start()
    if not on_its_way:
        raise Interrupted(NOTHING_LOST)


def _end_now() -> None:
    os.write(2, f"byol: {NOTHING_LOST}\n".encode())
    os._exit(Interrupted.exit_code)


def _come_again() -> None:
    """What comes up in a callback of Python's own, such as that of a fork, is printed and forgotten: so it comes up
    again until it has reached `handled`."""
    if _state["raised"] and signal.getsignal(signal.SIGTERM) is handle:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)


def _importing(frame: FrameType | None) -> bool:
    """Whether a module is just being loaded: libraries catch what comes up then and go on without a part of theirs."""
    while frame and not (frame.f_globals.get("__name__", "").startswith("byol") and frame.f_code.co_name != "<module>"):
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


def _forgotten(what: Any) -> None:
    """Says nothing of an answer that Python forgot, as it comes again."""
    if not isinstance(what.exc_value, Interrupted):
        sys.__unraisablehook__(what)


@contextmanager
def handled() -> Iterator[None]:
    """Both signals become `Interrupted`, or a request while `deferred`; outside the main thread nothing changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before: dict[int, Any] = {n: signal.signal(n, handle) for n in (signal.SIGINT, signal.SIGTERM)}
    hook, sys.unraisablehook = sys.unraisablehook, _forgotten
    try:
        yield
    finally:
        _state["raised"], sys.unraisablehook = False, hook
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def deferred() -> Iterator[None]:
    """Inside, a signal is only remembered: the caller asks `requested()` and saves first. One that came too late to be
    asked for is answered at the end."""
    _state["deferred"], _state["requested"] = True, False
    try:
        yield
    finally:
        _state["deferred"] = False
    if _state["requested"]:
        raise Interrupted("Interrupted when this part was finished; the same command continues.")
