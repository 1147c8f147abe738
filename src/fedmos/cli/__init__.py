"""The command line: commands parse arguments and print; other packages do the work."""

from .commands import app, main

__all__ = ["app", "main"]
