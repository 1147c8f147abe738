"""Tasks on the workers of a Ray cluster.

Workers need no shared folder: a task takes copies of its folders along, and their new state comes back. While a task
runs, this process holds the locks of the folders and writes what workers have sent. A task whose worker is lost is
submitted again with that state, so its runs continue from their checkpoints, and finished runs are not trained again.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Any

from ..storage import RunFolder
from ..storage.copies import read_folder, write_folder
from .executors import Task
from .ray_worker import Mailbox, run_task, versions

_log = logging.getLogger("fedmos")

_POLL = 0.5
_ATTEMPTS = 6
_SAVING = 60.0
"""Seconds that runs have to be saved after Ctrl-C."""


def _ray() -> Any:
    import ray

    return ray


class LostWorkerError(RuntimeError):
    """The workers of a task were lost too often."""


def _fail(future: Future[Any], error: Exception) -> None:
    """Give a future an exception. Both the thread that submits and the one that serves may do so."""
    with suppress(InvalidStateError):
        future.set_exception(error)


@dataclass
class _Submitted:
    """A task of which there is one attempt at a time."""

    number: int
    name: str
    given: str
    folders: list[RunFolder]
    future: Future[Any] = field(default_factory=Future)
    attempt: int = 0
    reference: Any = None


class RayExecutor:
    """Runs tasks on a Ray cluster, one per CPU, or one per GPU if the cluster has any and `device` is not "cpu".

    Args:
        on: "ray" for a cluster on this machine or the one that RAY_ADDRESS names, or "ray://HOST:PORT".
        device: The device of the runs.
        workers: Number of CPUs of a cluster that this object starts.
    """

    def __init__(self, on: str, device: str | None = None, workers: int | None = None) -> None:
        self._on, self._device, self._cpus = on, device, workers
        self.workers = workers or 1
        self._waiting: deque[_Submitted] = deque()
        self._running: dict[int, _Submitted] = {}
        self._count = 0
        self._failure: Exception | None = None
        self._ending, self._stopping = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> RayExecutor:
        ray = _ray()
        address = self._on if self._on != "ray" else os.environ.get("RAY_ADDRESS", "local")
        options: dict[str, Any] = {"logging_level": "ERROR", "log_to_driver": False}
        if address == "local":
            options |= {"num_cpus": self._cpus or os.cpu_count() or 1, "include_dashboard": False}
        ray.init(address=address, **options)
        self._on_gpus = self._device != "cpu" and ray.cluster_resources().get("GPU", 0) >= 1
        self.workers = self._count_workers()
        needs = {"num_gpus": 1} if self._on_gpus else {"num_cpus": 1}
        self._remote = ray.remote(run_task).options(max_retries=0, **needs)
        self._mailbox = ray.remote(Mailbox).options(num_cpus=0, max_restarts=-1).remote()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        ray = _ray()
        if kind is not None:
            self._stopping.set()
        self._ending.set()
        self._thread.join()
        ray.shutdown()

    def _count_workers(self) -> int:
        ray = _ray()
        return max(1, int(ray.cluster_resources().get("GPU" if self._on_gpus else "CPU", 1)))

    def submit(self, task: Task, given: str, folders: Sequence[Path]) -> Future[Any]:
        self._count += 1
        name = f"{task.__module__}:{task.__qualname__}"
        submitted = _Submitted(self._count, name, given, [RunFolder(path) for path in folders])
        self._waiting.append(submitted)
        if self._failure is not None:
            _fail(submitted.future, self._failure)
        return submitted.future

    def _serve(self) -> None:
        """Start tasks, write what workers send, and take results, until the end. Only this thread calls Ray."""
        try:
            while not (self._stopping.is_set() or (self._ending.is_set() and not self._running and not self._waiting)):
                self._start_waiting()
                self._receive(_POLL)
            if self._running:
                self._save_and_end()
        except Exception as error:  # raised again where the result is waited for
            self._failure = error
            for task in (*self._running.values(), *self._waiting):
                _fail(task.future, error)

    def _start_waiting(self) -> None:
        """Start tasks, and lock their folders, while there are few for the number of workers."""
        while self._waiting and len(self._running) < 2 * self.workers:
            task = self._waiting.popleft()
            self._running[task.number] = task
            try:
                for folder in task.folders:
                    folder.acquire()
            except Exception as error:
                self._end(task, error=error)
            else:
                self._start(task)
        if self._waiting:
            self.workers = self._count_workers()  # a cluster can grow

    def _start(self, task: _Submitted) -> None:
        task.attempt += 1
        copies = [read_folder(folder.path) for folder in task.folders]
        key = (task.number, task.attempt)
        task.reference = self._remote.remote(task.name, task.given, copies, versions(), self._mailbox, key)

    def _receive(self, seconds: float) -> None:
        """Wait for results, and write what workers have sent."""
        ray = _ray()
        references = {task.reference: task for task in self._running.values()}
        if not references:
            self._ending.wait(seconds / 10)
            return
        done, _ = ray.wait(list(references), num_returns=len(references), timeout=seconds, fetch_local=False)
        self._fetch()
        for reference in done:
            self._finish(references[reference])

    def _fetch(self) -> None:
        ray = _ray()
        try:
            new = ray.get(self._mailbox.fetch.remote())
        except ray.exceptions.RayError:  # the actor is restarted; runs continue from earlier checkpoints if needed
            return
        for ((number, attempt), folder), copy in new.items():
            task = self._running.get(number)
            if task is not None and task.attempt == attempt:  # workers that were given up do not count
                write_folder(task.folders[folder].path, copy)

    def _finish(self, task: _Submitted) -> None:
        """Take the result of a task, or submit it again if its worker was lost."""
        ray = _ray()
        try:
            value, copies = ray.get(task.reference)
        except ray.exceptions.RayTaskError as error:
            self._end(task, error=error.cause if isinstance(error.cause, Exception) else error)
        except ray.exceptions.RayError as error:
            if task.attempt >= _ATTEMPTS or self._stopping.is_set():
                lost = LostWorkerError(
                    f"Cannot continue because {_ATTEMPTS} workers were lost with the same runs ({error}); the same "
                    "command continues them"
                )
                self._end(task, error=lost)
                return
            _log.warning("A worker was lost (%s); its runs continue on another", type(error).__name__)
            self._start(task)
        else:
            for folder, copy in zip(task.folders, copies, strict=True):
                write_folder(folder.path, copy)
            self._end(task, value=json.loads(value))

    def _end(self, task: _Submitted, value: Any = None, error: Exception | None = None) -> None:
        del self._running[task.number]
        for folder in task.folders:
            folder.close()
        if error is not None:
            task.future.set_exception(error)
        else:
            task.future.set_result(value)

    def _save_and_end(self) -> None:
        """Interrupt all tasks, which save their runs, and take what they return."""
        ray = _ray()
        for task in self._running.values():
            ray.cancel(task.reference)
        until = monotonic() + _SAVING
        while self._running and monotonic() < until:
            self._receive(_POLL)
