"""Several processes as one run, on PyTorch's own engine (`torchrun`).

Every rank holds the server's model and state and takes the same decisions; local work and evaluation are divided. What
ranks exchange is put together in an order that does not depend on how many they are, so neither do the bits.
"""

from __future__ import annotations

import importlib
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

_log = logging.getLogger("fedmos")

T = TypeVar("T")

TOLD = "told by the first rank"
"""Noted with an error that the first rank has raised as well."""


class LostRankError(RuntimeError):
    """Another process of the run is gone."""


class Ranks:
    """This process among those of the run; alone, it exchanges nothing."""

    def __init__(self, size: int = 1, rank: int = 0, device: torch.device | None = None) -> None:
        self.size, self.rank = size, rank
        self._device = torch.device("cpu") if device is None or device.type != "cuda" else device
        self._speed = [1.0] * size

    @classmethod
    def joined(cls, device: torch.device | None = None) -> Ranks:
        """This process among those it has joined."""
        if dist.is_available() and dist.is_initialized():
            return cls(dist.get_world_size(), dist.get_rank(), device)
        return cls()

    @property
    def first(self) -> bool:
        """Whether this is the rank that writes."""
        return self.rank == 0

    def assign(self, costs: Sequence[float]) -> list[int]:
        """Which rank does each piece of work: the costliest first, each to who would be done first, as measured."""
        if self.size == 1:
            return [0] * len(costs)
        busy, owner = [0.0] * self.size, [0] * len(costs)
        for number in sorted(range(len(costs)), key=lambda i: (-costs[i], i)):
            rank = min(range(self.size), key=lambda r: (busy[r] + costs[number] / self._speed[r], r))
            busy[rank] += costs[number] / self._speed[rank]
            owner[number] = rank
        return owner

    def measured(self, cost: float, seconds: float) -> None:
        """Tell the others how fast this rank was, for the next assignment. What it changes is who, never what."""
        mine = torch.tensor([cost / seconds if cost > 0 and seconds > 0 else 0.0], dtype=torch.float64)
        speeds = [float(v) for v in self.all_gather(mine)]
        known = [v for v in speeds if v > 0]
        usual = sum(known) / len(known) if known else 1.0
        # Relative to the others, and not too quick to change its mind.
        self._speed = [
            0.7 * old + 0.3 * (v / usual if v > 0 else 1.0) for old, v in zip(self._speed, speeds, strict=True)
        ]

    def gather(self, mine: Mapping[int, Tensor], owner: Sequence[int], like: Tensor) -> list[Tensor]:
        """A tensor per piece of work, shaped as `like`, made by who owns it and known to all."""
        most = max(owner.count(rank) for rank in range(self.size))
        sent = torch.zeros((most, *like.shape), dtype=like.dtype, device=like.device)
        for place, number in enumerate(n for n in range(len(owner)) if owner[n] == self.rank):
            sent[place] = mine[number]
        received = self.all_gather(sent)
        next_of = [0] * self.size
        pieces = []
        for rank in owner:
            pieces.append(received[rank][next_of[rank]])
            next_of[rank] += 1
        return pieces

    def all_gather(self, mine: Tensor) -> list[Tensor]:
        """The tensors of all ranks, of one shape."""
        here = mine.to(self._device).contiguous()
        received = [torch.empty_like(here) for _ in range(self.size)]
        with _in_words():
            dist.all_gather(received, here)
        return [v.to(mine.device) for v in received]

    def exchange(self, ways: Sequence[tuple[int, int]], rows: Mapping[int, Tensor], like: Tensor) -> dict[int, Tensor]:
        """Rows, shaped as `like`, each brought from one rank to another: those that arrive here, by their number."""
        arrived = {n: rows[n] for n, (source, to) in enumerate(ways) if source == to == self.rank}
        operations, landing = [], {}
        for peer in range(self.size):
            going = [n for n, way in enumerate(ways) if way == (self.rank, peer)]
            coming = [n for n, way in enumerate(ways) if way == (peer, self.rank)]
            if peer == self.rank:
                continue
            if going:
                sent = torch.stack([rows[n] for n in going]).to(self._device)
                operations.append(dist.P2POp(dist.isend, sent, peer))
            if coming:
                landing[peer] = (coming, torch.empty((len(coming), *like.shape), dtype=like.dtype, device=self._device))
                operations.append(dist.P2POp(dist.irecv, landing[peer][1], peer))
        with _in_words():
            for work in dist.batch_isend_irecv(operations) if operations else []:
                work.wait()
        for numbers, block in landing.values():
            arrived |= dict(zip(numbers, block.to(like.device), strict=True))
        return arrived

    def all_of(self, value: T) -> list[T]:
        """What every rank says."""
        boxes: list[Any] = [None] * self.size
        with _in_words():
            dist.all_gather_object(boxes, value)
        return boxes

    def on_rank0(self, work: Callable[[], T]) -> T:
        """What comes of work that the first rank does for all; what it raises, all raise."""
        if self.size == 1:
            return work()
        outcome: tuple[Any, Exception | None] = (None, None)
        if self.first:
            try:
                outcome = (work(), None)
            except Exception as error:  # whatever it is, the others are waiting to hear of it
                outcome = (None, error)
        value, problem = self.broadcast(outcome)
        if problem is not None:
            if not self.first:
                problem.add_note(TOLD)
            raise problem
        result: T = value
        return result

    def broadcast(self, value: T) -> T:
        """What the first rank says."""
        if self.size == 1:
            return value
        box: list[Any] = [value]
        with _in_words():
            dist.broadcast_object_list(box, src=0, device=self._device)
        agreed: T = box[0]
        return agreed


def join() -> None:
    """Join the processes that a launcher has started with this one, if it has."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or "RANK" not in os.environ or dist.is_initialized():
        return
    backend = "gloo"
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
        backend = "cpu:gloo,cuda:nccl"
    _end_with_launcher()
    # torch.func imports it at its first use. Imported after the group is made, it would keep that for good: its threads
    # would live on after `leave`, and now and then abort the process as it ends.
    importlib.import_module("torch._dynamo")
    timeout = timedelta(minutes=float(os.environ.get("FEDMOS_RANK_TIMEOUT", "10")))
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        dist.init_process_group(backend, timeout=timeout)
        return
    from torch._C._distributed_c10d import PrefixStore, TCPStore

    # The launcher's store outlives its workers: those it starts again must not find the addresses of the dead.
    host, port, size = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), int(os.environ["WORLD_SIZE"])
    shared = TCPStore(host, port, size, is_master=False, timeout=timeout)
    store = PrefixStore(f"fedmos-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", shared)
    dist.init_process_group(backend, store=store, rank=int(os.environ["RANK"]), world_size=size, timeout=timeout)


def leave() -> None:
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


def _end_with_launcher() -> None:
    """Have the system end this process when its launcher dies, so that nobody is left behind."""
    import ctypes
    import signal

    try:
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)
    except (OSError, AttributeError):  # not Linux
        _log.debug("This system does not end processes with their parents")


@contextmanager
def _in_words() -> Iterator[None]:
    try:
        yield
    except (RuntimeError, ValueError) as error:
        said = re.sub(r"^\[[^]]*\] ", "", (str(error).splitlines() or [""])[0]).partition(". ")[0]
        raise LostRankError(
            f"Cannot go on because another process of the run is gone or stuck ({said}); start the run again with "
            "resume=True (fedmos resume), from its newest checkpoint"
        ) from error
