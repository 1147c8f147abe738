"""The adaptive bound on the norms of uploads: an update that is far larger than all others is dropped and logged.

An upload is compared with the uploads of the same name in the cohort and with the largest accepted one of every client.
Its norm may be `factor` times their median. These largest norms only grow, so a federation that has converged accepts
a client that joins it. They are state of clients at the server, and so part of its checkpoints.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from ..algorithm import Vectors
from ..engine.backend import PhaseInput
from ..engine.client_store import ClientStore
from ..engine.declaration import Declaration
from ..engine.job import Phase
from .wire import norm_of

_log = logging.getLogger("fedmos")

NORM = "norm."
"""The names of the largest accepted norms in the state of clients begin with this."""
_FEWEST = 3
"""The number of norms from which on an upload is dropped."""

Uploads = Mapping[str, Tensor]
Describe = Callable[[int], str]
"""Names a client and its node."""

Note = Callable[[int, str], None]
"""Takes a client and a reason."""


class AdaptiveNormBound:
    """Drops uploads whose norm is out of proportion.

    Args:
        declaration: What the algorithm uploads. Vectors of the model's size have a bound.
        size: The number of parameters of the model.
        factor: How many times the median a norm may be; None for no bound.
        describe: Names a client and its node in the log.
        note: Takes a client and why its update was dropped.
    """

    def __init__(
        self,
        declaration: Declaration,
        size: int,
        factor: float | None,
        describe: Describe,
        note: Note = lambda *_: None,
    ) -> None:
        phases: tuple[Phase, ...] = () if factor is None else ("prepare", "train")
        self._names = {
            phase: [name for name, shape in declaration.up(phase).items() if shape == (size,)] for phase in phases
        }
        self._factor, self._describe, self._note = factor or 0.0, describe, note
        self._norms: dict[int, dict[str, float]] = {}
        """The norms of this round's accepted uploads, by client and name in the state of clients."""

    @property
    def initial(self) -> Vectors:
        """The state of a client before its first upload."""
        names = [NORM + f"{phase}.{name}" for phase, names in self._names.items() for name in names]
        return {name: torch.zeros((), dtype=torch.float64) for name in names}

    def enter_round(self) -> None:
        """Forget the norms of the round before; if it was committed, the state of clients has them."""
        self._norms = {}

    def accepted(self, given: PhaseInput, received: Mapping[int, Uploads], clients: ClientStore) -> dict[int, Uploads]:
        """Return the uploads of a cohort without those that are out of proportion, which are logged.

        Args:
            given: The input of the phase.
            received: The uploads of each client.
            clients: The state of clients at the server.
        """
        dropped: set[int] = set()
        for name in self._names.get(given.phase, ()):
            norms = {i: norm_of(v[name]) for i, v in received.items() if name in v}
            key = f"{NORM}{given.phase}.{name}"
            known = clients.read(torch.arange(len(clients.last)), key)[key]
            dropped |= self._outliers(name, given.ctx.t, norms, known)
            for i, norm in norms.items():
                self._norms.setdefault(i, {})[key] = norm
        return {i: v for i, v in received.items() if i not in dropped}

    def states(self, ids: Tensor, clients: ClientStore) -> Vectors:
        """Return the new state of clients whose uploads were accepted."""
        if not len(ids) or not self._names:
            return {}
        new = {name: v.clone() for name, v in clients.read(ids, NORM).items()}
        for row, i in enumerate(ids.tolist()):
            for name, norm in self._norms.get(i, {}).items():
                new[name][row] = max(norm, float(new[name][row]))
        return new

    def _outliers(self, name: str, t: int, norms: Mapping[int, float], known: Tensor) -> set[int]:
        """Return the clients whose norm is over the bound, and log them."""
        compared = sorted(norm for norm in (*norms.values(), *known.tolist()) if norm > 0)
        if not compared:
            return set()
        median = compared[(len(compared) - 1) // 2]
        bound = self._factor * median
        outliers = {i for i, norm in norms.items() if norm > bound}
        acts = len(compared) >= _FEWEST
        for i in sorted(outliers):
            if acts:
                self._note(i, f"'{name}' has a norm of {norms[i]:.4g}, over the bound of {bound:.4g}")
            _log.warning(
                "Anomaly: %s the update of %s in round %d: '%s' has a norm of %.4g, over the bound of %.4g, %g times "
                "the median of %d norms%s",
                "dropped" if acts else "kept",
                self._describe(i),
                t + 1,
                name,
                norms[i],
                bound,
                self._factor,
                len(compared),
                "" if acts else ", which are too few to tell which of them is wrong",
            )
        return outliers if acts else set()
