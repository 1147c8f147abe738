"""Aggregation of uploads: block by block, in an order that depends neither on chunks nor on ranks.

A cohort is divided into blocks of consecutive clients. Uploads are summed within each block in ascending order of
clients, and then the sums of the blocks in order. On a CPU a block is an eighth of the cohort, rounded up, whatever the
number of ranks, so the bits do not depend on it. On a GPU, which sums a chunk at once, a block is a chunk or a rank's
share of the cohort.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from ..algorithm import Reduce, Vectors
from ..core.statistics_layout import AFFINE, STATISTICS
from .cohort import Cohort
from .declaration import Declaration, Shapes
from .execution_plan import ExecutionPlan
from .job import JobResult, Phase
from .secure_sums import SATURATED, SecureSums, secure_rule
from .task import Task

_BLOCKS = 8

Sums = list[Tensor]
"""The sums of an algorithm's rules, in the order of their names."""


class Division(NamedTuple):
    """A cohort of S clients in blocks of consecutive positions."""

    S: int
    width: int
    """Clients per block; the last block may have fewer."""
    owner: list[int]
    """By block, the rank that computes it."""
    mine: Tensor
    """Positions in the cohort that this rank computes."""
    costs: Sequence[float]
    """By block, the number of local steps; empty where a single process computes all blocks."""

    def block_of(self, positions: Tensor) -> int | None:
        """Return the block that consists of exactly these positions; None if there is none."""
        S, b = self.S, self.width
        if positions.shape[0] == S:
            return 0 if b >= S else None
        first, M = int(positions[0]), len(positions)
        whole = first % b == 0 and min(b, S - first) == M and int(positions[-1]) == first + M - 1
        return first // b if whole else None


@lru_cache(maxsize=64)
def all_positions(S: int) -> Tensor:
    """Return 0 … S−1. The tensor is shared: do not write to it."""
    return torch.arange(S)


