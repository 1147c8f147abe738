"""Optimal client sampling."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from ..core.validation import check, count, none, one_of
from ..rng import choose, draws, fold
from .selector import Selector, View


@dataclass(frozen=True, kw_only=True)
class OCS(Selector):
    """Optimal client sampling (Chen, Horváth & Richtárik, TMLR 2022): of d clients that train, about m upload.

    After local training each client reports ‖δ_i‖, and uploads with probability q_i, independently. Its weight is then
    w_i/q_i, which keeps the sum unbiased. With u_i = w_i ‖δ_i‖ sorted in ascending order and l the largest integer with
    0 < m + l − d ≤ Σ_{i≤l} u_i/u_l, the probabilities

        q_i = (m + l − d) u_i/Σ_{j≤l} u_j  for i ≤ l,  1 for the others,

    minimise the variance of the sum with m uploads in expectation. The d clients are drawn uniformly without
    replacement, with w_i = (N/d) p_i.

    Args:
        m: Expected number of uploads per round.
        d: Number of clients that train per round, at least m (default: all).
        method: "exact" for the probabilities above (Algorithm 1), "approximate" for AOCS (Algorithm 2), which starts
            from min(1, m u_i/Σu) and scales the probabilities below one up to the sum m, `iterations` times.
        iterations: Iterations j_max of the approximation.

    Deviations:
        The server computes the probabilities from the reports, also in Algorithm 2, which would need sums of numbers
        only. Clients with u_i = 0, whose upload changes nothing, are not asked. If no client is asked, the round is
        abandoned.

    Example:
        >>> selector = fm.OCS(m=3)
        >>> selector.probabilities(torch.tensor([1.0, 1.0, 2.0, 8.0]))
        tensor([0.5000, 0.5000, 1.0000, 1.0000], dtype=torch.float64)
        >>> result = fm.run(model, data, fm.FedAvg(lr=0.1), selector, rounds=2, local_steps=2, batch_size=8)
        >>> len(result.history[0].cohort)
        10
    """

    m: int
    d: int | None = None
    method: Literal["exact", "approximate"] = "exact"
    iterations: int = 4

    cohort_field: ClassVar[str] = "d"
    reports = ("update_norm",)

    def __post_init__(self) -> None:
        check(self, m=count, d=count | none, method=one_of("exact", "approximate"), iterations=count)
        if self.d is not None and self.d < self.m:
            raise ValueError(f"OCS: 'd' must be ≥ 'm' ({self.m}), got {self.d}")

    def validate(self, N: int) -> None:
        super().validate(N)
        if self.d is not None and self.d > N:
            raise ValueError(f"OCS: 'd' must be ≤ the number of clients ({N}), got {self.d}")

    def select(self, view: View) -> tuple[Tensor, Tensor]:
        if self.d is None or self.d >= view.N:
            return torch.arange(view.N), view.p
        ids = choose(view.key, view.N, self.d)
        return ids, view.p[ids] * (view.N / self.d)

    def thin(self, view: View, reports: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        assert view.cohort is not None
        assert view.weights is not None
        q = self.probabilities(view.weights * reports["update_norm"])
        asked = draws(fold(view.key, -1), len(q)) < q
        return view.cohort[asked], view.weights[asked] / q[asked]

    def probabilities(self, u: Tensor) -> Tensor:
        """Return the probability q_i with which each client uploads, (S,), float64.

        Args:
            u: The weighted norms w_i ‖δ_i‖, (S,).
        """
        u = torch.as_tensor(u, dtype=torch.float64)
        if self.m >= len(u):
            return torch.ones_like(u)
        return self._exact(u) if self.method == "exact" else self._approximate(u)

    def _exact(self, u: Tensor) -> Tensor:
        order = u.argsort(stable=True)
        ascending = u[order]
        left = self.m - len(u) + torch.arange(1, len(u) + 1)  # m + l − d, by l
        total = ascending.cumsum(0)
        l = int(((left > 0) & (left * ascending <= total)).nonzero()[-1]) + 1
        q = torch.ones_like(u)
        q[order[:l]] = left[l - 1] * ascending[:l] / total[l - 1].clamp(min=1e-300)
        return q

    def _approximate(self, u: Tensor) -> Tensor:
        q = (self.m * u / u.sum().clamp(min=1e-300)).clamp(max=1)
        for _ in range(self.iterations):
            below = q < 1
            mass = float(q[below].sum())
            if mass <= 0:
                break
            C = (self.m - len(u) + int(below.sum())) / mass
            q = torch.where(below, (C * q).clamp(max=1), q)
            if C <= 1:
                break
        return q
