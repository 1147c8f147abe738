"""The files of an installation, which no other machine sees: client.toml at a client, server.toml at the server."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from ..core.formatting import format_value, one_line
from ..core.validation import Rule, count, text_up_to, whole_number
from .build import construct
from .client_policy import ClientPolicy
from .deploy import NAME
from .errors import ConfigError
from .fields import Folder, Strict, obeys
from .own_data import OwnDataConfig
from .schema import parse
from .text import read_table

_ADDRESS = re.compile(r"([A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?):([0-9]{1,5})")
_is_address = Rule(
    "HOST:PORT",
    lambda v: isinstance(v, str) and (found := _ADDRESS.fullmatch(v)) is not None and 0 < int(found[3]) < 65536,
)
_is_port = Rule("a port, an integer in [1, 65535]", lambda v: count.test(v) and v <= 65535)
_is_client = Rule(
    "a name of letters, digits, '_', '-' and '.'", lambda v: isinstance(v, str) and NAME.fullmatch(v) is not None
)
Address = Annotated[str, obeys(_is_address)]
Port = Annotated[int, obeys(_is_port)]
ClientName = Annotated[str, obeys(_is_client)]
WholeNumber = Annotated[int, obeys(whole_number)]
HostName = Annotated[str, obeys(text_up_to(253))]


class ClientFile(Strict):
    """The installation of one client. Paths are relative to the folder of the file."""

    client: ClientName
    """The client's name in the configuration of the run."""
    number: WholeNumber | None = None
    """The client's number, if it was admitted to a run whose configuration does not name it."""
    server: Address
    """Where clients reach the server: the reverse proxy."""
    authority: Folder = "ca.pem"
    """The certificate of the authority that signed the server's."""
    key: Folder
    """The client's private key."""
    secret: Folder = "apps.secret"
    """The secret between the processes of this machine."""
    state: Folder = "state"
    """The folder of the client's state, of its audit log and of Flower's files."""
    app: Folder
    """The app that this client runs: a file NAME.fab. An app that the server sends is refused unless it is this one."""
    port: Port = 9094
    """The port of loopback on which the SuperNode serves the client's apps."""
    data: OwnDataConfig | None = None
    """The client's own samples; by default those of the run's configuration."""
    policy: dict[str, Any] = {}
    """What the client answers; see `fedmos.flower.ClientPolicy`."""

    def make_policy(self) -> ClientPolicy:
        """Construct the client's policy.

        Raises:
            ConfigError: If it is invalid.
        """
        made = construct("policy", "ClientPolicy", ClientPolicy, self.policy)
        assert isinstance(made, ClientPolicy)
        return made


class ServerFile(Strict):
    """The installation of the server. Paths are relative to the folder of the file."""

    host: HostName
    """The name or address by which clients reach the server."""
    port: Port = 443
    """The port of the reverse proxy."""
    superlink: Address = "127.0.0.1:8000"
    """The address of the SuperLink, which only this machine reaches."""
    keys: Folder = "/etc/fedmos"
    """The folder of certificates, keys and the secret of apps."""
    state: Folder = "/var/lib/fedmos"
    """The folder of the SuperLink's database and of Flower's files."""
    test: OwnDataConfig | None = None
    """The samples on which the server evaluates the model, where clients have their own data."""


def read_client(path: Path) -> tuple[ClientFile, Path]:
    """Read a client's file; returns it and the folder to which its paths refer.

    Raises:
        ConfigError: If the file cannot be read or is invalid.
    """
    table = read_table(path)
    if "host" in table and not is_client(table):
        raise ConfigError(f"{_where(path)}: is the file of a server; use a client's client.toml")
    made = parse(ClientFile, table, _where(path))
    made.make_policy()
    return made, path.absolute().parent


def read_server(path: Path) -> tuple[ServerFile, Path]:
    """Read the server's file; returns it and the folder to which its paths refer.

    Raises:
        ConfigError: If the file cannot be read or is invalid.
    """
    table = read_table(path)
    if is_client(table):
        raise ConfigError(f"{_where(path)}: is the file of a client; use the server's server.toml")
    made = parse(ServerFile, table, _where(path))
    if made.superlink.rpartition(":")[0] not in ("127.0.0.1", "localhost"):
        raise ConfigError(
            f"{_where(path)}: 'superlink' must be an address of loopback, because whoever reaches it can run code on "
            f"all machines, got {format_value(made.superlink)}; clients reach the reverse proxy at 'host' and 'port'"
        )
    return made, path.absolute().parent


def is_client(table: Mapping[str, Any]) -> bool:
    """Whether the table of a file is that of a client's installation."""
    return "client" in table


def _where(path: Path) -> str:
    return one_line(str(path), 100)
