"""Bytes on the wire, from what an algorithm and a selector declare."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..algorithm import Algorithm


@dataclass(frozen=True)
class Wire:
    """The size of a vector and of a number in bytes."""

    size: int
    dtype: torch.dtype

    @property
    def number(self) -> int:
        return self.dtype.itemsize

    @property
    def vector(self) -> int:
        return self.size * self.dtype.itemsize


def client_down(algorithm: Algorithm, wire: Wire) -> int:
    """Return the bytes that a client receives in a round. With an extra phase, x is sent there and not again."""
    rows = dict(name if isinstance(name, tuple) else (name, 1) for name in algorithm.server_state)
    return sum(rows.get(name, 1) for name in algorithm.down) * wire.vector


def client_up(algorithm: Algorithm, t: int, reports: int, wire: Wire) -> int:
    """Return the bytes that a client sends in round t: its uploads, those of the extra phase, and its reports."""
    vectors = len(algorithm.up) + (len(algorithm.prepare_up) if algorithm.prepares(t) else 0)
    return vectors * wire.vector + reports * wire.number
