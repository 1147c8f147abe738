"""The folder of a run: configuration, environment, metrics, log and checkpoints."""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

import safetensors.torch

from ..core.history import History
from ..core.statistics_layout import STATISTICS
from ..engine.client_store import SCRATCH
from ..engine.snapshot import ClientScores, Snapshot
from . import toml
from .checkpoint import Checkpoints
from .checkpoint_schedule import CheckpointInterval, CheckpointSchedule
from .environment import describe_environment
from .files import AppendOnlyFile, replace_file, storage_errors
from .lock import SERVER_LOCK, FolderLock
from .segments import encode_record

_log = logging.getLogger("fedmos")

CLIENTS = "clients"
"""The folder of the evaluations of clients."""
STATUS = "status.json"
"""The status of a deployment's server app, which it can write before the run begins."""


class RunFolder(os.PathLike[str]):
    """A folder with `config.toml`, `environment.json`, `metrics.jsonl`, `log.txt`, `checkpoints/` and a lock.

    A run that evaluates clients adds `clients/`, with the scores of every client in a file per evaluation.

    The option `out` of a run is a path or a `RunFolder`. The latter can have a configuration from which the run can be
    built again.
    """

    def __init__(
        self, path: str | os.PathLike[str], config: Mapping[str, Any] | None = None, light: bool = False
    ) -> None:
        """Describe the folder; nothing is read or written yet.

        Args:
            path: the folder.
            config: the configuration of the run; without it, `config.toml` records the options of the run.
            light: whether to keep only model and history of a finished run.
        """
        self.path = Path(path)
        self.config, self._light = config, light
        self.checkpoints = Checkpoints(self.path / "checkpoints")
        self._lock: FolderLock | None = None
        self._metrics: AppendOnlyFile | None = None
        self._rounds_written = 0
        self._log_file: RunLogHandler | None = None
        self._schedule = CheckpointSchedule(None)

    def __fspath__(self) -> str:
        return str(self.path)

    @property
    def started(self) -> bool:
        """Whether the folder contains a run that has begun."""
        metrics = self.path / "metrics.jsonl"
        return self.checkpoints.exist() or (metrics.exists() and metrics.stat().st_size > 0)

    def acquire(self) -> None:
        """Create and lock the folder, and remove what a killed run has left.

        Raises:
            FileExistsError: if it is not the folder of a run.
            StorageError: if another process uses it, or it cannot be written.
        """
        if not self._is_usable():
            raise FileExistsError(f"Cannot write to {self.path} because it holds something else; use a new folder")
        with storage_errors(f"use {self.path}", "use another folder"):
            (self.path / "checkpoints").mkdir(parents=True, exist_ok=True)
            self._lock = FolderLock(self.path / "lock")
            self.checkpoints = Checkpoints(self.path / "checkpoints")
            self._remove_leftovers()

    def load_checkpoint(self, resume: bool) -> Snapshot | None:
        """Load the checkpoint to continue from; None if the run starts from the beginning.

        The folder must have been acquired.

        Raises:
            FileExistsError: if the folder contains a run and `resume` is false.
            ValueError: if no checkpoint is intact.
        """
        if self.started and not resume:
            raise FileExistsError(
                f"Cannot write the run to {self.path} because it exists; use resume=True or a new folder"
            )
        if not self.checkpoints.exist():
            return None
        snapshot = self.checkpoints.load_newest()
        if snapshot is None:
            raise ValueError(
                f"Cannot resume the run in {self.path} because none of its checkpoints is intact: "
                f"{'; '.join(self.checkpoints.damage)}; use a new folder"
            )
        if self.checkpoints.damage:
            damage = f"round {len(snapshot.history)}, because of damage to {'; '.join(self.checkpoints.damage)}"
            snapshot = replace(snapshot, info={**snapshot.info, "recovered": damage})
        return snapshot

    def start(self, info: Mapping[str, Any], history: History, interval: CheckpointInterval) -> None:
        """Write the description of the run, and open its log and its metrics, which begin with `history`."""
        with storage_errors(f"write to {self.path}", "make room or use another folder"):
            self._write_description(info)
            self._log_file = RunLogHandler(self.path / "log.txt")
            _log.addHandler(self._log_file)
            metrics = "".join(f"{encode_record(record)}\n" for record in history)
            replace_file(self.path / "metrics.jsonl", metrics.encode())
            self._remove_clients_after(len(history))
            self._metrics, self._rounds_written = AppendOnlyFile(self.path / "metrics.jsonl"), len(history)
        if self._lock is not None and self._lock.killed_holder:
            _log.warning("The run in %s was ended from outside (%s)", self.path, self._lock.killed_holder)
        if self.checkpoints.damage:
            _log.warning("The run in %s continues from %s", self.path, info["recovered"])
        self._log_file.write(f"Begins after round {len(history)}" if len(history) else "Begins")
        self._schedule = CheckpointSchedule(interval)

    def write_rounds(self, history: History) -> None:
        """Append the records that `metrics.jsonl` does not have yet."""
        if self._metrics is None:
            return
        with storage_errors(
            f"write round {len(history)} to {self.path / 'metrics.jsonl'}",
            "earlier checkpoints are intact, so make room and use resume=True (fedmos resume)",
        ):
            for record in history.since(self._rounds_written):
                self._metrics.append(encode_record(record))
                self._rounds_written += 1

    def write_clients(self, scores: ClientScores) -> None:
        """Write an evaluation of clients to `clients/ROUND.safetensors`."""
        with storage_errors(
            f"write the evaluation of clients in round {scores.round} to {self.path / CLIENTS}",
            "earlier checkpoints are intact, so make room and use resume=True (fedmos resume)",
        ):
            (self.path / CLIENTS).mkdir(exist_ok=True)
            content = safetensors.torch.save({name: v.contiguous() for name, v in scores.values.items()})
            replace_file(self.path / CLIENTS / f"{scores.round:06}.safetensors", content)

    def checkpoint_due(self, t: int) -> bool:
        """Whether a checkpoint is due after round t."""
        return self._schedule.due(t)

    def save(self, snapshot: Snapshot, changed: set[int], final: bool = False) -> None:
        """Write a checkpoint.

        Args:
            snapshot: the state of the run.
            changed: clients whose state has changed since the last checkpoint; cleared.
            final: whether the run is finished.
        """
        began = perf_counter()
        self.write_rounds(snapshot.history)
        if final and self._light:
            info = {**snapshot.info, "light": True}
            evaluated = {name: v for name, v in snapshot.server_state.items() if name == STATISTICS}
            self.checkpoints.write(
                replace(snapshot, server_model=None, server_state=evaluated, clients={}, info=info), only=True
            )
        else:
            self.checkpoints.write(snapshot, changed)
        changed.clear()
        self._schedule.record(perf_counter() - began)
        if self._log_file is not None:
            self._log_file.write(f"Checkpoint after round {len(snapshot.history)}")

    @property
    def checkpoint_cost(self) -> dict[str, float]:
        """The number of checkpoints that this part of the run has written, and the seconds they took."""
        return {"count": self._schedule.count, "seconds": round(self._schedule.seconds, 3)}

    def close(self) -> None:
        """Close all files and release the folder."""
        if self._log_file is not None:
            _log.removeHandler(self._log_file)
            self._log_file.close()
        if self._metrics is not None:
            self._metrics.close()
        if self._lock is not None:
            with suppress(OSError):
                self._lock.release()
        self._log_file = self._metrics = self._lock = None

    def _remove_leftovers(self) -> None:
        """Remove temporary files of a killed run."""
        for path in (
            *self.path.glob(".*.partial"),
            *self.path.glob(f"{CLIENTS}/.*.partial"),
            *self.path.glob(f"{SCRATCH}*"),
        ):
            if path.is_file():
                path.unlink()
            else:
                shutil.rmtree(path, ignore_errors=True)
        self.checkpoints.remove_partial()

    def _remove_clients_after(self, done: int) -> None:
        """Remove evaluations of clients in rounds that will be played again."""
        for path in (self.path / CLIENTS).glob("*.safetensors"):
            if path.stem.isdecimal() and int(path.stem) > done:
                path.unlink()

    def _is_usable(self) -> bool:
        """Whether the folder is new, empty, or the folder of a run."""
        if not self.path.is_dir():
            return not self.path.exists()
        names = {
            path.name
            for path in self.path.iterdir()
            if not (path.name.startswith(SCRATCH) or path.suffix == ".partial" or path.name in (STATUS, SERVER_LOCK))
        }
        return names <= {"lock", "checkpoints"} or {"lock", "checkpoints"} <= names

    def _write_description(self, info: Mapping[str, Any]) -> None:
        """Write `config.toml`, and add this start of the run to `environment.json`."""
        if self.config is None:
            text = "# What a run from Python was given; fm.run(..., resume=True) continues it.\n"
            text += toml.dumps({"from_python": True} | dict(info))
        else:
            text = toml.dumps(self.config)
        replace_file(self.path / "config.toml", text.encode())
        path = self.path / "environment.json"
        try:
            starts = json.loads(path.read_text())["starts"]
        except (OSError, ValueError, KeyError, TypeError):
            starts = []
        replace_file(path, json.dumps({"starts": [*starts, describe_environment()]}, indent=1).encode())


class RunLogHandler(logging.Handler):
    """Appends messages of the "fedmos" logger to the log of a run. Messages that cannot be written are dropped."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._file = AppendOnlyFile(path)
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        """Append a message; print a warning if the application has no handlers of its own."""
        with suppress(OSError):
            self._file.append(self.format(record))
        # Python prints warnings if a logger has no handlers. The handlers of runs must not suppress that.
        others = logging.getLogger().handlers or any(not isinstance(h, RunLogHandler) for h in _log.handlers)
        if record.levelno >= logging.WARNING and not others and _log.handlers[:1] == [self] and logging.lastResort:
            logging.lastResort.handle(record)

    def write(self, text: str) -> None:
        """Append a message of the run itself."""
        self.handle(logging.LogRecord("fedmos", logging.INFO, __file__, 0, text, None, None))

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        super().close()
