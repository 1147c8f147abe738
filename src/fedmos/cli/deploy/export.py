"""`fedmos deploy export`: a client's own model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .common import app, echo


@app.command()
def export(
    configuration: Annotated[Path, typer.Argument(metavar="CONFIG.toml", help="The configuration of the deployment.")],
    client: Annotated[str, typer.Option(help="The name of the client.")],
    state: Annotated[Path, typer.Option(help="The folder `state` of the client's node.")],
    model: Annotated[Path, typer.Option(help="The global model, as written by `fedmos export RUN`.")],
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("own.safetensors"),
) -> None:
    """Write a client's own model to a file, on the client's machine; nothing is sent."""
    from ...flower.personal_export import export_personal

    made = export_personal(configuration, client, state=state, model=model, out=out)
    echo(f"Model of {client} after its round {made.round}: {out}")
