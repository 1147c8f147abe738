"""The number of gradients that a client will compute, found before it trains."""

from __future__ import annotations

import torch
from torch import Tensor

from ..algorithm import Algorithm, Context, Vectors
from .batches import SampleBatch
from .execution_plan import ExecutionPlan
from .executor import JobExecutor
from .gradients import LossAndGradient, samples_taken
from .job import Job
from .loop import Loop
from .sent_models import ModelVersion
from .task import Task


class _ZeroGradient(Loop):
    """Records which gradients are requested, and returns zeros."""

    def loss_and_gradient(self, y: Tensor, batch: SampleBatch) -> LossAndGradient:
        return LossAndGradient(y.new_zeros(1), torch.zeros_like(y))


class GradientCounter(JobExecutor):
    """Counts the per-sample gradients of clients by running their methods once with gradients of zero."""

    def __init__(self, task: Task, algorithm: Algorithm, own: Vectors) -> None:
        """`own`: the state of a client that has not taken part."""
        super().__init__(task, algorithm, ExecutionPlan(engine="loop", chunk=1, reason="counts gradients"))
        self._kind = _ZeroGradient
        self._own = {name: v[None] for name, v in own.items()}
        self._client = int(task.steps(task.data.sizes).argmax())
        """A client with the most steps: what it computes contains what the others do."""
        self._found: dict[int | None, Tensor] = {}
        """By round, the last count; under None if the algorithm's methods for clients do not depend on the round."""

    def count(self, ctx: Context, sent: ModelVersion) -> Tensor:
        """Return the number of per-sample gradients that each client computes if it starts in this round, (N,)."""
        for t in (None, ctx.t):
            if t in self._found:
                return self._found[t]
        counted = self._counted(ctx, sent)
        self._found = {ctx.t if "t" in self.context_reads["train"] else None: counted}
        return counted

    @torch.no_grad()
    def _counted(self, ctx: Context, sent: ModelVersion) -> Tensor:
        sizes = self.task.data.sizes
        job = Job(
            phase="train",
            ids=torch.tensor([self._client]),
            ctx=ctx,
            lr=[sent.lr],
            W=[1.0],
            x=sent.x,
            msg=sent.msg,
            own=self._own,
            last=torch.tensor([-1]),
            factors={},
            width=int(sizes[self._client]),
        )
        self.execute(job)
        (calls,) = self._calls.values()
        self._calls.clear()
        return samples_taken(self.task, calls, sizes)
