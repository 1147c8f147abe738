"""Checkpoints: numbered folders, each with a manifest that lists every file it needs.

A checkpoint is written under a temporary name, flushed to the disk and then renamed, so it exists completely or not at
all. The checkpoint before it is kept until then. Reading a checkpoint executes nothing in it.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import safetensors
import safetensors.torch

from ..core.history import History, Record
from ..engine.snapshot import Snapshot
from .checkpoint_format import FORMAT, DamagedError, decode_snapshot, manifest_of, seal, state_tensors, unseal
from .files import FileRecord, hash_file, storage_errors, sync_folder, write_synced
from .segments import (
    ClientSegment,
    HistorySegment,
    StoredClients,
    decode_history,
    encode_clients,
    encode_history,
    plan_clients,
    plan_history,
)
from .tensor_stream import encode_tensors

_NAME = re.compile(r"\d{6,}")
_FILE = re.compile(r"\d{6,}/[a-z0-9-]+\.(safetensors|jsonl)")
_KEPT = 2
"""Number of checkpoints that are kept by default."""


class LoadedCheckpoint(NamedTuple):
    """A checkpoint and the segments it consists of."""

    snapshot: Snapshot
    history: list[HistorySegment]
    clients: list[ClientSegment]
    files: frozenset[str]


@dataclass
class Checkpoints:
    """The checkpoints in a folder."""

    folder: Path
    kept: int = _KEPT
    """Number of checkpoints that are kept."""

    def __post_init__(self) -> None:
        self.damage: list[str] = []
        """Descriptions of the damaged checkpoints that `load_newest` skipped, newest first."""
        self.loaded_number: int | None = None
        """The number of the checkpoint that `load_newest` returned."""
        self._number = max(self._numbers(), default=0)
        self._history: list[HistorySegment] = []
        self._clients: list[ClientSegment] = []
        self._intact: dict[int, frozenset[str]] = {}
        """The files of each checkpoint that is known to be intact."""

    def exist(self) -> bool:
        """Whether there is any checkpoint, intact or not."""
        return bool(self._numbers())

    def load_newest(self) -> Snapshot | None:
        """Load the newest intact checkpoint, on which later ones build; None if none is intact."""
        numbers = sorted(self._numbers(), reverse=True)
        self.damage = []
        for number in numbers:
            try:
                loaded = self._load(number)
            except DamagedError as error:
                self.damage.append(f"{number:06} ({error})")
            else:
                self._history, self._clients = loaded.history, loaded.clients
                self._intact = self._older(number) | {number: loaded.files}
                self.loaded_number = number
                return loaded.snapshot
        replaced = sorted(self._numbers(), reverse=True) != numbers  # a running process has written newer ones
        return self.load_newest() if replaced else None

    def load(self, number: int) -> Snapshot:
        """Load the checkpoint with that number."""
        return self._load(number).snapshot

    def load_round(self, done: int) -> Snapshot:
        """Load the newest intact checkpoint after so many rounds; later ones do not build on it.

        Raises:
            ValueError: if there is none.
        """
        rounds = set()
        for number in sorted(self._numbers(), reverse=True):
            with suppress(DamagedError):
                snapshot = self._load(number).snapshot
                rounds.add(len(snapshot.history))
                if len(snapshot.history) == done:
                    return snapshot
        kept = ", ".join(map(str, sorted(rounds))) or "none"
        raise ValueError(f"Cannot go back to round {done} because no checkpoint of it is kept; there are: {kept}")

    def write(self, snapshot: Snapshot, changed: Iterable[int] | None = None, only: bool = False) -> None:
        """Write a checkpoint.

        Args:
            snapshot: the state to save.
            changed: clients whose state has changed since the last checkpoint; None if this one must not build on it.
            only: whether to remove all other checkpoints.
        """
        if changed is None:
            self._history, self._clients, changed = [], [], snapshot.clients
        self._number += 1
        with storage_errors(
            f"write a checkpoint of round {len(snapshot.history)} in {self.folder.parent}",
            "earlier checkpoints are intact, so make room and use resume=True (fedmos resume)",
        ):
            self._write(snapshot, frozenset(changed))
        if only:
            self._intact = {self._number: self._intact[self._number]}
        self._prune()

    def clients_to_write(self, changed: set[int]) -> list[int]:
        """Return the clients whose state the next checkpoint contains, if those have changed since the last one."""
        return sorted(plan_clients(self._clients, frozenset(changed))[1])

    def remove_partial(self) -> None:
        """Remove incomplete checkpoints of a killed process. The caller must hold the lock of the folder."""
        for path in self.folder.glob(".*.partial"):
            shutil.rmtree(path, ignore_errors=True)

    def _numbers(self) -> list[int]:
        if not self.folder.is_dir():
            return []
        return [int(path.name) for path in self.folder.iterdir() if _NAME.fullmatch(path.name)]

    def _write(self, snapshot: Snapshot, changed: frozenset[int]) -> None:
        name = f"{self._number:06}"
        partial = self.folder / f".{name}.partial"
        partial.mkdir(parents=True)

        def put(file: str, content: Iterable[bytes | memoryview]) -> FileRecord:
            return FileRecord(f"{name}/{file}", *write_synced(partial / file, content))

        try:
            state = put("state.safetensors", encode_tensors(state_tensors(snapshot)))
            history, start = plan_history(self._history, len(snapshot.history))
            if start < len(snapshot.history):
                file = put("history.jsonl", encode_history(snapshot.history, start))
                history.append(HistorySegment(start, len(snapshot.history), [file]))
            clients, ids = plan_clients(self._clients, changed)
            if ids:
                blocks = enumerate(encode_clients(snapshot.clients, ids))
                files = [put(f"clients-{i}.safetensors", [block]) for i, block in blocks]
                clients.append(ClientSegment(ids, files))
            write_synced(partial / "manifest.json", [seal(manifest_of(snapshot, state, history, clients))])
            sync_folder(partial)
            os.rename(partial, self.folder / name)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        sync_folder(self.folder)
        self._history, self._clients = history, clients
        segments: list[HistorySegment | ClientSegment] = [*history, *clients]
        names = (file.name for segment in segments for file in segment.files)
        self._intact[self._number] = frozenset((state.name, *names))

    def _older(self, number: int) -> dict[int, frozenset[str]]:
        """Return the files of the checkpoints before this one that are kept longer than by default.

        They are verified when they are loaded.
        """
        found: dict[int, frozenset[str]] = {}
        for older in sorted((n for n in self._numbers() if n < number), reverse=True)[: self.kept - _KEPT]:
            with suppress(DamagedError, OSError, KeyError, TypeError, IndexError):
                manifest = unseal((self.folder / f"{older:06}" / "manifest.json").read_bytes())
                segments = [[manifest["state"]], *manifest["history"], *manifest["clients"]]
                found[older] = frozenset(file[0] for segment in segments for file in segment)
        return found

    def _prune(self) -> None:
        """Remove the files that the newest intact checkpoints do not need, as far as possible."""
        self._intact = dict(sorted(self._intact.items())[-self.kept :])
        needed = frozenset().union(*self._intact.values())
        for number in self._numbers():
            folder = self.folder / f"{number:06}"
            with suppress(OSError):
                for path in folder.iterdir():
                    manifest = path.name == "manifest.json" and number in self._intact
                    if not manifest and f"{folder.name}/{path.name}" not in needed:
                        path.unlink()
                folder.rmdir()

    def _load(self, number: int) -> LoadedCheckpoint:
        """Load a checkpoint and verify all its files.

        Raises:
            DamagedError: if a file is missing or not as it was written.
        """
        try:
            return self._decode(unseal((self.folder / f"{number:06}" / "manifest.json").read_bytes()))
        except DamagedError:
            raise
        except OSError as error:
            raise DamagedError(f"{error.filename or 'a file'}: {error.strerror or error}") from error
        except (ValueError, KeyError, TypeError, safetensors.SafetensorError) as error:
            raise DamagedError(f"it does not read as it should: {error}") from error

    def _decode(self, manifest: dict[str, Any]) -> LoadedCheckpoint:
        if manifest["format"] != FORMAT:
            raise DamagedError(f"it is of format {manifest['format']!r}, and this fedmos reads {FORMAT}")
        state = FileRecord(*manifest["state"])
        history_files, client_files = (
            [[FileRecord(*file) for file in segment] for segment in manifest[part]] for part in ("history", "clients")
        )
        files = [state, *(file for segment in (*history_files, *client_files) for file in segment)]
        for file in files:
            self._verify(file)
        records, history = self._read_history(history_files)
        stored = StoredClients([self.folder / file.name for segment in client_files for file in segment])
        clients, first = [], 0
        for segment in client_files:
            clients.append(ClientSegment(stored.ids_in(range(first, first + len(segment))), segment))
            first += len(segment)
        tensors = safetensors.torch.load_file(self.folder / state.name)
        snapshot = decode_snapshot(manifest, tensors, History(records), stored)
        return LoadedCheckpoint(snapshot, history, clients, frozenset(file.name for file in files))

    def _read_history(self, segments: list[list[FileRecord]]) -> tuple[list[Record], list[HistorySegment]]:
        records: list[Record] = []
        history: list[HistorySegment] = []
        for files in segments:
            start = len(records)
            for file in files:
                records += decode_history((self.folder / file.name).read_bytes())
            history.append(HistorySegment(start, len(records), files))
        return records, history

    def _verify(self, file: FileRecord) -> None:
        if not _FILE.fullmatch(file.name):
            raise DamagedError(f"its manifest names a file {file.name!r}")
        size, sha256 = hash_file(self.folder / file.name)
        if size != file.bytes:
            raise DamagedError(f"{file.name} has {size} bytes instead of {file.bytes}")
        if sha256 != file.sha256:
            raise DamagedError(f"{file.name} is not what was written")
