"""The record of every round of a run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any

from .formatting import format_value
from .metric_names import is_loss
from .validation import number, require, suggest


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """The record of one round. Metrics are None in rounds without evaluation and where they are not defined.

    Example:
        >>> result = fm.run(model, data, fm.FedAvg(lr=0.1), fm.Uniform(m=3), rounds=2, local_steps=1, batch_size=8)
        >>> record = result.history[-1]
        >>> record.round, len(record.cohort)
        (2, 3)
        >>> record.bytes_down  # three clients receive the model, 650 numbers in float32
        7800
    """

    round: int
    """The round, from 1."""
    cohort: list[int]
    """The distinct clients of the cohort, in ascending order."""
    weights: list[float]
    """The summed aggregation weight of each client of the cohort."""
    bytes_down: int
    """Bytes sent from the server to clients."""
    bytes_up: int
    """Bytes sent from clients to the server."""
    seconds: float
    """Wall-clock time of the round without evaluation (on a GPU, where evaluation is queued with the rest, with it)."""
    available: int | None = None
    """Number of clients that were available."""
    short: bool = False
    """Whether fewer clients were available than the cohort needs."""
    probed: int = 0
    """Number of samples for which clients computed a loss or gradient only for the selection."""
    late: list[int] = field(default_factory=list)
    """Clients that missed the deadline or dropped out; in an asynchronous run, those lost since the last round."""
    refused: dict[str, str] = field(default_factory=dict)
    """In a deployment, by number of the client as text, why the server refused its reply or its node."""
    quarantined: list[int] = field(default_factory=list)
    """In a deployment, the clients that were left out because of earlier refusals."""
    changes: list[str] = field(default_factory=list)
    """In a deployment, the operator's changes of the clients that took effect before the round."""
    abandoned: bool = False
    """Whether the model stayed unchanged because too few updates arrived."""
    uploaded: list[int] | None = None
    """The clients that uploaded, in ascending order, if the selector chose them after local training; else None."""
    upload_weights: list[float] | None = None
    """The aggregation weights of these clients."""
    clock: float | None = None
    """Simulated seconds from the start of the run to the end of the round; also `time`."""
    versions: list[int] | None = None
    """With the option `buffer`: by client of the cohort, the number of server steps before the model it was sent."""
    ages: list[int] | None = None
    """With the option `buffer`: by client of the cohort, the number of server steps since it was sent its model."""
    train_loss: float | None = None
    """Mean loss on the training samples."""
    train_accuracy: float | None = None
    """Fraction of correctly classified training samples."""
    test_loss: float | None = None
    """Mean loss on the test samples."""
    accuracy: float | None = None
    """Fraction of correctly classified test samples."""
    diagnostics: dict[str, float] | None = None
    """Measurements of `fm.Diagnostics`, in the rounds in which it measures."""
    metrics: dict[str, float] | None = None
    """Values of the option `metrics` on the test set, in rounds that are evaluated."""

    epsilon: float | None = None
    """With the option `privacy`, the ε that the run has spent up to and including this round."""

    saturated: int | None = None
    """With secure aggregation, how many values of uploads exceeded their bound and were clamped; None with `privacy`,
    which clips them before."""

    update_norms: list[float | None] | None = None
    """With the option `update_norms`, the norm of each client's update, in the order of `cohort`; None for a client
    whose update did not count, because it was late or not finite, or the round was abandoned."""

    client_accuracy: float | None = None
    """With the option `evaluate_clients`, the mean over clients of the accuracy on their own test samples."""
    client_accuracy_worst: float | None = None
    """The mean of the worst tenth of these accuracies."""
    personal_accuracy: float | None = None
    """The mean over clients of the accuracy of their own models on their own test samples."""
    client_metrics: dict[str, float] | None = None
    """Further summaries over clients, by name, in rounds in which clients are evaluated; see docs/metrics.md."""

    @property
    def time(self) -> float | None:
        """Simulated seconds from the start of the run to the end of the round; None for a run without a clock."""
        return self.clock

    def value(self, metric: str) -> float | None:
        """Return the value of a metric; None if the round has none."""
        if metric in METRICS or metric in CLIENT_METRICS:
            value: float | None = getattr(self, metric)
            return value
        return ((self.metrics or {}) | (self.client_metrics or {})).get(metric)


METRICS = ("train_loss", "train_accuracy", "test_loss", "accuracy")
CLIENT_METRICS = ("client_accuracy", "client_accuracy_worst", "personal_accuracy")
"""The summaries over clients that are fields of a record."""


