"""Everything a run is at the end of a round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from ..algorithm import Vectors
from ..core.history import History


@dataclass(eq=False, kw_only=True)
class Snapshot:
    """Enough to go on from: random numbers follow from the seed and the round, and need no state."""

    params: Tensor
    """The model's trainable parameters as a flat CPU tensor, in the order of `model.named_parameters()`."""
    history: History
    server_state: Vectors
    clients: Mapping[int, Vectors] = field(repr=False)
    """The state of every client that keeps any; saved ones are read from disk as they are asked for."""
    last: Tensor = field(repr=False)
    """The round, from 0, in which each client last took part; −1 for never."""
    selection: Vectors = field(repr=False)
    """What the selector and the engine remember of clients: reports, counts, the selector's own state."""
    info: dict[str, Any]
    """What ran, in words and numbers: algorithm, selection, engine, dtype, …"""
    interrupted: bool = False
    """Whether the run was stopped from outside before its last round."""
