"""What the ranks of a run exchange in a round: client state, sums, reports.

The state of client i is stored by rank i mod size. It is sent to the rank that trains the client, and back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from ..algorithm import Vectors
from .aggregation import Division, PartialUpdate, Sums, add_blocks, all_positions, concat, select
from .client_store import ClientStore
from .declaration import Shapes
from .ranks import Ranks

ReadState = Callable[[Tensor], Vectors]
"""Positions in the cohort → the state of these clients, (M, D) each."""


class GatheredReports(NamedTuple):
    """What the clients of all ranks report."""

    report: Tensor
    """(1 + reports, S)."""
    samples: Tensor
    """(S,)."""


class Gathered(NamedTuple):
    """The sums of a cohort."""

    sums: Sums
    """Over all blocks, added in order."""
    rows: Vectors
    """(S, …) for each sum of the rule "each"; zeros for clients that were left out."""


class Exchange(Protocol):
    """Divides a cohort among processes and brings their parts together."""

    def divide(self, S: int, width: int, costs: Callable[[], Sequence[float]]) -> Division:
        """Assign the blocks of a cohort to ranks; `costs` computes the cost of each block."""

    def client_state(self, ids: Tensor, division: Division, x: Tensor) -> ReadState:
        """Make the state of the cohort's clients available where they train."""

    def reports(self, partial: PartialUpdate) -> GatheredReports:
        """Return the reports and sample counts of every client of the cohort."""

    def gather(self, partial: PartialUpdate) -> Gathered:
        """Add the sums of all blocks in order, and gather rows."""

    def new_states(self, ids: Tensor, accepted: Tensor | None, partial: PartialUpdate) -> tuple[Tensor, Vectors]:
        """Return the accepted clients whose state this process stores, and their new state."""


