"""Following a run by what its server writes down."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


class Progress:
    """Tells of each round once, also over restarts of the server, which begin its metrics anew."""

    def __init__(self, folder: Path) -> None:
        self._metrics = folder / "metrics.jsonl"
        self._read = 0
        self._told = 0

    def news(self) -> list[dict[str, Any]]:
        """Records of rounds that were not told of before."""
        try:
            with self._metrics.open("rb") as file:
                if file.seek(0, 2) < self._read:
                    self._read = 0
                file.seek(self._read)
                complete = file.read().rpartition(b"\n")[0]
        except FileNotFoundError:
            return []
        if not complete:
            return []
        self._read += len(complete) + 1
        records = [json.loads(line) for line in complete.split(b"\n")]
        fresh = [record for record in records if record["round"] > self._told]
        self._told = max([self._told, *(record["round"] for record in fresh)])
        return fresh
