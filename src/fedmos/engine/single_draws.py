"""Selection of one client after another, for asynchronous rounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..selection.uniform import Uniform
from .cohort import SampledCohort
from .sampling import CohortSampler
from .selected import as_array

_NO_MODEL = torch.empty(0)


class SingleDraws(CohortSampler):
    """Draws the client that starts next, and stores the selection state of a run."""

    _present: tuple[int, NDArray[np.bool_]] | None = None
    """A round, and which clients are available in it."""

    def free(self, t: int, busy: Sequence[int]) -> NDArray[np.bool_]:
        """Return which clients can start in round t: those that are available and not busy, (N,)."""
        free = self._available(t)
        free[busy] = False
        return free

    def draw_one(self, t: int, start: int, free: NDArray[np.bool_], sampled: SampledCohort) -> tuple[int, float] | None:
        """Draw the client that starts next, with its weight; None if no client can start.

        Args:
            t: The round.
            start: The number of clients that have started before in the run.
            free: The clients that can start.
            sampled: Receives the selector's state.
        """
        (present,) = free.nonzero()
        if not len(present):
            return None
        whole = self._availability is None and len(present) == len(free)
        view = self._view_of(t, _NO_MODEL, sampled, None if whole else present)
        view.start, view.ask_losses, view.ask_gradients = start, self._refuse_probe, self._refuse_probe
        if type(self.selector) is Uniform:
            place, weight = self.selector.select_one(view)
            return int(present[place]), weight
        ids, weights = (as_array(v) for v in self._selected(view))
        if ids.shape == weights.shape == (1,) and ids.dtype.kind in "iu" and 0 <= ids[0] < view.N:
            weight = float(weights[0])
            if 0 <= weight < float("inf"):
                return int(present[int(ids[0])]), weight
        (drawn,) = self._cohorts(ids[None], weights[None], view)  # refuses what no selector may return
        if len(drawn.ids) > 1:
            owner = f"{type(self.selector).__name__}: 'select' must return"
            raise ValueError(f"{owner} one client where {self.selector.cohort_field} = 1, got {len(drawn.ids)}")
        return (int(drawn.ids[0]), drawn.W) if len(drawn.ids) else None

    def count_available(self, t: int) -> int:
        """Return the number of clients that are available in round t."""
        return int(self._available(t).sum())

    def _available(self, t: int) -> NDArray[np.bool_]:
        if self._present is None or self._present[0] != t:
            self._present = t, super()._available(t)
        return self._present[1].copy()

    def _refuse_probe(self, *_: Any) -> Tensor:
        raise ValueError(
            f"Cannot use buffer= with {type(self.selector).__name__} because it asks clients for losses or gradients "
            "before each of them starts; use another selection, such as fm.Uniform(m=1)"
        )
