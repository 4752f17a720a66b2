"""What the program tells people: results, one line at a time, and progress, as a bar on a terminal or as plain lines.

Standard error and standard output are written here alone, so that no stream can end a command: a reader that went away
is not told any more, what a stream cannot encode is written as \\u escapes, and control characters are shown, not sent.
"""

from __future__ import annotations

import errno
import os
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TextIO

from byol.errors import DiskError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

PLAIN_SECONDS = 15.0
NOTEBOOK_SECONDS = 1.0
RECENT_SECONDS = 60.0  # over which a rate is taken
SURPRISE = 1.5  # times the expected rate, or a part of it, that is told
NAMED = 10  # images left out whose names are said
GONE = (errno.EPIPE, errno.EIO, errno.EBADF, errno.ECONNRESET)  # the reader, the terminal or the stream is no more
# Control characters and those that turn the direction of writing; line ends and tabs stay.
_CODES = {*range(32), *range(127, 160), *range(0x202A, 0x202F), *range(0x2066, 0x206A)} - {ord("\n"), ord("\t")}
HIDDEN = {code: ascii(chr(code))[1:-1] for code in _CODES}

_silent = False
_kept: list[str] | None = None  # results that are not sent to standard output but kept for the one who asked


class Bar:
    """Counts `advance`d units of a job of known size; `text` is shown beside the bar."""

    def __init__(
        self, title: str, total: int, unit: str, done: int = 0, units_each: int = 1, expected: float = 0.0
    ) -> None:
        """`expected` is the rate that the user was told of; when it turns out otherwise, that is said."""
        self.title, self.total, self.unit = title, total, unit
        self.done, self.units_each, self.expected = done, units_each, expected
        self.printed = self.judged = time.monotonic()
        self.marks = deque([(self.printed, done)])  # when how much was done, for the last RECENT_SECONDS
        self.text = ""
        self.notebook = in_notebook()
        self.widget: Any = None  # what a notebook shows, which is drawn anew
        self.rich: Progress | None = None
        if not _silent and _is_terminal(sys.stderr):
            self._show(done)

    def _show(self, done: int) -> None:
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        self.rich = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[text]}", markup=False),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console("stderr"),
            transient=False,
        )
        self.rich.start()
        self.task = self.rich.add_task(shown(self.title), total=self.total, completed=done, text="")

    @property
    def rate(self) -> float:
        """Units a second in the last minute: a machine that was busy at the start may be free now."""
        since, done = self.marks[0]
        return (self.done - done) * self.units_each / max(time.monotonic() - since, 1e-9)

    @property
    def left(self) -> str:
        return duration((self.total - self.done) * self.units_each / max(self.rate, 1e-9))

    def advance(self, count: int = 1, text: str = "") -> None:
        self.done += count
        now = time.monotonic()
        if now - self.marks[-1][0] > RECENT_SECONDS / 10:
            self.marks.append((now, self.done))
            while now - self.marks[0][0] > RECENT_SECONDS and len(self.marks) > 2:
                self.marks.popleft()
        line = f"{self.rate:,.0f} {self.unit}/s {text or self.text}".rstrip()
        if self.rich:
            self.rich.update(self.task, advance=count, text=shown(line))
        elif now - self.printed > (NOTEBOOK_SECONDS if self.notebook else PLAIN_SECONDS):
            self.printed = now
            self._tell(f"{self.title} {self.done}/{self.total} · {line} · {self.left} left")
        if self.expected and now - self.judged > RECENT_SECONDS:
            self.judged = now
            self._compare()

    def _tell(self, line: str) -> None:
        """A line of its own, or in a notebook a bar that is drawn anew."""
        if not self.notebook:
            say(line)
        elif not _silent:
            self._draw(line)

    def _draw(self, line: str) -> None:
        """HTML of the notebook's own, so that no extension is needed and a stored notebook shows how it ended."""
        from html import escape

        from IPython.display import HTML, display

        bar = f'<progress value="{self.done}" max="{self.total}" style="width:14em;vertical-align:middle"></progress>'
        drawn = HTML(f"<div>{bar} <small>{escape(shown(line))}</small></div>")
        if self.widget is None:
            self.widget = display(drawn, display_id=True)
        else:
            self.widget.update(drawn)

    def _compare(self) -> None:
        """Says when the rate is no longer the one that was told, and takes the new one for what is told from now on."""
        rate, expected = self.rate, self.expected
        if rate > 0 and not 1 / SURPRISE < rate / expected < SURPRISE:
            self.expected = rate
            slower = "slower" if rate < expected else "faster"
            say(
                f"{self.title} is {slower} than expected: {rate:,.0f} {self.unit}/s in the last minute, not "
                f"{expected:,.0f}; about {self.left} left."
            )

    def close(self) -> None:
        if self.rich:
            self.rich.stop()
        if self.widget is not None and not _silent:
            self._draw(f"{self.title} {self.done}/{self.total} · {self.text}".rstrip(" ·"))


