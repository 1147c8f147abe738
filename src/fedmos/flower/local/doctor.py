"""The checks of an installation: versions, files and the network; and those before its processes start."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from pathlib import Path

from ...config.errors import ConfigError
from ...core.version import __version__
from .doctor_files import app, client_contents, client_files, server_contents, server_files
from .doctor_network import client_network, server_network
from .findings import Finding, fault, note, ok
from .flower_patches import KNOWN_VERSIONS
from .installations import ClientInstallation, ServerInstallation, read_installation


def examine(file: Path, offline: bool = False) -> list[Finding]:
    """Check the installation that a file, server.toml or client.toml, describes.

    Args:
        file: The file.
        offline: Leave out what needs the server.
    """
    try:
        installed = read_installation(file)
    except ConfigError as error:
        return [fault(f"The file is invalid: {error}")]
    found = [ok(f"{file} is valid."), *_versions()]
    if isinstance(installed, ServerInstallation):
        return [*found, *server_files(installed), *server_network(installed, offline)]
    return [*found, *client_files(installed), *client_network(installed, offline)]


def require_sound(installed: ServerInstallation | ClientInstallation, process: str) -> None:
    """Check what a process of an installation needs, before Flower fails for want of it.

    Args:
        installed: The installation.
        process: "superlink", "node" or "apps".

    Raises:
        ValueError: If its files are missing, damaged or expired, or if its port is in use.
    """
    for finding in _needed(installed, process):
        if finding.wrong:
            raise ValueError(f"deploy {process}: {finding.text} See all with: fedmos deploy doctor {installed.file}")


def _needed(installed: ServerInstallation | ClientInstallation, process: str) -> Iterator[Finding]:
    """Yield the findings about what a process needs, the missing files first."""
    if isinstance(installed, ServerInstallation):
        made = installed.certificates
        keys = [made.secret, made.authority, *([made.server, made.server_key] if process == "superlink" else [])]
        yield from _exist(keys)
        yield from server_contents(installed)
        if process == "superlink":
            yield _free(int(installed.settings.superlink.rpartition(":")[2]), "'superlink'")
        return
    yield from _exist([installed.secret, *([installed.key] if process == "node" else [])])
    if process == "node":
        yield from client_contents(installed)
        yield _free(installed.settings.port, "'port'")
    else:
        yield app(installed)


def _exist(paths: Iterable[Path]) -> Iterator[Finding]:
    for path in paths:
        try:
            with path.open("rb"):
                pass
        except OSError as error:
            yield fault(f"{path} cannot be read: {error.strerror}.")


def _free(port: int, field: str) -> Finding:
    """Check that no other process listens on a port of loopback."""
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind(("127.0.0.1", port))
        except OSError as error:
            return fault(
                f"Cannot listen on port {port}: {error.strerror}; end the process that uses it, or change {field}."
            )
    return ok(f"Port {port} is free.")


def _versions() -> Iterator[Finding]:
    flower = version("flwr")
    line = f"Python {sys.version.split()[0]}, fedmos {__version__}, PyTorch {version('torch')}, Flower {flower}"
    if ".".join(flower.split(".")[:2]) in KNOWN_VERSIONS:
        yield ok(f"{line}; all machines must have the same.")
    else:
        yield note(f"{line}; fedmos accelerates Flower {' and '.join(KNOWN_VERSIONS)} only, others are slower.")
