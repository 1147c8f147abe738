"""Work on the rows of many clients in parts that bound the additional memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

_ENTRIES = 2**24
"""Entries of the rows that are processed at once."""


def column_parts(rows: Tensor) -> Iterator[Tensor]:
    """Return the rows (S, n) in parts of some columns each."""
    yield from rows.split(max(1, _ENTRIES // len(rows)), dim=1)


def by_columns(rows: Tensor, f: Callable[[Tensor], Tensor]) -> Tensor:
    """Apply a function (S, k) → (k,) that treats every column alone."""
    parts = [f(part) for part in column_parts(rows)]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def gram(rows: Tensor) -> Tensor:
    """Return the inner products of rows (S, n) with each other, (S, S), float64."""
    total = rows.new_zeros((len(rows), len(rows)), dtype=torch.float64)
    for part in column_parts(rows):
        wide = part.to(torch.float64)
        total += wide @ wide.T
    return total
