"""The contract of a client selector."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from ..rng import Purpose, stream, streams

T = TypeVar("T")

REPORTS = {
    "loss": "mean over a client's local steps of the loss at each step's first gradient",
    "start_loss": "mean loss over a client's data at the model it received",
    "start_squared_loss": "mean squared loss over a client's data at the model it received",
}
"""What clients can be asked to report after their local work, one number each."""


def _not_asked(*_: Any) -> Tensor:
    raise ValueError(
        "Cannot ask clients because this view belongs to no run; use it for selectors that need no answers"
    )


@dataclass(kw_only=True)
class View:
    """What a selector sees in a round: the clients available in it, numbered 0 … N−1."""

    seed: int
    round: int
    """From 0."""
    p: Tensor
    """Importances, float64, summing to one over these clients."""
    n: Tensor
    """Numbers of samples."""
    ids: Tensor | None = None
    """Each one's number in the whole federation; None where everyone is available."""
    federation: int | None = None
    """Clients in the whole federation; None where everyone is available."""
    reported: Mapping[str, Tensor] = field(default_factory=dict)
    """For each report the selector declares, what each client last sent; NaN for never."""
    last: Tensor | None = None
    """The round each client last took part in, −1 for never."""
    picks: Tensor | None = None
    """How often each took part."""
    durations: Tensor | None = None
    """Simulated seconds each needed last time, NaN for unknown."""
    state: dict[str, Tensor] = field(default_factory=dict)
    """What the selector chose to remember, under the names it declares; kept and checkpointed by the engine."""
    memo: dict[str, Any] = field(default_factory=dict)
    """What selectors have derived from p, n and their state; kept for as long as those stay."""
    ask_losses: Callable[[Tensor, bool], Tensor] = _not_asked
    ask_gradients: Callable[[Tensor], Tensor] = _not_asked

    @property
    def N(self) -> int:
        return len(self.p)

    def here(self, values: Tensor) -> Tensor:
        """Of values for the whole federation, those of the available clients."""
        return values if self.ids is None else values[self.ids]

    @property
    def key(self) -> Tensor:
        """The stream of this round's selection; see `fedmos.rng`."""
        return stream(self.seed, self.round, 0, Purpose.SELECT)

    def keys(self, rounds: range) -> Tensor:
        """The same for other rounds."""
        return streams(self.seed, rounds, 0, Purpose.SELECT)

    def once(self, name: str, make: Callable[[], T]) -> T:
        """A value computed on first use: for what depends on p and n alone, such as a sorted order."""
        if name not in self.memo:
            self.memo[name] = make()
        value: T = self.memo[name]
        return value

    def probe(self, ids: Tensor, batch: bool = False) -> Tensor:
        """Losses of these clients at the current model, on all their data or one random batch.

        Each receives x and sends a number; both are counted.
        """
        return self.ask_losses(ids, batch)

    def gradients(self, ids: Tensor) -> Tensor:
        """∇f_i at the current model, a row per client. Each receives x and sends a vector; both are counted."""
        return self.ask_gradients(ids)


class Selector:
    """Draws a round's cohort. Subclass it as a frozen dataclass and write `select`."""

    prefetchable: ClassVar[bool] = False
    """Whether `select` depends only on seed, round, p and n, so that cohorts can be drawn in advance."""
    foreseeable: ClassVar[bool] = False
    """The earlier name of `prefetchable`."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name, alias in (("prefetchable", "foreseeable"), ("foreseeable", "prefetchable")):
            if name in vars(cls):
                setattr(cls, alias, vars(cls)[name])

    @property
    def reports(self) -> Sequence[str]:
        """What every client of a cohort reports after its work, of `REPORTS`."""
        return ()

    @property
    def state(self) -> Sequence[str]:
        """Names the selector uses in `view.state`."""
        return ()

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

    def select_ahead(self, view: View, rounds: range) -> tuple[Tensor, Tensor]:
        """What `select` would return in each of these rounds, in rows, to the bit.

        Optional, for prefetchable selectors whose cohorts are of one size: many are drawn faster than one by one.
        """
        raise TypeError(f"{type(self).__name__} draws one round at a time")


def proportional(p: Tensor, ids: Tensor) -> Tensor:
    """p_i / Σ_S p; equal weights where all of those are zero."""
    total = p[ids].sum()
    return p[ids] / total if total > 0 else equal(len(ids))


def equal(m: int) -> Tensor:
    """1/m each."""
    return torch.full((m,), 1 / max(m, 1), dtype=torch.float64)
