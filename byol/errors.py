"""The ways a command can end other than well: one sentence for the user and a fixed exit code each."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable


class ByolError(Exception):
    """Something the user can act on: the message is shown without a traceback, `exit_code` is returned."""

    exit_code = 1

    def _render_traceback_(self) -> list[str]:
        """What a notebook shows: the sentence alone."""
        return [f"{type(self).__name__}: {self}"]


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
    """Stopped by Ctrl-C, SIGTERM or SIGHUP; starting the same command again continues.

    Not an `Exception`, as it may come up anywhere: who catches what a decoder throws must not take it for a bad image.
    """

    exit_code = 75

    def _render_traceback_(self) -> list[str]:
        """What a notebook shows: the sentence alone."""
        return [f"{type(self).__name__}: {self}"]


class Lost(ByolError):
    """Another process of the run failed or is gone; starting the same command again continues.

    `exit_code` is set to that of the process that failed, when it could still say so; `said_by` is the process that
    tells the user, another one when the first is gone.
    """

    exit_code = 75
    said_by = 0


class LoaderLost(ByolError):
    """A loader process was killed or does not answer; starting the same command again continues."""

    exit_code = 75


KILLED = "DataLoader worker"  # how torch begins its words about one that was killed; it may come up anywhere
WORKER_KILLED = (
    "A loader process was killed, as happens when memory runs out. The same command continues; --data.workers 0 or "
    "--data.prefetch 1 need less."
)


class Diverged(ByolError):
    """The numbers are no longer usable: a loss or gradient is not finite."""

    exit_code = 76


def process_number() -> int:
    """Which process of a job this is by its surroundings, before anything is loaded that could tell better."""
    return int(os.environ.get("RANK") or os.environ.get("SLURM_PROCID") or 0)


SLIPS = 2  # keys that a finger may miss


def _edits(one: str, other: str) -> int:
    """Letters to insert, remove, replace or swap with the next, up to one more than matter."""
    if abs(len(one) - len(other)) > SLIPS:
        return SLIPS + 1
    before, row = list[int](), list(range(len(other) + 1))
    for i, a in enumerate(one, 1):
        earlier, before, row = before, row, [i]
        for j, b in enumerate(other, 1):
            row.append(min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (a != b)))
            if i > 1 and j > 1 and a == other[j - 2] and b == one[i - 2]:
                row[j] = min(row[j], earlier[j - 2] + 1)
        if min(row) > SLIPS:
            return SLIPS + 1
    return row[-1]


def nearest(name: str, valid: Iterable[str]) -> str:
    """A phrase that offers the nearest valid names, for the end of an error sentence."""
    valid = list(valid)
    near = sorted((d, v) for v in valid if (d := _edits(name, v)) <= SLIPS and d < len(v))
    # difflib finds what has much in common, but not every short word with a slip in it.
    close = list(dict.fromkeys([*(v for _, v in near), *difflib.get_close_matches(name, valid, n=3, cutoff=0.6)]))[:3]
    if close:
        return f"Did you mean {' or '.join(close)}?"
    return f"Valid: {', '.join(valid[:20])}{', …' if len(valid) > 20 else ''}."
