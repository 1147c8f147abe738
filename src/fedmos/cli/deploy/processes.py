"""`fedmos deploy superlink`, `node` and `apps`: the processes of one machine."""

from __future__ import annotations

import inspect
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from .common import app, echo, require_flower

_FORWARDED = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def superlink(
    context: typer.Context,
    server: Annotated[Path, typer.Argument(metavar="SERVER.toml", help="The file of the server's installation.")],
) -> None:
    """Run the server's SuperLink: flower-superlink on loopback, with TLS, node authentication and a database.

    Further options are those of flower-superlink, for example --account-auth-config.
    """
    require_flower()
    from ...flower.local.doctor import require_sound
    from ...flower.local.environment import RETURNING_MEMORY
    from ...flower.local.installations import ServerInstallation, prepare
    from ...flower.local.programs import program_path

    installed = ServerInstallation.read(server)
    require_sound(installed, "superlink")
    program, *arguments = installed.superlink_command()
    environment = RETURNING_MEMORY | prepare(installed)
    os.execvpe(program_path(program), [program, *arguments, *context.args], environment)


@app.command(context_settings=_FORWARDED)
def node(context: typer.Context) -> None:
    """Run a client's SuperNode: flower-supernode with shorter pauses, which can reconnect at once after it was killed.

    Takes the file CLIENT.toml of the client's installation, or else all options of flower-supernode; and --poll SECONDS
    (default 0.5), --memory FILE, --plain (for Flower's own behaviour). Ends with status 1 if the server refuses it.
    """
    require_flower()
    program = Path(__file__).parents[2] / "flower" / "local" / "supernode.py"
    given, environment = _given(context, "CLIENT.toml"), dict(os.environ)
    from ...flower.local.environment import RETURNING_MEMORY

    if given[0].endswith(".toml"):
        from ...flower.local.doctor import require_sound
        from ...flower.local.installations import ClientInstallation, prepare

        installed = ClientInstallation.read(Path(given.pop(0)))
        require_sound(installed, "node")
        given, environment = [*installed.node_arguments(), *given], dict(prepare(installed))
    os.execve(sys.executable, [sys.executable, "-P", str(program), *given], RETURNING_MEMORY | environment)


@app.command(context_settings=_FORWARDED)
def apps(context: typer.Context) -> None:
    """Run the apps of a SuperLink or SuperNode with --isolation process; replaces flower-superexec.

    Takes the file SERVER.toml or CLIENT.toml of the machine's installation, or else the options that --help lists. A
    client runs the app that it has installed itself, and refuses others.
    """
    require_flower()
    given, environment = _given(context, "SERVER.toml or CLIENT.toml"), dict(os.environ)
    if given[0].endswith(".toml"):
        from ...flower.local.doctor import require_sound
        from ...flower.local.installations import prepare, read_installation

        installed = read_installation(Path(given.pop(0)))
        require_sound(installed, "apps")
        given, environment = [*installed.apps_arguments(), *given], dict(prepare(installed))
    command = [sys.executable, "-P", "-m", "fedmos.flower.local.superexec", *given]
    os.execve(sys.executable, command, environment)


def _given(context: typer.Context, files: str) -> list[str]:
    """Return the arguments of a command that forwards options; with --help, say what the program's own help does not.

    Raises:
        ValueError: If they begin with neither a file of an installation nor an option.
    """
    given, name = list(context.args), context.info_name
    if not given or (not given[0].startswith("-") and not given[0].endswith(".toml")):
        got = repr(given[0]) if given else "nothing"
        raise ValueError(f"deploy {name}: the first argument must be {files}, or an option, got {got}")
    if {"-h", "--help"} & set(given):
        echo(f"fedmos deploy {name} {files} [OPTIONS]\n\n{inspect.cleandoc(context.command.help or '')}\n")
        sys.stdout.flush()
    return given
