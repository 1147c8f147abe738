"""Power-of-Choice: selection of clients with high loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from ..core.validation import check, count, one_of
from ..rng import fold
from .draws import Intervals, largest, weighted_choice
from .selector import Selector, View, equal


@dataclass(frozen=True, kw_only=True)
class PowerOfChoice(Selector):
    """Power-of-Choice (Cho, Wang & Joshi, 2020), Section 4: of d candidates the m with the largest loss at x.

    Candidates are drawn without replacement with probabilities p_k; ties are broken at random. The weights are 1/m.
    The bias towards clients with high loss increases with d.

    Args:
        m: Number of clients per round.
        d: Number of candidates, at least m.
        loss: "full" (pow-d) compares losses on all local data, "batch" (cpow-d, Algorithm 1 of the appendix) on one
            random batch. For both, each candidate receives x and sends a number; x is not sent again to the clients
            of the cohort. "reported" (rpow-d, Algorithm 2) needs no extra communication: it compares the mean
            training losses that clients reported in their last round, and prefers clients without a report.

    Example:
        >>> selector = fm.PowerOfChoice(m=3, d=6)
        >>> result = fm.run(model, data, fm.FedAvg(lr=0.1), selector, rounds=2, local_steps=2, batch_size=8)
        >>> len(result.history[0].cohort)
        3
    """

    selects_singly = False

    m: int
    d: int
    loss: Literal["full", "batch", "reported"] = "full"

    def __post_init__(self) -> None:
        check(self, m=count, d=count, loss=one_of("full", "batch", "reported"))
        if self.d < self.m:
            raise ValueError(f"PowerOfChoice: 'd' must be ≥ 'm' ({self.m}), got {self.d}")

    @property
    def reports(self) -> Sequence[str]:
        return ("loss",) if self.loss == "reported" else ()

    @property
    def asks(self) -> Sequence[str]:
        return () if self.loss == "reported" else ("losses",)

    def validate(self, N: int) -> None:
        if self.d > N:
            raise ValueError(f"PowerOfChoice: 'd' must be ≤ the number of clients ({N}), got {self.d}")

    def select(self, view: View) -> tuple[Tensor, Tensor]:
        intervals = view.once("by p", lambda: Intervals(view.p))
        candidates = weighted_choice(view.key, intervals, view.p, min(self.d, view.N))
        if self.loss == "reported":
            losses = view.reported["loss"][candidates].nan_to_num(nan=float("inf"))
        else:
            losses = view.probe(candidates, batch=self.loss == "batch")
        chosen = candidates[largest(fold(view.key, -2), losses, self.m)]
        return chosen, equal(len(chosen))
