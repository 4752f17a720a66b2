"""Progress for people: a bar with rate and time left on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

PLAIN_SECONDS = 15.0
NAMED = 10  # images left out whose names are said

_silent = False


class Bar:
    """Counts `advance`d units of a job of known size; `text` is shown beside the bar."""

    def __init__(self, title: str, total: int, unit: str, done: int = 0, units_each: int = 1) -> None:
        self.title, self.total, self.unit = title, total, unit
        self.done, self.first, self.units_each = done, done, units_each
        self.started = self.printed = time.monotonic()
        self.text = ""
        self.rich: Progress | None = None
        if sys.stderr.isatty() and not _silent:
            self.rich = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                TextColumn("{task.fields[text]}"),
                TimeElapsedColumn(),
                TextColumn("left"),
                TimeRemainingColumn(),
                console=Console(stderr=True),
                transient=False,
            )
            self.rich.start()
            self.task = self.rich.add_task(title, total=total, completed=done, text="")

    @property
    def rate(self) -> float:
        """Units a second since the bar began."""
        return (self.done - self.first) * self.units_each / max(time.monotonic() - self.started, 1e-9)

    def advance(self, count: int = 1, text: str = "") -> None:
        self.done += count
        line = f"{self.rate:,.0f} {self.unit}/s {text or self.text}".rstrip()
        if self.rich:
            self.rich.update(self.task, advance=count, text=line)
        elif time.monotonic() - self.printed > PLAIN_SECONDS:
            self.printed = time.monotonic()
            left = (self.total - self.done) * self.units_each / max(self.rate, 1e-9)
            say(f"{self.title} {self.done}/{self.total} · {line} · {duration(left)} left")

    def close(self) -> None:
        if self.rich:
            self.rich.stop()


@contextmanager
def bar(title: str, total: int, unit: str, done: int = 0, units_each: int = 1) -> Iterator[Bar]:
    """A `Bar` that is closed at the end, also after an error."""
    shown = Bar(title, total, unit, done, units_each)
    try:
        yield shown
    finally:
        shown.close()


@contextmanager
def silent(yes: bool) -> Iterator[None]:
    """Inside, nothing is shown if `yes`: of several processes only one speaks."""
    global _silent
    before, _silent = _silent, yes
    try:
        yield
    finally:
        _silent = before


def say(line: str) -> None:
    """One line for the person, on standard error: standard output is for results."""
    if not _silent:
        print(line, file=sys.stderr, flush=True)


def name_left_out(names: Sequence[str], before: int, more: str = "`byol doctor` names them all") -> None:
    """Names what cannot be read, after `before` others; only the first ones, or nothing else would be seen."""
    for name in names[: max(0, NAMED - before)]:
        say(f"Left out: {name}")
    if before <= NAMED < before + len(names):
        say(f"Left out: more images; {more}.")


def duration(seconds: float) -> str:
    """`95` → "1m35s"."""
    seconds = int(seconds)
    if seconds < 60:
        return f"{seconds}s"
    if seconds < 3600:
        return f"{seconds // 60}m{seconds % 60:02d}s"
    return f"{seconds // 3600}h{seconds % 3600 // 60:02d}m"
