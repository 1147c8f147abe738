"""The contract of a client selector."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from ..core.equality import described
from ..rng import Purpose, stream, streams

T = TypeVar("T")

REPORTS = {
    "loss": "mean over a client's local steps of the loss at each step's first gradient",
    "start_loss": "mean loss over a client's data at the model it received",
    "start_squared_loss": "mean squared loss over a client's data at the model it received",
    "update_norm": "Euclidean norm of a client's upload 'delta'; without one, of all its uploads as one vector",
    "gradient_noise": "estimated variance of a client's stochastic gradients, from differences of successive steps",
}
"""The built-in numbers that a selector can have clients report after their local training."""


def _no_clients(*_: Any) -> Tensor:
    raise ValueError(
        "Cannot ask clients because this view belongs to no run; use it for selectors that need no answers"
    )


@dataclass(kw_only=True)
class View:
    """The information that a selector has in a round. It covers the available clients, numbered 0 … N−1.

    The engine creates it; construct one to call `Selector.select` directly.

    Example:
        >>> p = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
        >>> view = fm.View(seed=0, round=0, p=p, n=100 * p)
        >>> view.N
        3
        >>> fm.Full().select(view)
        (tensor([0, 1, 2]), tensor([0.5000, 0.3000, 0.2000], dtype=torch.float64))
    """

    seed: int
    """The seed of the run."""
    round: int
    """The round, from 0."""
    start: int | None = None
    """With the option `buffer`, which start of a client in the run is selected for, from 0; otherwise None."""
    p: Tensor
    """Importances of the available clients, float64, with sum one."""
    n: Tensor
    """Numbers of samples of the available clients."""
    ids: Tensor | None = None
    """The number of each available client in the whole federation; None if all clients are available."""
    federation: int | None = None
    """Number of clients in the whole federation; None if all clients are available."""
    reported: Mapping[str, Tensor] = field(default_factory=dict)
    """For each report that the selector declares, the last value of each client; NaN for none yet."""
    last: Tensor | None = None
    """The last round in which each client took part, −1 for never."""
    picks: Tensor | None = None
    """Number of rounds in which each client took part."""
    durations: Tensor | None = None
    """Simulated duration of each client's last round in seconds, NaN if unknown."""
    updates: Mapping[int, Tensor] = field(default_factory=dict)
    """The last update, (D,), of each client that sent one, if the selector declares `updates`. Do not modify them."""
    cohort: Tensor | None = None
    """In `Selector.thin`: the clients that trained and reported in time, ascending, (S,)."""
    weights: Tensor | None = None
    """In `Selector.thin`: the aggregation weights of these clients, (S,), float64."""
    state: dict[str, Tensor] = field(default_factory=dict)
    """The selector's state, under the names that it declares; the engine keeps and checkpoints it."""
    memo: dict[str, Any] = field(default_factory=dict)
    """Cache of values derived from p, n and the state; it is cleared when those change."""
    ask_losses: Callable[[Tensor, bool], Tensor] = _no_clients
    """Implements `probe`."""
    ask_gradients: Callable[[Tensor], Tensor] = _no_clients
    """Implements `gradients`."""

    @property
    def N(self) -> int:
        """Number of available clients."""
        return self.p.shape[0]

    def here(self, values: Tensor) -> Tensor:
        """Restrict values for the whole federation to the available clients."""
        return values if self.ids is None else values[self.ids]

    @property
    def key(self) -> Tensor:
        """The random stream of this round's selection; see `fedmos.rng`."""
        return stream(self.seed, self.round, self.number, Purpose.SELECT)

    @property
    def number(self) -> int:
        """The number of this selection in its round, which names its random stream."""
        return 0 if self.start is None else self.start + 1

    def keys(self, rounds: range) -> Tensor:
        """Return the random streams of the selection in several rounds."""
        return streams(self.seed, rounds, 0, Purpose.SELECT)

    def once(self, name: str, make: Callable[[], T]) -> T:
        """Return `make()`, cached under `name`. Use it for values that depend only on p and n, such as a sorted order.

        Args:
            name: The key in the cache.
            make: Computes the value on first use.
        """
        if name not in self.memo:
            self.memo[name] = make()
        value: T = self.memo[name]
        return value

    def probe(self, ids: Tensor, batch: bool = False) -> Tensor:
        """Return the losses of clients at the current model.

        Each client receives x and sends a number; both are counted in the record's bytes.

        Args:
            ids: The clients.
            batch: Compute the loss on one random batch instead of all local data.
        """
        return self.ask_losses(ids, batch)

    def gradients(self, ids: Tensor) -> Tensor:
        """Return ∇f_i at the current model, one row per client.

        Each client receives x and sends a vector; both are counted in the record's bytes.
        """
        return self.ask_gradients(ids)


