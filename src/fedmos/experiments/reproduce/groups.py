"""Where the runs of a part are trained: in this process, or by an executor."""

from __future__ import annotations

import json
import math
import os
import platform
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

import torch

from ...config.schema import CompareConfig, Method
from ...core.callback import Callback
from ...core.history import Record
from ...run.preflight import find_device
from ...run.result import Result
from ..executors import TaskExecutor
from ..runner import PlannedRun, Runner, mergeable_methods, runs_from_json
from .record import run_folder

_CHECKPOINT_EVERY = "2min"


class Deadline(Callback):
    """Interrupts runs, which are saved, once `seconds` have passed since its creation."""

    def __init__(self, seconds: float | None = None) -> None:
        self._end = math.inf if seconds is None else time.monotonic() + seconds

    @property
    def passed(self) -> bool:
        return time.monotonic() > self._end

    @property
    def seconds_left(self) -> float | None:
        """None if there is no end."""
        return None if math.isinf(self._end) else max(0.0, self._end - time.monotonic())

    def on_round(self, record: Record) -> None:
        if self.passed:
            raise KeyboardInterrupt


class GroupRunner(Protocol):
    """Trains runs of a part."""

    def groups(self, methods: Sequence[Method]) -> list[list[Method]]:
        """Return the methods whose runs are to be trained together."""

    def train(self, runs: Sequence[PlannedRun]) -> list[Result]:
        """Train runs, and return their results in order."""

    def hardware(self, device: str) -> str:
        """Return what the runs were trained on, given the device of one."""


class LocalGroups:
    """Trains runs in this process, those of methods with the same algorithm as one program."""

    def __init__(self, config: CompareConfig, out: Path, deadline: Deadline, progress: bool | None = None) -> None:
        folder = partial(run_folder, out=out)
        self._runner = Runner(
            config, folder, checkpoint_every=_CHECKPOINT_EVERY, callbacks=[deadline], progress=progress
        )

    def groups(self, methods: Sequence[Method]) -> list[list[Method]]:
        return mergeable_methods(methods)

    def train(self, runs: Sequence[PlannedRun]) -> list[Result]:
        return self._runner.train(runs)

    def hardware(self, device: str) -> str:
        return hardware(device)


class ExecutorGroups:
    """Trains the runs of all methods by an executor, in as many tasks as it has workers."""

    def __init__(self, config: CompareConfig, out: Path, deadline: Deadline, executor: TaskExecutor) -> None:
        self._config, self._out, self._deadline, self._executor = config, out, deadline, executor

    def groups(self, methods: Sequence[Method]) -> list[list[Method]]:
        return [list(methods)]

    def train(self, runs: Sequence[PlannedRun]) -> list[Result]:
        left = self._deadline.seconds_left
        given = {"config": self._config.model_dump_json(), "until": None if left is None else time.time() + left}
        width = -(len(runs) // -self._executor.workers)
        futures = []
        for i in range(0, len(runs), width):
            some = runs[i : i + width]
            text = json.dumps(given | {"runs": some})
            futures.append(self._executor.submit(train_runs, text, [run_folder(run, self._out) for run in some]))
        for future in futures:
            future.result()
        return [Result.load(run_folder(run, self._out)) for run in runs]

    def hardware(self, device: str) -> str:
        return f"Ray, {self._executor.workers} workers ({device})"


def train_runs(given: str, folders: list[Path]) -> None:
    """Train runs of a part in a worker process, each in its folder; `given` has configuration, runs and deadline."""
    table = json.loads(given)
    config, runs = CompareConfig.model_validate_json(table["config"]), runs_from_json(table["runs"])
    folder_of = dict(zip(runs, folders, strict=True))
    until = table["until"]
    deadline = Deadline(None if until is None else max(0.0, until - time.time()))
    Runner(config, folder_of.__getitem__, checkpoint_every=_CHECKPOINT_EVERY, callbacks=[deadline]).train(runs)


def hardware(device: str) -> str:
    """Return the name of a device, e.g. of a GPU."""
    found = find_device(device)
    if found.type == "cuda":
        return torch.cuda.get_device_name(found)
    return f"{os.cpu_count()} CPU cores ({platform.machine()})"
