"""The page of the command line, generated from the commands themselves."""

from __future__ import annotations

import re
from typing import Any

import click
import typer

from fedmos.cli import app
from fedmos.cli.group import restore_help


def command_pages() -> dict[str, str]:
    """Return the page that lists every command with its arguments and options."""
    root: Any = typer.main.get_command(app)
    lines = ["# Command line", "", "`fedmos COMMAND --help` prints the same on a terminal.", ""]
    for command, path in _commands(root, "fedmos"):
        text = (command.help or command.short_help or "").replace("\b", "").strip()
        lines += [f"## {path}", "", _with_links(text), ""]
        lines += _parameters(command)
    return {"reference/command-line.md": "\n".join(lines) + "\n"}


def _commands(group: Any, path: str) -> list[tuple[Any, str]]:
    found: list[tuple[Any, str]] = []
    for key, command in group.commands.items():
        if command.hidden:
            continue
        name = f"{path} {key}"
        found += _commands(command, name) if hasattr(command, "commands") else [(command, name)]
    return found


def _parameters(command: Any) -> list[str]:
    restore_help(command)
    context = click.Context(command)
    rows = [_row(parameter, context) for parameter in command.params if not getattr(parameter, "hidden", False)]
    if not rows:
        return []
    return ["| argument or option | meaning | default |", "|---|---|---|", *rows, ""]


def _row(parameter: Any, context: Any) -> str:
    if parameter.param_type_name == "argument":
        spelled = parameter.make_metavar(context)
    else:
        spelled = ", ".join([*parameter.opts, *parameter.secondary_opts])
        spelled += "" if parameter.is_flag else f" {parameter.make_metavar(context).removesuffix(' RANGE')}"
    text = _with_links((getattr(parameter, "help", None) or "").replace("\n", " "))
    cells = [cell.replace("|", r"\|") for cell in (f"`{spelled}`", text, _default(parameter))]
    return f"| {' | '.join(cells)} |"


def _with_links(text: str) -> str:
    return re.sub(r"docs/([\w/-]+\.md)", r"[docs/\1](../\1)", text)


def _default(parameter: Any) -> str:
    if parameter.required:
        return "required"
    plain = parameter.default is not None and not callable(parameter.default)
    return f"`{parameter.default}`" if plain and not getattr(parameter, "is_flag", False) else ""