def block_width(S: int, plan: ExecutionPlan, device: torch.device, ranks: int) -> int:
    """Return the number of clients per block of a cohort of S."""
    if device.type == "cpu":
        # Vectorised kernels for a single client round differently, so a block has at least two.
        return max(1 if plan.engine == "loop" else 2, -(S // -_BLOCKS))
    return min(plan.chunk, -(S // -ranks))


def upload_factors(task: Task, rules: Reduce, ids: Tensor, weights: Tensor) -> Vectors:
    """Return for each sum the factor of each client's upload, (M,), float64. The rule "each" sums nothing."""
    return {name: _factors(task, rule, ids, weights) for name, (_, rule) in rules.items() if rule != "each"}


def _factors(task: Task, rule: str, ids: Tensor, weights: Tensor) -> Tensor:
    if rule == "p":
        return task.data.importance[ids]
    if rule == "sum":
        return torch.ones_like(weights)
    return weights / task.steps(task.data.sizes[ids]) if rule == "avg/K" else weights


def secure_sums(task: Task, declaration: Declaration, phase: Phase, cohort: Cohort) -> SecureSums | None:
    """Return the sums of integers of a phase; None for an algorithm without secure aggregation."""
    if secure_rule(declaration.algorithm) is None:
        return None
    factors = upload_factors(task, declaration.rules(phase), cohort.ids, cohort.weights)
    return SecureSums.of(declaration, phase, factors)


class PartialUpdate:
    """The part of a cohort's update that this process computes: sums by block, rows, reports, and new client state."""

    def __init__(
        self,
        division: Division,
        declaration: Declaration,
        phase: Phase,
        x: Tensor,
        *,
        reports: int = 0,
        updates: bool = False,
        rank: int = 0,
        secure: SecureSums | None = None,
    ) -> None:
        """`reports`: the number of reports of each client. `updates`: keep the update of each client, too.

        `secure`: the sums of integers that are computed in place of the declared sums.
        """
        self.division, self.x, self._rows, self.secure = division, x, 1 + reports, secure
        self.rules, self.shapes = declaration.rules(phase), declaration.sums(phase)
        self._updates = {f"update {name}": name for name in update_names(declaration)} if updates else {}
        self.rules = {**self.rules, **{name: (upload, "each") for name, upload in self._updates.items()}}
        self.shapes = self.shapes | {name: declaration.up(phase)[upload] for name, upload in self._updates.items()}
        self.rows: dict[str, dict[int, Tensor]] = {name: {} for name, (_, rule) in self.rules.items() if rule == "each"}
        """For each sum of the rule "each", the clients' rows by position in the cohort."""
        self.seconds = 0.0
        """The time that training took here."""
        self.states: list[tuple[Tensor, Vectors]] = []
        """By chunk, the positions of accepted clients and their new state."""
        self.held: list[tuple[Tensor, JobResult]] = []
        """By chunk, the positions of its clients and their result, which is not added yet."""
        self._sums: dict[int, Vectors] = {n: {} for n, owner in enumerate(division.owner) if owner == rank}
        self._reports: list[Tensor] = []
        self._samples: list[Tensor] = []

    def note(self, report: Tensor, samples: Tensor) -> None:
        """Add the reports of the next chunk, and the number of per-sample gradients that its clients computed."""
        self._samples.append(samples)
        self._reports.append(report)

    def hold(self, positions: Tensor, result: JobResult) -> None:
        """Keep the result of one chunk, to be added later."""
        self.held.append((positions, clone_rows(result)))

    def add(self, positions: Tensor, factors: Vectors, result: JobResult, accepted: Tensor | None) -> None:
        """Add the uploads and states of one chunk. `accepted` selects the clients that count; None selects all."""
        whole = accepted is None or bool(accepted.all())
        rows = slice(None) if accepted is None or whole else accepted.nonzero().flatten().to(self.x.device)
        self.states.append((select(positions, accepted), {name: v[rows].clone() for name, v in result.own.items()}))
        if self.secure is not None:
            uploads = {name: v[rows] for name, v in result.uploads.items()}
            return self._add_integers(self.secure, select_all(factors, accepted), uploads)
        block = self.division.block_of(positions) if result.sums and whole else None
        for name, (upload, rule) in self.rules.items():
            if rule == "each":
                kept = select(positions, accepted).tolist()
                self.rows[name] |= dict(zip(kept, result.uploads[upload][rows].clone(), strict=True))
            elif block is not None:
                self._sums[block][name] = result.sums[name]
            else:
                blocks = select(positions, accepted) // self.division.width
                _add_rows(self._sums, name, blocks, select(factors[name], accepted), result.uploads[upload][rows])

    def _add_integers(self, secure: SecureSums, factors: Vectors, uploads: Vectors) -> None:
        """Add the integers of some clients. Their sums are exact, so it does not matter in which block they are."""
        sums = self._sums[next(iter(self._sums))]
        for key, v in secure.encode(uploads, secure.by_vector(factors)).items():
            sums[key] = sums[key] + v if key in sums else v

    @property
    def blocks(self) -> list[int]:
        """The blocks that this process computes."""
        return list(self._sums)

    def sums(self) -> dict[int, Sums]:
        """Return the sums by block."""
        return {block: in_order(found, self.summed, self.like) for block, found in self._sums.items()}

    @property
    def like(self) -> Tensor:
        """An empty tensor of the dtype of the sums, on their device."""
        return self.x[:0] if self.secure is None else self.x.new_empty(0, dtype=torch.int64)

    def all_rows(self) -> Vectors:
        """Return the rows of the rule "each", (S, …); zeros for clients that were left out."""
        return {
            name: torch.stack(
                [found[n] if n in found else self.x.new_zeros(self.shapes[name]) for n in range(self.division.S)]
            )
            for name, found in self.rows.items()
        }

    def take_updates(self, rows: Vectors, kept: Tensor | None) -> Tensor | None:
        """Remove the clients' updates from `rows` and return them, (kept, D); None if they are not kept."""
        if not self._updates:
            return None
        parts = [select(rows.pop(name), kept) for name in self._updates]
        return torch.cat([v.flatten(1) if v.ndim > 1 else v[:, None] for v in parts], dim=1)

    @property
    def summed(self) -> Shapes:
        """The shapes of the sums, without those of the rule "each"."""
        if self.secure is not None:
            return self.secure.shapes
        return {name: shape for name, shape in self.shapes.items() if name not in self.rows}

    def report(self) -> Tensor:
        """Return the largest values and the reports of the clients computed here, (1 + reports, M)."""
        if self._reports:
            return concat(self._reports, dim=1)
        return self.x.new_empty((self._rows, 0), dtype=torch.float64)

    def samples(self) -> Tensor:
        """Return the number of per-sample gradients that each client computed here, (M,)."""
        return concat(self._samples) if self._samples else self.division.mine


def update_names(declaration: Declaration) -> list[str]:
    """Return the uploads that are a client's update: "delta" or, without one, all but BatchNorm state."""
    uploads = declaration.up("train")
    return ["delta"] if "delta" in uploads else [name for name in uploads if name not in (STATISTICS, AFFINE)]


def clone_rows(result: JobResult) -> JobResult:
    """Return the result with copies of what the next job may overwrite."""

    def clones(vectors: Vectors) -> Vectors:
        return {name: v.clone() for name, v in vectors.items()}

    return result._replace(uploads=clones(result.uploads), own=clones(result.own))


def add_blocks(sums: Mapping[int, Sums]) -> Sums:
    """Add the sums of all blocks in order."""
    vectors = sums[0]
    for block in range(1, len(sums)):
        vectors = [v + w for v, w in zip(vectors, sums[block], strict=True)]
    return vectors


def normalise(sums: Sums, partial: PartialUpdate, weights: Tensor, W: float | None) -> Vectors:
    """Return the sums of a cohort by name, scaled as their rules say.

    Args:
        sums: Over all blocks.
        partial: The update that they are the sums of, of this or another rank.
        weights: The weights of the kept clients.
        W: Σ weights of the cohort if clients were left out, whose weights then go to the others; None otherwise.
    """
    scales = scales_of(partial.rules, weights, W)
    if partial.secure is not None:
        integers = dict(zip(partial.summed, sums, strict=True))
        counted = {SATURATED: integers[SATURATED]} if SATURATED in integers else {}
        return partial.secure.decode(integers, scales, partial.x) | counted
    return {name: v if scales[name] == 1 else scales[name] * v for name, v in zip(scales, sums, strict=True)}


def scales_of(rules: Reduce, weights: Tensor, W: float | None) -> dict[str, float]:
    """Return the factor of each sum; see `normalise`. The rule "each" sums nothing."""
    return {name: _scale(rule, weights, W) for name, (_, rule) in rules.items() if rule != "each"}


def _scale(rule: str, weights: Tensor, W: float | None) -> float:
    """Return the factor of a sum. Where clients were left out, the weights of the others are scaled up to W."""
    if rule in ("p", "sum") or (rule == "w" and W is None):
        return 1.0
    left = sum(weights.tolist())
    mean = 1 / left if left else 0.0
    return mean if W is None or rule != "w" else W * mean


def _add_rows(sums: Mapping[int, Vectors], name: str, blocks: Tensor, factors: Tensor, rows: Tensor) -> None:
    """Add factor · row to the sum of the row's block: one row after another, so that all engines round alike."""
    weighted = factors.to(rows).view(-1, *[1] * (rows.ndim - 1)) * rows
    for block, row in zip(blocks.tolist(), weighted.unbind(), strict=True):
        found = sums[block]
        found[name] = found[name] + row if name in found else row


def in_order(sums: Vectors, shapes: Shapes, x: Tensor) -> Sums:
    """Return the sums in the order of `shapes`; zeros for a sum without uploads."""
    return [sums[name] if name in sums else x.new_zeros(shape) for name, shape in shapes.items()]


# A mask of None selects every client. Most rounds leave no client out, and each tensor operation costs microseconds.


def select(v: Tensor, mask: Tensor | None) -> Tensor:
    """Return the rows of v that the mask selects."""
    return v if mask is None else v[mask]


def select_all(vectors: Vectors, mask: Tensor | None) -> Vectors:
    """Return the rows of several tensors that the mask selects."""
    return {name: select(v, mask) for name, v in vectors.items()}


def both(mask: Tensor | None, other: Tensor) -> Tensor:
    """Return the conjunction of two masks."""
    return other if mask is None else mask & other


def concat(parts: list[Tensor], dim: int = 0) -> Tensor:
    """Concatenate tensors, without a copy where there is only one."""
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=dim)
