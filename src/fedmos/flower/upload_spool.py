"""Uploads of a round on the server's disk, so that its memory does not grow with the cohort.

The large vectors of all replies to a request are written to one temporary file of the run folder, without a name, when
replies are accepted. A vector is read when it is used, each time as a new tensor.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..storage.files import storage_errors
from . import wire


class UploadSpool:
    """A file without a name, which is closed when nothing refers to what is stored in it.

    Args:
        folder: Where the file is; None for the folder of temporary files.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder, self._end = folder, 0
        self._file: int | None = None

    def store(self, vectors: Mapping[str, Tensor]) -> SpooledVectors:
        """Return vectors of which the large ones are in the file."""
        large = {name: self._append(v) for name, v in vectors.items() if v.nbytes >= wire.LARGE}
        return SpooledVectors({name: large.get(name, v) for name, v in vectors.items()})

    def read(self, into: memoryview, position: int) -> None:
        """Fill memory with what is stored from a position on."""
        assert self._file is not None
        with storage_errors("read an upload of this round", "look at the run folder's disk; the run can be continued"):
            while into:
                if not (read := os.preadv(self._file, [into], position)):
                    raise OSError("the file is too short")
                into, position = into[read:], position + read

    def _append(self, v: Tensor) -> _StoredVector:
        start, data = self._end, _bytes_of(v.contiguous())
        with storage_errors("store an upload of this round", "make room in the run folder; the run can be continued"):
            if self._file is None:
                with tempfile.TemporaryFile(dir=self._folder, buffering=0) as file:
                    self._file = os.dup(file.fileno())
                weakref.finalize(self, os.close, self._file)
            while data:
                written = os.pwrite(self._file, data, self._end)
                data, self._end = data[written:], self._end + written
        return _StoredVector(self, start, v.shape, v.dtype)


class _StoredVector(NamedTuple):
    """Where a vector is stored."""

    spool: UploadSpool
    position: int
    shape: torch.Size
    dtype: torch.dtype

    def load(self) -> Tensor:
        """Return the vector as a new tensor."""
        made = torch.empty(self.shape, dtype=self.dtype)
        self.spool.read(_bytes_of(made), self.position)
        return made


class SpooledVectors(Mapping[str, Tensor]):
    """Named vectors, of which some are in a file."""

    def __init__(self, entries: Mapping[str, Tensor | _StoredVector]) -> None:
        self._entries = entries

    @classmethod
    def of(cls, vectors: Mapping[str, Tensor], more: Mapping[str, Tensor]) -> SpooledVectors:
        """Return vectors and further ones; those that are in a file stay there."""
        return cls({**(vectors._entries if isinstance(vectors, SpooledVectors) else vectors), **more})

    def __getitem__(self, name: str) -> Tensor:
        entry = self._entries[name]
        return entry.load() if isinstance(entry, _StoredVector) else entry

    def stores(self, name: str) -> bool:
        """Whether a vector is in a file, and is therefore read as a new tensor."""
        return isinstance(self._entries[name], _StoredVector)

    def __contains__(self, name: object) -> bool:
        return name in self._entries  # without reading the vector

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


def _bytes_of(v: Tensor) -> memoryview:
    values: Any = v.reshape(-1).view(torch.uint8).numpy()
    return memoryview(values)
