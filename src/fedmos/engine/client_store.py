"""The state that clients keep between their rounds."""

from __future__ import annotations

import mmap
import shutil
import tempfile
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol
from urllib.parse import quote

import numpy as np
import torch
from torch import Tensor

from ..algorithm import Vectors
from .task import total_memory

SCRATCH = "fedmos-clients-"
"""The prefix of temporary folders for client state."""
_IN_MEMORY = 4 * 2**30
"""Bytes. If the state of all clients could exceed this, or on a GPU also a quarter of its memory, it is stored in a
file."""


class ClientStore(Mapping[int, Vectors]):
    """Named vectors per client, stored only for clients that have taken part.

    A mapping from each such client to its vectors, on the CPU. It is empty if the algorithm declares no client state.
    """

    def __init__(
        self,
        initial: Vectors,
        clients: int,
        folder: Path | None = None,
        in_memory: int | None = None,
        share: tuple[int, int] = (0, 1),
    ) -> None:
        """Start with no client stored.

        Args:
            initial: The vectors of a client that has not taken part.
            clients: Number of clients.
            folder: The folder for state that does not fit into memory; None for the system's temporary folder.
            in_memory: The most bytes of all clients' state that are kept in memory; None to choose by the device.
            share: The rank of this process and the number of ranks; rank i mod size stores the state of client i.
        """
        self._initial, self._share = initial, share
        self._restored: Mapping[int, Vectors] = {}
        self.changed: set[int] = set()
        """Clients whose state has changed since the last checkpoint."""
        self.last = torch.full((clients,), -1)
        """The round that each client last took part in, −1 for never."""
        total = sum(clients * v.numel() * v.dtype.itemsize for v in initial.values())
        self._rows: dict[str, _Rows] = {name: _InMemory() for name in initial}
        if total > (_in_memory(initial) if in_memory is None else in_memory):
            scratch = Path(tempfile.mkdtemp(prefix=SCRATCH, dir=folder))
            weakref.finalize(self, shutil.rmtree, scratch, ignore_errors=True)
            self._rows = {name: _SparseFile(scratch / quote(name, safe=""), clients, v) for name, v in initial.items()}

    def read(self, ids: Tensor, prefix: str = "") -> Vectors:
        """Return (M, D) for each name with this prefix; a client without state gets the initial value."""
        names = [name for name in self._rows if name.startswith(prefix)]
        return {name: torch.stack([self._row(name, i) for i in ids.tolist()]) for name in names}

    def _row(self, name: str, i: int) -> Tensor:
        row = self._rows[name].get(i)
        if row is None and i in self._restored and name in (stored := self._restored[i]):
            row = stored[name].to(self._initial[name].device)
        return self._initial[name] if row is None else row

    def write(self, ids: Tensor, own: Vectors) -> None:
        """Store the new state of clients `ids`."""
        for name, values in own.items():
            for i, value in zip(ids.tolist(), values, strict=True):
                self._rows[name].put(i, value)
            self._rows[name].flush()

    def note(self, ids: Tensor, t: int | Tensor) -> None:
        """Record that clients `ids` took part in round t, or each in a round of its own."""
        self.last[ids] = t
        if self._rows:
            self.changed.update(ids.tolist())

    def restore(self, clients: Mapping[int, Vectors], last: Tensor) -> None:
        """Continue from the state of an earlier run; a client's state is read when it is first needed."""
        self.last, self._restored = last.clone(), clients

    def __getitem__(self, i: int) -> Vectors:
        if not self._rows or not 0 <= i < len(self.last) or self.last[i] < 0 or not self.stores(i):
            raise KeyError(i)
        return {name: v[0].cpu() for name, v in self.read(torch.tensor([i])).items()}

    def __iter__(self) -> Iterator[int]:
        known = (self.last >= 0).nonzero().flatten().tolist() if self._rows else []
        return iter(i for i in known if self.stores(i))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    @property
    def partial(self) -> bool:
        """Whether other ranks store some of the clients."""
        return self._share[1] > 1

    def stores(self, i: int) -> bool:
        """Return whether the state of client i is stored here, and not by another rank or by the client itself."""
        rank, size = self._share
        return bool(self._rows) and i % size == rank


def _in_memory(initial: Vectors) -> int:
    """Return the most bytes of state to keep in the memory of the device that the vectors are on."""
    devices = {v.device for v in initial.values() if v.device.type == "cuda"}
    return max([_IN_MEMORY, *(total_memory(device) // 4 for device in devices)])


class _Rows(Protocol):
    """One named vector for each of many clients."""

    def get(self, i: int) -> Tensor | None: ...
    def put(self, i: int, value: Tensor) -> None: ...
    def flush(self) -> None: ...


class _InMemory(dict[int, Tensor]):
    """On the run's device."""

    def put(self, i: int, value: Tensor) -> None:
        self[i] = value.clone()

    def flush(self) -> None:
        pass


class _SparseFile:
    """A memory-mapped file with a row per client; rows never written take no space."""

    def __init__(self, path: Path, clients: int, like: Tensor) -> None:
        self._like = like
        self._written = torch.zeros(clients, dtype=torch.bool)
        dtype = np.dtype(str(like.dtype).removeprefix("torch."))
        self._map = np.memmap(path, dtype=dtype, mode="w+", shape=(clients, like.numel()))

    def get(self, i: int) -> Tensor | None:
        if not self._written[i]:
            return None
        return torch.from_numpy(np.array(self._map[i])).view(self._like.shape).to(self._like.device)

    def put(self, i: int, value: Tensor) -> None:
        self._map[i] = value.cpu().flatten().numpy()
        self._written[i] = True

    def flush(self) -> None:
        """Release the memory; the pages stay in the file."""
        raw = self._map._mmap  # type: ignore[attr-defined]
        if hasattr(mmap, "MADV_DONTNEED"):
            raw.madvise(mmap.MADV_DONTNEED)
