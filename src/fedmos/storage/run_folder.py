"""The folder of a run."""

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

from ..core.history import History
from ..engine.client_store import SCRATCH
from ..engine.snapshot import Snapshot
from . import toml
from .checkpoint import Checkpoints
from .checkpoint_schedule import CheckpointSchedule, Every
from .environment import environment
from .files import Lines, explained, replace_file
from .lock import Lock
from .segments import encode_record

_log = logging.getLogger("fedmos")


class RunFolder(os.PathLike[str]):
    """`config.toml`, `environment.json`, `metrics.jsonl`, `log.txt`, `checkpoints/`, and a lock.

    `fm.run` takes one for `out`, in place of a path, from who can describe the run by a configuration
    that it can be built from again.
    """

    def __init__(
        self, path: str | os.PathLike[str], config: Mapping[str, Any] | None = None, light: bool = False
    ) -> None:
        """`light`: of a finished run, keep model and history only."""
        self.path = Path(path)
        self.config, self._light = config, light
        self.checkpoints = Checkpoints(self.path / "checkpoints")
        self._lock: Lock | None = None
        self._metrics: Lines | None = None
        self._written = 0
        self._diary: _Diary | None = None
        self._pace = CheckpointSchedule(None)

    def __fspath__(self) -> str:
        return str(self.path)

    def claim(self) -> None:
        """Make it ours alone, or say why that cannot be."""
        if not self._may_be_ours():
            raise FileExistsError(f"Cannot write to {self.path} because it holds something else; use a new folder")
        with explained(f"use {self.path}", "use another folder"):
            (self.path / "checkpoints").mkdir(parents=True, exist_ok=True)
            self._lock = Lock(self.path / "lock")
            self.checkpoints = Checkpoints(self.path / "checkpoints")
            self._tidy()

    def earlier(self, resume: bool) -> Snapshot | None:
        """What the run is to go on from; None for the beginning. Only for who holds the folder."""
        metrics = self.path / "metrics.jsonl"
        begun = self.checkpoints.exist() or (metrics.exists() and metrics.stat().st_size > 0)
        if begun and not resume:
            raise FileExistsError(
                f"Cannot write the run to {self.path} because it exists; use resume=True or a new folder"
            )
        if not self.checkpoints.exist():
            return None
        snapshot = self.checkpoints.newest()
        if snapshot is None:
            raise ValueError(
                f"Cannot resume the run in {self.path} because none of its checkpoints is intact: "
                f"{'; '.join(self.checkpoints.damage)}; use a new folder"
            )
        if self.checkpoints.damage:
            damage = f"round {len(snapshot.history)}, because of damage to {'; '.join(self.checkpoints.damage)}"
            snapshot = replace(snapshot, info={**snapshot.info, "recovered": damage})
        return snapshot

    def begin(self, info: Mapping[str, Any], history: History, every: Every) -> None:
        """Describe the run, and start its diary and metrics from what it has played."""
        with explained(f"write to {self.path}", "make room or use another folder"):
            self._describe(info)
            self._diary = _Diary(self.path / "log.txt")
            _log.addHandler(self._diary)
            metrics = "".join(f"{encode_record(record)}\n" for record in history)
            replace_file(self.path / "metrics.jsonl", metrics.encode())
            self._metrics, self._written = Lines(self.path / "metrics.jsonl"), len(history)
        if self._lock is not None and self._lock.stale:
            _log.warning("The run in %s was ended from outside (%s)", self.path, self._lock.stale)
        if self.checkpoints.damage:
            _log.warning("The run in %s goes on from %s", self.path, info["recovered"])
        self._diary.say(f"Begins after round {len(history)}" if len(history) else "Begins")
        self._pace = CheckpointSchedule(every)

    def note(self, history: History) -> None:
        """Write down the rounds that are not yet."""
        if self._metrics is None:
            return
        with explained(
            f"write round {len(history)} to {self.path / 'metrics.jsonl'}",
            "earlier checkpoints are intact, so make room and use resume=True (fedmos resume)",
        ):
            for record in history.since(self._written):
                self._metrics.add(encode_record(record))
                self._written += 1

    def due(self, t: int) -> bool:
        """Whether round t is to be followed by a checkpoint."""
        return self._pace.due(t)

    def save(self, snapshot: Snapshot, changed: set[int], final: bool = False) -> None:
        """Write a checkpoint, with the clients that have changed since the last, and forget that they have."""
        began = perf_counter()
        self.note(snapshot.history)
        if final and self._light:
            info = {**snapshot.info, "light": True}
            self.checkpoints.write(replace(snapshot, server_state={}, clients={}, info=info), only=True)
        else:
            self.checkpoints.write(snapshot, changed)
        changed.clear()
        self._pace.note(perf_counter() - began)
        if self._diary is not None:
            self._diary.say(f"Checkpoint after round {len(snapshot.history)}")

    @property
    def cost(self) -> dict[str, float]:
        """How many checkpoints this part of the run has written, and in how many seconds."""
        return {"count": self._pace.count, "seconds": round(self._pace.seconds, 3)}

    def close(self) -> None:
        """Let others in."""
        if self._diary is not None:
            _log.removeHandler(self._diary)
            self._diary.close()
        if self._metrics is not None:
            self._metrics.close()
        if self._lock is not None:
            with suppress(OSError):
                self._lock.release()
        self._diary = self._metrics = self._lock = None

    def _tidy(self) -> None:
        """Remove what a killed run has left."""
        for path in (*self.path.glob(".*.partial"), *self.path.glob(f"{SCRATCH}*")):
            path.unlink() if path.is_file() else shutil.rmtree(path, ignore_errors=True)
        self.checkpoints.tidy()

    def _may_be_ours(self) -> bool:
        """Whether it is new, empty, or a run's."""
        if not self.path.is_dir():
            return not self.path.exists()
        names = {
            path.name
            for path in self.path.iterdir()
            if not (path.name.startswith(SCRATCH) or path.suffix == ".partial")
        }
        return names <= {"lock", "checkpoints"} or {"lock", "checkpoints"} <= names

    def _describe(self, info: Mapping[str, Any]) -> None:
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
        replace_file(path, json.dumps({"starts": [*starts, environment()]}, indent=1).encode())


class _Diary(logging.Handler):
    """The lines of the "fedmos" logger, and the run's own. One that cannot be written is let go."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._lines = Lines(path)
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(OSError):
            self._lines.add(self.format(record))
        # Python shows warnings that nobody handles; that a diary is kept must not silence them.
        nobody = not logging.getLogger().handlers and all(isinstance(other, _Diary) for other in _log.handlers)
        if record.levelno >= logging.WARNING and nobody and _log.handlers[:1] == [self] and logging.lastResort:
            logging.lastResort.handle(record)

    def say(self, text: str) -> None:
        self.handle(logging.LogRecord("fedmos", logging.INFO, __file__, 0, text, None, None))

    def close(self) -> None:
        self._lines.close()
        super().close()
