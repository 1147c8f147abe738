"""A run in progress, from its options to its result."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..algorithm import Algorithm
from ..core.history import History, Record, reached
from ..core.interrupts import message_on_interrupt
from ..core.notices import display_messages
from ..core.precision import arithmetic
from ..engine.backend import complete
from ..engine.buffered import play_buffered_round
from ..engine.execution_plan import ExecutionPlan
from ..engine.local_backend import LocalBackend
from ..engine.process_group import join
from ..engine.ranks import Ranks
from ..engine.round import play_round
from ..engine.round_results import DivergenceError
from ..engine.state import FederatedState
from ..engine.task import DeviceCache
from ..evaluation.per_client import tested_distribution
from ..privacy.noise import SecretStreams
from ..storage import RunFolder, Snapshot
from ..storage.checkpoint import Checkpoints
from .abandoned import warn_of_abandoned
from .backends import BackendFactory, local_backend
from .best_model import BestModelKeeper
from .build import prepare_task
from .callback_checks import check_callbacks
from .callback_list import CallbackList
from .callbacks import progress_display
from .client_evaluation import ClientEvaluation
from .cohort_check import check_cohorts
from .hostile import hostile_clients
from .info import RunInfo
from .initial_state import initial_state
from .measurements import RoundMeasurements
from .plan import plan_of, round_times
from .preflight import check_metric, check_target
from .private import affordable_rounds, describe_privacy
from .repeatability import repeatable
from .result import Result, no_own_model
from .resume import check_rounds, check_unchanged
from .run_metrics import run_metrics
from .secure import warn_of_saturation
from .spec import RunSpec

_log = logging.getLogger("fedmos")


class Run:
    """One run.

    `play` executes all of it: `start`, then `next_round` and `finish_round` until `is_complete`, then `finish`. Several
    runs that train together are driven by these methods one by one.
    """

    client_evaluation = ClientEvaluation
    """How clients are evaluated (`evaluate_clients`)."""
    compares_cohorts = True
    """Whether the user's own methods are tried on a cohort and on single clients before the run."""
    served = False
    """Whether clients elsewhere train, and nothing changes the given model."""

    def __init__(
        self,
        spec: RunSpec,
        *,
        device_cache: DeviceCache | None = None,
        make_backend: BackendFactory = local_backend,
        secret: SecretStreams | None = None,
    ) -> None:
        """Build everything that the run needs, or continue from the newest checkpoint of its folder.

        Args:
            spec: the options of the run.
            device_cache: samples and frozen parameters that other runs have copied to the device.
            make_backend: makes the backend that trains the clients.
            secret: the random numbers of a private run that must not follow from its seed.
        """
        join()
        self.spec, self.rounds = spec, affordable_rounds(spec)
        self.task = prepare_task(spec, device_cache, self.served)
        self.ranks = Ranks.joined(self.task.model.device)
        metrics = run_metrics(spec, self.task, self.ranks, self.client_evaluation)
        self._target = check_target(spec.target, metrics.names)
        check_metric("run", "keep_best", spec.keep_best, metrics.names)
        self.callbacks = CallbackList(spec.callbacks)
        check_callbacks(spec, self.task, self.ranks, self.callbacks, metrics.names)
        self.display = progress_display(spec.progress, self.label) if self.ranks.first else None
        self.interrupted = False
        """Whether Ctrl-C ended the choice of the execution plan; the run then ends before its next round."""
        self.info = self._describe()
        self.info.hostile = hostile_clients(spec).tolist() or None
        self._folder: RunFolder | None = None
        if spec.out is not None and self.ranks.first:  # only rank 0 writes
            self._folder = spec.out if isinstance(spec.out, RunFolder) else RunFolder(spec.out)
        try:
            earlier = None if spec.out is None else self._load_checkpoint(Path(spec.out))
            with self._interactive():
                self.state = self._make_state(earlier, make_backend, secret)
                if self.compares_cohorts and not self.interrupted:
                    check_cohorts(spec, self.state)
        except BaseException:
            self.close()
            raise
        self._measurements = RoundMeasurements(
            self.state, self.task, metrics, self.rounds, self.ranks, self._folder, earlier
        )
        self._best = BestModelKeeper(spec.keep_best, None if earlier is None else earlier.best)
        self._stopped_by: str | None = None
        """The callback that has ended the run."""
        self._saved = None if earlier is None or earlier.interrupted else self.state.t

    def _describe(self) -> RunInfo:
        """Describe the run before it starts."""
        return RunInfo.of(self.spec, self.task)

    def _load_checkpoint(self, out: Path) -> Snapshot | None:
        """Find the checkpoint to continue from, on rank 0; other ranks read the one that it has found."""
        found: Snapshot | None = None

        def find() -> int | None:
            nonlocal found
            if self._folder is None:
                return None
            self._folder.acquire()
            found = self._folder.load_checkpoint(self.spec.resume)
            if found is not None:
                self._check_resumable(out, found)
            return self._folder.checkpoints.loaded_number

        number = self.ranks.on_rank0(find)
        if self.ranks.first or number is None:
            return found
        return Checkpoints(out / "checkpoints").load(number)

    def _check_resumable(self, out: Path, earlier: Snapshot) -> None:
        """Refuse to resume a run that differs from this one, or of which too little was kept."""
        before = RunInfo.from_json(earlier.info)
        check_unchanged(out, before, self.info)
        check_rounds(out, len(earlier.history), self.spec.rounds)
        complete = _is_complete(earlier.history, self.rounds, self._target)
        if before.light and not complete and self.callbacks.stopped_by(earlier.history) is None:
            raise ValueError(
                f"Cannot continue the run in {out} because only its model and history were kept; use a new folder"
            )

    def _make_state(
        self, earlier: Snapshot | None, make_backend: BackendFactory, secret: SecretStreams | None
    ) -> FederatedState:
        """Choose the execution plan, and make the state before round 0 or that of the checkpoint."""
        plan = self._choose_plan(None if earlier is None else RunInfo.from_json(earlier.info))
        self.task = replace(self.task, compiled=plan.compiled)
        scratch = None if self._folder is None else self._folder.path
        state = initial_state(self.spec, self.task, plan, make_backend, self.ranks, scratch, secret)
        if earlier is not None:
            state.restore(earlier)
        return state

    def _choose_plan(self, before: RunInfo | None) -> ExecutionPlan:
        """Choose the execution plan and record it, with what the earlier part of the run recorded."""
        with arithmetic(self.spec.precision):
            plan = self._uninterrupted_plan(before)
        on_cpu = self.task.model.device.type == "cpu"
        plan = replace(plan, blockwise=self.ranks.size > 1 and on_cpu if before is None else bool(before.blockwise))
        if not self.interrupted:
            self.info.set_plan(plan)
        if before is not None:
            self.info.continue_from(before)
        return plan

    def _uninterrupted_plan(self, before: RunInfo | None) -> ExecutionPlan:
        """Return the execution plan; if Ctrl-C ends the choice, one for a run that plays and records nothing."""
        try:
            return ExecutionPlan(**self.ranks.on_rank0(lambda: asdict(plan_of(self.spec, self.task, before))))
        except KeyboardInterrupt:
            if self.ranks.size > 1 or (before is not None and before.engine is not None):
                raise
            self.interrupted = True
            return ExecutionPlan(engine="loop", chunk=1, reason="interrupted")

    def play(self) -> Result:
        """Execute the whole run and return its result. Ctrl-C ends it after the last complete round."""
        if self.display is not None:
            self.callbacks.append(self.display)
        with closing(self), self._interactive(), arithmetic(self.task.model.precision):
            self.start()
            first, times = self.state.t, round_times(self.spec, self.task, self.state.backend, self.ranks)
            try:
                while not self.is_complete() and not self.interrupted:
                    try:
                        with repeatable(self.state) if self.state.t == first else nullcontext(), torch.no_grad():
                            record = complete(self.next_round())
                    except torch.OutOfMemoryError:
                        if not self._halve_chunks():
                            raise
                        times = None
                        continue
                    if times is not None:
                        times.add(record.seconds)
                    self.finish_round(record)
                return self.finish(interrupted=self.interrupted)
            except KeyboardInterrupt:
                if self.ranks.size > 1:  # other ranks can be in another round; the newest checkpoint counts
                    raise
                return self.finish(interrupted=True)
            except DivergenceError as error:
                self.info.diverged = str(error)
                self._save(interrupted=True)
                error.result = self.result(interrupted=True)
                raise

    @property
    def label(self) -> str:
        """The name of the run in its display of progress."""
        return self.spec.label or type(self.spec.algorithm).__name__

    @contextmanager
    def _interactive(self) -> Iterator[None]:
        """Show messages on the display of progress, and one at Ctrl-C."""
        with (
            display_messages(None if self.display is None else self.display.say),
            message_on_interrupt(self._interrupt_message()),
        ):
            yield

    def _interrupt_message(self) -> str:
        """Return what Ctrl-C shows at once."""
        if self.spec.out is None:
            return "Stopping … The result so far is returned; with out=FOLDER, a run can be continued."
        return f"Stopping … Continue with: fm.run(..., out={os.fspath(self.spec.out)!r}, resume=True)"

    def _halve_chunks(self) -> bool:
        """Train fewer clients side by side after running out of memory; False if that is not possible.

        The round that failed has not changed the state.
        """
        backend = self.state.backend
        if not isinstance(backend, LocalBackend) or backend.executor.plan.chunk == 1 or self.ranks.size > 1:
            return False
        before = backend.executor.plan.chunk
        backend.executor.halve_chunks()
        self.info.chunk, self.info.narrowed = backend.executor.plan.chunk, "out of memory; bits may differ"
        _log.warning("Out of memory: continuing with chunks of %d instead of %d clients", self.info.chunk, before)
        return True

    def start(self) -> None:
        """Open the files of the folder and call `on_start` of the callbacks."""
        if self._measurements.incomplete:
            self._measurements.evaluate_clients(self.state.history[-1])
            self._best.update(self.state.history, self.state.measured)

        def start_on_rank0() -> str | None:
            describe_privacy(self.spec)
            if self._folder is not None:
                self._folder.start(self.info.readable(), self.state.history, self.spec.checkpoint_every)
            self.callbacks.on_start(self.rounds, self.state.t)
            return self.callbacks.stopped_by(self.state.history)

        self._stopped_by = self.ranks.on_rank0(start_on_rank0)

    async def next_round(self) -> Record:
        """Play the next round."""
        play = play_round if self.spec.buffer is None else play_buffered_round
        try:
            return await play(self.state, evaluate=self.evaluates_next)
        except DivergenceError:  # of all ranks
            raise
        except Exception:  # possibly of this rank alone, as in a method of the user's for one client
            self.ranks.abandon()
            raise

    @property
    def evaluates_next(self) -> bool:
        """Whether the model is evaluated after the next round."""
        t = self.state.t + 1
        return t % self.spec.eval_every == 0 or t == self.rounds

    def is_complete(self) -> bool:
        """Whether all rounds are played, the target is reached, or a callback has ended the run."""
        return self._stopped_by is not None or _is_complete(self.state.history, self.rounds, self._target)

    def finish_round(self, record: Record) -> None:
        """Report a round to the callbacks, and write a checkpoint if one is due."""
        self.info.client_accuracy = self.info.diverged = None  # recorded at the end of an earlier part of the run
        record = self._measurements.complete(record, self.callbacks)
        self._best.update(self.state.history, self.state.measured)
        self._stopped_by, due = self.ranks.on_rank0(lambda: self._report(record))
        if due:
            self._save()

    def _report(self, record: Record) -> tuple[str | None, bool]:
        """Write the round to the folder and call the callbacks.

        Returns:
            The callback that ends the run, if any, and whether a checkpoint is due.
        """
        warn_of_saturation(self.state.history)
        if self._folder is not None:
            self._folder.write_rounds(self.state.history)
        self.callbacks.on_round(record, self._model)
        stopped_by = self.callbacks.stopped_by(self.state.history)
        goes_on = stopped_by is None and not _is_complete(self.state.history, self.rounds, self._target)
        return stopped_by, self._folder is not None and goes_on and self._folder.checkpoint_due(self.state.t)

    def _model(self) -> nn.Module:
        """Return a copy of the model with the current weights, on the CPU and in evaluation mode."""
        return self.task.model.module_with(self.state.measured).eval()

    def _snapshot(self, info: Mapping[str, Any], interrupted: bool) -> Snapshot:
        # An interruption can come between the end of a round and its report.
        self._best.update(self.state.history, self.state.measured)
        snapshot = self.state.snapshot(info, interrupted)
        return replace(snapshot, best=self._best.on_cpu(), client_evaluation=self._measurements.scores)

    def _save(self, interrupted: bool = False) -> None:
        """Write a checkpoint if the run has a folder and the state has changed since the last one."""
        if self.spec.out is None or (self._saved == self.state.t and not interrupted):
            return
        folder, state = self._folder, self.state
        snapshot, changed = self._snapshot(self.info.to_json(), interrupted), state.clients.changed
        if self.ranks.size > 1:
            needed = self.ranks.broadcast([] if folder is None else folder.checkpoints.clients_to_write(changed))
            snapshot.clients = state.collect_clients(needed, self.ranks)
        final = not interrupted and self.is_complete()
        self.ranks.on_rank0(lambda: None if folder is None else folder.save(snapshot, changed, final))
        changed.clear()
        self._saved = state.t
        if folder is not None:
            self.info.checkpoints = folder.checkpoint_cost

    def result(self, interrupted: bool = False) -> Result:
        """Return the result as of the last complete round."""
        if self.task.compiled:
            self.info.compile_seconds = round(self.state.task.program.seconds, 1)
        parts = vars(self._snapshot({}, interrupted)) | {"info": replace(self.info)}
        given: dict[str, Any] = {"_model": self._model(), "_outputs": self.spec.outputs}
        has_own = type(self.state.algorithm).personal is not Algorithm.personal
        given["_personal"] = self.state.personal_model if has_own else no_own_model
        return Result(**parts, **given)

    def finish(self, interrupted: bool = False) -> Result:
        """Write the last checkpoint, call `on_end` of the callbacks and return the result."""
        self.info.stopped = self._stopped_by
        if self._stopped_by is None and self.state.t == self.rounds < self.spec.rounds:
            self.info.stopped = "privacy budget"
        if not interrupted and self.info.client_accuracy is None:
            accuracy = self._client_accuracy()
            if accuracy is not None:
                self.info.client_accuracy, self._saved = accuracy, None
        self._save(interrupted)
        if self.ranks.first:
            warn_of_abandoned(self.spec, self.state.history)
        final = self.result(interrupted)
        self.ranks.on_rank0(lambda: self.callbacks.on_end(final))
        return final

    def _client_accuracy(self) -> dict[str, Any] | None:
        """Return the distribution over clients of the accuracy of the final model, on test samples if they have any."""
        scores = self._measurements.scores
        if scores is not None and scores.round == self.state.t:
            return tested_distribution(scores.values, self.task.data.names)
        if self.spec.out is None:
            return None
        return self.ranks.on_rank0(lambda: self.state.backend.evaluator.client_accuracy(self.state.measured))

    def close(self) -> None:
        """Release the folder, so that other processes can use it."""
        if self._folder is not None:
            self._folder.close()


def _is_complete(history: History, rounds: int, target: Mapping[str, float]) -> bool:
    """Whether all rounds are played or the target is reached."""
    return len(history) >= rounds or (len(history) > 0 and _met(target, history[-1]))


def _met(target: Mapping[str, float], record: Record) -> bool:
    return bool(target) and all(reached(name, record.value(name), value) for name, value in target.items())
