"""What readers hand to the store: a few rows at a time, so that no set needs to fit in memory while it is read."""

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
"""Letters of an owner's name."""

_CHUNK = 8 * 2**20


@dataclass(frozen=True)
class SampleChunk:
    """A few samples of one part, in the order of the file."""

    part: Part
    x: np.ndarray
    y: np.ndarray
    owner: Sequence[str] | None = None
    """Whose they are, where they belong to somebody."""


@dataclass(frozen=True)
class Names:
    """Names that the data bring with them; comes before all chunks."""

    labels: Sequence[str] | None = None
    owners: Sequence[str] | None = None
    """In the order of their numbers; owners that are not listed are numbered as they appear."""


Items = Iterator[SampleChunk | Names]


@dataclass(frozen=True)
class Origin:
    """Where a data set was found, and how to read it."""

    place: str
    identity: list[list[Any]]
    """What changes when the data change: path, size and time of every file."""
    read: Callable[[], Items]


def of_files(place: Path, files: Sequence[Path], read: Callable[[], Items]) -> Origin:
    """The origin of data that lie in files."""
    with reading(place):
        stats = [(path.resolve(), path.stat()) for path in files]
    return Origin(str(place), [[str(path), s.st_size, s.st_mtime_ns] for path, s in stats], read)


def rows_at_once(row_bytes: int) -> int:
    """How many rows make a chunk of some 8 MiB."""
    return max(1, _CHUNK // max(1, row_bytes))


def slices(rows: int, row_bytes: int) -> Iterator[slice]:
    """Rows 0 … rows−1, a chunk at a time."""
    step = rows_at_once(row_bytes)
    return (slice(i, min(i + step, rows)) for i in range(0, rows, step))


def read_exactly(stream: IO[bytes], size: int) -> bytes:
    """So many bytes, and never more, whatever a compressed stream would expand to."""
    pieces, missing = [], size
    while missing and (piece := stream.read(missing)):
        pieces.append(piece)
        missing -= len(piece)
    if missing:
        raise ValueError(f"it ends {missing} bytes early")
    return b"".join(pieces)


def check_size(what: str, size: int, limit: int) -> None:
    """Refuse a declared size before anything is allocated for it."""
    if size > limit:
        raise ValueError(
            f"{what} would be {size / 2**20:,.0f} MiB, more than the {limit / 2**20:,.0f} MiB an honest copy can have"
        )
