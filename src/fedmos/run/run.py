"""A run in progress, from its arguments to its result."""

from __future__ import annotations

import logging
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..algorithm import Algorithm
from ..core.callback import Callback
from ..core.flat_model import FlatModel
from ..core.history import History, Record, reached
from ..core.losses import Loss, LossFunction
from ..core.precision import Precision, arithmetic
from ..core.version import __version__
from ..data.federated import FederatedData
from ..engine.declaration import check_declaration
from ..engine.execution_plan import choose_plan, override, resumed_plan
from ..engine.local_backend import ExecutionPlan, LocalBackend
from ..engine.lr_schedule import Decay
from ..engine.malloc import keep_memory
from ..engine.ranks import Ranks, join
from ..engine.round import DivergenceError, FederatedState, Steps
from ..engine.sampling import cohort_size
from ..engine.simulated_clock import System
from ..engine.task import DeviceCache, Task, on_device
from ..evaluation.diagnostics import Diagnostics
from ..evaluation.metrics import measurable
from ..evaluation.per_client import client_accuracy
from ..selection.availability import Availability
from ..selection.selector import Selector
from ..storage import RunFolder, Snapshot
from ..storage.checkpoint import Checkpoints
from ..storage.checkpoint_schedule import Every
from .callbacks import Progress
from .checks import check_parts
from .preflight import check_fit, repeatable
from .result import Result
from .settings import check_kinds, check_precision, check_settings, check_target, find_device

_log = logging.getLogger("fedmos")


