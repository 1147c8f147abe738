"""The sums of the uploads that clients of a deployment have sent, in the order of a simulation."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ..algorithm import Vectors
from ..engine.aggregation import Division, PartialUpdate, Sums, all_positions, block_width, in_order, upload_factors
from ..engine.backend import PhaseInput
from ..engine.cohort import Cohort
from ..engine.declaration import Declaration
from ..engine.execution_plan import ExecutionPlan
from ..engine.task import Task
from .upload_spool import SpooledVectors

Uploads = Mapping[str, Tensor]


class UploadSums:
    """Adds the uploads of a cohort.

    Args:
        task: The task of the run.
        plan: The execution plan, which determines the order of the sums.
        declaration: What the algorithm uploads, and how it is summed.
    """

    def __init__(self, task: Task, plan: ExecutionPlan, declaration: Declaration) -> None:
        self._task, self._plan, self._declaration = task, plan, declaration

    def add(
        self, cohort: Cohort, given: PhaseInput, kept: Cohort, received: Mapping[int, Uploads]
    ) -> tuple[PartialUpdate, Sums]:
        """Add the uploads of the kept clients of a cohort, which are in `received` by client.

        Uploads are read one client at a time, in the order of a simulation: within each block, then over blocks.

        Returns:
            The rows that the algorithm asked for, and the sums.
        """
        S, device = len(cohort.ids), given.x.device
        width = block_width(S, self._plan, device, 1)
        division = Division(S, width, [0] * -(S // -width), all_positions(S), ())
        partial = PartialUpdate(division, self._declaration, given.phase, given.x, updates=given.updates)
        weights, here = torch.zeros_like(cohort.weights), torch.isin(cohort.ids, kept.ids)
        weights[here] = kept.weights
        factors = upload_factors(self._task, partial.rules, cohort.ids, weights)
        total: Sums | None = None
        for block in range(len(division.owner)):
            found: Vectors = {}
            for row in range(block * width, min(S, (block + 1) * width)):
                if bool(here[row]):
                    uploads = received[int(cohort.ids[row])]
                    _add_client(partial, found, row, uploads, {name: float(v[row]) for name, v in factors.items()})
            added = in_order(found, partial.summed, partial.like)
            total = added if total is None else [_plus(v, w) for v, w in zip(total, added, strict=True)]
            del added, found  # before the next upload is read
        return partial, total or in_order({}, partial.summed, partial.like)


def _add_client(
    partial: PartialUpdate, sums: Vectors, row: int, uploads: Uploads, factors: Mapping[str, float]
) -> None:
    """Add factor · upload of one client to the sums of its block, and keep its rows."""
    for name, (upload, rule) in partial.rules.items():
        if rule == "each":
            partial.rows[name][row] = uploads[upload].to(partial.x)
        else:
            term = _scaled(uploads, upload, partial.x, factors[name])
            sums[name] = _plus(sums[name], term) if name in sums else term


def _scaled(uploads: Uploads, name: str, like: Tensor, factor: float) -> Tensor:
    """Return factor · upload, in the memory of an upload that was read for this."""
    own = isinstance(uploads, SpooledVectors) and uploads.stores(name)
    v = uploads[name].to(like)
    return v.mul_(factor) if own else factor * v


def _plus(total: Tensor, v: Tensor) -> Tensor:
    """Add to a sum that nothing else refers to, in its memory."""
    return total.add_(v)
