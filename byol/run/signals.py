"""Ctrl-C, SIGTERM and SIGHUP: they end a command at once where nothing is lost, and after the step where work would be.

The first signal ends the command in order, with code 75. A second Ctrl-C ends the process on the spot, with code 130.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType
from typing import Any

from byol.errors import Interrupted, Lost

KEPT = "Interrupted after training had begun: what was last saved is kept, and the same command continues from there."
NOTHING_LOST = "Interrupted before anything was at stake; start the same command again."
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
NOW = 130  # the exit code of a second Ctrl-C
AGAIN_SECONDS = 0.5
PATIENCE_SECONDS = 1.4  # for what is cleaned up on the way to the end
ECHO_SECONDS = 2.0  # torchrun passes on a Ctrl-C that its processes have already received from the terminal


@dataclass
class State:
    """What this process has heard and how far the answer has come."""

    process: int = 0  # the number of the process that answers; a forked child has another, and leaves signals to it
    depth: int = 0  # how many `handled` blocks are open
    deferred: bool = False
    begun: bool = False  # inside the outermost `handled` block, something was at stake
    requested: bool = False  # noted while `deferred`
    raised: bool = False  # `Interrupted` was raised, and has not yet reached the end of a `handled` block
    ending: bool = False  # a signal has been answered inside the outermost `handled` block
    asked_at: float = 0.0


_state = State()


def requested() -> bool:
    """Whether somebody asked to stop while `deferred` was on."""
    return _state.requested


def handle(number: int, frame: FrameType | None) -> None:
    """Answers a signal: `Interrupted` is raised, or noted while `deferred`."""
    if _state.depth and os.getpid() != _state.process:
        return
    on_its_way = isinstance(sys.exc_info()[1], Interrupted)  # raised before, and something is being cleaned up
    if (_state.requested or _state.ending or on_its_way) and number == signal.SIGINT:
        echo = "TORCHELASTIC_RUN_ID" in os.environ and time.monotonic() - _state.asked_at < ECHO_SECONDS
        if not echo:
            os._exit(NOW)
    if isinstance(sys.exc_info()[1], Lost):
        return  # this process ends already: torchrun ends all others when one is gone
    if _state.deferred:
        _state.requested, _state.asked_at = True, time.monotonic()
        return
    if _importing(frame):
        _end_now()
    if on_its_way and time.monotonic() - _state.asked_at > PATIENCE_SECONDS:
        _end_now()  # the clean-up waits for a lock that was held where the signal came
    if not on_its_way:
        _state.asked_at = time.monotonic()
    _state.raised, _state.ending = True, _state.depth > 0
    again = threading.Timer(AGAIN_SECONDS, _come_again)
    again.daemon = True
    again.start()
    if not on_its_way:
        raise Interrupted(_sentence())


def _sentence() -> str:
    return KEPT if _state.begun else NOTHING_LOST


def _end_now() -> None:
    with suppress(OSError):  # nobody reads it
        os.write(2, f"byol: {_sentence()}\n".encode())
    os._exit(Interrupted.exit_code)


def _come_again() -> None:
    """Sends the signal again until `Interrupted` has reached `handled`.

    Python prints and forgets an exception that is raised in one of its own callbacks, such as that of a fork.
    """
    if _state.raised and signal.getsignal(signal.SIGTERM) is handle:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)


def _importing(frame: FrameType | None) -> bool:
    """Whether a module is being loaded: libraries catch an exception that comes then, and go on without that module."""
    while frame and not (frame.f_globals.get("__name__", "").startswith("byol") and frame.f_code.co_name != "<module>"):
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


def _forgotten(what: Any) -> None:
    """Hides an `Interrupted` that Python forgot, as it is raised again; shows everything else."""
    if not isinstance(what.exc_value, Interrupted):
        sys.__unraisablehook__(what)


@contextmanager
def handled() -> Iterator[None]:
    """All three become `Interrupted`, or a request while `deferred`; outside the main thread nothing changes.

    A SIGHUP that `nohup` has told this process to ignore stays ignored.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    if not _state.depth or _state.process != os.getpid():
        _state.process, _state.depth, _state.ending, _state.begun = os.getpid(), 0, False, False
    _state.depth += 1
    heard = [n for n in SIGNALS if n != signal.SIGHUP or signal.getsignal(n) is not signal.SIG_IGN]
    before: dict[int, Any] = {n: signal.signal(n, handle) for n in heard}
    hook, sys.unraisablehook = sys.unraisablehook, _forgotten
    try:
        yield
    finally:
        _state.depth -= 1
        _state.ending = _state.ending and _state.depth > 0
        _state.raised, sys.unraisablehook = False, hook
        for number, handler in before.items():
            if signal.getsignal(number) is handle:
                signal.signal(number, handler)


@contextmanager
def deferred() -> Iterator[None]:
    """Inside, a signal is only noted: the caller asks `requested()`, and saves first.

    A signal that came after the caller last asked is answered at the end.
    """
    _state.deferred, _state.requested, _state.begun = True, False, _state.depth > 0
    try:
        yield
    finally:
        asked = _state.requested
        _state.deferred, _state.requested, _state.ending = False, False, asked and _state.depth > 0
    if asked:
        raise Interrupted("Interrupted when this part was finished; the same command continues.")


@contextmanager
def uncut() -> Iterator[None]:
    """Inside, nothing is cut short: a signal is answered at the end. For what libraries cannot leave half made."""
    if _state.deferred or not _state.depth or threading.current_thread() is not threading.main_thread():
        yield
        return
    _state.deferred, _state.requested = True, False
    try:
        yield
    finally:
        asked = _state.requested
        _state.deferred, _state.requested = False, False
    if asked:
        _state.ending = True
        raise Interrupted(_sentence())


def ignore() -> None:
    """From here on no signal is answered: the work is done and the exit code is known."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
