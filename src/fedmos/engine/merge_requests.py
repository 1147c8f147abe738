"""Requests of merged runs: what a round waits for while the other runs' requests are collected."""

from __future__ import annotations

from collections.abc import Coroutine, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from torch import Tensor

from ..core.history import Record
from .job import Job, JobResult

T = TypeVar("T")


class WorkRequest(Generic[T]):
    """Work that a run waits for. Awaiting it suspends the run's round until the request is answered."""

    def __await__(self) -> Generator[WorkRequest[T], T, T]:
        answer = yield self
        return answer


@dataclass(frozen=True)
class JobRequest(WorkRequest[JobResult]):
    """Execute a job."""

    job: Job


@dataclass(frozen=True)
class EvaluationRequest(WorkRequest[Tensor]):
    """Evaluate the model x."""

    x: Tensor


@dataclass(frozen=True)
class ReadRequest(WorkRequest[list[Tensor]]):
    """Copy values from the device; with `now`, before any other work is queued."""

    values: Sequence[Tensor]
    now: bool


class RequestQueue:
    """The work queue of a merged run: every call suspends the round with a request."""

    async def execute(self, job: Job) -> JobResult:
        return await JobRequest(job)

    async def evaluate(self, x: Tensor) -> Tensor:
        return await EvaluationRequest(x)

    async def read(self, values: Sequence[Tensor], now: bool = False) -> list[Tensor]:
        return await ReadRequest(values, now)


Rounds = Mapping[int, Coroutine[WorkRequest[Any], Any, Record]]
"""By number of the run, a round to play."""
