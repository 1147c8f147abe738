"""The choice of uploads after local training, by `Selector.thin`."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray

from ..algorithm import Vectors
from ..core.formatting import format_value
from ..data.federated import FederatedData
from ..selection.selector import Selector, View
from .cohort import Cohort
from .selected import as_array
from .selection_view import ReportsByName, known_updates


def thin_cohort(selector: Selector, view: View, arrived: Cohort, reports: Vectors, data: FederatedData) -> Cohort:
    """Return the clients that upload, with their weights.

    Args:
        selector: A selector that defines `thin`.
        view: The view that the cohort was selected from. Its state must not be shared.
        arrived: The clients that trained and reported in time.
        reports: For each report of the selector, the values of these clients, (S,).
        data: The federation.
    """
    owner = type(selector).__name__
    here = arrived.ids if view.ids is None else torch.searchsorted(view.ids, arrived.ids)
    view.cohort, view.weights = here, arrived.weights.clone()
    view.ask_losses = view.ask_gradients = _refuse(owner)
    given = ReportsByName(selector, {name: v.clone() for name, v in reports.items()}, "reports")
    chosen = _call(selector, view, given)
    if not isinstance(chosen, tuple | list) or len(chosen) != 2:
        raise ValueError(f"{owner}: 'thin' must return client numbers and their weights, got {format_value(chosen)}")
    ids, weights = _validated(owner, as_array(chosen[0]), as_array(chosen[1]), set(here.tolist()))
    distinct, place = np.unique(ids, return_inverse=True)
    kept = torch.from_numpy(distinct)
    summed = torch.from_numpy(np.bincount(place, weights, minlength=len(distinct)).astype(np.float64))
    return Cohort.of(kept if view.ids is None else view.ids[kept], summed, data)


def _call(selector: Selector, view: View, reports: Vectors) -> Any:
    """Call `thin`, which must not change the view."""
    tensors = [view.p, view.n, view.last, view.picks, view.durations, view.cohort, *known_updates(view)]
    tensors += [*view.reported.values(), *view.state.values()]
    before, names = [v._version for v in tensors if v is not None], set(view.state)
    chosen = selector.thin(view, reports)
    if before != [v._version for v in tensors if v is not None] or names != set(view.state):
        raise ValueError(
            f"{type(selector).__name__}: 'thin' must not change the view or its state; change the state in 'select'"
        )
    return chosen


def _refuse(owner: str) -> Any:
    def ask(*_: Any) -> NoReturn:
        raise ValueError(f"{owner}: 'thin' cannot ask clients; name what it needs in 'reports'")

    return ask


def _validated(
    owner: str, ids: NDArray[Any], weights: NDArray[Any], cohort: set[int]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    if ids.ndim != 1 or (ids.size and (ids.dtype.kind not in "iu" or not set(ids.tolist()) <= cohort)):
        raise ValueError(
            f"{owner}: 'thin' must return clients of the cohort ({format_value(sorted(cohort))}), "
            f"got {format_value(ids.tolist())}"
        )
    fit = weights.shape == ids.shape and weights.dtype.kind in "biuf"
    if not fit or (ids.size and not (weights.min() >= 0 and weights.max() < np.inf)):
        raise ValueError(
            f"{owner}: 'thin' must return a weight ≥ 0 for each client, got {format_value(weights.tolist())}"
        )
    return ids.astype(np.int64), weights.astype(np.float64)
