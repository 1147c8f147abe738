"""The base class of callbacks."""

from __future__ import annotations

from typing import Any

from .history import Record


class Callback:
    """Override what you need. A plain function of a record, too, may be passed where a callback may."""

    def on_start(self, rounds: int, done: int) -> None:
        """Before the first round; `done` rounds were played earlier, if the run is resumed."""

    def on_round(self, record: Record) -> None:
        """After each round."""

    def on_end(self, result: Any) -> None:
        """After the last round, or after an interruption."""
