"""`byol` and `python -m byol`: signals are answered first, then the command line is loaded."""

from byol import interrupt


def main() -> None:
    with interrupt.handled():
        from byol.cli import main as run

        run()


if __name__ == "__main__":
    main()
