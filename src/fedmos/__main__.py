"""`python -m fedmos` is `fedmos`."""

from .cli.commands import main

main()
