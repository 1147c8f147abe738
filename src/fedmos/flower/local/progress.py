"""Progress of a deployment, read from the run folder of its server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


class DeploymentProgress:
    """Reads the records of new rounds from metrics.jsonl, each once.

    A server that is restarted rewrites the file; rounds that were returned before are not returned again.
    """

    def __init__(self, folder: Path) -> None:
        self._metrics = folder / "metrics.jsonl"
        self._position = 0
        self._last_round = 0

    def new_records(self) -> list[dict[str, Any]]:
        """Return the records of rounds completed since the last call."""
        try:
            with self._metrics.open("rb") as file:
                if file.seek(0, 2) < self._position:
                    self._position = 0
                file.seek(self._position)
                complete = file.read().rpartition(b"\n")[0]
        except FileNotFoundError:
            return []
        if not complete:
            return []
        self._position += len(complete) + 1
        records = [json.loads(line) for line in complete.split(b"\n")]
        new = [record for record in records if record["round"] > self._last_round]
        self._last_round = max([self._last_round, *(record["round"] for record in new)])
        return new
