"""Bytes on the wire, from what an algorithm declares."""

from __future__ import annotations

import torch

from .algorithm import Algorithm


def bytes_down(algorithm: Algorithm, t: int, clients: int, size: int, dtype: torch.dtype) -> int:
    """What a cohort receives in round t. In a round with an extra phase, x travels there and not again."""
    return clients * len(algorithm.down) * size * dtype.itemsize


def bytes_up(algorithm: Algorithm, t: int, clients: int, size: int, dtype: torch.dtype) -> int:
    """What a cohort sends in round t, the extra phase included."""
    vectors = len(algorithm.up) + (len(algorithm.prepare_up) if algorithm.prepares(t) else 0)
    return clients * vectors * size * dtype.itemsize
