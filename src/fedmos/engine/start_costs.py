"""What it takes a client to train once: bytes down, bytes up and simulated seconds."""

from __future__ import annotations

import torch
from torch import Tensor

from .cost import Wire
from .simulated_clock import Clock


class StartCosts:
    """The costs of every client, computed once as long as clients compute the same number of gradients."""

    def __init__(self, wire: Wire, clock: Clock, N: int, reports: int) -> None:
        """`reports`: the numbers that each client sends in addition to its uploads."""
        self.bytes_up = wire.up(0, reports)
        self._first, self._later = (int(wire.received(torch.tensor([last]))[0]) for last in (-1, 0))
        self._clock, self._ids = clock, torch.arange(N)
        self._tables: dict[bool, list[float]] = {}
        self._gradients: Tensor | None = None

    def bytes_down(self, first: bool) -> int:
        """Return the bytes that a client receives; `first`: whether it has not taken part before."""
        return self._first if first else self._later

    def seconds(self, client: int, gradients: Tensor, first: bool) -> float:
        """Return the seconds from the start of a client to the arrival of its update.

        Args:
            client: The client.
            gradients: The number of per-sample gradients that each client computes, (N,).
            first: Whether it has not taken part before.
        """
        if self._gradients is not gradients:
            self._tables, self._gradients = {}, gradients
        if first not in self._tables:
            down, none = (torch.full((len(self._ids),), v, dtype=torch.float64) for v in (self.bytes_down(first), 0))
            self._tables[first] = self._clock.seconds(self._ids, down, self.bytes_up, gradients.double(), none).tolist()
        return self._tables[first][client]
