"""Selection inside a run: what a selector is shown, what its questions cost, what clients report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, is_dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..algorithm import Vectors
from ..core.formatting import format_value
from ..core.rounding import ceil_of
from ..data.federated import FederatedData
from ..selection.availability import Always, Availability
from ..selection.selector import REPORTS, Selector, View
from .local_backend import LocalBackend, UnresponsiveClients
from .simulated_clock import System
from .task import Task


class Cohort(NamedTuple):
    """Distinct clients in ascending order, whatever order they were drawn in."""

    ids: Tensor
    weights: Tensor
    """float64: each client's summed weight."""
    W: float
    """Σ weights."""
    width: int
    """The most samples that one of them has."""

    @classmethod
    def of(cls, ids: Tensor, weights: Tensor, data: FederatedData) -> Cohort:
        width = int(_most(data.sizes.numpy()[ids.numpy()])) if ids.shape[0] else 0
        return cls(ids, weights, float(weights.sum()), width)


class Probe(NamedTuple):
    """What clients were asked, after receiving x if they did not hold it."""

    ids: Tensor
    samples: Tensor
    """How many each computes."""
    gradients: bool
    """Their gradients, to be sent as a vector; or their losses, as a number."""
    first: Tensor
    """Who received x for it."""


@dataclass(kw_only=True)
class SampledCohort:
    """A round's cohort, and what it took to choose it."""

    cohort: Cohort
    available: int
    state: Vectors
    """The selector's state from now on."""
    holding: Tensor
    """Clients that have received x already, ascending."""
    numbers_up: int = 0
    """Single numbers that clients sent to be chosen."""
    vectors_up: int = 0
    samples: int = 0
    """Samples whose loss or gradient was computed for it."""
    asked: list[Probe] = field(default_factory=list)


class SelectionState(NamedTuple):
    """What a run remembers of its clients for the sake of selection."""

    state: Vectors
    """The selector's own."""
    reported: Vectors
    picks: Tensor
    durations: Tensor


