"""The ways a command can end other than well: one sentence for the user and a fixed exit code each."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable


class ByolError(Exception):
    """Something the user can act on: the message is shown without a traceback, `exit_code` is returned."""

    exit_code = 1


class UsageError(ByolError):
    """A wrong flag, name, value or file in the command or the config."""

    exit_code = 2


class BadData(ByolError):
    """The images cannot be used: none found, or too many unreadable."""

    exit_code = 65


class OutputBusy(ByolError):
    """The output directory belongs to another process, another run or something else."""

    exit_code = 73


class DiskError(ByolError):
    """Reading or writing failed: disk full, read-only, removed."""

    exit_code = 74


class Interrupted(BaseException):
    """Stopped by Ctrl-C or SIGTERM; starting the same command again continues.

    Not an `Exception`, as it may come up anywhere: who catches what a decoder throws must not take it for a bad image.
    """

    exit_code = 75


class Lost(ByolError):
    """Another process of the run failed or is gone; starting the same command again continues.

    `exit_code` is set to that of the process that failed, when it could still say so; `said_by` is the process that
    tells the user, another one when the first is gone.
    """

    exit_code = 75
    said_by = 0


class Diverged(ByolError):
    """The numbers are no longer usable: a loss or gradient is not finite."""

    exit_code = 76


def process_number() -> int:
    """Which process of a job this is by its surroundings, before anything is loaded that could tell better."""
    return int(os.environ.get("RANK") or os.environ.get("SLURM_PROCID") or 0)


def nearest(name: str, valid: Iterable[str]) -> str:
    """A phrase that offers the nearest valid names, for the end of an error sentence."""
    valid = list(valid)
    close = difflib.get_close_matches(name, valid, n=3, cutoff=0.6)
    if close:
        return f"Did you mean {' or '.join(close)}?"
    return f"Valid: {', '.join(valid[:20])}{', …' if len(valid) > 20 else ''}."