class Selector:
    """Base class of selectors, which draw the cohort of a round. Subclass it as a frozen dataclass with `select`.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True, kw_only=True)
        ... class Largest(fm.Selector):
        ...     m: int
        ...     def select(self, view):
        ...         ids = view.n.argsort(descending=True)[: self.m]
        ...         return ids, torch.full((len(ids),), 1 / len(ids))
        >>> result = fm.run(model, data, fm.FedAvg(lr=0.1), Largest(m=3), rounds=2, local_steps=2, batch_size=8)
        >>> result.history[0].cohort == result.history[1].cohort
        True
    """

    prefetchable: ClassVar[bool] = False
    """Whether `select` depends only on seed, round, p and n, so that cohorts can be drawn in advance."""
    foreseeable: ClassVar[bool] = False
    """The earlier name of `prefetchable`."""
    may_be_empty: ClassVar[bool] = False
    """Whether `select` may return no clients although some are available."""
    cohort_field: ClassVar[str] = "m"
    """The field with the number of clients of a cohort, if the selector has one."""
    selects_singly: ClassVar[bool] = True
    """Whether the selector can also draw one client after another, with m = 1, for the option `buffer`."""

    __repr__ = described

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name, alias in (("prefetchable", "foreseeable"), ("foreseeable", "prefetchable")):
            if name in vars(cls):
                setattr(cls, alias, vars(cls)[name])

    @property
    def reports(self) -> Sequence[str]:
        """The reports that every client of a cohort sends after its local training.

        A name is one of `REPORTS`, or that of a number, of shape (), that the algorithm uploads; the latter costs no
        extra bytes.
        """
        return ()

    @property
    def asks(self) -> Sequence[str]:
        """The questions that `select` puts to clients: "losses" for `view.probe`, "gradients" for `view.gradients`.

        The clients of a deployment answer only declared questions, unless their own policy allows more.
        """
        return ()

    @property
    def updates(self) -> bool:
        """Whether the selector reads `view.updates`, which the server then stores."""
        return False

    @property
    def state(self) -> Sequence[str]:
        """The names that the selector uses in `view.state`."""
        return ()

    def validate(self, N: int) -> None:
        """Raise ValueError if the selector does not support a federation of N clients."""
        m = getattr(self, "m", None)
        if m is not None and m > N:
            raise ValueError(f"{type(self).__name__}: 'm' must be ≤ the number of clients ({N}), got {m}")

    def select(self, view: View) -> tuple[Tensor, Tensor]:
        """Draw the cohort of a round. A pure function of the view.

        A selector is unbiased if the expected sum of client i's weights is p_i.

        Args:
            view: The round and its available clients.

        Returns:
            The drawn clients, possibly with repetitions, and the aggregation weight of each draw.
        """
        raise TypeError(f"{type(self).__name__} must define select(view) -> ids, weights")

    def thin(self, view: View, reports: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Choose, after local training, which clients of the cohort upload. A pure function of its arguments.

        Optional: only selectors that define it pay for it. The other clients send their reports only, and their state
        stays what it was before the round. Late clients are left out before, with the weights of the others scaled up
        to the same sum. A simulation keeps the uploads of the whole cohort in memory until the selector has answered.

        Args:
            view: The round, as in `select`, with `view.cohort` and `view.weights`.
            reports: For each name in `reports`, the values of the clients of `view.cohort`, (S,), float64.

        Returns:
            The clients that upload, of `view.cohort`, and the aggregation weight of each. If there are none, the round
            is abandoned.
        """
        raise TypeError(f"{type(self).__name__} does not define thin(view, reports) -> ids, weights")

    def select_ahead(self, view: View, rounds: range) -> tuple[Tensor, Tensor]:
        """Return the results of `select` for several rounds, bit for bit, as rows.

        Optional, for prefetchable selectors with cohorts of one size: drawing many rounds at once is faster.
        """
        raise TypeError(f"{type(self).__name__} draws one round at a time")


def thins(selector: Selector) -> bool:
    """Return whether the selector chooses again after local training."""
    return type(selector).thin is not Selector.thin


def proportional(p: Tensor, ids: Tensor) -> Tensor:
    """Return p_i / Σ_S p, or equal weights if all p_i are zero."""
    total = p[ids].sum()
    return p[ids] / total if total > 0 else equal(len(ids))


def equal(m: int) -> Tensor:
    """Return m weights of 1/m."""
    return torch.full((m,), 1 / max(m, 1), dtype=torch.float64)
