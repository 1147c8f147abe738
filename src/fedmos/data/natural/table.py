"""A naturally federated table: where its files come from, and how they become arrays."""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from .sources import Files, FileSource


@dataclass(frozen=True)
class NaturalArrays:
    """The samples of a table with their owners."""

    x: np.ndarray
    """Inputs."""
    y: np.ndarray
    """Targets."""
    owner: np.ndarray
    """The owner of each sample, as a number."""
    owners: Sequence[str]
    """The names of the owners."""
    held_out: np.ndarray | None = None
    """Whether each sample is a test sample of its owner, bool; None if the table does not say so."""
    x_test: np.ndarray | None = None
    """Inputs of the test samples as the server has them, if they are prepared differently from the clients'."""

    def checksum(self) -> str:
        """Return a hash of all arrays."""
        digest = hashlib.sha256()
        for array in (self.x, self.y, self.owner, self.held_out, self.x_test):
            if array is not None:
                digest.update(f"{array.dtype.str} {array.shape}".encode())
                digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()


@dataclass(frozen=True, kw_only=True)
class NaturalTable:
    """A published table whose samples have natural owners."""

    name: str
    files: tuple[str, ...]
    """The names of its files."""
    sources: tuple[FileSource, ...]
    """Where they are fetched, in order."""
    convert: Callable[[Files], NaturalArrays]
    samples: int
    """Number of samples."""
    clients: int
    """Number of owners."""
    checksum: str | None = None
    """Checksum of the arrays; see `NaturalArrays.checksum`."""

    def status(self, arrays: NaturalArrays) -> str:
        """Compare with the published table: "as published", "differs" or "not known"."""
        if self.checksum is None:
            return "not known"
        return "as published" if arrays.checksum() == self.checksum else "differs"


def read_csv(raw: bytes) -> list[dict[str, str]]:
    """Return the rows of a CSV file with a header."""
    return list(csv.DictReader(io.StringIO(raw.decode("utf-8"))))


def numbered(names: Sequence[str]) -> tuple[np.ndarray, list[str]]:
    """Return the number of each name, in the order of first occurrence, and the distinct names."""
    known: dict[str, int] = {}
    numbers = [known.setdefault(name, len(known)) for name in names]
    return np.array(numbers, dtype=np.int64), list(known)
