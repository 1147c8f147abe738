"""The number and name of the client that a node serves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..config.deploy import NAME
from ..core.formatting import format_value


def _client_number(client: str, names: Sequence[str]) -> int:
    """Look up a client's number by its name, or by its number as text."""
    known = list(names)
    if client in known:
        return known.index(client)
    if client.isascii() and client.isdigit() and int(client) < len(known):
        return int(client)
    raise ValueError(
        f"node: 'client' must be one of {', '.join(known[:20])}, or its number, got {format_value(client)}"
    )


def client_place(client: str, number: Any, names: Sequence[str]) -> tuple[int, str]:
    """Return the number and name of a client. One that the configuration does not name has the number of its node."""
    if number is None or client in names:
        found = _client_number(client, names)
        if number not in (None, found):
            raise ValueError(f"node: 'number' of client '{client}' must be {found}, got {format_value(number)}")
        return found, names[found]
    if type(number) is not int or number < len(names) or not NAME.fullmatch(client):
        raise ValueError(
            f"node: 'number' of a client that the configuration does not name must be an integer ≥ {len(names)}, and "
            f"'client' a name, got {format_value(number)} and {format_value(client)}"
        )
    return number, client
