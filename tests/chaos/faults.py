"""Faults at the system calls of `byol.run.files`: at a chosen one the process dies, or the disk is full."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from byol import checkpoint
from byol.run import files

WRAPPED = ("open", "fsync", "replace", "close")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def full() -> None:
    raise OSError(28, "No space left on device")


class Faulty:
    """Stands in for `os` and `open` there. Each call is two points, before and after it, a write eleven."""

    def __init__(self, act: Callable[[], None], at: int = 0) -> None:
        self.act, self.at, self.count, self.active = act, at, 0, True

    def point(self) -> None:
        self.count += self.active
        if self.active and self.count == self.at:
            self.act()

    def around(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            if self.act is full and real is os.open and not arguments[1] & (os.O_WRONLY | os.O_RDWR):
                return real(*arguments, **named)  # a full disk can be read
            self.point()
            result = real(*arguments, **named)
            self.point()
            return result

        return call

    def __getattr__(self, name: str) -> Any:
        return self.around(getattr(os, name)) if name in WRAPPED else getattr(os, name)

    def opened(self, *arguments: Any, **named: Any) -> File:
        return File(self, self.around(open)(*arguments, **named))


class File:
    """Written in tenths, each on its way to the disk before the next."""

    def __init__(self, points: Faulty, file: Any) -> None:
        self.points, self.file = points, file

    def __enter__(self) -> File:
        return self

    def __exit__(self, *_: object) -> None:
        self.points.around(self.file.close)()

    def write(self, content: Any) -> None:
        part = len(content) // 10 + 1
        for start in range(0, len(content), part):
            self.points.point()
            self.file.write(content[start : start + part])
            self.file.flush()
        self.points.point()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


def plant(faulty: Faulty, inside: str = "") -> None:
    """From here on in this process; `inside` "save" counts only the writing of checkpoints."""
    files.os = faulty  # type: ignore[attr-defined, assignment]
    files.open = faulty.opened  # type: ignore[attr-defined]
    Path.mkdir = faulty.around(Path.mkdir)  # type: ignore[method-assign]
    Path.unlink = faulty.around(Path.unlink)  # type: ignore[method-assign]
    if inside == "save":
        faulty.active, real = False, checkpoint.save

        def save(*arguments: Any, **named: Any) -> Path:
            faulty.active = True
            try:
                return real(*arguments, **named)
            finally:
                faulty.active = False

        checkpoint.save = save
