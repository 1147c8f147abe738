"""`fedmos deploy keys`: certificates and key pairs."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click
import typer

from ..group import CommandGroup
from .common import app, echo, require_flower

if TYPE_CHECKING:
    from ...flower.local.certificates import Certificates

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The folder of certificates and keys.")]
Days = Annotated[int, typer.Option(min=1, help="Days for which the certificates are valid.")]


class KeysGroup(CommandGroup):
    """A group in which `keys DIR` means `keys create DIR`."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[Any, Any, list[str]]:
        return super().resolve_command(ctx, args if args[0] in self.commands else ["create", *args])


keys = typer.Typer(
    cls=KeysGroup,
    no_args_is_help=True,
    context_settings={"ignore_unknown_options": True},
    help="Create certificates and keys (`keys DIR --host HOST --client NAME`), add keys, renew certificates, show "
    "their expiry.",
)
app.add_typer(keys, name="keys")


@keys.command()
def create(
    folder: Folder,
    host: Annotated[list[str], typer.Option(help="A host name or address of the server, for clients. Repeatable.")],
    client: Annotated[list[str] | None, typer.Option(help="Name of a client, for a key pair. Repeatable.")] = None,
    days: Days = 365,
) -> None:
    """Create a certificate authority, the server's certificate, and a key pair for each client."""
    require_flower()
    from ...flower.local.certificates import make_certificates, make_secret

    made = make_certificates(folder, host, days)
    make_secret(folder)
    echo(f"For the server: {made.server}, {made.server_key} and {made.secret}; for every client: {made.authority}")
    echo(f"Keep secret: {made.authority_key}")
    _echo_expiry(made)
    for name in client or []:
        _add(folder, name)


@keys.command()
def add(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder of keys, or a new one on the client.")],
    client: Annotated[list[str], typer.Argument(metavar="NAME...", help="Names of clients.")],
) -> None:
    """Create a key pair for each further client, and the secret of apps if the folder has none."""
    require_flower()
    from ...flower.local.certificates import make_secret

    for name in client:
        _add(folder, name)
    make_secret(folder)


@keys.command()
def renew(
    folder: Folder,
    days: Days = 365,
    host: Annotated[list[str] | None, typer.Option(help="A further name of the server. Repeatable.")] = None,
) -> None:
    """Renew the certificates of the authority and of the server; their keys stay."""
    require_flower()
    from ...flower.local.certificates import Certificates, renew_certificates

    old = Certificates(folder).expiry()
    made = renew_certificates(folder, days, host or [])
    _echo_expiry(made)
    echo(f"Restart the SuperLink and nginx, which read {made.server} when they start.")
    if made.authority in old:
        end = f"{old[made.authority]:%Y-%m-%d}"
        echo(f"Give the new {made.authority} to every client before the old one expires, on {end}.")


@keys.command()
def show(folder: Folder) -> None:
    """Show the names and the expiry of certificates, and the clients that have a key."""
    require_flower()
    from ...flower.local.certificates import Certificates

    if not folder.is_dir():
        raise FileNotFoundError(f"deploy keys: 'DIR' must be an existing folder, got {str(folder)!r}")
    found = Certificates(folder)
    if found.server.exists():
        echo(f"The server is {', '.join(found.hosts())}.")
    _echo_expiry(found)
    echo(f"Keys of clients, which do not expire: {', '.join(found.clients()) or 'none'}.")


def _add(folder: Path, name: str) -> None:
    from ...flower.local.certificates import client_key

    pair = client_key(folder, name)
    echo(f"{name}: {pair.private} is for this client only; register {pair.public} at the SuperLink")


def _echo_expiry(made: Certificates) -> None:
    for path, end in made.expiry().items():
        days = (end - datetime.now(UTC)).days
        echo(
            f"{path} expires on {end:%Y-%m-%d}, in {days} days."
            if days >= 0
            else f"{path} has expired on {end:%Y-%m-%d}."
        )
