"""Power-of-Choice: clients with high loss first."""

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

    Candidates are drawn without replacement with probabilities p_k; ties are broken at random; weights 1/m.
    Biased towards clients with high loss, the more so the larger d.

    `loss="full"` (pow-d) asks candidates for their loss on all local data, `"batch"` (cpow-d, Algorithm 1 of
    the appendix) on one random batch; each costs x down and a number up, and x is not sent again to
    those chosen. `"reported"` (rpow-d, Algorithm 2) asks nobody: it goes by the mean training loss that
    clients reported when they last took part, and takes those never seen first.
    """

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
