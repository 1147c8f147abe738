"""Sampling of cohorts: what a selector sees, and what is stored between rounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..algorithm import Vectors
from ..core.formatting import format_value
from ..selection.availability import Always, Availability
from ..selection.selector import Selector, View
from .backend import Backend, UnresponsiveClients
from .cohort import Cohort, SampledCohort
from .private_run import PrivateRun
from .probes import Probes
from .selected import as_array
from .selection_state import SelectionState
from .selection_view import ReportsByName, RunView, StateByName, UndeclaredUpdates
from .task import Task
from .thinning import thin_cohort


class CohortSampler:
    """Draws cohorts and stores the selection state of a run."""

    def __init__(
        self,
        task: Task,
        backend: Backend,
        selector: Selector,
        availability: Availability | None,
        last: Tensor,
        private: PrivateRun | None = None,
        secure: bool = False,
    ) -> None:
        """`private`: what a run under privacy fixes. `secure`: the server sees no vectors of single clients."""
        N = len(task.data)
        self.selector = selector
        self.selection_state = SelectionState.initial(selector.reports, N)
        self._task, self._last = task, last
        self._probes = Probes(task, backend, selector, private=private is not None, secure=secure)
        self._weight = None if private is None or private.size is None else 1 / private.size
        """The weight of every client; None for those that the selector returns."""
        self._seed = None if private is None else private.cohort_seed
        self._availability = None if isinstance(availability, Always) else availability
        self.excluded: Callable[[int], Tensor] | None = None
        """Returns the clients that must not be selected in a round, which can depend on the round before."""
        self._memo: dict[str, object] = {}
        self._prefetched: dict[int, SampledCohort] = {}
        self._ahead = min(16, 2**16 // N)
        """The number of rounds whose cohorts are drawn together; small where there are many clients."""

    def prefetch(self, t: int) -> None:
        """Draw the cohort of a later round ahead of time, if it depends on nothing that happens before it."""
        if self.excluded is None and t not in self._prefetched and declares(self.selector, "prefetchable"):
            many = self._availability is None and self._seed is None and self._ahead > 1
            many = many and declares(self.selector, "select_ahead")
            try:
                self._prefetched = self._draw_ahead(t) if many else {t: self._draw(t, torch.empty(0))}
            except Exception:  # the error is raised again when the round itself is drawn
                self._prefetched = {}

    def draw(self, t: int, x: Tensor) -> SampledCohort:
        """Draw the cohort of round t. A client drawn more than once trains once, with its weights summed."""
        return self._prefetched[t] if t in self._prefetched else self._draw(t, x)

    def _draw(self, t: int, x: Tensor) -> SampledCohort:
        unresponsive = torch.empty(0, dtype=torch.int64) if self.excluded is None else self.excluded(t)
        while True:  # unresponsive clients count as not available
            try:
                return self._draw_among(t, x, unresponsive)
            except UnresponsiveClients as error:
                unresponsive = torch.cat([unresponsive, error.ids]).unique()

    def _draw_among(self, t: int, x: Tensor, unresponsive: Tensor) -> SampledCohort:
        sampled = self.empty()
        sampled.unresponsive = unresponsive
        view = self._view(t, x, sampled, unresponsive)
        if sampled.available == 0:
            return sampled
        ids, weights = self._selected(view)
        (sampled.cohort,) = self._cohorts(as_array(ids)[None], as_array(weights)[None], view)
        return sampled

    def _selected(self, view: RunView) -> tuple[Any, Any]:
        """Return the clients that the selector draws from the view, and their weights."""
        chosen = self._select(view, self.selector.select)
        if not isinstance(chosen, tuple | list) or len(chosen) != 2:
            owner = f"{type(self.selector).__name__}: 'select' must return"
            raise ValueError(f"{owner} client numbers and their weights, got {format_value(chosen)}")
        return chosen[0], chosen[1]

    def _draw_ahead(self, t: int) -> dict[int, SampledCohort]:
        """Draw the cohorts of this round and some more. They depend on neither state nor probes."""
        sampled, ahead = self.empty(), self._ahead
        rounds = range(t, t + ahead - (t + self._task.seed) % ahead)  # merged runs draw in different rounds
        view = self._view(t, torch.empty(0), sampled, sampled.has_model)
        ids, weights = self._select(view, lambda view: self.selector.select_ahead(view, rounds))
        cohorts = self._cohorts(ids.numpy(), weights.numpy(), view)
        return {t: replace(sampled, cohort=cohort) for t, cohort in zip(rounds, cohorts, strict=True)}

    def empty(self) -> SampledCohort:
        """Return a cohort without clients, with a copy of the selector's state."""
        return SampledCohort(
            cohort=Cohort.empty(),
            available=len(self._task.data),
            state=StateByName(self.selector, {n: v.clone() for n, v in self.selection_state.state.items()}),
            has_model=torch.empty(0, dtype=torch.int64),
        )

    def _select(self, view: RunView, select: Callable[[View], Any]) -> Any:
        """Call the selector. Of the view, it may change only its state."""
        owner = f"{type(self.selector).__name__}:"
        chosen = select(view)
        if view.changed:
            raise ValueError(f"{owner} 'select' must not change the tensors of the view; use a clone")
        unknown = set(view.state) - set(self.selector.state)
        if unknown:
            raise ValueError(f"{owner} 'state' must name {', '.join(sorted(unknown))}")
        for name, v in view.state.items():
            if not isinstance(v, Tensor):
                raise ValueError(f"{owner} 'state' must hold tensors, got {format_value(v)} for {name!r}")
        return chosen

    def _cohorts(self, drawn: NDArray[Any], weights: NDArray[Any], view: View) -> list[Cohort]:
        """Make a cohort of each row: distinct clients in ascending order. NumPy is faster for few clients."""
        owner = f"{type(self.selector).__name__}: 'select' must return"
        ids = self._client_numbers(drawn, view.N, "return")
        if ids.size == 0 and self._availability is None and not self.selector.may_be_empty:
            raise ValueError(f"{owner} at least one client, got none")
        fit = weights.shape == ids.shape and weights.dtype.kind in "biuf"
        if not fit or not (ids.size == 0 or (_least(weights, None) >= 0 and _most(weights, None) < np.inf)):
            count = "" if weights.shape == ids.shape else f" for {ids.shape[1]} clients"
            raise ValueError(f"{owner} a weight ≥ 0 for each client, got {format_value(weights.tolist()[0])}{count}")
        order = ids.argsort(axis=1, kind="stable")
        rows = np.arange(len(ids))[:, None]
        ids, weights = ids[rows, order], weights[rows, order].astype(np.float64, copy=False)
        distinct = np.logical_and.reduce(ids[:, 1:] > ids[:, :-1], axis=1)
        return [self._cohort(*row, view) for row in zip(ids, weights, distinct, strict=True)]

    def _cohort(self, ids: NDArray[np.int64], weights: NDArray[np.float64], distinct: bool, view: View) -> Cohort:
        if not distinct:
            ids, place = np.unique(ids, return_inverse=True)
            weights = np.bincount(place, weights).astype(np.float64)  # adds one after another
        if self._weight is not None:
            weights = np.full(len(ids), self._weight)
        return Cohort.of(_global(view, torch.from_numpy(ids)), torch.from_numpy(weights), self._task.data)

    def _client_numbers(self, rows: NDArray[Any], N: int, verb: str) -> NDArray[np.int64]:
        """Validate rows of client numbers from the selector."""
        known = rows.size == 0 or (rows.dtype.kind in "iu" and 0 <= _least(rows, None) <= _most(rows, None) < N)
        if rows.ndim != 2 or not known:
            owner = f"{type(self.selector).__name__}: 'select' must {verb}"
            few = "" if len(self._task.data) == N else f" ({N} of {len(self._task.data)} clients are available)"
            raise ValueError(f"{owner} client numbers from 0 to {N - 1}{few}, got {format_value(rows.tolist()[0])}")
        return rows.astype(np.int64)

    def thin(self, t: int, sampled: SampledCohort, arrived: Cohort, reports: Vectors) -> Cohort:
        """Return the clients that upload in round t, as the selector chooses after local training.

        Args:
            t: The round.
            sampled: The cohort and what its selection took.
            arrived: The clients that trained and reported in time.
            reports: What these clients report.
        """
        unresponsive = sampled.has_model[:0] if sampled.unresponsive is None else sampled.unresponsive
        state = StateByName(self.selector, {name: v.clone() for name, v in sampled.state.items()})
        view = self._view(t, torch.empty(0), replace(sampled, state=state), unresponsive)
        return thin_cohort(self.selector, view, arrived, reports, self._task.data)

    def next_state(self, sampled: SampledCohort, kept: Tensor, durations: Tensor | None) -> SelectionState:
        """Return the selection state after the round, without the clients' reports."""
        before = self.selection_state
        if durations is not None:
            before = before._replace(durations=before.durations.index_copy(0, sampled.cohort.ids, durations))
        return before._replace(state=sampled.state, picks=before.picks.index_add(0, kept, torch.ones_like(kept)))

    def to_dict(self) -> Vectors:
        """Return the selection state as named tensors, for a checkpoint."""
        return self.selection_state.to_dict()

    def restore(self, kept: Vectors, last: Tensor) -> None:
        """Load the selection state of a checkpoint."""
        self._last = last
        self.selection_state = self.selection_state.restored(kept, self.selector.updates)

    def _view(self, t: int, x: Tensor, sampled: SampledCohort, unresponsive: Tensor) -> RunView:
        if self._availability is None and not len(unresponsive):
            return self._view_of(t, x, sampled, None)
        available = self._available(t)
        available[unresponsive.numpy()] = False
        return self._view_of(t, x, sampled, np.flatnonzero(available))

    def _view_of(self, t: int, x: Tensor, sampled: SampledCohort, present: NDArray[np.intp] | None) -> RunView:
        """Return the view of the clients that are present; None stands for all."""
        if present is not None:
            sampled.available = len(present)

        view = RunView(
            partial(self._gathered, present),
            seed=self._task.seed if self._seed is None else self._seed(t),
            round=t,
            ids=None if present is None else torch.from_numpy(present),
            federation=None if present is None else len(self._task.data),
            state=sampled.state,
            memo=self._memo if present is None else {},
        )

        def probed(ids: Any) -> Tensor:
            return _global(view, torch.from_numpy(self._client_numbers(as_array(ids)[None], view.N, "ask")[0]))

        view.ask_losses = lambda ids, batch: self._probes.losses(x, t, probed(ids), batch, sampled)
        view.ask_gradients = lambda ids: self._probes.gradients(x, t, probed(ids), sampled)
        return view

    def _gathered(self, present: NDArray[np.intp] | None, name: str) -> Any:
        """Return the field of this name of a view of the clients that are present."""

        def here(v: Tensor) -> Tensor:
            return v if present is None else _at(v, present)

        data, known = self._task.data, self.selection_state
        match name:
            case "p":
                p = here(data.importance)
                if present is None:
                    return p
                total = float(p.sum())
                return p / total if total > 0 else torch.full_like(p, 1 / max(1, len(p)))
            case "n":
                return here(data.sizes)
            case "last":
                return here(self._last)
            case "reported":
                return ReportsByName(self.selector, {name: here(v) for name, v in known.reported.items()})
            case "updates":
                return _known(known.updates, present) if self.selector.updates else UndeclaredUpdates(self.selector)
            case _:
                return here(getattr(known, name))

    def _available(self, t: int) -> NDArray[np.bool_]:
        """Return which clients are available in round t, (N,)."""
        N = len(self._task.data)
        if self._availability is None:
            return np.ones(N, dtype=bool)
        available = as_array(self._availability.available(self._task.seed, t, N))
        if available.shape != (N,) or available.dtype.kind != "b":
            owner = f"{type(self._availability).__name__}: 'available' must return"
            raise ValueError(
                f"{owner} true or false for each of the {N} clients, got {format_value(available.tolist())}"
            )
        return available.copy()


_least, _most = np.minimum.reduce, np.maximum.reduce
"""For few numbers, three times as fast as the methods min and max."""


def declares(selector: Selector, name: str) -> bool:
    """Whether the class that defines `select` declares `name`; a subclass with its own `select` must repeat it."""
    if "select" in vars(selector):
        return False
    owner = next(kind for kind in type(selector).__mro__ if "select" in vars(kind))
    return bool(vars(owner).get(name, False))


def _known(updates: Mapping[int, Tensor], present: NDArray[np.intp] | None) -> Mapping[int, Tensor]:
    """Return the updates by the numbers of clients in the view."""
    if present is None or not updates:
        return MappingProxyType(updates)
    return {place: updates[i] for place, i in enumerate(present.tolist()) if i in updates}


def _at(v: Tensor, places: NDArray[np.intp]) -> Tensor:
    """Return v[places]. For few numbers, NumPy is three times as fast."""
    return torch.from_numpy(v.numpy()[places])


def _global(view: View, ids: Tensor) -> Tensor:
    """Convert numbers in the view to numbers in the federation."""
    return ids if view.ids is None else view.ids[ids]
