"""`byol` and `python -m byol`: signals and streams are seen to first, then the command line is loaded."""

import os
import sys

from byol.errors import Interrupted
from byol.run import progress, signals


def main() -> None:
    progress.open_streams()
    with signals.handled():
        try:
            from byol.cli import main as run

            run()
            code = 0
        except Interrupted as error:
            progress.complain(error)
            code = error.exit_code
        except SystemExit as ending:
            code = ending.code if isinstance(ending.code, int) else 0
        signals.ignore()
    progress.close_streams()
    if code == Interrupted.exit_code:
        os._exit(code)  # at once: to unload torch takes long enough for another Ctrl-C
    sys.exit(code)


if __name__ == "__main__":
    main()
