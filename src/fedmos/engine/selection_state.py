"""What a run stores about its clients for selection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..algorithm import Vectors


class SelectionState(NamedTuple):
    """The selector's state and what is known of the clients. Methods return a new state."""

    state: Vectors
    """The selector's own state."""
    reported: Vectors
    """By name, the last report of each client, NaN for none."""
    picks: Tensor
    durations: Tensor
    updates: Mapping[int, Tensor]
    """The last update of each client that sent one, on the CPU, if the selector declares `updates`."""

    @classmethod
    def initial(cls, reports: Sequence[str], N: int) -> SelectionState:
        """Return the state of N clients before round 0."""
        unknown = torch.full((N,), torch.nan, dtype=torch.float64)
        return cls({}, dict.fromkeys(reports, unknown), torch.zeros(N, dtype=torch.int64), unknown, {})

    def with_reports(self, ids: Tensor, reports: Vectors) -> SelectionState:
        """Return the state with the reports of clients."""
        new = {name: self.reported[name].index_copy(0, ids, v) for name, v in reports.items()}
        return self._replace(reported=self.reported | new)

    def with_updates(self, ids: Tensor, updates: Tensor) -> SelectionState:
        """Return the state with the updates of clients, (M, D)."""
        rows = zip(ids.tolist(), updates.cpu().unbind(), strict=True)
        return self._replace(updates={**self.updates, **{i: row.clone() for i, row in rows}})

    def to_dict(self) -> Vectors:
        """Return the state as named tensors, for a checkpoint."""
        kept = {f"state.{name}": v for name, v in self.state.items()}
        kept |= {f"reported.{name}": v for name, v in self.reported.items()}
        if self.updates:
            kept |= {"updated": torch.tensor(list(self.updates)), "updates": torch.stack(list(self.updates.values()))}
        return kept | {"picks": self.picks, "durations": self.durations}

    def restored(self, kept: Vectors, updates: bool) -> SelectionState:
        """Return the state that a checkpoint contains. `updates`: whether the selector reads the clients' updates."""
        known: dict[int, Tensor] = {}
        if updates and "updates" in kept:
            known = dict(zip(kept["updated"].tolist(), kept["updates"].unbind(), strict=True))
        return SelectionState(
            state={name.removeprefix("state."): v for name, v in kept.items() if name.startswith("state.")},
            reported={name: kept[f"reported.{name}"] for name in self.reported},
            picks=kept["picks"],
            durations=kept["durations"],
            updates=known,
        )
