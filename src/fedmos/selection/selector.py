"""The contract of a client selector."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..rng import Purpose, stream

T = TypeVar("T")


@dataclass(kw_only=True)
class View:
    """What a selector sees in a round. Clients are numbered 0 … N−1."""

    seed: int
    round: int
    p: Tensor
    """Importances, float64, summing to one."""
    n: Tensor
    """Numbers of samples."""
    memo: dict[str, Any] = field(default_factory=dict)
    """What selectors have derived from p and n; kept for as long as those stay."""

    @property
    def N(self) -> int:
        return len(self.p)

    @property
    def key(self) -> Tensor:
        """The stream of this round's selection; see `fedmos.rng`."""
        return stream(self.seed, self.round, 0, Purpose.SELECT)

    def once(self, name: str, make: Callable[[], T]) -> T:
        """A value computed on first use: for what depends on p and n alone, such as a sorted order."""
        if name not in self.memo:
            self.memo[name] = make()
        value: T = self.memo[name]
        return value


class Selector:
    """Draws a round's cohort. Subclass it as a frozen dataclass and write `select`."""

    def validate(self, N: int) -> None:
        """Refuse a federation of N clients that the selector cannot serve."""
        m = getattr(self, "m", None)
        if m is not None and m > N:
            raise ValueError(f"{type(self).__name__}: 'm' must be ≤ the number of clients ({N}), got {m}")

    def select(self, view: View) -> tuple[Tensor, Tensor]:
        """Client ids, repeats allowed, and the aggregation weight of each draw.

        A pure function of the view. "Unbiased" means that the expected sum of client i's weights is p_i.
        """
        raise TypeError(f"{type(self).__name__} must define select(view) -> ids, weights")


def proportional(p: Tensor, ids: Tensor) -> Tensor:
    """p_i / Σ_S p; equal weights where all of those are zero."""
    total = p[ids].sum()
    return p[ids] / total if total > 0 else torch.full((len(ids),), 1 / len(ids), dtype=torch.float64)
