"""The complete state of a run at the end of a round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor

from ..algorithm import Vectors
from ..core.history import History


class BestModel(NamedTuple):
    """The model of the round in which a metric was best."""

    round: int
    """The round, from 1."""
    params: Tensor
    """The parameters, as those of `Snapshot`."""


class ClientScores(NamedTuple):
    """The scores of clients on their own test samples."""

    round: int
    """The round, from 1, after which they were evaluated."""
    values: Vectors
    """By name, e.g. "client_accuracy", the score of each client, float64, on the CPU; NaN for those not evaluated."""


@dataclass(eq=False, kw_only=True)
class Snapshot:
    """Everything that a run continues from. Random numbers follow from the seed and the round and need no state."""

    params: Tensor
    """The model's trainable parameters as a flat CPU tensor, in the order of `model.named_parameters()`."""
    server_model: Tensor | None = field(default=None, repr=False)
    """The server's model x, where the algorithm evaluates and returns another one; otherwise None."""
    history: History
    server_state: Vectors
    clients: Mapping[int, Vectors] = field(repr=False)
    """The state of every client that has one; the state of a saved client is read from disk on access."""
    last: Tensor = field(repr=False)
    """The round, from 0, in which each client last took part; −1 for never."""
    selection: Vectors = field(repr=False)
    """Reports and counts of clients, and the selector's own state."""
    queue: Vectors = field(default_factory=dict, repr=False)
    """In an asynchronous run, the clients that train, the updates in the buffer, and the models they were sent."""
    info: Mapping[str, Any]
    """What ran: algorithm, selection, engine, dtype, …"""
    interrupted: bool = False
    """Whether the run was stopped from outside before its last round."""
    best: BestModel | None = field(default=None, repr=False)
    """The best model so far, if the run keeps it (`keep_best`)."""
    client_evaluation: ClientScores | None = field(default=None, repr=False)
    """The last evaluation of clients, if the run evaluates them (`evaluate_clients`)."""
