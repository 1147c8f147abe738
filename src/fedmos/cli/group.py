"""The group of commands: their order in `--help`, one hint for a misspelt name, and the answer to Ctrl-C."""

from __future__ import annotations

from typing import Any

import click
import typer
from typer.core import TyperGroup

from ..core.validation import suggest
from .interrupts import CtrlC

ORDER = (
    "demo",
    "run",
    "resume",
    "compare",
    "sweep",
    "report",
    "plot",
    "export",
    "list",
    "check",
    "data",
    "deploy",
    "privacy",
    "reproduce",
)
"""The commands in the order in which a user needs them; others follow."""

SETTINGS = {"help_option_names": ["-h", "--help"]}
"""Settings of the command line; sub-commands inherit them."""


class CommandGroup(TyperGroup):
    """A group that names a misspelt command and the most similar one."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[Any, Any, list[str]]:
        name = args[0]
        if self.get_command(ctx, name) is None and not ctx.resilient_parsing:
            ctx.fail(f"No such command {name!r}{suggest(name, self.list_commands(ctx))}.")
        return super().resolve_command(ctx, args)


class MainGroup(CommandGroup):
    """The commands of `fedmos` in their order. Ctrl-C is answered at once and ends a command with exit code 130."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        known = super().list_commands(ctx)
        return sorted(known, key=lambda name: ORDER.index(name) if name in ORDER else len(ORDER))

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with CtrlC().answered():
                return super().invoke(ctx)
        except KeyboardInterrupt:  # a command that has nothing more to say; click would print "Aborted!"
            raise typer.Exit(130) from None
