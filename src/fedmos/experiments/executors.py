"""Where the runs of a comparison, a search or a reproduction are trained: in processes of this machine, or with Ray.

A task is a function of this package that trains runs, each in its folder. It is given a text (JSON) and the folders.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import torch

from ..core.formatting import format_value
from .workers import ctrl_c_ignored, start_worker, stop_workers

Task = Callable[[str, list[Path]], Any]
"""Text and folders of runs → a JSON value. A function of a module, which another process can import."""


class TaskExecutor(Protocol):
    """Runs tasks. Leaving its context by an exception saves the runs of all tasks and ends them."""

    workers: int
    """How many tasks run at a time."""

    def __enter__(self) -> TaskExecutor:
        """Start."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End."""

    def submit(self, task: Task, given: str, folders: Sequence[Path]) -> Future[Any]:
        """Run a task as soon as a worker is free. A task whose worker is lost continues on another."""


class ProcessExecutor:
    """Runs tasks in single-threaded processes of this machine.

    Args:
        workers: Number of processes; by default one per CPU core, or one if there is a GPU.
    """

    def __init__(self, workers: int | None = None) -> None:
        self.workers = workers or (os.cpu_count() or 1 if not torch.cuda.is_available() else 1)
        spawn = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(self.workers, mp_context=spawn, initializer=start_worker)

    def __enter__(self) -> ProcessExecutor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            stop_workers()
        self._pool.shutdown(cancel_futures=kind is not None)

    def submit(self, task: Task, given: str, folders: Sequence[Path]) -> Future[Any]:
        with ctrl_c_ignored():  # by the process that this may start: its parent tells it when to stop
            return self._pool.submit(task, given, list(folders))


class SameProcess:
    """Runs each task at once, in this process."""

    workers = 1

    def __enter__(self) -> SameProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def submit(self, task: Task, given: str, folders: Sequence[Path]) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(task(given, list(folders)))
        return future


def check_where(on: str) -> None:
    """Refuse anything but a Ray cluster.

    Raises:
        ValueError: If `on` is neither "ray" nor an address that begins with "ray://".
        ImportError: If Ray is not installed.
    """
    if on != "ray" and not (on.startswith("ray://") and len(on) > len("ray://")):
        raise ValueError(
            f"'on' must be 'ray', for a cluster on this machine, or an address such as 'ray://HOST:10001', got "
            f"{format_value(on)}"
        )
    try:
        import ray  # noqa: F401
    except ImportError as error:
        raise ImportError(
            "Cannot hand runs to Ray because it is not installed; use pip install 'fedmos[ray]'"
        ) from error


def make_executor(on: str | None, device: str | None, workers: int | None = None) -> TaskExecutor:
    """Return an executor.

    Args:
        on: None for processes of this machine; "ray" for a Ray cluster on this machine, or the one that the variable
            RAY_ADDRESS names; "ray://HOST:PORT" for a cluster elsewhere.
        device: The device of the runs; None for a GPU where there is one.
        workers: Number of processes of this machine, or of CPUs of the Ray cluster on this machine.

    Raises:
        ValueError: If `on` is something else.
        ImportError: If Ray is not installed.
    """
    if on is None:
        return ProcessExecutor(workers)
    check_where(on)
    from .ray_executor import RayExecutor

    return RayExecutor(on, device, workers)
