"""Where a backend submits work for the device: executed at once, or together with the work of other runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from .backend import ModelEvaluator, StepObserver
from .executor import JobExecutor
from .job import Job, JobResult


class WorkQueue(Protocol):
    """Accepts the work of one run."""

    async def execute(self, job: Job) -> JobResult:
        """Execute a job."""

    async def evaluate(self, x: Tensor) -> Tensor:
        """Return the metrics of x, (k,), on the device."""

    async def read(self, values: Sequence[Tensor], now: bool = False) -> list[Tensor]:
        """Copy float64 values from the device. With `now`, before any other work is queued on the device."""


class ImmediateQueue:
    """Does everything at once. Its coroutines never suspend."""

    def __init__(
        self, executor: JobExecutor, evaluator: ModelEvaluator | None, observer: StepObserver | None = None
    ) -> None:
        self._executor, self._evaluator, self._observer = executor, evaluator, observer

    async def execute(self, job: Job) -> JobResult:
        return self._executor.execute(job, self._observer)

    async def evaluate(self, x: Tensor) -> Tensor:
        assert self._evaluator is not None
        return self._evaluator(x[None])[0]

    async def read(self, values: Sequence[Tensor], now: bool = False) -> list[Tensor]:
        return read_values([values])[0]


def read_values(requests: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
    """Read all requested float64 values in one device-to-host transfer."""
    wanted = [v for request in requests for v in request]
    numbers = torch.cat([v.flatten() for v in wanted]).cpu().split([v.numel() for v in wanted])
    parts = iter([part.view(v.shape) for part, v in zip(numbers, wanted, strict=True)])
    return [[next(parts) for _ in request] for request in requests]
