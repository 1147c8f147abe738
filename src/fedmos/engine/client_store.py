"""What clients keep between their rounds."""

from __future__ import annotations

import mmap
import shutil
import tempfile
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from ..algorithm import Vectors
from ..storage.files import SCRATCH

_IN_MEMORY = 4 * 2**30
"""Bytes: where all clients together could exceed this, their state goes to a file."""


class ClientStore(Mapping[int, Vectors]):
    """Named vectors per client, held only for clients that have taken part.

    As a mapping it goes from each such client to its vectors, on the CPU; it is empty where an
    algorithm declares no client state.
    """

    def __init__(
        self,
        names: Sequence[str],
        initial: Vectors,
        clients: int,
        folder: Path | None = None,
        in_memory: int = _IN_MEMORY,
        share: tuple[int, int] = (0, 1),
    ) -> None:
        """`share`: of several ranks, which one this is, and how many there are; a client lives with rank i mod size."""
        self._initial, self._share = initial, share
        self._earlier: Mapping[int, Vectors] = {}
        self.changed: set[int] = set()
        """Clients whose state was written since somebody last emptied this."""
        self.last = torch.full((clients,), -1)
        """The round each client last took part in, −1 for never."""
        total = sum(clients * v.numel() * v.dtype.itemsize for v in initial.values())
        self._rows: dict[str, _Rows] = {name: _Memory() for name in names}
        if total > in_memory:
            scratch = Path(tempfile.mkdtemp(prefix=SCRATCH, dir=folder))
            weakref.finalize(self, shutil.rmtree, scratch, ignore_errors=True)
            self._rows = {name: _SparseFile(scratch / name, clients, initial[name]) for name in names}

    def read(self, ids: Tensor) -> Vectors:
        """(M, D) for each name; a client that has none yet gets the initial value."""
        return {name: torch.stack([self._row(name, i) for i in ids.tolist()]) for name in self._rows}

    def _row(self, name: str, i: int) -> Tensor:
        row = self._rows[name].get(i)
        if row is None and i in self._earlier:
            row = self._earlier[i][name].to(self._initial[name].device)
        return self._initial[name] if row is None else row

    def write(self, ids: Tensor, own: Vectors) -> None:
        """Keep what clients `ids` left behind."""
        for name, values in own.items():
            for i, value in zip(ids.tolist(), values, strict=True):
                self._rows[name].put(i, value)
            self._rows[name].flush()

    def note(self, ids: Tensor, t: int) -> None:
        """Clients `ids` took part in round t."""
        self.last[ids] = t
        if self._rows:
            self.changed.update(ids.tolist())

    def restore(self, clients: Mapping[int, Vectors], last: Tensor) -> None:
        """Take over the state of an earlier run, of which a client's is read when it is first needed."""
        self.last, self._earlier = last.clone(), clients

    def __getitem__(self, i: int) -> Vectors:
        if not self._rows or not 0 <= i < len(self.last) or self.last[i] < 0 or not self._lives_here(i):
            raise KeyError(i)
        return {name: v[0].cpu() for name, v in self.read(torch.tensor([i])).items()}

    def __iter__(self) -> Iterator[int]:
        known = (self.last >= 0).nonzero().flatten().tolist() if self._rows else []
        return iter(i for i in known if self._lives_here(i))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    @property
    def partial(self) -> bool:
        """Whether other ranks hold some of the clients."""
        return self._share[1] > 1

    def _lives_here(self, i: int) -> bool:
        rank, size = self._share
        return i % size == rank


class _Rows(Protocol):
    """One named vector for each of many clients."""

    def get(self, i: int) -> Tensor | None: ...
    def put(self, i: int, value: Tensor) -> None: ...
    def flush(self) -> None: ...


class _Memory(dict[int, Tensor]):
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
        return torch.from_numpy(np.array(self._map[i])).to(self._like.device) if self._written[i] else None

    def put(self, i: int, value: Tensor) -> None:
        self._map[i] = value.cpu().numpy()
        self._written[i] = True

    def flush(self) -> None:
        """Give the memory back; the pages stay with the file."""
        raw = self._map._mmap  # type: ignore[attr-defined]
        if hasattr(mmap, "MADV_DONTNEED"):
            raw.madvise(mmap.MADV_DONTNEED)
