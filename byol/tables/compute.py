"""A cell is computed by the process that claims it first and stored whole or not at all; so is a failure.

Needs no torch until a cell is missing.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from filelock import FileLock, Timeout

from byol.errors import ByolError, Interrupted, Lost
from byol.tables.cells import Cell, stored
from byol.tables.record import CellRecord, Score, write


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


def compute(cell: Cell, wait: bool = False) -> CellRecord | None:
    """The cell's record, computed if it is missing; None while another process computes it. Failures are recorded."""
    with _claimed(cell, wait) as mine:
        if not mine:
            return None
        known = stored(cell)
        if known and known.finished:
            return known
        began = time.monotonic()
        try:
            from byol.tables.measure import measure

            known = measure(cell)
        except Interrupted:
            raise
        except Exception as error:
            if isinstance(error, Lost) and error.exit_code == Lost.exit_code:
                raise  # a process is gone, and left no error: as if this one were gone, too
            known = replace(header(cell), error=_words(error), traceback=traceback.format_exc())
        known = replace(known, seconds=round(time.monotonic() - began, 1))
        write(cell.path, known)
        return known


def _words(error: Exception) -> str:
    text = (str(error).strip() or "no message").splitlines()[0][:300]
    return text if isinstance(error, ByolError) else f"{type(error).__name__}: {text}"


def header(cell: Cell) -> CellRecord:
    """What is known of a cell before it is computed: the record of a failure without its reason."""
    return CellRecord(
        key=cell.key,
        run=cell.run_key,
        label=cell.label,
        seed=cell.seed,
        preset=cell.preset,
        overrides=dict(cell.overrides),
        data={Path(name).name: value for name, value in cell.checksums.items()},
        status="failed",
        scores=[Score(each.protocol, Path(each.on).name, dict(each.spec)) for each in cell.evaluations],
    )
