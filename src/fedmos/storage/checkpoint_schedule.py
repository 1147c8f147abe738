"""The times at which checkpoints are written."""

from __future__ import annotations

import re
from time import monotonic
from typing import Any

from ..core.validation import Rule, count, none

CheckpointInterval = int | str | None
"""A number of rounds, a time such as "30s", or None for a twentieth of the running time."""

_MIN_SECONDS = 10.0
_MAX_SHARE = 0.05
"""The share of the running time that checkpoints take by default."""
_UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0}
TIME = r"^(\d+(?:\.\d+)?) ?(s|min|h)$"


def _seconds(text: Any) -> float:
    """Parse a time such as "30s", "5min" or "1.5h"; zero for anything else."""
    match = re.fullmatch(TIME, text) if isinstance(text, str) else None
    return 0.0 if match is None else float(match[1]) * _UNITS[match[2]]


interval_rule = count | Rule("a time such as '30s' or '5min'", lambda v: _seconds(v) > 0) | none


class CheckpointSchedule:
    """Decides when the next checkpoint is due, and counts checkpoints and their time."""

    def __init__(self, interval: CheckpointInterval) -> None:
        self._interval = interval
        self._written_at = monotonic()
        self._last_seconds = 0.0
        self.count = 0
        self.seconds = 0.0

    def due(self, t: int) -> bool:
        """Whether a checkpoint is due after round t."""
        if self._interval is None:
            wait = max(_MIN_SECONDS, self._last_seconds / _MAX_SHARE)
        elif isinstance(self._interval, str):
            wait = _seconds(self._interval)
        else:
            return t % self._interval == 0
        return monotonic() - self._written_at >= wait

    def record(self, seconds: float) -> None:
        """Record that a checkpoint was written in so many seconds."""
        self._written_at, self._last_seconds = monotonic(), seconds
        self.count, self.seconds = self.count + 1, self.seconds + seconds
