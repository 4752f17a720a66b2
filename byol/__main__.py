"""`byol` and `python -m byol`: signals are answered first, then the command line is loaded."""

import sys

from byol import interrupt
from byol.errors import Interrupted


def main() -> None:
    with interrupt.handled():
        try:
            from byol.cli import main as run
        except Interrupted as error:
            print(f"byol: {error}", file=sys.stderr)
            sys.exit(error.exit_code)
        run()


if __name__ == "__main__":
    main()
