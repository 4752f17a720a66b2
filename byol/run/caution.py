"""The verdict that travels with an encoder, in run.json and in the header of its file: whatever uses an encoder repeats
it unless the run was learning."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from byol.checkpoint import encoder_header
from byol.errors import ByolError
from byol.run.progress import say
from byol.run.record import NAME, Verdict, decode, read_run

MOST_CHARACTERS = 700  # of a sentence; ours are shorter


def travelled(path: str | Path) -> Verdict | None:
    """The verdict on the encoder of a run or of a file; None where none was written, or only something unreadable."""
    place = Path(path)
    with suppress(ByolError):
        if (place / NAME).is_file() and (verdict := read_run(place).verdict):
            return _bounded(verdict)
        return _bounded(decode(Verdict, encoder_header(place).get("verdict"), place))
    return None


def sentence(path: str | Path) -> str:
    """What to say before an encoder is used; empty: nothing is known against it."""
    verdict = travelled(path)
    return "" if verdict is None or verdict.word == "learning" else f"Caution, the run's verdict: {verdict.sentence}"


def repeat(path: str | Path) -> None:
    """Says it in one line."""
    if told := sentence(path):
        say(told)


def bounded(text: str) -> str:
    """On one line, and not for ever: a file may hold any text."""
    words = " ".join(text[: 2 * MOST_CHARACTERS].split())
    return words if len(words) <= MOST_CHARACTERS else f"{words[:MOST_CHARACTERS]}…"


def _bounded(verdict: Verdict) -> Verdict:
    return replace(verdict, sentence=bounded(verdict.sentence))
