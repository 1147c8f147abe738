"""The state of a run between rounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..algorithm import Algorithm, Context, Vectors
from ..core.flat_model import FlatModel
from ..core.history import History
from ..core.method_checks import unchanged
from ..core.rounding import ceil_of
from ..selection.availability import Availability
from ..selection.selector import Selector
from .asynchronous_state import AsynchronousState, SimulatedTimes
from .backend import Backend
from .buffer import Buffer, one_by_one
from .cohort import Cohort
from .cohort_size import over_selecting
from .context import ServerContext
from .cost import Wire
from .declaration import Declaration, check_model
from .event_queue import EventQueue
from .gradient_count import GradientCounter
from .lr_schedule import Decay, decayed
from .named_tensors import named
from .personal_models import personal_models, with_statistics
from .private_run import PrivateRun
from .rank_exchange import collect_states
from .ranks import Ranks
from .reports import check_reports, extra_reports, in_training, sends_update
from .row_rules import row_rule
from .sampling import CohortSampler
from .secure_sums import secure_rule
from .simulated_clock import System
from .single_draws import SingleDraws
from .snapshot import Snapshot
from .start_costs import StartCosts
from .task import Task


@dataclass(kw_only=True)
class FederatedState:
    """The server's model and state, the clients' state, selection and history.

    A round changes it as a whole or, if interrupted, not at all; see `fedmos.engine.round`.
    """

    task: Task
    algorithm: Algorithm
    selector: Selector
    backend: Backend
    lr_decay: Decay = 1.0
    rounds: int | None = None
    """The number of rounds; None where it is not known."""
    availability: Availability | None = None
    system: System | None = None
    update_norms: bool = False
    """Whether records have the norms of the clients' updates."""
    private: PrivateRun | None = None
    """What a run under privacy fixes in advance; None for one without."""
    hostile: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    """The clients that attack."""
    buffer: Buffer | None = None
    """The option of an asynchronous run; None for synchronous rounds."""
    members: int | None = None
    """The number of clients that are still in the federation; None for all."""

    def __post_init__(self) -> None:
        model, data = self.task.model, self.task.data
        self.t = 0
        self.x = model.initial()
        self.declaration = Declaration(self.algorithm, model.layers)
        self.server_state: Vectors = self.declaration.initial(self.declaration.server_state, self.x)
        self.evaluated = self.x
        """The model that is evaluated, returned and deployed: x, unless the algorithm says otherwise."""
        self.history = History()
        self.clients, self.clock, self.policy = self.backend.clients, self.backend.clock, self.backend.policy
        self.wire = Wire(self.declaration, model.dtype)
        self.m = getattr(self.selector, self.selector.cohort_field, None)
        """The cohort size of the selector, before over-selection."""
        if self.buffer is not None:
            chosen = one_by_one(self.selector)
        else:
            chosen = self.selector if self.system is None else over_selecting(self.selector, self.system, len(data))
        check_reports(chosen, self.declaration, self.task)
        self.update_norms = self.update_norms and sends_update(self.declaration)
        self.reports = in_training((*chosen.reports, *(("update_norm",) if self.update_norms else ())))
        """The reports that clients give from their local training, and the norms that the server takes itself."""
        self.numbers_up = len(extra_reports(chosen.reports, self.declaration))
        """The numbers that each client of a cohort sends in addition to its uploads."""
        self._size = None if self.private is None else self.private.size
        self.sampler = (CohortSampler if self.buffer is None else SingleDraws)(
            self.task,
            self.backend,
            chosen,
            self.availability,
            self.clients.last,
            private=self.private,
            secure=secure_rule(self.algorithm) is not None,
        )
        self.lr = decayed(self.algorithm.lr, self.lr_decay, self.rounds)
        """The step size of a round."""
        self._lr_on_device: tuple[float, Tensor] | None = None
        self.asynchronous = None if self.buffer is None else self._asynchronous(self.buffer)

    def _asynchronous(self, buffer: Buffer) -> AsynchronousState:
        assert isinstance(self.sampler, SingleDraws)
        times = None
        if self.clock is not None:
            own = self.declaration.initial(self.declaration.client_state, self.x)
            counter = GradientCounter(self.task, self.algorithm, own)
            costs = StartCosts(self.wire, self.clock, len(self.task.data), self.numbers_up)
            times = SimulatedTimes(clock=self.clock, counter=counter, costs=costs)
        return AsynchronousState(buffer=buffer, sampler=self.sampler, times=times)

    def context(self, cohort: Cohort) -> Context:
        """Return the context of the current round with this cohort."""
        S, W = cohort.ids.shape[0], cohort.W
        return self.context_of(S, W) if self._size is None else self.context_of(max(1, round(self._size)), 1.0)

    def context_of(self, S: int, W: float) -> Context:
        """Return the context of the current round with S clients whose weights sum to W."""
        lr = self.lr(self.t)
        if self._lr_on_device is None or self._lr_on_device[0] != lr:
            self._lr_on_device = (lr, torch.full((), lr, dtype=self.x.dtype, device=self.x.device))
        return ServerContext(
            owner=type(self.algorithm).__name__,
            t=self.t,
            lr=self._lr_on_device[1],
            N=len(self.task.data) if self.members is None else self.members,
            S=S,
            W=W,
            layers=self.task.model.layers,
            seed=self.task.seed,
            device=self.x.device,
        )

    def quorum(self, cohort: Cohort) -> int:
        """Return the smallest number of clients with which a round counts."""
        if self.algorithm.steps_without_updates:
            return 0
        secure = secure_rule(self.algorithm)
        needed = self.min_uploads if secure is None else secure.option.needed(len(cohort.ids))
        if self.system is None or self.buffer is not None:
            return needed
        return max(needed, ceil_of(self.system.quorum, min(self.m or len(cohort.ids), len(cohort.ids))))

    @property
    def min_uploads(self) -> int:
        """The smallest number of uploads that can be aggregated."""
        rule = row_rule(self.algorithm)
        return 1 if rule is None else max(1, rule.aggregation.min_clients)

    def gradient_estimate(self, cohort: Cohort) -> Tensor | None:
        """Return the server state's estimate of the gradient at x, after a round with such a cohort."""
        K = float(self.task.steps(self.task.data.sizes[cohort.ids]).to(torch.float64).mean())
        return self.algorithm.gradient_estimate(self.x, self.server_state, self.context(cohort), K)

    def evaluated_model(self, x: Tensor, server_state: Vectors, cohort: Cohort) -> Tensor:
        """Return the model to evaluate after a server step of the current round to x and this server state."""
        if type(self.algorithm).evaluated is Algorithm.evaluated:
            return x
        with unchanged(self.algorithm, "evaluated", {"x": x, "state": server_state}):
            given = named(self.algorithm, "state", server_state)
            model = self.algorithm.evaluated(x, given, self.context(cohort))
        check_model(self.algorithm, "evaluated", model, x.shape)
        return model.to(x)

    @property
    def measured(self) -> Tensor:
        """The model that is evaluated, followed by the running statistics of BatchNorm layers if clients keep them."""
        return with_statistics(self.evaluated, self.server_state)

    def personal_model(self, i: int) -> Tensor | None:
        """Return the model of client i's own, on the CPU, with its statistics; None if the algorithm has none."""
        found = personal_models(self, torch.tensor([i]), vectorised=False)
        return None if found is None else found[0].cpu()

    def snapshot(self, info: Mapping[str, Any], interrupted: bool) -> Snapshot:
        """Return everything that a checkpoint stores, on the CPU."""
        return Snapshot(
            params=self.evaluated.cpu(),
            server_model=None if self.evaluated is self.x else self.x.cpu(),
            history=History(list(self.history)),
            server_state={name: v.cpu() for name, v in self.server_state.items()},
            clients=self.clients,
            last=self.clients.last.clone(),
            selection=self.sampler.to_dict(),
            queue={} if self.asynchronous is None else self.asynchronous.queue.to_dict(),
            info=info,
            interrupted=interrupted,
        )

    def collect_clients(self, ids: list[int], ranks: Ranks) -> dict[int, Vectors]:
        """Gather the state of clients from all ranks on rank 0; other ranks get an empty dictionary."""
        return collect_states(self.clients, self.declaration.client_state, ids, ranks, self.x.cpu())

    def restore(self, snapshot: Snapshot) -> None:
        """Continue from a snapshot."""
        device = self.task.model.device
        self.t = len(snapshot.history)
        self.x = self.evaluated = snapshot.params.to(device)
        if snapshot.server_model is not None:
            self.x = snapshot.server_model.to(device)
        self.history = History(list(snapshot.history))
        self.server_state = {name: v.to(device) for name, v in snapshot.server_state.items()}
        self.clients.restore(snapshot.clients, snapshot.last)
        self.sampler.restore(snapshot.selection, self.clients.last)
        if self.clock is not None and self.t:
            self.clock.now = self.history[-1].clock or 0.0
        if self.asynchronous is not None and snapshot.queue:
            self.asynchronous.queue = EventQueue.from_dict(snapshot.queue, device)


def initial_client_state(algorithm: Algorithm, model: FlatModel) -> Vectors:
    """Return the state of a client that never took part: zeros unless `init` gives another value."""
    declaration = Declaration(algorithm, model.layers)
    return declaration.initial(declaration.client_state, model.initial())