@contextmanager
def bar(title: str, total: int, unit: str, done: int = 0, units_each: int = 1, expected: float = 0.0) -> Iterator[Bar]:
    """A `Bar` that is closed at the end, also after an error."""
    progress = Bar(title, total, unit, done, units_each, expected)
    try:
        yield progress
    finally:
        progress.close()


@contextmanager
def silent(yes: bool) -> Iterator[None]:
    """Inside, nothing is shown if `yes`, or if it was silent before: of several processes only one speaks."""
    global _silent
    before, _silent = _silent, yes or _silent
    try:
        yield
    finally:
        _silent = before


@contextmanager
def kept(yes: bool) -> Iterator[list[str]]:
    """Inside, the lines of results are collected if `yes`, and not written: a program wants one object, not lines."""
    global _kept
    before, lines = _kept, list[str]()
    _kept = lines if yes else before
    try:
        yield lines
    finally:
        _kept = before


def say(line: str) -> None:
    """One line for the person, on standard error: standard output is for results. It never fails."""
    if not _silent:
        send(_voice(), shown(line) + "\n")


def _voice() -> str:
    """The stream for people: standard error, but not in a notebook, which shows that in red, as if all were wrong."""
    return "stdout" if in_notebook() else "stderr"


def in_notebook() -> bool:
    """Whether the output goes to the cells of a notebook."""
    return type(sys.stderr).__module__.startswith("ipykernel.") and type(sys.stdout).__module__.startswith("ipykernel.")


def tell(text: str) -> None:
    """Lines of a result, on standard output; raises `DiskError` when the disk behind it is full."""
    if _kept is None:
        send("stdout", shown(text) + "\n")
    else:
        _kept.append(text)


def keeps() -> bool:
    """Whether lines of a result are kept for one JSON object."""
    return _kept is not None


def complain(sentence: object) -> None:
    """The sentence that a command ends with, also from a process that is otherwise silent."""
    send("stderr", f"byol: {shown(str(sentence))}\n")


def shown(text: str) -> str:
    """The text with its control characters spelled out: a file's name must not move a terminal's cursor."""
    return text.translate(HIDDEN)


def send(name: str, text: str) -> None:
    """Writes to sys.stdout or sys.stderr by its `name`, whatever has become of the stream."""
    stream: TextIO | None = getattr(sys, name)
    if stream is None:
        return
    try:
        encoding = stream.encoding or "utf-8"
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
        stream.flush()
    except OSError as error:
        _drop(stream)
        if name == "stdout" and error.errno not in GONE:
            raise DiskError(f"Cannot write the results to standard output: {error.strerror}.") from None
    except ValueError:  # somebody closed the stream
        return


def open_streams() -> None:
    """For the start of a command: a stream that the shell has closed (`2>&-`) leads nowhere.

    Otherwise the next file to be opened would get its number, and what libraries write to it.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w" if number else "r", encoding="utf-8"))  # noqa: SIM115 (never closed)


def close_streams() -> None:
    """For the end of a command: what Python would fail to write is dropped."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            _drop(stream)


def _drop(stream: TextIO) -> None:
    """Lets a stream that failed lead nowhere: what it still holds would fail again, in whoever flushes it next, such as
    `multiprocessing` before it starts a process."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


class Stream:
    """sys.stdout or sys.stderr for libraries that write escape sequences: it never fails."""

    def __init__(self, name: str) -> None:
        self.name = name

    def write(self, text: str) -> int:
        send(self.name, text)
        return len(text)

    def flush(self) -> None:
        """`send` has done it."""

    def __getattr__(self, name: str) -> Any:
        return getattr(getattr(sys, self.name), name)


def console(name: str) -> Console:
    """A console of the library `rich` on sys.stdout or sys.stderr, by its `name`."""
    from rich.console import Console

    stream: Any = Stream(name)
    return Console(file=stream)


def _is_terminal(stream: TextIO | None) -> bool:
    with suppress(ValueError):  # closed
        return stream is not None and stream.isatty()
    return False


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
