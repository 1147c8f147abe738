"""When to write a checkpoint."""

from __future__ import annotations

import re
from time import monotonic
from typing import Any

from ..core.validation import Rule, count, none

Every = int | str | None
"""So many rounds, a time such as "30s", or None for as often as is cheap."""

_LEAST = 10.0
_SHARE = 0.05
_UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0}
TIME = r"^(\d+(?:\.\d+)?) ?(s|min|h)$"


def _seconds(text: Any) -> float:
    """Of "30s", "5min" or "1.5h"; zero for anything else."""
    match = re.fullmatch(TIME, text) if isinstance(text, str) else None
    return 0.0 if match is None else float(match[1]) * _UNITS[match[2]]


is_every = count | Rule("a time such as '30s' or '5min'", lambda v: _seconds(v) > 0) | none


class CheckpointSchedule:
    """Says when the next checkpoint is due, and what they have cost."""

    def __init__(self, every: Every) -> None:
        self._every = every
        self._last = monotonic()
        self._latest = 0.0
        self.count = 0
        self.seconds = 0.0

    def due(self, t: int) -> bool:
        """After round t. By default so seldom that checkpoints take a twentieth of the time."""
        if self._every is None:
            wait = max(_LEAST, self._latest / _SHARE)
        elif isinstance(self._every, str):
            wait = _seconds(self._every)
        else:
            return t % self._every == 0
        return monotonic() - self._last >= wait

    def note(self, seconds: float) -> None:
        """One was written."""
        self._last, self._latest = monotonic(), seconds
        self.count, self.seconds = self.count + 1, self.seconds + seconds
