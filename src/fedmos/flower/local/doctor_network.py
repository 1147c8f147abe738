"""Checks of an installation on the network: which ports are open to whom, the server, and the clocks."""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import NamedTuple

from .findings import Finding, fault, note, ok
from .installations import ClientInstallation, ServerInstallation

FLEET, CONTROL, RUNTIME = "/v1/fleet/activate-node", "/v1/control/list-nodes", "/v1/runtime/acquire-task"
"""A path of each API of the SuperLink. An empty request to it changes nothing."""
_TIMEOUT = 10.0
_AHEAD, _BEHIND = 5.0, 300.0
"""Seconds by which a client's clock may differ from the server's."""
_LISTENING = "0A"
_HIDDEN = (http.client.FORBIDDEN, http.client.NOT_FOUND)
"""What the reverse proxy answers to paths that it does not forward."""


class Answer(NamedTuple):
    """What a server answers to a request."""

    status: int
    ahead: float
    """Seconds by which this machine's clock is ahead of the server's, to half a second."""


def ask(address: str, authority: Path, path: str, method: str = "POST") -> Answer:
    """Send an empty request, by TLS.

    Raises:
        OSError: If the server cannot be reached or its certificate is not accepted.
    """
    host, _, port = address.rpartition(":")
    context = ssl.create_default_context(cafile=str(authority))
    connection = http.client.HTTPSConnection(host, int(port), timeout=_TIMEOUT, context=context)
    try:
        connection.connect()
        sent = datetime.now(UTC)
        connection.request(method, path, headers={"content-type": "application/protobuf"})
        response = connection.getresponse()
        response.read()
        middle = sent + (datetime.now(UTC) - sent) / 2
        date = response.headers.get("date")
    except http.client.HTTPException as error:
        raise OSError(f"it does not speak HTTP: {error}") from None
    finally:
        connection.close()
    ahead = 0.0 if date is None else (middle - parsedate_to_datetime(date)).total_seconds() - 0.5
    return Answer(response.status, ahead)


def client_network(installed: ClientInstallation, offline: bool) -> Iterator[Finding]:
    """Check a client's port, and what it reaches of the server."""
    yield _port(installed.settings.port, "the SuperNode")
    if not offline:
        yield from _public(installed.settings.server, installed.authority, "The server")


def server_network(installed: ServerInstallation, offline: bool) -> Iterator[Finding]:
    """Check the SuperLink's port, and what is reached of the server by the address that clients use."""
    host, _, port = installed.settings.superlink.rpartition(":")
    yield _port(int(port), "the SuperLink")
    if offline:
        return
    try:
        ask(f"{host}:{port}", installed.certificates.authority, "/health", "GET")
        yield ok(f"The SuperLink answers at {host}:{port}.")
    except OSError as error:
        yield fault(f"The SuperLink does not answer at {host}:{port}: {_reason(error)}.")
    yield from _public(installed.public_address, installed.certificates.authority, "The reverse proxy")


def _public(address: str, authority: Path, what: str) -> Iterator[Finding]:
    """Check the address that clients use: it forwards their paths and no others, and the clocks agree."""
    try:
        fleet = ask(address, authority, FLEET)
        control, runtime = (ask(address, authority, path).status for path in (CONTROL, RUNTIME))
    except OSError as error:
        yield fault(f"{what} cannot be reached at {address}: {_reason(error)}.")
        return
    if fleet.status == http.client.UNAUTHORIZED:
        yield ok(f"{what} answers at {address}, and its certificate is accepted.")
    else:
        yield fault(f"{what} answers at {address}, but with status {fleet.status} to an unsigned request of a client.")
    for name, status in (("control", control), ("runtime", runtime)):
        if status in _HIDDEN:
            yield ok(f"The {name} API of the SuperLink is not reached at {address}.")
        else:
            yield fault(
                f"The {name} API of the SuperLink, /v1/{name}/, is exposed at {address} (status {status}). Whoever has "
                "access to it can run code; put the reverse proxy of fedmos deploy init before the SuperLink."
            )
    yield _clock(fleet.ahead)


def _clock(ahead: float) -> Finding:
    """Check the difference of the clocks; the server's is known to a second."""
    size, way = abs(ahead), "ahead of" if ahead > 0 else "behind"
    text = f"This machine's clock is {size:.0f} s {way} the server's"
    if ahead > _AHEAD - 1 or ahead < 1 - _BEHIND:
        return fault(f"{text}; the server refuses requests more than 5 s ahead or 5 min behind. Set the clock by NTP.")
    return ok(f"{text}, of at most 5 s ahead and 5 min behind.")


def _port(port: int, what: str) -> Finding:
    """Check that a port is open on loopback only."""
    addresses = listening(port)
    if addresses is None:
        return note(f"Cannot see who listens on port {port} because this system has no /proc/net/tcp.")
    if not addresses:
        return note(f"Nothing listens on port {port}: {what} does not run.")
    open_to = sorted(addresses - {"127.0.0.1", "::1"})
    if open_to:
        return fault(f"Port {port} of {what} is open at {', '.join(open_to)}; it must be open on loopback only.")
    return ok(f"Port {port} of {what} is open on loopback only.")


def listening(port: int, tables: Path = Path("/proc/net")) -> set[str] | None:
    """Return the addresses at which this machine listens on a port; None if that cannot be seen."""
    found = set()
    try:
        lines = [line.split() for name in ("tcp", "tcp6") for line in _lines(tables / name)]
    except OSError:
        return None
    for fields in lines:
        address, _, number = fields[1].partition(":")
        if fields[3] == _LISTENING and int(number, 16) == port:
            found.add(_address(address))
    return found


def _lines(path: Path) -> list[str]:
    if not path.exists() and path.name == "tcp6":
        return []
    return path.read_text("ascii").splitlines()[1:]


def _address(text: str) -> str:
    """Return the address that the kernel writes as 32-bit words in the machine's order."""
    if len(text) == 8:
        return ".".join(str(byte) for byte in reversed(bytes.fromhex(text)))
    if text == "00000000000000000000000001000000":
        return "::1"
    mapped = text.startswith("0000000000000000FFFF0000")
    return _address(text[24:]) if mapped else "::" if set(text) == {"0"} else f"[{text}]"


def _reason(error: OSError) -> str:
    return str(getattr(error, "verify_message", "") or error.strerror or error).rstrip(".")
