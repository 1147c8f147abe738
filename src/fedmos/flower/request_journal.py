"""The requests that a client has answered, on its disk: at most so many different ones in a round.

Every message may meet a new process, so the journal is a database file. Its rows outlive the folders of runs, which may
be removed.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from ..storage.files import StorageError
from .client_errors import ClientErrorCode
from .wire import RefusedError

_TABLE = """
CREATE TABLE IF NOT EXISTS answered (
    run TEXT NOT NULL, round INTEGER NOT NULL, question TEXT NOT NULL, digest TEXT NOT NULL,
    PRIMARY KEY (run, round, question, digest)
) WITHOUT ROWID
"""
_TIMEOUT = 60.0
"""Seconds to wait for another process of the client that writes."""


class Question(NamedTuple):
    """What a request asks, without what the repetition of a round may change."""

    run: str
    round: int
    name: str
    digest: str
    """Hash of the model and of the values that determine the answer."""


class RequestJournal:
    """The answered requests of one client.

    Args:
        path: The database file.
        per_round: How many different requests of a kind are answered in a round.
        rounds_back: How many rounds before the newest one are repeated.
        most: In how many rounds of a run requests are answered; None for any number.
    """

    def __init__(self, path: Path, per_round: int = 1, rounds_back: int = 1, most: int | None = None) -> None:
        self._path, self._per_round, self._rounds_back, self._most = path, per_round, rounds_back, most

    def admit(self, asked: Question) -> None:
        """Record a request that is about to be answered.

        Raises:
            RefusedError: If it belongs to a round that is too old, or differs from those answered in its round.
        """
        try:
            with closing(sqlite3.connect(self._path, timeout=_TIMEOUT, isolation_level=None)) as database:
                database.execute(_TABLE)
                database.execute("BEGIN IMMEDIATE")
                self._check(database, asked)
                database.execute("INSERT OR IGNORE INTO answered VALUES (?, ?, ?, ?)", asked)
                database.execute("COMMIT")
        except sqlite3.Error as error:
            raise StorageError(f"Cannot record a request in {self._path} because of an error: {error}") from error

    def _check(self, database: sqlite3.Connection, asked: Question) -> None:
        newest = [
            row[0]
            for row in database.execute(
                "SELECT DISTINCT round FROM answered WHERE run = ? ORDER BY round DESC LIMIT ?",
                (asked.run, self._rounds_back + 1),
            )
        ]
        if len(newest) > self._rounds_back and asked.round < newest[-1]:
            raise RefusedError(
                f"it belongs to round {asked.round + 1}, and the client has answered round {newest[0] + 1}",
                ClientErrorCode.REPLAYED,
            )
        known = [
            row[0]
            for row in database.execute(
                "SELECT digest FROM answered WHERE run = ? AND round = ? AND question = ?", asked[:3]
            )
        ]
        if asked.digest not in known and len(known) >= self._per_round:
            raise RefusedError(
                f"the client has answered a different request for '{asked.name}' in round {asked.round + 1}",
                ClientErrorCode.DIFFERENT_REQUEST,
            )
        self._check_rounds(database, asked)

    def _check_rounds(self, database: sqlite3.Connection, asked: Question) -> None:
        """Refuse a further round where the client has answered in as many as it answers in a run."""
        if self._most is None:
            return
        rounds = {row[0] for row in database.execute("SELECT DISTINCT round FROM answered WHERE run = ?", (asked.run,))}
        if asked.round not in rounds and len(rounds) >= self._most:
            raise RefusedError(
                f"the client has taken part in {len(rounds)} rounds of this run, as many as its ε is computed for",
                ClientErrorCode.FORBIDDEN,
            )
