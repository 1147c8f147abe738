"""`fedmos deploy init`: write a Flower app, and the files to operate it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..options import Overrides
from .common import Configuration, app, echo, load_configuration


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where to write the app; its name becomes the app's.")],
    configuration: Configuration = None,
    set_: Overrides = None,
    host: Annotated[
        str, typer.Option(help="Name or address by which clients reach the server, for the files of operations.")
    ] = "fl.example.org",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port of the reverse proxy.")] = 443,
    superlink: Annotated[str, typer.Option(help="Address of the SuperLink, on loopback.")] = "127.0.0.1:8000",
    keys: Annotated[Path, typer.Option(help="The server's folder of keys.")] = Path("/etc/fedmos"),
    state: Annotated[Path, typer.Option(help="The server's folder of state.")] = Path("/var/lib/fedmos"),
    test: Annotated[
        Path | None, typer.Option(help="The server's test samples, where clients have their own data.")
    ] = None,
) -> None:
    """Write a Flower app from a configuration: pyproject.toml, server_app.py, client_app.py.

    A second folder, DIR-operations, has the files to operate it: server.toml, nginx.conf, which lets only the clients'
    paths through, systemd units, and docker compose files. docs/deploy/start.md describes their use.
    """
    from ...flower.local.app_template import write_app
    from ...flower.local.operations import SERVER_FILE, Installation

    if test is not None and not test.exists():
        raise FileNotFoundError(f"deploy init: '--test' must be an existing file or folder, got {str(test)!r}")
    settings = load_configuration(configuration, set_ or [])
    samples = "" if test is None else str(test.absolute())
    installation = Installation(host, port, superlink, str(keys.absolute()), str(state.absolute()), test=samples)
    operations = folder.with_name(f"{folder.absolute().name}-operations")
    write_app(folder, settings.kept(exclude={"out"}), settings.out or "")
    installation.write(operations)
    echo(f"Wrote the app {folder}, and server.toml, nginx.conf, systemd units and compose files in {operations}.")
    echo(f"Clients install it with: fedmos deploy client DIR --name NAME --server {host}:{port} --app {folder} …")
    echo(f"Start it on the server with: fedmos deploy start {operations / SERVER_FILE} {folder} --out RUN")
