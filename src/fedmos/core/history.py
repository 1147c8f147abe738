"""What a run recorded, round by round."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any

from .metric_names import is_loss
from .validation import suggest


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """One round. Metrics are None in rounds that were not evaluated, and where they do not exist."""

    round: int
    """From 1."""
    cohort: list[int]
    """Distinct clients, ascending."""
    weights: list[float]
    """The summed weight of each."""
    bytes_down: int
    bytes_up: int
    seconds: float
    """Time spent on the round, evaluation apart (on a GPU, where it is queued with the rest, included)."""
    available: int | None = None
    """Clients that could be chosen."""
    short: bool = False
    """Whether those were fewer than the cohort was to have."""
    probed: int = 0
    """Samples whose loss or gradient clients computed only to be chosen."""
    late: list[int] = field(default_factory=list)
    """Clients that missed the deadline."""
    abandoned: bool = False
    """Whether the model stayed as it was, for want of updates."""
    clock: float | None = None
    """Simulated seconds since the start of the run, at the round's end."""
    train_loss: float | None = None
    train_accuracy: float | None = None
    test_loss: float | None = None
    accuracy: float | None = None
    diagnostics: dict[str, float] | None = None
    """What `fm.Diagnostics` measured, in rounds in which it did."""


METRICS = ("train_loss", "train_accuracy", "test_loss", "accuracy")


class History:
    """The records of a run, in order."""

    def __init__(self, records: list[Record] | None = None) -> None:
        self._records = records or []

    def __iter__(self) -> Iterator[Record]:
        return iter(self._records)

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, i: int) -> Record:
        return self._records[i]

    def append(self, record: Record) -> None:
        self._records.append(record)

    def amend(self, record: Record) -> None:
        """Put another record in the place of the last."""
        self._records[-1] = record

    def since(self, done: int) -> list[Record]:
        """The records after the first `done`."""
        return self._records[done:]

    def to_dict(self) -> dict[str, list[Any]]:
        """One list per column."""
        return {f.name: [getattr(record, f.name) for record in self] for f in fields(Record)}

    def first(self, metric: str, target: float) -> Record | None:
        """The first record whose metric reached the target; losses count downwards."""
        if metric not in METRICS:
            raise ValueError(f"'metric' must be one of {', '.join(METRICS)}, got {metric!r}{suggest(metric, METRICS)}")
        return next((r for r in self if reached(metric, getattr(r, metric), target)), None)

    def bytes_until(self, record: Record) -> int:
        """Bytes down and up of all rounds up to and with this one."""
        return sum(r.bytes_down + r.bytes_up for r in self._records[: record.round])


def reached(metric: str, value: float | None, target: float) -> bool:
    if value is None:
        return False
    return value <= target if is_loss(metric) else value >= target
