"""The group of commands: their order in `--help`, one hint for a misspelt name, and the answer to Ctrl-C."""

from __future__ import annotations

import re
from typing import Any, get_type_hints

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
    "exam",
)
"""The commands in the order in which a user needs them; others follow."""

SETTINGS = {"help_option_names": ["-h", "--help"]}
"""Settings of the command line; sub-commands inherit them."""


def restore_help(command: click.Command) -> None:
    """Set the help of arguments to that of their declaration, which click 8.5 deletes from those of typer 0.20."""
    hints = get_type_hints(command.callback, include_extras=True) if command.callback is not None else {}
    for parameter in command.params:
        declared = [v for v in getattr(hints.get(parameter.name or ""), "__metadata__", ()) if hasattr(v, "help")]
        if declared and getattr(parameter, "help", "") is None:
            parameter.help = declared[0].help


class CommandGroup(TyperGroup):
    """A group that names a misspelt command and the most similar one, and fits the help of commands to the terminal."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        command = super().get_command(ctx, cmd_name)
        if command is not None:
            restore_help(command)
        if command is not None and command.help and "\b" not in command.help:
            command.help = re.sub(r"(?<![.:\n])\n(?!\n)", " ", command.help)  # lines of the docstring in one sentence
        return command

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
            with CtrlC().handling():
                return super().invoke(ctx)
        except KeyboardInterrupt:  # a command that has nothing more to say; click would print "Aborted!"
            raise typer.Exit(130) from None
