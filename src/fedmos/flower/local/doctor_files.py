"""Checks of the files of an installation: keys, the secret of apps, certificates, the app, data and state.

`fedmos deploy doctor` shows all of them. The processes of an installation do not start where one of them would make
Flower fail later.
"""

from __future__ import annotations

import os
import ssl
import stat
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from ..node_identities import fingerprint
from .certificates import Certificates
from .findings import Finding, fault, note, ok
from .installations import ClientInstallation, ServerInstallation
from .pinned_app import hash_of

_SOON = timedelta(days=30)
_MOST = 5
"""The number of loose files that a finding names."""
_SECRET_BYTES = 16
"""The secret of apps that `fedmos deploy` makes has 32 bytes."""


def server_files(installed: ServerInstallation) -> Iterator[Finding]:
    """Check the server's keys, certificates and state."""
    made = installed.certificates
    yield private(made.server_key, "The server's key")
    yield private(made.secret, "The secret of apps")
    if made.authority_key.exists():
        yield note(f"{made.authority_key} is on this machine. Its holder can impersonate the server; keep it offline.")
    yield from server_contents(installed)
    yield from _host(made, installed.settings.host)
    yield from _state(installed.state)


def client_files(installed: ClientInstallation) -> Iterator[Finding]:
    """Check a client's key, its app, its data and its state."""
    yield private(installed.key, "The client's private key")
    yield private(installed.secret, "The secret of apps")
    yield from client_contents(installed)
    yield app(installed)
    table = installed.settings.data
    for path in [] if table is None else table.files(installed.folder):
        yield _data(path)
    yield from _state(installed.state)


def server_contents(installed: ServerInstallation) -> Iterator[Finding]:
    """Check what the server's keys and certificates contain."""
    made = installed.certificates
    yield from secret(made.secret)
    yield from certificate(made.authority, "The authority's certificate")
    yield from certificate(made.server, "The server's certificate")
    yield from _pair(made)


def client_contents(installed: ClientInstallation) -> Iterator[Finding]:
    """Check what a client's key, its secret and the authority's certificate contain."""
    yield from _client_key(installed)
    yield from secret(installed.secret)
    yield from certificate(installed.authority, "The authority's certificate")


def private(path: Path, what: str) -> Finding:
    """Check that a file exists and that only its owner can read it."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        return fault(f"{what}, {path}, cannot be read: {error.strerror}.")
    if mode & 0o077:
        return fault(f"{what}, {path}, has the mode {stat.S_IMODE(mode):04o}: others can read it; use chmod 600.")
    return ok(f"{what}, {path}, is readable by its owner only.")


def secret(path: Path) -> Iterator[Finding]:
    """Check that the secret of apps is not empty; nothing is said of one that is sound or missing."""
    if path.is_file() and path.stat().st_size < _SECRET_BYTES:
        yield fault(
            f"The secret of apps, {path}, has {path.stat().st_size} bytes; remove it and use fedmos deploy keys add."
        )


def certificate(path: Path, what: str) -> Iterator[Finding]:
    """Check that a certificate is there and valid for another month."""
    from cryptography import x509

    try:
        made = max(x509.load_pem_x509_certificates(path.read_bytes()), key=lambda one: one.not_valid_after_utc)
    except OSError as error:
        yield fault(f"{what}, {path}, cannot be read: {error.strerror}.")
        return
    except ValueError:
        yield fault(f"{what}, {path}, is not a certificate in PEM format.")
        return
    now, end = datetime.now(UTC), made.not_valid_after_utc
    if now < made.not_valid_before_utc:
        yield fault(
            f"{what}, {path}, is not valid before {made.not_valid_before_utc:%Y-%m-%d %H:%M} UTC; see the clock."
        )
    elif now > end:
        yield fault(f"{what}, {path}, has expired on {end:%Y-%m-%d}; use fedmos deploy keys renew on the server.")
    elif end - now < _SOON:
        yield note(
            f"{what}, {path}, expires on {end:%Y-%m-%d}, in {(end - now).days} days; use fedmos deploy keys renew on "
            "the server."
        )
    else:
        yield ok(f"{what}, {path}, is valid until {end:%Y-%m-%d}.")


def app(installed: ClientInstallation) -> Finding:
    """Check that the app is there and has the content that its name says."""
    path = installed.app
    if not path.is_file():
        return fault(f"The app {path} does not exist; use fedmos deploy client, or change 'app'.")
    digest = hash_of(path)
    if path.stem.rpartition(".")[2] == digest[:8]:
        return ok(f"This client runs the app {path.name} with the hash {digest}, and no other.")
    return fault(f"The app {path} has the hash {digest}, which is not the one in its name: its content has changed.")


def _client_key(installed: ClientInstallation) -> Iterator[Finding]:
    """Check that the client's key is one, and name the fingerprint by which the operator knows it."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_private_key

    path = installed.key
    if not path.is_file():
        return  # said by the check of its permissions
    try:
        public = load_ssh_private_key(path.read_bytes(), None).public_key()
        found = fingerprint(public.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH))
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm):
        yield fault(f"The client's private key, {path}, is not a private key of fedmos deploy client or keys add.")
        return
    yield ok(f"The key of {installed.settings.client} has the fingerprint {found}.")


def _pair(made: Certificates) -> Iterator[Finding]:
    """Check that the server's certificate belongs to its key; nothing is said if it does, or if one is missing."""
    if made.server.exists() and made.server_key.exists():
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(made.server, made.server_key)
        except OSError:  # ssl.SSLError is one
            yield fault(f"The server's certificate, {made.server}, does not belong to {made.server_key}.")


def _host(made: Certificates, host: str) -> Iterator[Finding]:
    """Check that the server's certificate has the name by which clients reach it."""
    try:
        hosts = made.hosts()
    except (OSError, ValueError):
        return  # said by the check of the certificate
    if host in hosts:
        yield ok(f"The server's certificate has the name {host}.")
    else:
        yield fault(
            f"The server's certificate has the names {', '.join(hosts) or 'none'}, but clients reach the server as "
            f"{host}; use fedmos deploy keys renew --host {host}."
        )


def _data(path: Path) -> Finding:
    if not path.exists():
        return fault(f"The data {path} does not exist; change the table [data].")
    return ok(f"The data {path} exists.") if os.access(path, os.R_OK) else fault(f"The data {path} cannot be read.")


def _state(folder: Path) -> Iterator[Finding]:
    """Check that nobody else can read what is in the folder of the state."""
    if not folder.exists():
        yield note(f"The folder of the state, {folder}, does not exist yet; the first process makes it.")
        return
    if folder.stat().st_mode & 0o077 == 0:
        yield ok(f"The folder of the state, {folder}, is readable by its owner only.")
        return
    loose = [path for path in folder.rglob("*") if path.is_file() and path.stat().st_mode & 0o077]
    names = ", ".join(str(path.relative_to(folder)) for path in sorted(loose)[:_MOST]) or "no file yet"
    yield fault(f"Others can read the folder of the state, {folder} ({names}); use chmod 700.")
