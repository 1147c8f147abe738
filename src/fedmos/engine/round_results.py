"""The results that the stages of a round pass on, and the error that ends a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from ..algorithm import Vectors
from .backend import CohortUpdate


class DivergenceError(RuntimeError):
    """A client's update or the server's step has a non-finite value, and the run stops at that.

    Attributes:
        result: The `Result` of the run up to the round before.

    Example:
        >>> try:
        ...     fm.run(model, data, fm.FedAvg(lr=1e38), fm.Full(), rounds=5, local_steps=5, batch_size=8)
        ... except fm.DivergenceError as error:
        ...     print(len(error.result.history))
        0
    """

    result: Any


class TrainingResult(NamedTuple):
    """The result of the clients' part of a round."""

    server_state: Vectors
    """The server state that the server's step starts from: with the sums of the extra phase."""
    update: CohortUpdate


@dataclass(kw_only=True)
class RoundState:
    """The new state of a round before it is committed."""

    x: Tensor
    evaluated: Tensor
    """The model that is evaluated, returned and deployed: x, unless the algorithm says otherwise."""
    server_state: Vectors
    update: CohortUpdate | None
    """None if the round is abandoned."""
    report: Tensor
    """(1 + reports, arrived), on the device; see `CohortUpdate`."""
    changed: list[Tensor]
    """The model and the server state that the round changed."""
    saturated: Tensor | None = None
    """Under secure aggregation, how many values of uploads were clamped, in all phases."""


class QueuedMetrics(NamedTuple):
    """The metrics of the new model, not yet read from the device."""

    values: Tensor
    seconds: float
    """The time it took to queue the evaluation; on a CPU, to evaluate."""


class RoundResults(NamedTuple):
    """The values that are read from the device at the end of a round."""

    reports: Vectors
    """By name, what clients report from their local training."""
    metrics: dict[str, float]
    finite: bool
    """Whether all values of the round are finite."""
    saturated: int | None = None
    """How many values of uploads were clamped; None where that is not counted."""