class CohortSampler:
    """Draws cohorts, and keeps what the selector wants remembered."""

    def __init__(
        self,
        task: Task,
        crew: LocalBackend,
        selector: Selector,
        availability: Availability | None,
        last: Tensor,
    ) -> None:
        for name in selector.reports:
            if name not in REPORTS:
                raise ValueError(f"{type(selector).__name__}: 'reports' must be of {', '.join(REPORTS)}, got {name!r}")
        N = len(task.data)
        self.selector = selector
        unknown = torch.full((N,), torch.nan, dtype=torch.float64)
        self.memory = SelectionState(
            state={},
            reported=dict.fromkeys(selector.reports, unknown),
            picks=torch.zeros(N, dtype=torch.int64),
            durations=unknown,
        )
        self._task, self._crew, self._last = task, crew, last
        self._availability = None if isinstance(availability, Always) else availability
        self._memo: dict[str, object] = {}
        self._foreseen: dict[int, SampledCohort] = {}
        self._ahead = min(16, 2**16 // N)
        """Rounds whose cohorts are drawn at once: few, where clients are many."""

    def prefetch(self, t: int) -> None:
        """Draw the cohort of a round to come, where it depends on nothing that happens until then."""
        if t not in self._foreseen and _says(self.selector, "prefetchable"):
            many = self._availability is None and self._ahead > 1 and _says(self.selector, "select_ahead")
            try:
                self._foreseen = self._drawn_ahead(t) if many else {t: self._draw(t, torch.empty(0))}
            except Exception:  # whatever it is, it belongs to its own round, if that ever comes
                self._foreseen = {}

    def draw(self, t: int, x: Tensor) -> SampledCohort:
        """This round's cohort; a client drawn more than once trains once, with its weights summed."""
        return self._foreseen[t] if t in self._foreseen else self._draw(t, x)

    def _draw(self, t: int, x: Tensor) -> SampledCohort:
        silent = torch.empty(0, dtype=torch.int64)
        while True:  # who does not answer is as if not available
            try:
                return self._drawn(t, x, silent)
            except UnresponsiveClients as error:
                silent = torch.cat([silent, error.ids]).unique()

    def _drawn(self, t: int, x: Tensor, silent: Tensor) -> SampledCohort:
        choice = self._nobody()
        view = self._view(t, x, choice, silent)
        if choice.available == 0:
            return choice
        chosen = self._selected(view, self.selector.select)
        if not isinstance(chosen, tuple | list) or len(chosen) != 2:
            owner = f"{type(self.selector).__name__}: 'select' must return"
            raise ValueError(f"{owner} client numbers and their weights, got {format_value(chosen)}")
        (choice.cohort,) = self._in_order(_array(chosen[0])[None], _array(chosen[1])[None], view)
        return choice

    def _drawn_ahead(self, t: int) -> dict[int, SampledCohort]:
        """The cohorts of this round and some more. They depend on neither state nor answers."""
        choice, ahead = self._nobody(), self._ahead
        rounds = range(t, t + ahead - (t + self._task.seed) % ahead)  # runs side by side draw in different rounds
        view = self._view(t, torch.empty(0), choice, choice.holding)
        ids, weights = self._selected(view, lambda view: self.selector.select_ahead(view, rounds))
        cohorts = self._in_order(ids.numpy(), weights.numpy(), view)
        return {
            t: SampledCohort(cohort=cohort, available=choice.available, state=choice.state, holding=choice.holding)
            for t, cohort in zip(rounds, cohorts, strict=True)
        }

    def _nobody(self) -> SampledCohort:
        nobody = torch.empty(0, dtype=torch.int64)
        return SampledCohort(
            cohort=Cohort(nobody, torch.empty(0, dtype=torch.float64), W=0.0, width=0),
            available=len(self._task.data),
            state={name: v.clone() for name, v in self.memory.state.items()},
            holding=nobody,
        )

    def _selected(self, view: View, select: Callable[[View], Any]) -> Any:
        """What the selector answers. Of what it is shown, it may change its state alone."""
        owner = f"{type(self.selector).__name__}:"
        seen = [view.p, view.n, view.last, view.picks, view.durations, *view.reported.values()]
        before = [v._version for v in seen if v is not None]
        chosen = select(view)
        if before != [v._version for v in seen if v is not None]:
            raise ValueError(f"{owner} 'select' must leave what the view shows as it is; use a clone of it")
        unknown = set(view.state) - set(self.selector.state)
        if unknown:
            raise ValueError(f"{owner} 'state' must name {', '.join(sorted(unknown))}")
        for name, v in view.state.items():
            if not isinstance(v, Tensor):
                raise ValueError(f"{owner} 'state' must hold tensors, got {format_value(v)} for {name!r}")
        return chosen

    def _in_order(self, drawn: NDArray[Any], weights: NDArray[Any], view: View) -> list[Cohort]:
        """Of each row, each client once, by number. In NumPy, which is quicker with few."""
        owner = f"{type(self.selector).__name__}: 'select' must return"
        ids = self._numbers(drawn, view.N, "return")
        if ids.size == 0 and self._availability is None:
            raise ValueError(f"{owner} at least one client, got none")
        fit = weights.shape == ids.shape and weights.dtype.kind in "biuf"
        if not fit or not (ids.size == 0 or (_least(weights, None) >= 0 and _most(weights, None) < np.inf)):
            raise ValueError(f"{owner} a weight ≥ 0 for each client, got {format_value(weights.tolist()[0])}")
        order = ids.argsort(axis=1, kind="stable")
        rows = np.arange(len(ids))[:, None]
        ids, weights = ids[rows, order], weights[rows, order].astype(np.float64, copy=False)
        distinct = np.logical_and.reduce(ids[:, 1:] > ids[:, :-1], axis=1)
        return [self._cohort(*row, view) for row in zip(ids, weights, distinct, strict=True)]

    def _cohort(self, ids: NDArray[np.int64], weights: NDArray[np.float64], distinct: bool, view: View) -> Cohort:
        if not distinct:
            ids, place = np.unique(ids, return_inverse=True)
            weights = np.bincount(place, weights).astype(np.float64)  # adds one after another
        return Cohort.of(_global(view, torch.from_numpy(ids)), torch.from_numpy(weights), self._task.data)

    def _numbers(self, rows: NDArray[Any], N: int, verb: str) -> NDArray[np.int64]:
        """Client numbers of the selector's, of whatever kind, in rows."""
        known = rows.size == 0 or (rows.dtype.kind in "iu" and 0 <= _least(rows, None) <= _most(rows, None) < N)
        if rows.ndim != 2 or not known:
            owner = f"{type(self.selector).__name__}: 'select' must {verb}"
            raise ValueError(f"{owner} client numbers from 0 to {N - 1}, got {format_value(rows.tolist()[0])}")
        return rows.astype(np.int64)

    def after(self, choice: SampledCohort, kept: Tensor, durations: Tensor | None) -> SelectionState:
        """What is to be remembered once the round has taken place, what clients report apart."""
        memory = self.memory
        return SelectionState(
            state=choice.state,
            reported=memory.reported,
            picks=memory.picks.index_add(0, kept, torch.ones_like(kept)),
            durations=memory.durations
            if durations is None
            else memory.durations.index_copy(0, choice.cohort.ids, durations),
        )

    @staticmethod
    def told(memory: SelectionState, kept: Tensor, reports: Vectors) -> SelectionState:
        """The memory with what clients reported."""
        news = {name: memory.reported[name].index_copy(0, kept, v) for name, v in reports.items()}
        return memory._replace(reported=memory.reported | news)

    def to_dict(self) -> Vectors:
        """Everything remembered, for a checkpoint."""
        memory = self.memory
        kept = {f"state.{name}": v for name, v in memory.state.items()}
        kept |= {f"reported.{name}": v for name, v in memory.reported.items()}
        return kept | {"picks": memory.picks, "durations": memory.durations}

    def restore(self, kept: Vectors, last: Tensor) -> None:
        self._last = last
        self.memory = SelectionState(
            state={name.removeprefix("state."): v for name, v in kept.items() if name.startswith("state.")},
            reported={name: kept[f"reported.{name}"] for name in self.memory.reported},
            picks=kept["picks"],
            durations=kept["durations"],
        )

    def _view(self, t: int, x: Tensor, choice: SampledCohort, silent: Tensor) -> View:
        data = self._task.data
        present: Tensor | None = None
        p, n, memo = data.importance, data.sizes, self._memo
        if self._availability is not None or len(silent):
            there = self._there(t)
            there[silent] = False
            present = there.nonzero().flatten()
            choice.available = len(present)
            p, n, memo = p[present], n[present], {}
            p = p / p.sum() if p.sum() > 0 else torch.full_like(p, 1 / max(1, len(p)))

        def here(v: Tensor) -> Tensor:
            return v if present is None else v[present]

        view = View(
            seed=self._task.seed,
            round=t,
            p=p,
            n=n,
            ids=present,
            federation=None if present is None else len(data),
            reported={name: here(v) for name, v in self.memory.reported.items()},
            last=here(self._last),
            picks=here(self.memory.picks),
            durations=here(self.memory.durations),
            state=choice.state,
            memo=memo,
        )

        def asked(ids: Any) -> Tensor:
            return _global(view, torch.from_numpy(self._numbers(_array(ids)[None], view.N, "ask")[0]))

        view.ask_losses = lambda ids, batch: self._losses(x, t, asked(ids), batch, choice)
        view.ask_gradients = lambda ids: self._gradients(x, t, asked(ids), choice)
        return view

    def _there(self, t: int) -> Tensor:
        """(N,), bool: who is available in a round."""
        N = len(self._task.data)
        if self._availability is None:
            return torch.ones(N, dtype=torch.bool)
        there = _array(self._availability.available(self._task.seed, t, N))
        if there.shape != (N,) or there.dtype.kind != "b":
            owner = f"{type(self._availability).__name__}: 'available' must return"
            raise ValueError(f"{owner} true or false for each of the {N} clients, got {format_value(there.tolist())}")
        return torch.from_numpy(there.copy())

    def _losses(self, x: Tensor, t: int, ids: Tensor, batch: bool, choice: SampledCohort) -> Tensor:
        if not len(ids):
            return torch.empty(0, dtype=torch.float64)
        losses = as_sent(self._crew.losses(x, t, ids, batch), x)
        sizes, B = self._task.data.sizes[ids], self._task.batch_size
        choice.numbers_up += len(ids)
        self._count(choice, ids, sizes if B is None or not batch else sizes.clamp(max=B), gradients=False)
        return losses

    def _gradients(self, x: Tensor, t: int, ids: Tensor, choice: SampledCohort) -> Tensor:
        if not len(ids):
            return x.new_empty(0, len(x))
        rows = self._crew.gradients(x, t, ids)
        choice.vectors_up += len(ids)
        self._count(choice, ids, self._task.data.sizes[ids], gradients=True)
        return rows

    @staticmethod
    def _count(choice: SampledCohort, ids: Tensor, samples: Tensor, gradients: bool) -> None:
        choice.asked.append(Probe(ids, samples, gradients, ~torch.isin(ids, choice.holding)))
        choice.holding = torch.cat([choice.holding, ids]).unique()
        choice.samples += int(samples.sum())


_least, _most = np.minimum.reduce, np.maximum.reduce
"""As the methods min and max, which take thrice as long with few numbers."""


def _says(selector: Selector, name: str) -> bool:
    """Whether the class that defines `select` says so; a subclass with a `select` of its own must say it again."""
    if "select" in vars(selector):
        return False
    owner = next(kind for kind in type(selector).__mro__ if "select" in vars(kind))
    return bool(vars(owner).get(name, False))


def _global(view: View, ids: Tensor) -> Tensor:
    """Numbers in the view as numbers in the federation."""
    return ids if view.ids is None else view.ids[ids]


def _array(given: Any) -> NDArray[Any]:
    """Numbers as a selector hands them over, in a tensor, an array or a list."""
    if isinstance(given, Tensor):
        if given.requires_grad or given.device.type != "cpu":
            given = given.detach().cpu()
        array: NDArray[Any] = (given.double() if given.is_floating_point() else given).numpy()
        return array
    try:
        return np.asarray(given)
    except ValueError:  # lists of unequal length
        return np.asarray(None)


def as_sent(numbers: Tensor, x: Tensor) -> Tensor:
    """What arrives of numbers that clients send: they travel in the run's dtype, that of x."""
    return numbers.to(x.dtype).to(torch.float64)


def over_selecting(selector: Selector, system: System, N: int) -> Selector:
    """The selector with a larger m."""
    if system.over_select == 1:
        return selector
    m = getattr(selector, "m", None)
    if m is None or not is_dataclass(selector):
        raise ValueError(f"Cannot over-select with {type(selector).__name__} because it has no m; use over_select=1")
    more: Selector = replace(selector, m=min(N, ceil_of(system.over_select, m)))
    return more


def cohort_size(selection: Selector, system: System | None, N: int) -> int:
    """How many clients a round has, as far as the selector says."""
    if (m := getattr(selection, "m", None)) is not None:
        size = ceil_of(1.0 if system is None else system.over_select, m)
    elif (rate := getattr(selection, "rate", None)) is not None:
        size = ceil_of(rate, N)
    else:
        size = max((len(cohort) for cohort in getattr(selection, "cohorts", ())), default=N)
    return max(1, min(N, size))
