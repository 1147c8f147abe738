"""The `fedmos` command and its sub-commands."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from ..core.version import __version__
from .check import check
from .compare import compare, demo
from .data import app as data_app
from .deploy import app as deploy_app
from .exam import exam
from .export import export
from .group import SETTINGS, MainGroup
from .listing import list_everything
from .privacy import app as privacy_app
from .report import plot, report
from .reproduce import reproduce
from .run import resume, run, sweep

app = typer.Typer(
    cls=MainGroup,
    context_settings=SETTINGS,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Federated learning for skewed data and scarce communication.",
    epilog="Start with: fedmos demo",
)
for command in (demo, run, resume, compare, sweep, report, plot, export, check, reproduce, exam):
    app.command()(command)
app.command("list")(list_everything)
app.add_typer(data_app, name="data")
app.add_typer(deploy_app, name="deploy")
app.add_typer(privacy_app, name="privacy")


def main() -> None:
    """Run the command. Errors that a user can correct are printed as one sentence, with exit code 2."""
    from ..engine.ranks import FROM_RANK0

    try:
        app()
    except (ValueError, OSError, RuntimeError, ImportError) as error:
        errors = Console(stderr=True, soft_wrap=True, highlight=False, emoji=False)
        if FROM_RANK0 not in getattr(error, "__notes__", ()):  # rank 0 prints it
            errors.print(f"[bold red]Error:[/] {escape(_sentence(error))}")
        sys.exit(2)


def _sentence(error: Exception) -> str:
    """Return the text of an error; that of an error of the operating system without its number."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"Cannot use {error.filename}: {error.strerror}"
    return str(error)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"fedmos {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass
