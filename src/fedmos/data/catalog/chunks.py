"""The items that readers yield: a few rows at a time, so that a data set does not have to fit in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np

from .errors import reading

Part = Literal["train", "test"]
PARTS: tuple[Part, Part] = ("train", "test")

LONGEST_NAME = 256
"""Maximum length of an owner's name."""

_CHUNK = 8 * 2**20


@dataclass(frozen=True)
class SampleChunk:
    """A few samples of the training or test part, in the order of the file."""

    part: Part
    x: np.ndarray
    y: np.ndarray
    owner: Sequence[str] | None = None
    """The name of the owner of each sample, if samples have owners."""


@dataclass(frozen=True)
class Names:
    """The names of classes and owners in the data; yielded before all chunks."""

    labels: Sequence[str] | None = None
    owners: Sequence[str] | None = None
    """Owners in the order of their numbers; other owners are numbered in the order of their occurrence."""


Items = Iterator[SampleChunk | Names]


@dataclass(frozen=True)
class Origin:
    """The place where a data set was found, and its reader."""

    place: str
    """The file, folder or address."""
    identity: list[list[Any]]
    """Identifies the version of the data: path, size and modification time of every file."""
    read: Callable[[], Items]
    """Yields the samples."""


def of_files(place: Path, files: Sequence[Path], read: Callable[[], Items]) -> Origin:
    """Return the origin of data in files."""
    with reading(place):
        stats = [(path.resolve(), path.stat()) for path in files]
    return Origin(str(place), [[str(path), s.st_size, s.st_mtime_ns] for path, s in stats], read)


def rows_at_once(row_bytes: int) -> int:
    """Return the number of rows of a chunk of about 8 MiB."""
    return max(1, _CHUNK // max(1, row_bytes))


def slices(rows: int, row_bytes: int) -> Iterator[slice]:
    """Return slices of rows 0 … rows−1, one per chunk."""
    step = rows_at_once(row_bytes)
    return (slice(i, min(i + step, rows)) for i in range(0, rows, step))


def read_exactly(stream: IO[bytes], size: int) -> bytes:
    """Read exactly `size` bytes, so that a compressed stream cannot expand further. Raises ValueError at its end."""
    pieces, missing = [], size
    while missing and (piece := stream.read(missing)):
        pieces.append(piece)
        missing -= len(piece)
    if missing:
        raise ValueError(f"it ends {missing} bytes early")
    return b"".join(pieces)


def check_size(what: str, size: int, limit: int) -> None:
    """Raise ValueError if a declared size exceeds the limit, before memory is allocated for it."""
    if size > limit:
        raise ValueError(f"{what} would be {size / 2**20:,.0f} MiB, more than the limit of {limit / 2**20:,.0f} MiB")