class History:
    """The records of a run in order; a sequence of `Record`.

    Args:
        records: The records of the first rounds.

    Example:
        >>> result = fm.run(model, data, fm.FedAvg(lr=0.1), fm.Uniform(m=3), rounds=3, local_steps=1, batch_size=8)
        >>> history = result.history
        >>> len(history), [record.round for record in history]
        (3, [1, 2, 3])
        >>> history.to_dict()["round"]
        [1, 2, 3]
        >>> history
        History(3 rounds, train_loss ..., accuracy ..., ... MB)
    """

    def __init__(self, records: list[Record] | None = None) -> None:
        self._records = records or []

    def __iter__(self) -> Iterator[Record]:
        return iter(self._records)

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, i: int) -> Record:
        return self._records[i]

    def __repr__(self) -> str:
        return f"History({self.summary()})"

    def summary(self) -> str:
        """Return rounds, the last value of every metric, and megabytes sent, in one line."""
        parts = [f"{len(self)} round{'' if len(self) == 1 else 's'}"]
        for metric in (*METRICS, *self._user_metrics, *CLIENT_METRICS):
            values = (record.value(metric) for record in reversed(self._records))
            if (value := next((v for v in values if v is not None), None)) is not None:
                parts.append(f"{metric} {value:.4g}")
        if self._records:
            parts.append(f"{self.bytes_until(self._records[-1]) / 1e6:.4g} MB")
        return ", ".join(parts)

    @property
    def metric_names(self) -> list[str]:
        """The names of the metrics to show beside `METRICS`, over all rounds.

        Of those over clients, means and worst tenths, and losses only without accuracies.
        """
        own = [name for name in CLIENT_METRICS if any(getattr(record, name) is not None for record in self._records)]
        more = [name for name in self._client_metrics if not _is_detail(name)]
        return [*self._user_metrics, *own, *(name for name in more if not (own and "_loss" in name))]

    @property
    def known_metrics(self) -> list[str]:
        """The names of all metrics that a round can have, over all rounds."""
        return list(dict.fromkeys([*METRICS, *self.metric_names, *self._client_metrics]))

    @property
    def _user_metrics(self) -> list[str]:
        return list(dict.fromkeys(name for record in self._records for name in record.metrics or ()))

    @property
    def _client_metrics(self) -> list[str]:
        return list(dict.fromkeys(name for record in self._records for name in record.client_metrics or ()))

    def append(self, record: Record) -> None:
        """Append the record of the next round."""
        self._records.append(record)

    def amend(self, record: Record) -> None:
        """Replace the last record."""
        self._records[-1] = record

    def since(self, done: int) -> list[Record]:
        """Return the records after the first `done`."""
        return self._records[done:]

    def to_dict(self) -> dict[str, list[Any]]:
        """Return one list per field of `Record`."""
        return {f.name: [getattr(record, f.name) for record in self] for f in fields(Record)}

    def first(self, metric: str, target: float, *, owner: str = "first") -> Record | None:
        """Return the first record whose metric reaches the target.

        Args:
            metric: "train_loss", "train_accuracy", "test_loss", "accuracy", a summary over clients such as
                "client_accuracy", or a name in `Record.metrics`.
            target: The value to reach: from above for losses and errors, from below for others.
            owner: The name of the method that the user called, for errors.

        Returns:
            The record, or None if no round reaches the target.

        Raises:
            ValueError: If there is no such metric, or the target is no number.
        """
        known = self.known_metrics
        if not isinstance(metric, str) or metric not in known:
            hint = suggest(metric, known)
            raise ValueError(f"{owner}: 'metric' must be one of {', '.join(known)}, got {format_value(metric)}{hint}")
        require(owner, "target", target, number)
        return next((r for r in self if reached(metric, r.value(metric), target)), None)

    def bytes_until(self, record: Record) -> int:
        """Return the bytes sent down and up in all rounds up to and including this one."""
        return sum(r.bytes_down + r.bytes_up for r in self._records[: record.round])


def _is_detail(name: str) -> bool:
    """Whether a summary over clients is a percentile or a weighted mean."""
    return name.endswith("_weighted") or name[-4:-2] == "_p"


def reached(metric: str, value: float | None, target: float) -> bool:
    """Return whether the value reaches the target; False for None."""
    if value is None:
        return False
    return value <= target if is_loss(metric) else value >= target
