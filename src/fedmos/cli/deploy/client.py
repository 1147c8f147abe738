"""`fedmos deploy client` and `try`: set up a client, and see what it would send."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .common import app, echo, require_flower


@app.command()
def client(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of the client's installation.")],
    name: Annotated[str, typer.Option(help="The client's name in the configuration of the run.")],
    server: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where clients reach the server.")],
    authority: Annotated[Path, typer.Option(help="The file ca.pem of the server.")],
    app_: Annotated[Path, typer.Option("--app", help="The app: its folder, or its file NAME.fab.")],
    data: Annotated[Path | None, typer.Option(help="The client's own data: .csv, .parquet or a folder.")] = None,
    target: Annotated[str | None, typer.Option(help="The column of targets.")] = None,
    state: Annotated[str, typer.Option(help="The folder of the client's state.")] = "state",
    port: Annotated[int, typer.Option(min=1, max=65535, help="The port of loopback for the client's apps.")] = 9094,
) -> None:
    """Set up a client: its key pair, its secret, the app that it runs, and its file client.toml."""
    require_flower()
    from ...flower.local.prepare_client import prepare_client

    if data is not None and not data.exists():
        raise FileNotFoundError(f"deploy client: '--data' must be an existing file or folder, got {str(data)!r}")
    table = {}
    if data is not None:
        table = {"folder" if data.is_dir() else "file": str(data.absolute())}
        table |= {} if target is None else {"target": target}
    made = prepare_client(folder, name, server, authority, app_, state, port, table)
    echo(f"Wrote {made.file}; it and the private key {folder / name} stay on this machine.")
    echo(f"This client runs the app with the hash {made.app_hash} and no other.")
    echo(f"Send {made.public_key} to the operator of the server; its fingerprint is {made.fingerprint}")


@app.command("try")
def try_(
    file: Annotated[Path, typer.Argument(metavar="CLIENT.toml", help="The file of the client's installation.")],
) -> None:
    """Load this client's data, train one step, and show what would be sent. Nothing is sent and nothing is kept."""
    require_flower()
    from ...flower.local.trial import try_client

    for line in try_client(file):
        echo(line)
