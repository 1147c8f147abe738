"""Full participation and scripted cohorts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..core.formatting import format_value
from ..core.validation import integer, non_negative
from .selector import Selector, View, proportional


@dataclass(frozen=True, kw_only=True)
class Full(Selector):
    """Every client in every round, with weight p_i.

    Example:
        >>> result = fm.run(model, data, fm.FedAvg(lr=0.1), fm.Full(), rounds=2, local_steps=2, batch_size=8)
        >>> len(result.history[0].cohort)
        10
    """

    prefetchable = True

    def select(self, view: View) -> tuple[Tensor, Tensor]:
        return torch.arange(view.N), view.p


@dataclass(frozen=True)
class FixedCohorts(Selector):
    """A list of cohorts, one per round, repeated from the start when it ends; for tests and replays.

    Args:
        cohorts: The clients of each round.
        weights: The aggregation weights, in lists of the same lengths (default: p_i/Σ_S p).

    Example:
        >>> selector = fm.FixedCohorts([[0, 1], [2, 3]])
        >>> result = fm.run(model, data, fm.FedAvg(lr=0.1), selector, rounds=3, local_steps=2, batch_size=8)
        >>> [record.cohort for record in result.history]
        [[0, 1], [2, 3], [0, 1]]
    """

    prefetchable = True

    cohorts: Sequence[Sequence[int]]
    weights: Sequence[Sequence[float]] | None = None

    def __post_init__(self) -> None:
        try:
            cohorts = _nested(self.cohorts)
        except TypeError:
            raise ValueError("FixedCohorts: 'cohorts' must be a list of cohorts, each a list of clients") from None
        if not cohorts or not all(cohorts):
            raise ValueError("FixedCohorts: 'cohorts' must be a list of cohorts, each with at least one client")
        for i in (i for cohort in cohorts for i in cohort):
            if not integer.test(i) or i < 0:
                raise ValueError(f"FixedCohorts: 'cohorts' must hold client numbers ≥ 0, got {format_value(i)}")
        object.__setattr__(self, "cohorts", tuple(tuple(map(int, cohort)) for cohort in cohorts))
        if self.weights is None:
            return
        try:
            weights = _nested(self.weights)
        except TypeError:
            raise ValueError("FixedCohorts: 'weights' must be a list of numbers for each cohort") from None
        if [len(row) for row in weights] != [len(cohort) for cohort in cohorts]:
            raise ValueError("FixedCohorts: 'weights' must hold one number for each client of 'cohorts'")
        for w in (w for row in weights for w in row):
            if not non_negative.test(w):
                raise ValueError(f"FixedCohorts: 'weights' must be ≥ 0, got {format_value(w)}")
        object.__setattr__(self, "weights", tuple(tuple(map(float, row)) for row in weights))

    def validate(self, N: int) -> None:
        highest = max(i for cohort in self.cohorts for i in cohort)
        if highest >= N:
            raise ValueError(f"FixedCohorts: 'cohorts' must hold client numbers < {N}, got {highest}")

    def select(self, view: View) -> tuple[Tensor, Tensor]:
        turn = view.round % len(self.cohorts)
        ids = torch.tensor(self.cohorts[turn])
        weights = None if self.weights is None else torch.tensor(self.weights[turn], dtype=torch.float64)
        if view.ids is not None:  # skip unavailable clients
            place = torch.full((int(view.federation or 0),), -1)
            place[view.ids] = torch.arange(view.N)
            present = place[ids] >= 0
            ids, weights = place[ids][present], None if weights is None else weights[present]
        if weights is not None:
            return ids, weights
        ids = ids.unique()
        return ids, proportional(view.p, ids)


def _nested(rows: Any) -> tuple[tuple[Any, ...], ...]:
    """Convert lists, ranges, arrays or tensors of numbers to tuples of tuples."""
    return tuple(tuple(row.tolist() if hasattr(row, "tolist") else row) for row in rows)
