"""The files of a client's session of secure aggregation.

Every request may meet a new process, so a session is on the disk, readable by its owner only. A file is written once:
the first request of each kind decides, and another with different content is refused. A client has one session at a
time; a round that is repeated begins another, with new secrets.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from ..storage.files import create_file
from .wire import RefusedError

_FOLDER = "secure"


class SessionFolder:
    """One session of a client in a run.

    Args:
        path: The folder of the client in the run.
        session: The number of the session.
    """

    def __init__(self, path: Path, session: str) -> None:
        self._all, self._path = path / _FOLDER, path / _FOLDER / session

    def begin(self) -> None:
        """Begin the session, unless it has begun already, and end all others."""
        self._path.mkdir(parents=True, exist_ok=True, mode=0o700)
        for other in self._all.iterdir():
            if other != self._path:
                shutil.rmtree(other, ignore_errors=True)

    def first(self, name: str, content: dict[str, Any]) -> dict[str, Any]:
        """Store content under a name unless there is some; returns what is stored."""
        try:
            create_file(self._path / name, json.dumps(content).encode(), f".{os.getpid()}", 0o600)
        except FileNotFoundError:
            raise RefusedError("the client has no such session, or began another one since") from None
        return self.read(name)

    def decide(self, name: str, content: dict[str, Any]) -> None:
        """Store what a request contains; refuse a second request that differs."""
        if self.first(name, content) != content:
            raise RefusedError(f"it differs from an earlier request of its session ({name})")

    def has(self, name: str) -> bool:
        """Return whether there is content of this name."""
        return (self._path / name).exists()

    def read(self, name: str) -> dict[str, Any]:
        """Return the content of a name."""
        try:
            content: dict[str, Any] = json.loads((self._path / name).read_text())
        except FileNotFoundError:
            raise RefusedError(f"the client has no such session, or not come so far in it ({name})") from None
        return content

    def remove(self, name: str) -> None:
        """Delete the content of a name."""
        (self._path / name).unlink(missing_ok=True)
