"""What clients keep between their rounds."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..algorithm import Vectors


class ClientStore:
    """Named vectors per client, held only for clients that have taken part."""

    def __init__(self, names: Sequence[str], initial: Vectors, clients: int) -> None:
        self._initial = initial
        self._rows: dict[str, dict[int, Tensor]] = {name: {} for name in names}
        self.last = torch.full((clients,), -1)
        """The round each client last took part in, −1 for never."""

    def read(self, ids: Tensor) -> Vectors:
        """(M, D) for each name."""
        return {
            name: torch.stack([rows.get(i, self._initial[name]) for i in ids.tolist()])
            for name, rows in self._rows.items()
        }

    def write(self, ids: Tensor, own: Vectors, t: int) -> None:
        for name, values in own.items():
            for i, value in zip(ids.tolist(), values, strict=True):
                self._rows[name][i] = value.clone()
        self.last[ids] = t

    def to_dict(self) -> dict[int, Vectors]:
        """The state of every client that has any, on the CPU."""
        ids = sorted(set().union(*self._rows.values()))
        return {i: {name: rows[i].cpu() for name, rows in self._rows.items() if i in rows} for i in ids}

    def restore(self, clients: dict[int, Vectors], last: Tensor) -> None:
        self.last = last.clone()
        for i, own in clients.items():
            for name, value in own.items():
                self._rows[name][i] = value
