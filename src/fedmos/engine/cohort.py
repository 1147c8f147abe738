"""A visit to a cohort: every client does its work, on whichever rank, and what they send is summed."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from time import perf_counter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..algorithm import Algorithm, Context, Vectors
from .client_store import ClientStore
from .job import Job, Phase
from .local_backend import LocalBackend
from .ranks import Ranks
from .round_timing import Timing
from .sampling import Cohort
from .task import Task

_BLOCKS = 8


class Read(NamedTuple):
    """A request for numbers, float64, that are on the device. Reading is what a round waits for; all else is queued."""

    numbers: tuple[Tensor, ...]
    now: bool = False
    """Before anything else is queued, which might overwrite what the numbers are about."""


def read(requests: Sequence[Read]) -> list[list[Tensor]]:
    """What was asked for, at once."""
    wanted = [v for request in requests for v in request.numbers]
    numbers = torch.cat([v.flatten() for v in wanted]).cpu().split([v.numel() for v in wanted])
    parts = iter([part.view(v.shape) for part, v in zip(numbers, wanted, strict=True)])
    return [[next(parts) for _ in request.numbers] for request in requests]


class CohortUpdate(NamedTuple):
    """What came back from a cohort."""

    sums: Vectors
    kept: Cohort
    """Those whose uploads count."""
    states: tuple[Tensor, Vectors]
    """Clients kept and their new state; of several ranks, those who live with this one."""
    report: Tensor
    """(2, kept), on the device: the largest number each of those sent, and their mean training losses."""


class NonFiniteUpdate(Exception):
    """A client's update is not finite."""

    def __init__(self, client: int) -> None:
        super().__init__(client)
        self.client = client


class PhaseInput(NamedTuple):
    """What a cohort is to do, and with what."""

    phase: Phase
    ctx: Context
    lr: float
    x: Tensor
    msg: Vectors
    timing: Timing | None
    """Says who is late; None where nobody is."""
    careful: bool
    """Look at every update before it is summed, and leave out those that are not finite."""
    forgiving: bool
    """Whether those are left out silently; otherwise they are blamed."""


