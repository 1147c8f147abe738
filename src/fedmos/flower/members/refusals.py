"""The refusals of a round: which clients' replies the server did not use, and why."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from ...core.formatting import one_line
from ..client_errors import MEANINGS, ClientErrorCode

_log = logging.getLogger("fedmos")
_LENGTH = 200


class RefusalLog:
    """Collects the reasons for refusals, for the record of a round.

    Args:
        names: The names of all clients.
    """

    def __init__(self, names: Sequence[str] = ()) -> None:
        self._names = names
        self._reasons: dict[int, str] = {}
        self._advised: set[int] = set()

    def note(self, client: int, reason: str) -> None:
        """Note that a reply was refused. If the client's state is lost, log the command that lets it start anew."""
        self._reasons.setdefault(client, one_line(reason, _LENGTH))
        if MEANINGS[ClientErrorCode.STATE] in reason and client not in self._advised and client < len(self._names):
            self._advised.add(client)
            _log.warning(
                "Client '%s' is left out until its state is restored from a backup, or starts anew by the command "
                "`fedmos deploy reset %s` in the run folder",
                self._names[client],
                self._names[client],
            )

    def take(self) -> dict[int, str]:
        """Return the reasons since the last call, by client."""
        taken, self._reasons = self._reasons, {}
        return taken
