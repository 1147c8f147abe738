"""How a run makes its backend."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple

from ..algorithm import Algorithm
from ..engine.backend import Backend, UpdatePolicy
from ..engine.client_store import ClientStore
from ..engine.execution_plan import ExecutionPlan
from ..engine.local_backend import LocalBackend
from ..engine.ranks import Ranks
from ..engine.simulated_clock import Clock, System
from ..engine.state import initial_client_state
from ..engine.task import Task
from ..evaluation.metrics import Evaluator


class BackendSetting(NamedTuple):
    """What a backend is made from."""

    task: Task
    """What clients train on."""
    measured: Task
    """What metrics are measured on: the same, unless hostile clients poison their data."""
    algorithm: Algorithm
    plan: ExecutionPlan
    system: System | None
    on_bad_update: Literal["stop", "drop"]
    ranks: Ranks
    scratch: Path | None
    """The folder for client state that does not fit into memory; None for the system's temporary folder."""


BackendFactory = Callable[[BackendSetting], Backend]


def local_backend(given: BackendSetting) -> LocalBackend:
    """Make a backend that simulates the clients in this process or on its ranks."""
    task, ranks = given.task, given.ranks
    initial = initial_client_state(given.algorithm, task.model)
    share = (ranks.rank, ranks.size)
    return LocalBackend(
        task,
        given.algorithm,
        given.plan,
        clients=ClientStore(initial, len(task.data), given.scratch, share=share),
        evaluator=Evaluator([given.measured], vectorised=given.plan.engine == "batched", ranks=ranks),
        clock=None if given.system is None else Clock(given.system, len(task.data), task.seed),
        policy=UpdatePolicy(drop=given.on_bad_update == "drop"),
        ranks=ranks,
    )
