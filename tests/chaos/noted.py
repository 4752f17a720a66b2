"""The command line, which writes down the code that it ends with: torchrun does not always tell.

`python -m tests.chaos.noted FILE ARGUMENTS …`; the process's id stands in the file before.
"""

import os
import sys
from pathlib import Path
from typing import Any, NoReturn

place = Path(sys.argv.pop(1) + os.environ["RANK"])
place.write_text(f"process {os.getpid()}")
leave: Any = os._exit


def noted(code: int) -> NoReturn:
    """The heart beat's thread ends a process by this, past whatever else would be run."""
    place.write_text(str(code))
    leave(code)


os._exit = noted

from byol.cli import main  # noqa: E402

try:
    main()
except SystemExit as ending:
    code = ending.code if isinstance(ending.code, int) else 0 if ending.code is None else 1
    place.write_text(str(code))
    raise
place.write_text("0")
