"""The command line: verbs to one function each; torch is imported only behind a verb that needs it."""

from __future__ import annotations

import errno
import os
import shlex
import sys
import time
from typing import Any

from cyclopts.exceptions import CycloptsError, UnknownOptionError

from byol.cli import cluster, help, images, models, pages, scoring, shards, training, tuning, weights  # noqa: F401 (they add verbs)
from byol.cli.app import app
from byol.cli.screens import TASKS, as_json, version
from byol.errors import (
    KILLED,
    WORKER_KILLED,
    BadData,
    ByolError,
    DiskError,
    Diverged,
    Interrupted,
    LoaderLost,
    Lost,
    UsageError,
    nearest,
    process_number,
)
from byol.run import signals
from byol.run.progress import complain, console, kept, send, silent, tell

# Verbs that take config fields.
WITH_FIELDS = ("pretrain", "doctor", "views", "plan", "launch", "table", "tune", "evaluate")
EVERYWHERE = ("--debug", "--quiet", "--json")  # flags that every verb takes, besides --plugin FILE
TRAINING = ("pretrain", "table", "tune", "demo", "evaluate")  # verbs whose memory depends on the config


def _explain(error: CycloptsError) -> str:
    """The sentence of a wrong flag, with the nearest ones that exist."""
    if not isinstance(error, UnknownOptionError):
        return " ".join(str(error).split())
    given = str((error.token.keyword or error.token.value) if error.token else "").split("=")[0]
    flags = {name for argument in error.argument_collection for name in argument.names if name[:2] == "--"}
    return f"There is no flag {given}. {nearest(given, sorted(flags))}"


def _ending(error: Exception, verb: str) -> tuple[str, int]:
    """The sentence and the exit code of what is not the user's mistake; running out of something has a remedy."""
    text = (str(error).strip() or "no message").splitlines()[0][:300]
    if text.startswith(KILLED):
        return WORKER_KILLED, LoaderLost.exit_code
    if isinstance(error, MemoryError) or "allocate memory" in str(error) or "out of memory" in str(error):
        remedy = "Raise optim.accumulate, or lower optim.batch or data.resolution." if verb in TRAINING else ""
        return f"Out of memory ({text}). {remedy}".rstrip(), 1
    if isinstance(error, OSError):
        return _disk(error), DiskError.exit_code
    if isinstance(error, UnicodeError):
        return f"A name or text cannot be used because of its characters: {text}.", BadData.exit_code
    if isinstance(error, RecursionError):
        return f"The input is too deeply nested to be read ({text}).", BadData.exit_code
    return f"This should not happen: {type(error).__name__}: {text} Add --debug for the traceback.", 1


def _disk(error: OSError) -> str:
    """The path and the reason of an error of the system, which has a remedy when it is a limit on open files."""
    reason = error.strerror or (str(error).strip() or type(error).__name__).splitlines()[-1]
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return f"{reason}: this process may have no more. Raise the limit (ulimit -n), or use --data.workers 0."
    names = " and ".join(shlex.quote(str(name)) for name in (error.filename, error.filename2) if name is not None)
    return f"Cannot read or write {names}: {reason}." if names else f"Reading or writing failed: {reason}."


def _say(error: object) -> None:
    """What every process of a job finds alike is said once."""
    rank = process_number()
    if rank == (error.said_by if isinstance(error, Lost) else 0):
        complain(error)
    elif not isinstance(error, Diverged | Interrupted | Lost | UsageError):
        complain(f"process {rank}: {error}")


def take_plugin(arguments: list[str]) -> list[str]:
    """The arguments without --plugin FILE, which every verb takes; the file is loaded, as they may name its parts."""
    rest, files, words = list[str](), list[str](), iter(arguments)
    for word in words:
        flag, equals, value = word.partition("=")
        if flag == "--plugin":
            files.append(value if equals else next(words, ""))
        else:
            rest.append(word)
    for file in files:
        if not file:
            raise UsageError("--plugin needs the name of a Python file, as in --plugin my.py.")
        from byol import plugins

        plugins.load(file)
    return rest


def _run(arguments: list[str]) -> object:
    """The verb, or its help, which is shown by `rich`; an error is told without `rich`, which takes long to load."""
    unused: Any = sys.stderr
    app.error_console = unused
    if arguments in ([], ["--version"]):
        tell(version() if arguments else TASKS)
        return None
    if any(a in ("--help", "--help-all", "-h") for a in arguments):
        app.console = console("stdout")
    short = "--help-all" not in arguments
    arguments = [a if a != "--help-all" else "--help" for a in arguments]
    found = app(arguments, exit_on_error=False, print_error=False, result_action="return_value")
    if short and any(a in ("--help", "-h") for a in arguments) and arguments[0] in WITH_FIELDS:
        tell(f"byol {arguments[0]} --help-all lists every field, byol explain FIELD tells of one.")
    return found


def _ended(arguments: list[str], debug: bool) -> tuple[int, str, object]:
    """Runs the verb: its exit code, its sentence where it failed, and what it found."""
    try:
        with signals.handled():
            return 0, "", _run(take_plugin(arguments))
    except CycloptsError as error:
        mistake = UsageError(_explain(error))
        _say(mistake)
        return 2, str(mistake), None
    except (ByolError, Interrupted) as error:
        if debug and not isinstance(error, Interrupted | Lost):
            raise
        _say(error)
        return error.exit_code, str(error), None
    except Exception as error:
        if debug:
            raise
        sentence, code = _ending(error, next(iter(arguments), ""))
        _say(sentence)
        return code, sentence, None


def main() -> None:
    """Runs the verb; an error of the user's is one sentence and its exit code, a traceback only with --debug."""
    began, given = time.monotonic(), sys.argv[1:]
    debug, quiet, machine = (flag in given for flag in EVERYWHERE)
    if not debug:  # torch's warnings about a lost process are pages of addresses
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    arguments = [a for a in given if a not in EVERYWHERE]
    with silent(quiet), kept(machine) as lines:
        code, error, found = _ended(arguments, debug)
    if machine and not process_number():
        seconds = time.monotonic() - began
        send("stdout", as_json(next(iter(arguments), ""), code, seconds, found, lines, error))
    sys.exit(code)


if __name__ == "__main__":
    main()