class SingleProcess:
    """One process computes everything."""

    def __init__(self, clients: ClientStore, shapes: Shapes) -> None:
        self._clients, self._shapes = clients, shapes

    def divide(self, S: int, width: int, costs: Callable[[], Sequence[float]]) -> Division:
        return Division(S, width, [0] * -(S // -width), all_positions(S), ())

    def client_state(self, ids: Tensor, division: Division, x: Tensor) -> ReadState:
        if not self._shapes:
            return lambda positions: {}
        return lambda positions: self._clients.read(ids[positions])

    def reports(self, partial: PartialUpdate) -> GatheredReports:
        return GatheredReports(partial.report(), partial.samples())

    def gather(self, partial: PartialUpdate) -> Gathered:
        return Gathered(add_blocks(partial.sums()), partial.all_rows())

    def new_states(self, ids: Tensor, accepted: Tensor | None, partial: PartialUpdate) -> tuple[Tensor, Vectors]:
        names = list(partial.states[0][1]) if partial.states else []
        return select(ids, accepted), {name: concat([own[name] for _, own in partial.states]) for name in names}


class AcrossRanks:
    """Several ranks compute a block each, or several."""

    def __init__(self, clients: ClientStore, shapes: Shapes, ranks: Ranks) -> None:
        self._clients, self._shapes, self._ranks = clients, shapes, ranks

    def divide(self, S: int, width: int, costs: Callable[[], Sequence[float]]) -> Division:
        by_block = costs()
        owner = self._ranks.assign(by_block)
        positions = all_positions(S)
        mine = positions[torch.tensor(owner)[positions // width] == self._ranks.rank]
        return Division(S, width, owner, mine, by_block)

    def client_state(self, ids: Tensor, division: Division, x: Tensor) -> ReadState:
        if not self._shapes:
            return lambda positions: {}
        ranks, owner, b = self._ranks, division.owner, division.width
        ways = [(i % ranks.size, owner[n // b]) for n, i in enumerate(ids.tolist())]
        stored = torch.tensor([n for n, (source, _) in enumerate(ways) if source == ranks.rank], dtype=torch.int64)
        rows = self._clients.read(ids[stored]) if len(stored) else {}
        received = {}
        for name, shape in self._shapes.items():
            sent = dict(zip(stored.tolist(), rows.get(name, ()), strict=True))
            received[name] = ranks.exchange(ways, sent, x.new_empty(shape))
        return lambda positions: {name: torch.stack([v[n] for n in positions.tolist()]) for name, v in received.items()}

    def gather(self, partial: PartialUpdate) -> Gathered:
        ranks, division, like = self._ranks, partial.division, partial.like
        ranks.record_speed(sum(division.costs[block] for block in partial.blocks), partial.seconds)
        shapes = partial.summed.values()
        sizes = [math.prod(shape) for shape in shapes]
        if not sizes:
            return Gathered([], self._gather_rows(partial))
        flat = {block: torch.cat([v.flatten() for v in found]) for block, found in partial.sums().items()}
        summed = ranks.sum_in_order(flat, division.owner, like.new_empty(sum(sizes))).split(sizes)
        sums = [part.view(shape) for part, shape in zip(summed, shapes, strict=True)]
        return Gathered(sums, self._gather_rows(partial))

    def _gather_rows(self, partial: PartialUpdate) -> Vectors:
        """Return the rows of the rule "each" of every client of the cohort."""
        division = partial.division
        owner = [division.owner[n // division.width] for n in range(division.S)]
        found = {}
        for name, rows in partial.rows.items():
            like = partial.x.new_zeros(partial.shapes[name])
            mine = {n: rows.get(n, like) for n in division.mine.tolist()}
            found[name] = torch.stack(self._ranks.gather(mine, owner, like))
        return found

    def reports(self, partial: PartialUpdate) -> GatheredReports:
        division, report = partial.division, partial.report()
        columns = torch.cat([report.cpu(), partial.samples()[None].to(torch.float64)])
        like = columns.new_zeros((len(columns), division.width))
        mine = {}
        for block in partial.blocks:
            found = columns[:, division.mine // division.width == block]
            mine[block] = F.pad(found, (0, division.width - found.shape[1]))  # the last block can be shorter
        whole = torch.cat(self._ranks.gather(mine, division.owner, like), dim=1)[:, : division.S]
        return GatheredReports(whole[:-1].to(report.device), whole[-1].to(torch.int64))

    def new_states(self, ids: Tensor, accepted: Tensor | None, partial: PartialUpdate) -> tuple[Tensor, Vectors]:
        states, ranks, division = partial.states, self._ranks, partial.division
        names = list(states[0][1]) if states else []
        if not self._shapes:
            return select(ids, accepted), {name: concat([own[name] for _, own in states]) for name in names}
        trained = [n for positions, _ in states for n in positions.tolist()]
        kept = list(range(len(ids))) if accepted is None else accepted.nonzero().flatten().tolist()
        ways = [(division.owner[n // division.width], int(ids[n]) % ranks.size) for n in kept]
        stored = [n for n, (_, target) in zip(kept, ways, strict=True) if target == ranks.rank]
        own = {}
        for name in sorted({name for some in ranks.all_gather_json(names) for name in some}):
            rows = torch.cat([new[name] for _, new in states]) if states else ()
            row_of = dict(zip(trained, rows, strict=True))
            like = partial.x.new_empty(self._shapes[name])
            received = ranks.exchange(ways, {k: row_of[n] for k, n in enumerate(kept) if n in row_of}, like)
            if stored:
                own[name] = torch.stack([v for _, v in sorted(received.items())])
        return ids[stored], own


def collect_states(
    clients: ClientStore, shapes: Shapes, ids: Sequence[int], ranks: Ranks, x: Tensor
) -> dict[int, Vectors]:
    """Gather the state of these clients on rank 0; other ranks get an empty dictionary."""
    ways, found = [(i % ranks.size, 0) for i in ids], {i: Vectors() for i in ids}
    for name, shape in shapes.items():
        rows = {n: clients[i][name] for n, i in enumerate(ids) if ways[n][0] == ranks.rank}
        for n, row in ranks.exchange(ways, rows, x.new_empty(shape)).items():
            found[ids[n]][name] = row
    return found if ranks.first else {}
