"""Several processes as one run, with `torch.distributed` (`torchrun`).

Every rank holds the server's model and state and takes the same decisions; local training and evaluation are divided.
Results of ranks are combined in an order that does not depend on the number of ranks; on CPUs, neither do the bits.
Ranks exchange tensors and JSON, never pickled objects.
"""

from __future__ import annotations

import builtins
import functools
import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from .process_group import leave

_log = logging.getLogger("fedmos")

J = TypeVar("J")
"""A JSON value."""

FROM_RANK0 = "raised by rank 0"
"""The note of an error that rank 0 has raised as well."""


class LostRankError(RuntimeError):
    """Another process of the run has ended or does not answer."""


class Ranks:
    """The processes of a run, seen from this one. A single process exchanges nothing."""

    def __init__(self, size: int = 1, rank: int = 0, device: torch.device | None = None) -> None:
        self.size, self.rank = size, rank
        self._device = torch.device("cpu") if device is None or device.type != "cuda" else device
        self._speed = [1.0] * size
        self.bytes_received = 0
        """The bytes that this rank has received from other ranks in the exchanges of tensors."""

    @classmethod
    def joined(cls, device: torch.device | None = None) -> Ranks:
        """Return the process group that this process has joined.

        On GPUs, ranks exchange tensors through nccl. nccl refuses ranks that share a GPU; those, and ranks of which
        some have no GPU, exchange through the CPU (gloo). All ranks choose the same.
        """
        if not (dist.is_available() and dist.is_initialized()):
            return cls()
        size, rank = dist.get_world_size(), dist.get_rank()
        if device is None or not cls(size, rank)._has_own_gpu(device):
            return cls(size, rank)
        joined = cls(size, rank, device)
        joined.broadcast(None)  # all ranks must take part in the first use of nccl, and a send is for two
        return joined

    def _has_own_gpu(self, device: torch.device) -> bool:
        """Whether every rank has a GPU that no other rank uses; the ranks exchange what they have."""
        gpu = str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else None
        gpus = self.all_gather_json(gpu)
        distinct = {gpu for gpu in gpus if gpu is not None}
        if distinct and len(distinct) < self.size and self.first:
            _log.warning(
                "%d ranks have %d GPUs between them, and nccl refuses ranks without a GPU of their own: they exchange "
                "tensors through the CPU (gloo), which is slower; start as many ranks as there are GPUs",
                self.size,
                len(distinct),
            )
        return len(distinct) == self.size

    @property
    def first(self) -> bool:
        """Whether this is rank 0, which writes files and logs."""
        return self.rank == 0

    def abandon(self) -> None:
        """Leave the process group after an error that other ranks may not have; they end at their next exchange.

        Ranks that exchange through nccl end with the processes, because leaving its group waits for them.
        """
        if self.size > 1 and self._device.type == "cpu":
            leave()

    def assign(self, costs: Sequence[float]) -> list[int]:
        """Assign pieces of work to ranks: the costliest first, each to the rank that would finish first as measured."""
        if self.size == 1:
            return [0] * len(costs)
        busy, owner = [0.0] * self.size, [0] * len(costs)
        for number in sorted(range(len(costs)), key=lambda i: (-costs[i], i)):
            rank = min(range(self.size), key=lambda r: (busy[r] + costs[number] / self._speed[r], r))
            busy[rank] += costs[number] / self._speed[rank]
            owner[number] = rank
        return owner

    def record_speed(self, cost: float, seconds: float) -> None:
        """Share the speed of this rank for the next assignment, which changes only where work is done."""
        mine = torch.tensor([cost / seconds if cost > 0 and seconds > 0 else 0.0], dtype=torch.float64)
        speeds = [float(v) for v in self.all_gather(mine)]
        known = [v for v in speeds if v > 0]
        usual = sum(known) / len(known) if known else 1.0
        # Relative to the mean, with an exponential moving average.
        self._speed = [
            0.7 * old + 0.3 * (v / usual if v > 0 else 1.0) for old, v in zip(self._speed, speeds, strict=True)
        ]

    def gather(self, mine: Mapping[int, Tensor], owner: Sequence[int], like: Tensor) -> list[Tensor]:
        """Gather one tensor per piece of work, shaped as `like`, from the rank that owns it, on all ranks."""
        most = max(owner.count(rank) for rank in range(self.size))
        sent = torch.zeros((most, *like.shape), dtype=like.dtype, device=like.device)
        for place, number in enumerate(n for n in range(len(owner)) if owner[n] == self.rank):
            sent[place] = mine[number]
        return _in_order(self.all_gather(sent), owner)

    def sum_in_order(self, mine: Mapping[int, Tensor], owner: Sequence[int], like: Tensor) -> Tensor:
        """Add one vector per piece of work, in the order of the pieces, and return the sum on all ranks.

        Each rank adds one slice of all vectors, and then the slices are gathered. A rank receives about twice the bytes
        of a vector if each rank has one piece, whatever the number of ranks. The order of additions is that of the
        pieces, as it would be with one rank.

        Args:
            mine: The vectors of the pieces that this rank owns, by their number.
            owner: By piece, the rank that owns it.
            like: A vector of the length, dtype and device of the others.
        """
        n, width = len(like), -(len(like) // -self.size)
        slices = [slice(min(n, rank * width), min(n, (rank + 1) * width)) for rank in range(self.size)]
        own = [mine[number] for number, rank in enumerate(owner) if rank == self.rank]
        length = slices[self.rank].stop - slices[self.rank].start
        received = self._all_to_all(
            [torch.cat([v[part] for v in own]) if own else like[:0] for part in slices],
            [owner.count(rank) * length for rank in range(self.size)],
        )
        pieces = _in_order([v.view(owner.count(rank), length) for rank, v in enumerate(received)], owner)
        found = like.new_zeros(width)  # the slices of the last ranks can be shorter
        found[:length] = functools.reduce(torch.add, pieces)
        return torch.cat(self.all_gather(found))[:n]

    def all_gather(self, mine: Tensor) -> list[Tensor]:
        """Return the tensors of all ranks, which have one shape."""
        here = mine.to(self._device).contiguous()
        received = [torch.empty_like(here) for _ in range(self.size)]
        with _explained():
            dist.all_gather(received, here)
        self.bytes_received += (self.size - 1) * here.nbytes
        return [v.to(mine.device) for v in received]

    def _all_to_all(self, sent: Sequence[Tensor], sizes: Sequence[int]) -> list[Tensor]:
        """Send one vector to each rank, and return the vectors that the ranks send to this one, which have `sizes`."""
        here = torch.cat(list(sent)).to(self._device)
        received = here.new_empty(sum(sizes))
        with _explained():
            dist.all_to_all_single(received, here, list(sizes), [len(v) for v in sent])
        self.bytes_received += (sum(sizes) - sizes[self.rank]) * here.element_size()
        return list(received.to(sent[0].device).split(list(sizes)))

    def exchange(self, ways: Sequence[tuple[int, int]], rows: Mapping[int, Tensor], like: Tensor) -> dict[int, Tensor]:
        """Send rows, shaped as `like`, from rank to rank.

        Args:
            ways: By row, the source and the target rank.
            rows: The rows of which this rank is the source, by their number.
            like: A tensor of the shape, dtype and device of a row.

        Returns:
            The rows of which this rank is the target, by their number.
        """
        received = {n: rows[n] for n, (source, to) in enumerate(ways) if source == to == self.rank}
        operations, incoming = [], {}
        for peer in range(self.size):
            going = [n for n, way in enumerate(ways) if way == (self.rank, peer)]
            coming = [n for n, way in enumerate(ways) if way == (peer, self.rank)]
            if peer == self.rank:
                continue
            if going:
                sent = torch.stack([rows[n] for n in going]).to(self._device)
                operations.append(dist.P2POp(dist.isend, sent, peer))
            if coming:
                block = torch.empty((len(coming), *like.shape), dtype=like.dtype, device=self._device)
                incoming[peer] = (coming, block)
                operations.append(dist.P2POp(dist.irecv, block, peer))
                self.bytes_received += block.nbytes
        with _explained():
            for work in dist.batch_isend_irecv(operations) if operations else []:
                work.wait()
        for numbers, block in incoming.values():
            received |= dict(zip(numbers, block.to(like.device), strict=True))
        return received

    def all_gather_json(self, value: J) -> list[J]:
        """Return the values of all ranks; a value must be representable in JSON."""
        text = torch.tensor(list(json.dumps(value).encode()), dtype=torch.uint8)
        lengths = [int(n) for n in self.all_gather(torch.tensor([len(text)]))]
        padded = torch.zeros(max(lengths), dtype=torch.uint8)
        padded[: len(text)] = text
        texts = self.all_gather(padded)
        return [json.loads(bytes(v[:n].tolist())) for v, n in zip(texts, lengths, strict=True)]

    def on_rank0(self, work: Callable[[], J]) -> J:
        """Call `work` on rank 0 and return its result, a JSON value, on all ranks.

        If `work` raises an exception, all ranks raise it: rank 0 the exception itself, the others one of the same
        built-in type, or a RuntimeError, with the same message.
        """
        if self.size == 1:
            return work()
        value: Any = None
        error: Exception | None = None
        if self.first:
            try:
                value = work()
            except Exception as raised:  # any exception: the other ranks are waiting
                error = raised
        told = None if error is None else _describe_error(error)
        value, told = self.broadcast((value, told))
        if error is not None:
            raise error
        if told is not None:
            raise _rebuild_error(*told)
        result: J = value
        return result

    def broadcast(self, value: J) -> J:
        """Return rank 0's value, which must be representable in JSON, on all ranks."""
        if self.size == 1:
            return value
        text = json.dumps(value).encode() if self.first else b""
        length = torch.tensor([len(text)], device=self._device)
        with _explained():
            dist.broadcast(length, src=0)
            data = torch.zeros(int(length), dtype=torch.uint8, device=self._device)
            if self.first:
                data.copy_(torch.frombuffer(bytearray(text), dtype=torch.uint8))
            dist.broadcast(data, src=0)
        received: J = json.loads(bytes(data.tolist()))
        return received


def _in_order(by_rank: Sequence[Tensor], owner: Sequence[int]) -> list[Tensor]:
    """Return the tensors of all pieces of work, in order. A rank has those of its own pieces, in order."""
    rows = [iter(v) for v in by_rank]
    return [next(rows[rank]) for rank in owner]


def _describe_error(error: Exception) -> tuple[list[str], str]:
    """Return the names of the error's classes, most specific first, and its message."""
    return [kind.__name__ for kind in type(error).__mro__], str(error)


def _rebuild_error(kinds: Sequence[str], message: str) -> Exception:
    """Make an exception of the first built-in class among `kinds`, or a RuntimeError."""
    for name in kinds:
        kind = getattr(builtins, name, None)
        if isinstance(kind, type) and issubclass(kind, Exception) and kind is not Exception:
            with suppress(TypeError):  # a class that cannot be made of a message alone
                error: Exception = kind(message)
                error.add_note(FROM_RANK0)
                return error
    error = RuntimeError(message)
    error.add_note(FROM_RANK0)
    return error


@contextmanager
def _explained() -> Iterator[None]:
    """Raise errors of torch.distributed as a LostRankError that says what to do."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        reason = re.sub(r"^\[[^]]*\] ", "", (str(error).splitlines() or [""])[0]).partition(". ")[0]
        raise LostRankError(
            f"Cannot continue because another process of the run is gone or stuck ({reason}); start the run again with "
            "resume=True (fedmos resume), from its newest checkpoint"
        ) from error