class Run:
    """One run: `begin`, then a round after another while `steps` gives any, then `end`. `play` is all of it."""

    def __init__(
        self,
        *,
        model: nn.Module,
        data: FederatedData,
        algorithm: Algorithm,
        selection: Selector,
        rounds: int,
        local_steps: int | None,
        local_epochs: int | None,
        batch_size: int | None,
        loss: str | LossFunction,
        lr_decay: Decay,
        weight_decay: float,
        clip: float | None,
        eval_every: int,
        target: Mapping[str, float] | None,
        seed: int,
        device: str | torch.device,
        dtype: torch.dtype,
        precision: Precision,
        engine: str,
        availability: Availability | None,
        system: System | None,
        out: str | os.PathLike[str] | None,
        resume: bool,
        checkpoint_every: Every,
        on_bad_update: Any,
        callbacks: Sequence[Callback | Callable[[Record], Any]],
        device_cache: DeviceCache | None = None,
        make_backend: Callable[[Task, Algorithm, ExecutionPlan], LocalBackend] = LocalBackend,
    ) -> None:
        """As `fm.run`; `device_cache` holds samples that other runs have copied to the device, and `make_backend` makes
        what does the clients' part."""
        check_kinds(model=model, data=data, algorithm=algorithm, selection=selection)
        check_kinds(**{k: v for k, v in (("availability", availability), ("system", system)) if v is not None})
        check_settings(locals())
        rounds, eval_every, seed, weight_decay = int(rounds), int(eval_every), int(seed), float(weight_decay)
        local_steps, local_epochs, batch_size = (
            None if v is None else int(v) for v in (local_steps, local_epochs, batch_size)
        )
        clip = None if clip is None else float(clip)
        if isinstance(lr_decay, Mapping):
            lr_decay = {int(key): float(factor) for key, factor in lr_decay.items()}
        else:
            lr_decay = float(lr_decay)
        loss_ = Loss(loss)
        join()
        device_ = find_device(device)
        check_precision(precision, dtype, device_)
        check_declaration(algorithm)
        check_parts(
            {
                "algorithm": algorithm,
                "selection": selection,
                "data": data,
                "availability": availability,
                "system": system,
                "lr_decay": lr_decay,
                "rounds": rounds,
                "dtype": dtype,
            },
            seed,
        )

        if device_.type == "cpu":
            keep_memory()
        task = Task(
            model=FlatModel(model, device_, dtype, precision),
            data=on_device(data, device_, dtype, device_cache),
            loss=loss_,
            seed=seed,
            local_steps=local_steps,
            local_epochs=local_epochs,
            batch_size=batch_size,
            weight_decay=weight_decay,
            clip=clip,
        )
        check_fit(task)
        info: dict[str, Any] = {
            "algorithm": repr(algorithm),
            "selection": repr(selection),
            "availability": repr(availability),
            "system": repr(system),
            "clients": len(data),
            "parameters": task.model.size,
            "local_steps": local_steps,
            "local_epochs": local_epochs,
            "batch_size": batch_size,
            "loss": loss_.name,
            "lr_decay": {str(k): v for k, v in lr_decay.items()} if isinstance(lr_decay, Mapping) else lr_decay,
            "weight_decay": weight_decay,
            "clip": clip,
            "on_bad_update": on_bad_update,
            "seed": seed,
            "dtype": str(dtype).removeprefix("torch."),
            "precision": precision,
            "rounds": rounds,
            "device": str(device_),
            "versions": {"fedmos": __version__, "torch": str(torch.__version__), "python": platform.python_version()},
        }
        if out is not None:
            info["model"], info["data"] = task.model.fingerprint(), data.fingerprint()
        self._target = check_target(target, measurable(task))
        self.watchers: list[Callback] = [c if isinstance(c, Callback) else _Function(c) for c in callbacks]
        self._eval_every, self._checkpoint_every = eval_every, checkpoint_every
        self.ranks = ranks = Ranks.joined(device_)
        if ranks.size > 1 and any(isinstance(watcher, Diagnostics) for watcher in self.watchers):
            raise ValueError("Cannot measure diagnostics over several ranks; use one")
        self._kept, self.rounds = out is not None, rounds
        self._folder: RunFolder | None = None
        if out is not None and ranks.first:  # the first rank writes
            self._folder = out if isinstance(out, RunFolder) else RunFolder(out)
        try:
            earlier = None if out is None else self._found(Path(out), resume, info)
            with arithmetic(precision):
                plan = ranks.on_rank0(lambda: self._plan(engine, task, selection, system, rounds, earlier))
            apart = ranks.size > 1 and device_.type == "cpu" if earlier is None else earlier.info.get("apart", False)
            plan = replace(plan, apart=apart)
            info |= {"engine": plan.engine, "compiled": plan.compiled, "chunk": plan.chunk, "engine_why": plan.why}
            info |= {"apart": True} if apart else {}
            if earlier is not None:
                kept = ("narrowed", "recovered", "client_accuracy", "diverged", "light")
                info |= {key: earlier.info[key] for key in kept if key in earlier.info}
            task = replace(task, compiled=plan.compiled)
            self.simulation = FederatedState(
                task=task,
                algorithm=algorithm,
                selector=selection,
                plan=plan,
                lr_decay=lr_decay,
                on_bad_update=on_bad_update,
                availability=availability,
                system=system,
                scratch=None if self._folder is None else self._folder.path,
                ranks=ranks,
                make_backend=make_backend,
            )
            if earlier is not None:
                self.simulation.restore(earlier)
        except BaseException:
            self.close()
            raise
        self.task, self.info = task, info
        self._before = self.simulation.x
        self._saved = None if earlier is None or earlier.interrupted else self.simulation.t

    def _found(self, out: Path, resume: bool, info: Mapping[str, Any]) -> Snapshot | None:
        """What to continue from. The first rank looks for it; the others read what it has found."""
        found: Snapshot | None = None

        def look() -> int | None:
            nonlocal found
            if self._folder is None:
                return None
            found = _earlier(self._folder, resume, info)
            if found is not None and "light" in found.info and not _over(found.history, self.rounds, self._target):
                raise ValueError(
                    f"Cannot go on with the run in {out} because only its model and history were kept; use a new folder"
                )
            return self._folder.checkpoints.chosen

        number = self.ranks.on_rank0(look)
        if self.ranks.first or number is None:
            return found
        return Checkpoints(out / "checkpoints").read(number)

    @staticmethod
    def _plan(
        engine: str, task: Task, selection: Selector, system: System | None, rounds: int, earlier: Snapshot | None
    ) -> ExecutionPlan:
        """How to compute: as the earlier part of the run did, else as asked or as measured."""
        m = cohort_size(selection, system, len(task.data))
        if earlier is not None:
            before = earlier.info
            asked = {"compiled": "batched"}.get(override(engine), override(engine))
            if asked not in ("auto", before["engine"]):
                raise ValueError(
                    f"Cannot resume the run because its 'engine' is {before['engine']!r}, got {asked!r}; "
                    "use a new folder"
                )
            why = before.get("engine_why", "as before")
            return resumed_plan(task, before["engine"], before.get("chunk", m), before.get("compiled", False), why)
        return choose_plan(engine, task, m, rounds)

    def play(self) -> Result:
        """The whole run."""
        if Progress.wanted() and self.ranks.first:
            self.watchers.append(Progress(type(self.simulation.algorithm).__name__))
        with closing(self), arithmetic(self.task.model.precision):
            self.begin()
            first = self.simulation.t
            try:
                while (steps := self.steps()) is not None:
                    try:
                        with repeatable(self.task) if self.simulation.t == first else nullcontext():
                            record = self.simulation.drive(steps)
                    except torch.OutOfMemoryError:
                        if self.simulation.crew.plan.chunk == 1 or self.ranks.size > 1:
                            raise
                        self._narrow()
                        continue
                    self.after(record)
                return self.end()
            except KeyboardInterrupt:
                if self.ranks.size > 1:  # who knows where the others are: what counts is the newest checkpoint
                    raise
                return self.end(interrupted=True)
            except DivergenceError as error:
                self.info["diverged"] = str(error)
                self._save(interrupted=True)
                error.result = self.result(interrupted=True)
                raise

    def _narrow(self) -> None:
        """Out of memory: fewer clients side by side from now on. The round that failed has left no trace."""
        plan = self.simulation.crew.plan
        self.simulation.crew.narrow()
        self.info |= {"chunk": self.simulation.crew.plan.chunk, "narrowed": "out of memory; bits may differ"}
        _log.warning("Out of memory: going on with chunks of %d instead of %d clients", self.info["chunk"], plan.chunk)

    def begin(self) -> None:
        def start() -> None:
            if self._folder is not None:
                self._folder.begin(self.info, self.simulation.history, self._checkpoint_every)
            for watcher in self.watchers:
                watcher.on_start(self.rounds, self.simulation.t)

        self.ranks.on_rank0(start)

    def steps(self) -> Steps[Record] | None:
        """The next round, or None if there is none."""
        simulation = self.simulation
        if self._over():
            return None
        t = simulation.t + 1
        return simulation.steps(evaluate=t % self._eval_every == 0 or t == self.rounds)

    def _over(self) -> bool:
        return _over(self.simulation.history, self.rounds, self._target)

    def after(self, record: Record) -> None:
        """Tell everyone of a round that was played, and save it if it is time."""
        for of_the_end in ("client_accuracy", "diverged"):
            self.info.pop(of_the_end, None)
        record = self._diagnosed(record)
        if self.ranks.on_rank0(lambda: self._noted(record)):
            self._save()

    def _diagnosed(self, record: Record) -> Record:
        """With what diagnostics add to it, if there are any."""
        for watcher in self.watchers:
            if isinstance(watcher, Diagnostics):
                record = watcher.diagnosed(record, self.simulation, self._before)
                self.simulation.history.amend(record)
        self._before = self.simulation.x
        return record

    def _noted(self, record: Record) -> bool:
        """Write the round down and tell everyone; whether it is time for a checkpoint."""
        if self._folder is not None:
            self._folder.note(self.simulation.history)
        for watcher in self.watchers:
            watcher.on_round(record)
        return self._folder is not None and not self._over() and self._folder.due(self.simulation.t)

    def _save(self, interrupted: bool = False) -> None:
        """Write a checkpoint if the run has a folder and there is anything new to it."""
        if not self._kept or (self._saved == self.simulation.t and not interrupted):
            return
        folder, simulation = self._folder, self.simulation
        snapshot, changed = simulation.snapshot(self.info, interrupted), simulation.clients.changed
        if self.ranks.size > 1:
            needed = self.ranks.broadcast([] if folder is None else folder.checkpoints.needed(changed))
            snapshot.clients = simulation.collected(needed)
        final = not interrupted and self._over()
        self.ranks.on_rank0(lambda: None if folder is None else folder.save(snapshot, changed, final))
        changed.clear()
        self._saved = simulation.t
        if folder is not None:
            self.info["checkpoints"] = folder.cost

    def result(self, interrupted: bool = False) -> Result:
        if self.task.compiled:
            self.info["compile_seconds"] = round(self.task.program.seconds, 1)
        return self.simulation.result(self.info, interrupted)

    def end(self, interrupted: bool = False) -> Result:
        at_hand = not self.simulation.crew.remote
        if self._kept and at_hand and not interrupted and "client_accuracy" not in self.info:
            of_x = self.ranks.on_rank0(lambda: client_accuracy(self.task, self.simulation.x))
            self.info["client_accuracy"], self._saved = of_x, None
        self._save(interrupted)
        final = self.result(interrupted)
        self.ranks.on_rank0(lambda: self._ended(final))
        return final

    def _ended(self, final: Result) -> None:
        for watcher in self.watchers:
            watcher.on_end(final)

    def close(self) -> None:
        """Let other runs into the folder."""
        if self._folder is not None:
            self._folder.close()


class _Function(Callback):
    """A plain function of a record as a callback."""

    def __init__(self, function: Callable[[Record], Any]) -> None:
        self._function = function

    def on_round(self, record: Record) -> None:
        self._function(record)


def _over(history: History, rounds: int, target: Mapping[str, float]) -> bool:
    """Whether there is no round left to play."""
    return len(history) >= rounds or (len(history) > 0 and _met(target, history[-1]))


def _met(target: Mapping[str, float], record: Record) -> bool:
    return bool(target) and all(reached(name, getattr(record, name), value) for name, value in target.items())


def _earlier(folder: RunFolder, resume: bool, info: Mapping[str, Any]) -> Snapshot | None:
    """What to continue from. A folder that holds anything else is refused before work begins."""
    folder.claim()
    earlier = folder.earlier(resume)
    if earlier is None:
        return None
    for field, value in info.items():
        if field not in ("rounds", "device", "versions") and earlier.info.get(field) != value:
            raise ValueError(
                f"Cannot resume the run in {folder.path} because its '{field}' is {earlier.info.get(field)!r}, "
                f"got {value!r}; use a new folder"
            )
    return earlier
