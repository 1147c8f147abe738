"""A run whose clients are those of a deployment."""

from __future__ import annotations

import logging
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..core.history import Record
from ..data.federated import FederatedData
from ..engine.buffered import play_buffered_round
from ..run.info import RunInfo
from ..run.result import Result
from ..run.run import Run
from ..run.spec import RunSpec
from ..storage.files import storage_errors
from ..storage.lock import SERVER_LOCK, FolderLock
from .buffered_backend import BufferedFlowerBackend
from .buffered_rounds import BufferedRounds
from .members.changes import MembersChangedError
from .members.membership import ClientMembership
from .reply_collector import ReplyCollector
from .served_evaluation import ServedClientEvaluation

_log = logging.getLogger("fedmos")


@contextmanager
def served(folder: Path) -> Iterator[None]:
    """Have a run folder for this server app alone, also while it waits for clients and its run has not begun.

    Raises:
        StorageError: If another server app has it, or it cannot be written.
    """
    with storage_errors(f"use {folder}", "use another folder"):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = FolderLock(folder / SERVER_LOCK)
    try:
        yield
    finally:
        lock.release()


class ServedRun(Run):
    """A run that stops when the operator changes its clients, and does not end as finished if it has trained nothing.

    Its asynchronous rounds are real. They go on whatever the operator orders, which `RunLimits` refuses.

    Args:
        spec: The options of the run, with the clients' data as they are now.
        members: The clients of the run.
        collector: The exchange of messages with them.
        base: The clients' data as they were at the start of the run, which do not change when it is resumed.
        given: Further arguments of `Run`.
    """

    client_evaluation = ServedClientEvaluation
    served = True
    _buffered: BufferedRounds | None = None

    def __init__(
        self, spec: RunSpec, members: ClientMembership, collector: ReplyCollector, base: FederatedData, **given: Any
    ) -> None:
        self._members, self._collector, self._base = members, collector, base
        super().__init__(spec, **given)
        self.state.members = members.active
        if spec.buffer is None:
            self.state.sampler.excluded = lambda t: members.excluded(self.state.history)
        self._quarantined = members.quarantined(self.state.history)

    def _describe(self) -> RunInfo:
        """Describe the run by the clients of its start."""
        return replace(super()._describe(), clients=len(self._base), data=self._base.fingerprint())

    def next_round(self) -> Coroutine[Any, Any, Record]:
        """Return the coroutine of the next round."""
        backend = self.state.backend
        if not isinstance(backend, BufferedFlowerBackend):
            return super().next_round()
        self._buffered = self._buffered or BufferedRounds(backend)
        return play_buffered_round(self.state, self.evaluates_next, self._buffered.collect)

    def finish_round(self, record: Record) -> None:
        """Record refusals, and stop if the operator has changed the clients.

        Raises:
            MembersChangedError: After the round is saved.
        """
        record = replace(
            record,
            refused=self._refusals(record),
            quarantined=self._quarantined,
            changes=[str(change) for change in self._members.member_list.changes_after(record.round - 1)],
        )
        self.state.history.amend(record)
        super().finish_round(record)
        self._note_quarantine()
        if self.spec.buffer is None and not self.is_complete() and self._members.pending():
            raise MembersChangedError

    def _refusals(self, record: Record) -> dict[str, str]:
        """Return why the replies of clients were refused, and the nodes of those that are late."""
        registry = self._collector.registry
        nodes = {i: registry.refusal(i) for i in record.late}
        refused = self._collector.refusals.take() | {i: why for i, why in nodes.items() if why is not None}
        return {str(i): refused[i] for i in sorted(refused)}

    def _note_quarantine(self) -> None:
        """Log who is in quarantine from the next round on."""
        before, self._quarantined = self._quarantined, self._members.quarantined(self.state.history)
        for i in sorted(set(self._quarantined) - set(before)):
            name = self._members.names[i]
            _log.warning(
                "Client '%s' is in quarantine after repeated refusals, from round %d on; the command `fedmos deploy "
                "release %s` in the run folder ends it",
                name,
                self.state.t + 1,
                name,
            )
        for i in sorted(set(before) - set(self._quarantined)):
            _log.info("The quarantine of client '%s' ends before round %d", self._members.names[i], self.state.t + 1)

    def finish(self, interrupted: bool = False) -> Result:
        """Write the last checkpoint and return the result.

        Raises:
            RuntimeError: If every round was abandoned.
        """
        history = self.state.history
        if not interrupted and len(history) and all(record.abandoned for record in history):
            raise RuntimeError(
                f"Cannot finish the run because each of its {len(history)} rounds was abandoned, so the model is not "
                "trained; see the log for the reasons, and start the run again in a new folder"
            )
        result = super().finish(interrupted)
        if self._buffered is not None and not interrupted:
            self._buffered.close()
        return result
