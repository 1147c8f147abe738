"""`python -m fedmos` is `fedmos`."""

from .cli import main

main()