@dataclass(kw_only=True)
class CohortRunner:
    """Visits cohorts. Several ranks share the work; what each brings back is the same on all of them.

    Uploads are summed block by block, clients in ascending order within each, and then the blocks' sums in order. On a
    CPU a block is an eighth of the cohort, rounded up, but no client alone where clients are vectorised, whatever the
    number of ranks, on which the bits therefore do not depend. On a GPU, which sums a chunk at once, it is a chunk, or
    a rank's share of the cohort.
    """

    task: Task
    algorithm: Algorithm
    crew: LocalBackend
    clients: ClientStore
    ranks: Ranks

    def visit(self, cohort: Cohort, errand: PhaseInput) -> Generator[Job | Read, Any, CohortUpdate]:
        algorithm, timing, phase = self.algorithm, errand.timing, errand.phase
        reduce = algorithm.reduce if phase == "train" else algorithm.prepare_reduce
        S = cohort.ids.shape[0]
        b = self._block(S, errand.x)
        costs: list[float] = []
        owner, mine = [0] * -(S // -b), _first(S)
        if self.ranks.size > 1:
            costs = [float(v.sum()) for v in self.task.steps(self.task.data.sizes[cohort.ids]).split(b)]
            owner = self.ranks.assign(costs)
            mine = mine[torch.tensor(owner)[mine // b] == self.ranks.rank]
        state_of = self._brought(cohort.ids, owner, b, errand.x)
        sums: dict[int, Vectors] = {block: {} for block, rank in enumerate(owner) if rank == self.ranks.rank}
        clocked = timing is not None and timing.clocked
        states: list[tuple[Tensor, Vectors]] = []
        reports: list[Tensor] = []
        counts: list[Tensor] = []
        began = perf_counter()
        for places in self._chunks(mine, b):
            ids, weights = _picked(cohort.ids, places, S), _picked(cohort.weights, places, S)
            factors = {name: self._factors(rule, ids, weights) for name, (_, rule) in reduce.items()}
            done = yield Job(
                phase=phase,
                ids=ids,
                ctx=errand.ctx,
                lr=[errand.lr],
                W=[errand.ctx.W],
                x=errand.x,
                msg=errand.msg,
                own=state_of(places),
                last=self.clients.last[ids],
                factors=factors,
                width=cohort.width,
            )
            counts.append(done.samples() if clocked else places)
            good = _in_time(timing, phase, ids, counts[-1])
            if errand.careful:
                good = _both(good, (yield Read((done.report[0],), now=True))[0].isfinite())
            whole = good is None or bool(good.all())
            chosen = slice(None) if good is None or whole else good.nonzero().flatten().to(errand.x.device)
            reports.append(done.report)
            states.append((_kept(places, good), {name: v[chosen].clone() for name, v in done.own.items()}))
            block = _block_of(places, b, S) if done.sums and whole else None
            for name, (upload, _) in reduce.items():
                if block is not None:
                    sums[block][name] = done.sums[name]
                else:
                    blocks, factor = _kept(places, good) // b, _kept(factors[name], good)
                    _add_rows(sums, name, blocks, factor, done.uploads[upload][chosen])
        vectors = {block: _in_order(found, reduce, errand.x) for block, found in sums.items()}
        report = _joined(reports, dim=1) if reports else errand.x.new_empty((2, 0), dtype=torch.float64)
        samples = _joined(counts) if counts else mine
        if self.ranks.size > 1:
            self.ranks.measured(sum(costs[block] for block in sums), perf_counter() - began)
            report, samples = self._shared(report, samples, mine, [owner[n // b] for n in range(S)])
            like = torch.stack(_in_order({}, reduce, errand.x))
            stacked = {block: torch.stack(found) for block, found in vectors.items()}
            vectors = {n: list(v.unbind()) for n, v in enumerate(self.ranks.gather(stacked, owner, like))}

        good = _in_time(timing, phase, cohort.ids, samples)
        if timing is not None:
            timing.record(phase, cohort.ids, samples)
        if errand.careful:
            finite = report[0].cpu().isfinite()
            if not (errand.forgiving or bool(_kept(finite, good).all())):
                raise NonFiniteUpdate(int(_kept(cohort.ids, _both(good, ~finite))[0]))
            good = _both(good, finite)
        if good is not None and bool(good.all()):
            good = None
        kept = cohort if good is None else Cohort.of(cohort.ids[good], cohort.weights[good], self.task.data)
        total = vectors[0]
        for block in range(1, len(owner)):
            total = [v + w for v, w in zip(total, vectors[block], strict=True)]
        scales = [_scale(rule, kept.weights, None if good is None else errand.ctx.W) for _, rule in reduce.values()]
        return CohortUpdate(
            sums={name: v if s == 1 else s * v for name, v, s in zip(reduce, total, scales, strict=True)},
            kept=kept,
            states=self._returned(cohort.ids, good, owner, b, states, errand.x),
            report=report if good is None else report[:, good.nonzero().flatten().to(report.device)],
        )

    def _block(self, S: int, x: Tensor) -> int:
        plan = self.crew.plan
        if x.device.type == "cpu":
            return max(1 if plan.engine == "loop" else 2, -(S // -_BLOCKS))
        return min(plan.chunk, -(S // -self.ranks.size))

    def _chunks(self, mine: Tensor, b: int) -> list[Tensor]:
        """Places in the cohort, cut into those of clients who train together."""
        if not len(mine):
            return []
        # Only the last block of a cohort may be shorter than others, so all of these are whole.
        parts = mine.split(b) if self.crew.plan.apart else (mine,)
        return [chunk for part in parts for chunk in self.crew.chunks(part)]

    def _factors(self, rule: str, ids: Tensor, weights: Tensor) -> Tensor:
        """(M,), float64: what each client's upload is multiplied by."""
        if rule == "p":
            return self.task.data.importance[ids]
        return weights / self.task.steps(self.task.data.sizes[ids]) if rule == "avg/K" else weights

    # Between ranks. Client i lives with rank i mod size; its state goes to who trains it, and back.

    def _shared(self, report: Tensor, samples: Tensor, mine: Tensor, owner: list[int]) -> tuple[Tensor, Tensor]:
        """What every client of the cohort reports, and how many samples' gradients it computed, from all ranks."""
        table = torch.zeros((3, len(owner)), dtype=torch.float64)
        table[:, mine] = torch.cat([report.cpu(), samples[None].to(torch.float64)])
        tables = self.ranks.all_gather(table)
        whole = torch.stack([tables[rank][:, n] for n, rank in enumerate(owner)], dim=1)
        return whole[:2].to(report.device), whole[2].to(torch.int64)

    def _brought(self, ids: Tensor, owner: list[int], b: int, x: Tensor) -> Callable[[Tensor], Vectors]:
        """The state of clients by their places in the cohort; of those who live with other ranks, brought here."""
        if not self.algorithm.client_state:
            return lambda places: {}
        if self.ranks.size == 1:
            return lambda places: self.clients.read(ids[places])
        ways = [(i % self.ranks.size, owner[n // b]) for n, i in enumerate(ids.tolist())]
        at_home = torch.tensor([n for n, (home, _) in enumerate(ways) if home == self.ranks.rank], dtype=torch.int64)
        rows = self.clients.read(ids[at_home]) if len(at_home) else {}
        arrived = {}
        for name in self.algorithm.client_state:
            leaving = dict(zip(at_home.tolist(), rows.get(name, ()), strict=True))
            arrived[name] = self.ranks.exchange(ways, leaving, x)
        return lambda places: {name: torch.stack([v[n] for n in places.tolist()]) for name, v in arrived.items()}

    def _returned(
        self,
        ids: Tensor,
        good: Tensor | None,
        owner: list[int],
        b: int,
        states: list[tuple[Tensor, Vectors]],
        x: Tensor,
    ) -> tuple[Tensor, Vectors]:
        """Clients who live here and were kept, and their new state."""
        names = list(states[0][1]) if states else []
        if self.ranks.size == 1 or not self.algorithm.client_state:
            return _kept(ids, good), {name: _joined([own[name] for _, own in states]) for name in names}
        trained = [n for places, _ in states for n in places.tolist()]
        places = list(range(len(ids))) if good is None else good.nonzero().flatten().tolist()
        ways = [(owner[n // b], int(ids[n]) % self.ranks.size) for n in places]
        here = [n for n, (_, home) in zip(places, ways, strict=True) if home == self.ranks.rank]
        own = {}
        for name in sorted({name for some in self.ranks.all_of(names) for name in some}):
            rows = torch.cat([new[name] for _, new in states]) if states else ()
            row_of = dict(zip(trained, rows, strict=True))
            arrived = self.ranks.exchange(ways, {k: row_of[n] for k, n in enumerate(places) if n in row_of}, x)
            if here:
                own[name] = torch.stack([v for _, v in sorted(arrived.items())])
        return ids[here], own


# Of a cohort, None stands for everyone: most rounds leave nobody out, and each tensor operation costs microseconds.


def _in_time(timing: Timing | None, phase: Phase, ids: Tensor, samples: Tensor) -> Tensor | None:
    """(M,): whose work counts; without a clock, everyone's."""
    return None if timing is None or not timing.clocked else timing.admits(phase, ids, samples)


def _both(good: Tensor | None, others: Tensor) -> Tensor:
    return others if good is None else good & others


def _kept(v: Tensor, good: Tensor | None) -> Tensor:
    return v if good is None else v[good]


def _picked(v: Tensor, places: Tensor, S: int) -> Tensor:
    """v at some or all of S places."""
    return v if places.shape[0] == S else v[places]


def _joined(parts: list[Tensor], dim: int = 0) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=dim)


@lru_cache(maxsize=64)
def _first(S: int) -> Tensor:
    """0 … S−1. Everyone gets the same tensor."""
    return torch.arange(S)


def _block_of(places: Tensor, b: int, S: int) -> int | None:
    """The block of which these are all the places."""
    if places.shape[0] == S:
        return 0 if b >= S else None
    first, M = int(places[0]), len(places)
    whole = first % b == 0 and min(b, S - first) == M and int(places[-1]) == first + M - 1
    return first // b if whole else None


def _scale(rule: str, weights: Tensor, W: float | None) -> float:
    """What a sum is multiplied by. Where clients were left out, the others' weights are scaled up to W."""
    if rule == "p" or (rule == "w" and W is None):
        return 1.0
    left = sum(weights.tolist())
    mean = 1 / left if left else 0.0
    return mean if W is None or rule != "w" else W * mean


def _add_rows(sums: Mapping[int, Vectors], name: str, blocks: Tensor, factors: Tensor, rows: Tensor) -> None:
    """Add factor · row to the sum of the row's block: one after another, so that all engines round alike."""
    for block, factor, row in zip(blocks.tolist(), factors.tolist(), rows, strict=True):
        found = sums[block]
        found[name] = found[name] + factor * row if name in found else factor * row


def _in_order(sums: Vectors, names: Iterable[str], x: Tensor) -> list[Tensor]:
    """The sums by their names; zeros where nobody has sent anything."""
    return [sums[name] if name in sums else torch.zeros_like(x) for name in names]
