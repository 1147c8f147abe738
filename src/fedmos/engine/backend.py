"""The interface between a round and whatever does the clients' part of it.

A round calls a `Backend` and does not know which one: clients simulated in this process (`LocalBackend`, alone, on
several ranks, or merged with other runs) or clients of a Flower deployment (`fedmos.flower.backend.FlowerBackend`).

Methods that may have to wait for other runs are coroutines. With a single run they never suspend, and `complete` runs
them like plain functions.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from torch import Tensor

from ..algorithm import Context, Vectors
from .client_store import ClientStore
from .cohort import Cohort
from .gradients import LocalGradient
from .job import Phase
from .round_timing import RoundTiming
from .sent_models import SentModels
from .simulated_clock import Clock

T = TypeVar("T")

StepObserver = Callable[[LocalGradient, int, Tensor, Tensor], None]
"""Called after every local step with the gradient object, the step's number, and the models before and after it."""


Thin = Callable[[Cohort, Vectors], Cohort]
"""Takes the clients that trained, with their weights, and their reports of local training, (S,) on the CPU, by name.
Returns those that upload, with their new weights."""


class UpdatePolicy(NamedTuple):
    """How updates with non-finite values are treated."""

    check_each: bool = False
    """Check every update before it is summed; otherwise all values of a round are checked once, at its end."""
    drop: bool = False
    """Leave such clients out of the round; otherwise raise `NonFiniteUpdate`."""


class PhaseInput(NamedTuple):
    """The input of one phase of a round, the same for every client of the cohort."""

    phase: Phase
    ctx: Context
    lr: float
    x: Tensor
    msg: Vectors
    timing: RoundTiming | None
    """Tells which clients miss the deadline; None where no client can."""
    policy: UpdatePolicy
    reports: tuple[str, ...] = ()
    """The names of the numbers that clients report from their local training; see `fedmos.engine.reports`."""
    thin: Thin | None = None
    """Chooses who uploads, after local training; None where all do."""
    updates: bool = False
    """Whether to return the update of each client."""
    sent: SentModels | None = None
    """What each client of the cohort was sent, where that differs; None where all have `x`, `msg` and `lr`."""
    quorum: int = 0
    """The smallest number of clients with which the round counts."""


class CohortUpdate(NamedTuple):
    """The aggregated result of one phase."""

    sums: Vectors
    """The sums named in the algorithm's `reduce` or `prepare_reduce`."""
    kept: Cohort
    """The clients whose uploads are in the sums, with their weights."""
    arrived: Cohort
    """The clients that trained and reported in time; those kept, unless the selector thinned the cohort."""
    states: tuple[Tensor, Vectors]
    """Ids of the kept clients whose state this process stores, and their new state."""
    report: Tensor
    """(1 + reports, arrived), float64, on the device: the largest absolute value of each upload, then the reports."""
    updates: Tensor | None = None
    """(kept, D), on the device: the clients' updates, where the phase returns them (`PhaseInput.updates`)."""
    saturated: Tensor | None = None
    """Under secure aggregation, how many values exceeded their bounds; None where that is not counted."""


class NonFiniteUpdate(Exception):
    """A client's update has a non-finite value."""

    def __init__(self, client: int) -> None:
        super().__init__(client)
        self.client = client


class UnresponsiveClients(Exception):
    """Clients did not answer a probe."""

    def __init__(self, ids: Tensor) -> None:
        super().__init__(ids)
        self.ids = ids


class ModelEvaluator(Protocol):
    """Computes the metrics of models."""

    names: list[str]

    def __call__(self, xs: Tensor) -> Tensor:
        """Evaluate models (R, D); returns (R, k), float64, in the order of `names`."""

    def client_accuracy(self, x: Tensor) -> dict[str, Any] | None:
        """Return the distribution of the accuracy of x over clients; None where clients' data cannot be read."""


class Backend(Protocol):
    """Does the clients' part of a run: local training, probes, reports, evaluation."""

    clients: ClientStore
    """The state of clients, as far as this process stores it, and the round each last took part in."""
    policy: UpdatePolicy
    """How updates are checked in the first round."""

    @property
    def clock(self) -> Clock | None:
        """The simulated clock; None where time is real or is not simulated."""

    @property
    def evaluator(self) -> ModelEvaluator:
        """The evaluator that `evaluate` uses."""

    async def run_phase(self, cohort: Cohort, given: PhaseInput, observer: StepObserver | None = None) -> CohortUpdate:
        """Run one phase on every client of the cohort and aggregate the uploads.

        With an observer, call it after every local step.
        """

    async def evaluate(self, x: Tensor) -> Tensor:
        """Return the metrics of x, (k,), on the device."""

    async def read(self, values: Sequence[Tensor], now: bool = False) -> list[Tensor]:
        """Copy float64 values from the device. With `now`, before any other work is queued on the device."""

    def losses(self, x: Tensor, t: int, ids: Tensor, batch: bool) -> Tensor:
        """Return each client's mean loss at x, (M,), float64, on all its data or on one random batch.

        Raises:
            UnresponsiveClients: if clients do not answer.
        """

    def gradients(self, x: Tensor, t: int, ids: Tensor) -> Tensor:
        """Return ∇f_i(x), (M, D). Raises `UnresponsiveClients` like `losses`."""

    def reports(self, x: Tensor, ids: Tensor, names: Sequence[str]) -> Vectors:
        """Return those of these reports that clients give about their data at x, which they received: (M,), float64."""

    def traffic(self, declared: tuple[int, int]) -> tuple[int, int]:
        """Return the bytes sent down and up in this round: measured where messages travel, otherwise `declared`."""

    def late(self) -> list[int]:
        """Return the clients that missed a real deadline in this round."""


def complete(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that does not suspend, and return its result."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise RuntimeError("the coroutine waits for another run; only the interpreter of merged runs can resume it")
