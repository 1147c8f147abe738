"""The checks of an aggregation rule."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..aggregation.rule import Aggregation
from ..aggregation.secure import Secure
from ..engine.row_aggregation import aggregated
from .algorithm import Check
from .findings import Findings

_SIZES = (1, 5, 64)
_TOLERANCE = 1e-6


@dataclass
class AggregationChecks:
    """Aggregates rows in several ways that must agree."""

    rule: Aggregation
    findings: Findings

    def __post_init__(self) -> None:
        self._clients = max(5, self.rule.min_clients)

    def checks(self) -> list[Check]:
        """Return the checks in their order."""
        return [
            ("shape and purity", self._check_calls),
            ("order of clients", self._check_order),
            ("equal rows", self._check_equal),
            ("change of units", self._check_scale),
        ]

    def _check_calls(self) -> None:
        for size in _SIZES:
            for dtype in (torch.float32, torch.float64):
                rows, weights = self._given(size, dtype)
                first, second = (aggregated(self.rule, rows, weights) for _ in range(2))
                if not torch.equal(first, second):
                    self.findings.add("'aggregate' must return the same for the same rows", "varies")

    def _check_order(self) -> None:
        rows, weights = self._given(64)
        order = torch.arange(self._clients).flip(0)
        if not _close(aggregated(self.rule, rows[order], weights[order]), aggregated(self.rule, rows, weights)):
            self.findings.add("'aggregate' must not depend on the order of clients")

    def _check_equal(self) -> None:
        if isinstance(self.rule, Secure):  # rounds to multiples of its step
            return
        rows, weights = self._given(64)
        equal = rows[:1].expand_as(rows).contiguous() * (1e-6 if not self.rule.scale_free else 1.0)
        if not _close(aggregated(self.rule, equal, weights), equal[0]):
            self.findings.add("'aggregate' must return the row where all rows are equal")

    def _check_scale(self) -> None:
        rows, weights = self._given(64)
        scaled = [aggregated(self.rule, c * rows, weights) / c for c in (1.0, 1e-4, 1e4)]
        if self.rule.scale_free and not all(_close(v, scaled[0]) for v in scaled):
            self.findings.add("aggregate(c · rows) must be c · aggregate(rows), or 'scale_free' must be False")

    def _given(self, size: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(size)
        rows = torch.randn(self._clients, size, generator=generator, dtype=dtype)
        weights = torch.rand(self._clients, generator=generator, dtype=dtype) + 0.1
        return rows, weights / weights.sum()


def _close(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a, b, rtol=_TOLERANCE, atol=_TOLERANCE * float(b.abs().max()))
