"""Updates that have arrived at the server of an asynchronous deployment and were not used yet, on its disk.

A checkpoint contains which clients train and what they were sent. What arrives after it is stored here, so that a
server that is killed does not ask for it again.
"""

from __future__ import annotations

import logging
from collections.abc import Container
from pathlib import Path
from typing import NamedTuple

from ..algorithm import Vectors
from ..storage.files import storage_errors
from ..storage.tensor_file import read_tensors, write_tensors
from .requests import Reply

_log = logging.getLogger("fedmos")

_FOLDER = "buffer"
_VECTOR, _NUMBER = "vector.", "number."


class StoredArrival(NamedTuple):
    """An update that has arrived. Arrivals compare by their order."""

    order: int
    """How many arrived before it in the run."""
    client: int
    round: int
    """The round whose model the client was sent."""
    end: float
    """The seconds of the run at its arrival."""
    seconds: float
    """The seconds that the client took."""
    reply: Reply


class ArrivalLog:
    """Stores updates when they arrive, in the order of their arrival.

    Args:
        folder: The run folder.
        run: The run's id.
    """

    def __init__(self, folder: Path, run: str) -> None:
        self._folder, self._run = folder / _FOLDER, run
        self._paths: dict[tuple[int, int], Path] = {}
        """By client and round."""
        self._next = 0

    def load(self) -> list[StoredArrival]:
        """Return the stored updates in their order. Files that are damaged are deleted, with a line in the log."""
        found = []
        for path in sorted(self._folder.glob("[0-9]*.safetensors")):
            try:
                found.append(self._read(path))
            except (FileNotFoundError, ValueError, KeyError) as error:
                _log.warning("Cannot use %s, so its client is asked again: it %s", path, error)
                path.unlink(missing_ok=True)
                continue
            self._paths[found[-1].client, found[-1].round] = path
            self._next = max(self._next, found[-1].order + 1)
        return sorted(found, key=lambda arrival: arrival.order)

    def add(self, client: int, round: int, end: float, seconds: float, reply: Reply) -> None:
        """Store an update that has arrived."""
        path = self._folder / f"{self._next:012}.safetensors"
        numbers = {"order": self._next, "client": client, "round": round, "end": end, "seconds": seconds}
        metadata = {name: repr(value) for name, value in numbers.items()} | {"run": self._run}
        with storage_errors(f"write an update to {self._folder}", "make room, and start the server again"):
            self._folder.mkdir(parents=True, exist_ok=True)
            write_tensors(path, _named(reply), metadata)
        self._paths[client, round] = path
        self._next += 1

    def keep(self, used: Container[tuple[int, int]]) -> None:
        """Delete all updates but those of these clients and rounds."""
        for key in [key for key in self._paths if key not in used]:
            self._paths.pop(key).unlink(missing_ok=True)

    def _read(self, path: Path) -> StoredArrival:
        tensors, metadata = read_tensors(path)
        if metadata["run"] != self._run:
            raise ValueError("belongs to another run")
        order, client, round = (int(metadata[name]) for name in ("order", "client", "round"))
        vectors, numbers = (
            {name.removeprefix(prefix): v for name, v in tensors.items() if name.startswith(prefix)}
            for prefix in (_VECTOR, _NUMBER)
        )
        times = float(metadata["end"]), float(metadata["seconds"])
        return StoredArrival(order, client, round, *times, Reply(vectors, numbers))


def _named(reply: Reply) -> Vectors:
    """Return the tensors of a reply under different names."""
    vectors = {_VECTOR + name: v for name, v in reply.vectors.items()}
    return vectors | {_NUMBER + name: v for name, v in reply.numbers.items()}
