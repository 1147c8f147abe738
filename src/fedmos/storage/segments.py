"""What grows with a run, in pieces: each checkpoint writes what is new and refers to earlier pieces for the rest.

A piece takes in the one before it where that is not over twice its size. So each piece is over twice as
large as the next: there are few of them, together they hold under twice what is alive, and what a run writes in
all is what is new times the logarithm of what there is.
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
from .files import Stamp

_BLOCK = 2**26
"""Bytes of client rows in one file, about."""
_LINES = 256


@dataclass(frozen=True)
class Rounds:
    """The records of rounds `start` to `end`, from 0, in one file."""

    start: int
    end: int
    files: Sequence[Stamp]


@dataclass(frozen=True)
class Rows:
    """The state of some clients, in one or more files."""

    ids: frozenset[int]
    files: Sequence[Stamp]


def new_rounds(earlier: Sequence[Rounds], total: int) -> tuple[list[Rounds], int]:
    """The pieces to keep, and the round from which on a new one is to be written."""
    kept = list(earlier)
    start = kept[-1].end if kept else 0
    while kept and start < total and kept[-1].end - kept[-1].start <= 2 * (total - start):
        start = kept.pop().start
    return kept, start


def new_rows(earlier: Sequence[Rows], changed: frozenset[int]) -> tuple[list[Rows], frozenset[int]]:
    """The pieces to keep, and the clients a new one is to hold."""
    kept, ids = list(earlier), changed
    while kept and ids and len(kept[-1].ids) <= 2 * len(ids):
        ids |= kept.pop().ids
    return kept, ids


def encode_rounds(history: History, start: int) -> Iterator[bytes]:
    """A line for each, some at a time."""
    records = history.since(start)
    for i in range(0, len(records), _LINES):
        yield "".join(f"{encode_record(record)}\n" for record in records[i : i + _LINES]).encode()


def encode_record(record: Record) -> str:
    return json.dumps(asdict(record))


def decode_rounds(content: bytes) -> list[Record]:
    return [Record(**json.loads(line)) for line in content.decode().splitlines()]


def encode_rows(clients: Mapping[int, Vectors], ids: frozenset[int]) -> Iterator[bytes]:
    """Files of a moderate size each, so that a large federation never has to be in memory as a whole."""
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


class SavedRows(Mapping[int, Vectors]):
    """Clients' state in files, of which a row is read when it is asked for; of a client's several, the latest.

    The files stay readable for as long as this lives, even if a later checkpoint does without them.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self._files = [safetensors.safe_open(path, "pt") for path in paths]
        self._places: dict[int, tuple[int, int]] = {}
        for number, file in enumerate(self._files):
            ids = file.get_tensor("ids").tolist()
            self._places |= {i: (number, row) for row, i in enumerate(ids)}

    def ids_in(self, files: range) -> frozenset[int]:
        """The clients that some of the files hold."""
        return frozenset(i for number in files for i in self._files[number].get_tensor("ids").tolist())

    def __getitem__(self, i: int) -> Vectors:
        number, row = self._places[i]
        file = self._files[number]
        names = [name for name in file.keys() if name != "ids"]  # noqa: SIM118
        return {name.removeprefix("own."): file.get_slice(name)[row : row + 1][0].clone() for name in names}

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self._places))

    def __len__(self) -> int:
        return len(self._places)
