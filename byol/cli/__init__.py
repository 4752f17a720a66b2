"""The command line: verbs to one function each; torch is imported only behind a verb that needs it."""

from __future__ import annotations

import os
import sys

from cyclopts.exceptions import CycloptsError, UnknownOptionError

from byol import interrupt
from byol.cli import cluster, help, images, pages, scoring, shards, training, weights  # noqa: F401 (they add verbs)
from byol.cli.app import app
from byol.errors import KILLED, ByolError, Diverged, Interrupted, Lost, UsageError, nearest, process_number


def _explain(error: CycloptsError) -> str:
    """The sentence of a wrong flag, with the nearest ones that exist."""
    if not isinstance(error, UnknownOptionError):
        return " ".join(str(error).split())
    given = str((error.token.keyword or error.token.value) if error.token else "").split("=")[0]
    verb = app[error.command_chain[-1]] if error.command_chain else app
    flags = {name for argument in verb.assemble_argument_collection() for name in argument.names if name[:2] == "--"}
    return f"There is no flag {given}. {nearest(given, sorted(flags))}"


def _unexpected(error: Exception) -> str:
    """What is not the user's mistake, still in a sentence; running out of memory has a remedy."""
    text = (str(error).strip() or "no message").splitlines()[0][:300]
    if isinstance(error, MemoryError) or "allocate memory" in str(error) or "out of memory" in str(error):
        return f"Out of memory ({text}). Raise optim.accumulate, or lower optim.batch or data.resolution."
    if text.startswith(KILLED):
        return (
            "A loader process was killed, as happens when memory runs out. The same command continues; "
            "--data.workers 0 or --data.prefetch 1 need less."
        )
    return f"This should not happen: {type(error).__name__}: {text} Add --debug for the traceback."


def _say(error: object) -> None:
    """What every process of a job finds alike is said once."""
    rank = process_number()
    if rank == (error.said_by if isinstance(error, Lost) else 0):
        print(f"byol: {error}", file=sys.stderr)
    elif not isinstance(error, Diverged | Interrupted | Lost | UsageError):
        print(f"byol: process {rank}: {error}", file=sys.stderr)


def main() -> None:
    """Runs the verb; an error of the user's is one sentence and its exit code, a traceback only with --debug."""
    debug = "--debug" in sys.argv
    if not debug:  # torch's warnings about a lost process are pages of addresses
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    arguments = [a for a in sys.argv[1:] if a != "--debug"]
    code = 0
    try:
        with interrupt.handled():
            app(arguments, exit_on_error=False, print_error=False, result_action="return_value")
    except CycloptsError as error:
        _say(UsageError(_explain(error)))
        code = 2
    except (ByolError, Interrupted) as error:
        if debug and not isinstance(error, Interrupted | Lost):
            raise
        _say(error)
        code = error.exit_code
    except Exception as error:
        if debug:
            raise
        _say(_unexpected(error))
        code = Lost.exit_code if str(error).startswith(KILLED) else 1
    sys.exit(code)


if __name__ == "__main__":
    main()
