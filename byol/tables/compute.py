"""A cell computed by whoever claims it first: stored whole or not at all, failures recorded like results.

Needs no torch until a cell is missing.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from byol.errors import ByolError, Interrupted
from byol.records import write_json
from byol.tables.cells import Cell, finished, stored


@contextmanager
def _claimed(cell: Cell, wait: bool) -> Iterator[bool]:
    """Whether this process may compute the cell; the claim dies with its holder."""
    cell.path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(cell.path.with_suffix(".lock"), timeout=-1 if wait else 0)
    try:
        lock.acquire()
    except Timeout:
        yield False
        return
    try:
        yield True
    finally:
        lock.release()


def compute(cell: Cell, wait: bool = False) -> dict[str, Any] | None:
    """The cell's record, computed if it is missing; None when another process is at it. Failures are recorded."""
    with _claimed(cell, wait) as mine:
        if not mine:
            return None
        record = stored(cell)
        if record is not None and finished(record):
            return record
        began = time.monotonic()
        try:
            from byol.tables.measure import measure

            outcome = {"status": "finished", **measure(cell)}
        except Interrupted:
            raise
        except Exception as error:
            outcome = {"status": "failed", "error": _words(error), "traceback": traceback.format_exc()}
        record = {**_header(cell), "seconds": round(time.monotonic() - began, 1), **outcome}
        write_json(cell.path, record)
        return record


def _words(error: Exception) -> str:
    text = (str(error).strip() or "no message").splitlines()[0][:300]
    return text if isinstance(error, ByolError) else f"{type(error).__name__}: {text}"


def _header(cell: Cell) -> dict[str, Any]:
    return {
        "key": cell.key,
        "run": cell.run_key,
        "label": cell.label,
        "seed": cell.seed,
        "preset": cell.preset,
        "overrides": cell.overrides,
        "data": {Path(name).name: value for name, value in cell.checksums.items()},
        "evaluations": [[e.protocol, Path(e.on).name, e.spec] for e in cell.evaluations],
    }
