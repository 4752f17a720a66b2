"""Whether what a verb is going to write can be written, tried before the work and not after it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from byol.errors import DiskError, OutputBusy


def check_file(path: Path) -> None:
    """Refuses a path at which no file can be written, by writing beside it and removing what was written."""
    _try(path)
    with _named(path):
        if path.is_dir():
            raise OutputBusy(f"Cannot write {path}: it is a directory. Name a file.")
        if path.exists() and not path.is_file():
            raise OutputBusy(f"Cannot write {path}: it is neither a file nor a directory. Choose another --out.")


def check_folder(path: Path) -> None:
    """Refuses a path at which no folder can be filled, by writing into it and removing what was written."""
    _try(path / "tried")


class _Tried(Exception):
    """Ends the block of `replacing` before the new file takes the place of the old one."""


def _try(path: Path) -> None:
    """Makes the directories above the file and a new file there, and removes them all."""
    from byol.run.files import (
        check_place,
        followed,
        replacing,
    )  # slow to load: a mistake need not wait for it

    check_place(path)
    with _named(path):
        made = [parent for parent in path.parents if not parent.exists()]
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with suppress(_Tried), replacing(followed(path.parent) / path.name, 0):
                raise _Tried
        finally:
            for parent in made:
                with suppress(OSError):
                    os.rmdir(parent)


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """What the system says of a path, as a sentence: it lies below a file, or cannot be written."""
    try:
        yield
    except (FileExistsError, NotADirectoryError):
        raise OutputBusy(f"Cannot write {path}: a file is where a directory is needed.") from None
    except OSError as error:
        raise DiskError(f"Cannot write {path}: {error.strerror}.") from None
