"""History and client state in segments: a checkpoint writes what is new and refers to earlier segments for the rest.

A new segment absorbs the one before it if that is at most twice its size. So each segment is more than twice as large
as the next. There are few segments, they hold less than twice the current data, and a run writes in total the new data
times the logarithm of all data.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import safetensors
import safetensors.torch
import torch

from ..algorithm import Vectors
from ..core.history import History, Record
from .files import FileRecord

_BLOCK = 2**26
"""Approximate bytes of client state per file."""
_LINES = 256
"""Records that are encoded at once."""


@dataclass(frozen=True)
class HistorySegment:
    """The records of rounds `start` to `end` − 1, counted from 0."""

    start: int
    end: int
    files: Sequence[FileRecord]


@dataclass(frozen=True)
class ClientSegment:
    """The state of some clients."""

    ids: frozenset[int]
    files: Sequence[FileRecord]


def plan_history(earlier: Sequence[HistorySegment], total: int) -> tuple[list[HistorySegment], int]:
    """Return the segments to keep, and the first round of the segment to write."""
    kept = list(earlier)
    start = kept[-1].end if kept else 0
    while kept and start < total and kept[-1].end - kept[-1].start <= 2 * (total - start):
        start = kept.pop().start
    return kept, start


def plan_clients(
    earlier: Sequence[ClientSegment], changed: frozenset[int]
) -> tuple[list[ClientSegment], frozenset[int]]:
    """Return the segments to keep, and the clients of the segment to write."""
    kept, ids = list(earlier), changed
    while kept and ids and len(kept[-1].ids) <= 2 * len(ids):
        ids |= kept.pop().ids
    return kept, ids


def encode_history(history: History, start: int) -> Iterator[bytes]:
    """Encode records as lines of JSON, several lines at a time."""
    records = history.since(start)
    for i in range(0, len(records), _LINES):
        yield "".join(f"{encode_record(record)}\n" for record in records[i : i + _LINES]).encode()


def encode_record(record: Record) -> str:
    """Encode a record as a line of JSON."""
    return json.dumps(asdict(record))


def decode_history(content: bytes) -> list[Record]:
    """Decode the records of a segment."""
    return [Record(**json.loads(line)) for line in content.decode().splitlines()]


def encode_clients(clients: Mapping[int, Vectors], ids: frozenset[int]) -> Iterator[bytes]:
    """Encode the state of clients as files of moderate size, so that it is never in memory as a whole."""
    block: list[tuple[int, Vectors]] = []
    size = 0
    for i in sorted(ids):
        own = clients[i]
        block.append((i, own))
        size += sum(v.numel() * v.dtype.itemsize for v in own.values())
        if size >= _BLOCK:
            yield _encode_block(block)
            block, size = [], 0
    if block:
        yield _encode_block(block)


def _encode_block(block: list[tuple[int, Vectors]]) -> bytes:
    rows = {f"own.{name}": torch.stack([own[name] for _, own in block]) for name in block[0][1]}
    return safetensors.torch.save(rows | {"ids": torch.tensor([i for i, _ in block])})


class StoredClients(Mapping[int, Vectors]):
    """The state of clients in files. It is read from disk on access; of several states of a client, the latest.

    The files remain readable while this object exists, even if a later checkpoint removes them.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self._files = [safetensors.safe_open(path, "pt") for path in paths]
        self._positions: dict[int, tuple[int, int]] = {}
        for number, file in enumerate(self._files):
            ids = file.get_tensor("ids").tolist()
            self._positions |= {i: (number, row) for row, i in enumerate(ids)}

    def ids_in(self, files: range) -> frozenset[int]:
        """Return the clients whose state is in some of the files."""
        return frozenset(i for number in files for i in self._files[number].get_tensor("ids").tolist())

    def __getitem__(self, i: int) -> Vectors:
        number, row = self._positions[i]
        file = self._files[number]
        names = [name for name in file.keys() if name != "ids"]  # noqa: SIM118
        return {name.removeprefix("own."): file.get_slice(name)[row : row + 1][0].clone() for name in names}

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self._positions))

    def __len__(self) -> int:
        return len(self._positions)
