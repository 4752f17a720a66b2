"""`python -m byol` is the command line."""

from byol.cli import main

main()
