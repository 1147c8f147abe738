"""The installation of a machine: where its files are, and the commands of its processes."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from ...config.installation import ClientFile, ServerFile, is_client, read_client, read_server
from ...config.text import read_table
from ...storage.files import storage_errors
from ..audit_log import AUDIT_LOG
from ..private_files import make_private_folder
from .certificates import Certificates
from .environment import flower_environment

APP_POLL = 0.2
"""Seconds between a SuperExec's queries for tasks."""


@dataclass(frozen=True)
class ServerInstallation:
    """The server: a SuperLink on loopback, its apps, and a reverse proxy before it."""

    file: Path
    settings: ServerFile
    folder: Path
    """The folder to which paths of the file refer."""

    @classmethod
    def read(cls, file: Path) -> ServerInstallation:
        """Read server.toml; raises `ConfigError` if it is invalid."""
        return cls(file.absolute(), *read_server(file))

    @property
    def certificates(self) -> Certificates:
        """The certificates and keys."""
        return Certificates(self.folder / self.settings.keys)

    @property
    def state(self) -> Path:
        """The folder of the SuperLink's database and of Flower's files."""
        return self.folder / self.settings.state

    @property
    def database(self) -> Path:
        """The SuperLink's database."""
        return self.state / "superlink.db"

    @property
    def public_address(self) -> str:
        """The address that clients use."""
        return f"{self.settings.host}:{self.settings.port}"

    def superlink_command(self) -> list[str]:
        """Return the command of the SuperLink, on loopback."""
        host, _, port = self.settings.superlink.rpartition(":")
        made = self.certificates
        return [
            *("flower-superlink", "--host", host, "--port", port),
            *("--ssl-ca-certfile", str(made.authority)),
            *("--ssl-certfile", str(made.server), "--ssl-keyfile", str(made.server_key)),
            *("--enable-supernode-auth", "--isolation", "process"),
            *("--superexec-auth-secret-file", str(made.secret), "--database", str(self.database)),
        ]

    def apps_arguments(self) -> list[str]:
        """Return the arguments of the program that runs server apps."""
        made = self.certificates
        return [
            *("--secret", str(made.secret), "--superlink", self.settings.superlink),
            *("--root-certificates", str(made.authority)),
        ]


@dataclass(frozen=True)
class ClientInstallation:
    """A client: a SuperNode that connects to the server, and its apps."""

    file: Path
    settings: ClientFile
    folder: Path
    """The folder to which paths of the file refer."""

    @classmethod
    def read(cls, file: Path) -> ClientInstallation:
        """Read client.toml; raises `ConfigError` if it is invalid."""
        return cls(file.absolute(), *read_client(file))

    @property
    def authority(self) -> Path:
        """The certificate of the authority of the server."""
        return self.folder / self.settings.authority

    @property
    def key(self) -> Path:
        """The client's private key."""
        return self.folder / self.settings.key

    @property
    def secret(self) -> Path:
        """The secret between the processes of this machine."""
        return self.folder / self.settings.secret

    @property
    def state(self) -> Path:
        """The folder of the client's state and of Flower's files."""
        return self.folder / self.settings.state

    @property
    def app(self) -> Path:
        """The file of the app that the client runs."""
        return self.folder / self.settings.app

    @property
    def audit(self) -> Path:
        """The client's audit log."""
        return self.state / self.settings.client / AUDIT_LOG

    @property
    def address(self) -> str:
        """Where the SuperNode serves the client's apps."""
        return f"127.0.0.1:{self.settings.port}"

    def node_arguments(self) -> list[str]:
        """Return the arguments of the program of the SuperNode."""
        number = "" if self.settings.number is None else f" number={self.settings.number}"
        config = f'client="{self.settings.client}" state="{self.state}" config="{self.file}"{number}'
        return [
            *("--memory", str(self.state / "signed-on"), "--superlink", self.settings.server),
            *("--root-certificates", str(self.authority), "--auth-supernode-private-key", str(self.key)),
            *("--host", "127.0.0.1", "--port", str(self.settings.port), "--isolation", "process"),
            *("--superexec-auth-secret-file", str(self.secret), "--node-config", config),
        ]

    def apps_arguments(self) -> list[str]:
        """Return the arguments of the program that runs client apps."""
        return [
            *("--secret", str(self.secret), "--supernode", self.address),
            *("--app", str(self.app), "--client-file", str(self.file)),
        ]


def read_installation(file: Path) -> ServerInstallation | ClientInstallation:
    """Read server.toml or client.toml; raises `ConfigError` if it is invalid."""
    return ClientInstallation.read(file) if is_client(read_table(file)) else ServerInstallation.read(file)


def prepare(installed: ServerInstallation | ClientInstallation) -> dict[str, str]:
    """Make the folder of the state, let this process create private files, and return variables for its program."""
    os.umask(0o077)
    with storage_errors(f"make the folder {installed.state}", "make it as the user of this process"):
        make_private_folder(installed.state)
    return flower_environment(installed.state / "flower", APP_POLL)
