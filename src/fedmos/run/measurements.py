"""What a run measures after a round, beside the metrics of the round itself."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ..core.callback import Callback
from ..core.history import Record
from ..engine.ranks import Ranks
from ..engine.state import FederatedState
from ..engine.task import Task
from ..evaluation.diagnostics import Diagnostics
from ..evaluation.user_metrics import measure
from ..storage import RunFolder, Snapshot
from .client_evaluation import with_summary
from .run_metrics import RunMetrics


class RoundMeasurements:
    """Completes the records of a run with the metrics of the user, the evaluation of clients, and diagnostics.

    Args:
        state: The state of the run.
        task: The task that is measured: without the samples that hostile clients poison.
        metrics: What the run measures.
        rounds: The number of rounds.
        ranks: The ranks of the run.
        folder: The folder of the run on rank 0; None without one.
        earlier: The checkpoint that the run continues from.
    """

    def __init__(
        self,
        state: FederatedState,
        task: Task,
        metrics: RunMetrics,
        rounds: int,
        ranks: Ranks,
        folder: RunFolder | None,
        earlier: Snapshot | None,
    ) -> None:
        self._state, self._task, self._metrics, self._rounds = state, task, metrics, rounds
        self._ranks, self._folder, self._before = ranks, folder, state.x
        self.scores = None if earlier is None else earlier.client_evaluation
        """The last evaluation of clients."""
        self.incomplete = earlier is not None and earlier.interrupted and self._lacks_clients()
        """Whether the earlier part was interrupted between the end of a round and the evaluation of its clients."""

    def complete(self, record: Record, callbacks: Iterable[Callback]) -> Record:
        """Measure the model of the last round, and return its record with the values."""
        record = self.evaluate_clients(self._with_user_metrics(record))
        for callback in callbacks:
            if isinstance(callback, Diagnostics):
                record = self._amended(callback.diagnosed(record, self._state, self._before))
        self._before = self._state.x
        return record

    def evaluate_clients(self, record: Record) -> Record:
        """Return the record with the summary over clients, in rounds in which they are evaluated."""
        clients = self._metrics.clients
        if clients is None or not clients.due(record.round, self._rounds):
            return record
        self.scores = clients.measure(self._state)
        record = self._amended(with_summary(record, clients.summary(self.scores)))
        if self._folder is not None:
            self._folder.write_clients(self.scores)
        return record

    def _with_user_metrics(self, record: Record) -> Record:
        """Return the record with the metrics of the user, in rounds that are evaluated."""
        functions = self._metrics.functions
        if not functions or self._task.data.test is None or record.value("test_loss") is None:
            return record
        found = self._ranks.on_rank0(lambda: measure(self._task, self._state.measured, functions))
        return self._amended(replace(record, metrics=found))

    def _lacks_clients(self) -> bool:
        """Whether the last record should have a summary over clients, but has none."""
        clients, history = self._metrics.clients, self._state.history
        due = clients is not None and len(history) > 0 and clients.due(history[-1].round, self._rounds)
        return due and history[-1].client_metrics is None

    def _amended(self, record: Record) -> Record:
        """Replace the last record of the history."""
        self._state.history.amend(record)
        return record
