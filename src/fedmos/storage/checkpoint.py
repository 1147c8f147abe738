"""Checkpoints: folders named by a running number, each with a manifest of every file it needs.

A checkpoint is written under another name, brought to the disk, and then renamed: there is all of it or
nothing. The one before is kept until then. Nothing in it is executed when it is read.
"""

from __future__ import annotations

import hashlib
import json
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
from .files import Stamp, digest, explained, sync_folder, write_synced
from .segments import Rounds, Rows, SavedRows, decode_rounds, encode_rounds, encode_rows, new_rounds, new_rows

FORMAT = 2
_NAME = re.compile(r"\d{6,}")
_FILE = re.compile(r"\d{6,}/[a-z0-9-]+\.(safetensors|jsonl)")
_KEPT = 2
"""How many checkpoints are kept."""


class DamagedError(ValueError):
    """A checkpoint that is not as it was written."""


class Found(NamedTuple):
    """A checkpoint and the pieces it is made of."""

    number: int
    snapshot: Snapshot
    rounds: list[Rounds]
    rows: list[Rows]
    files: frozenset[str]


@dataclass
class Checkpoints:
    """The checkpoints in a folder."""

    folder: Path

    def __post_init__(self) -> None:
        self.damage: list[str] = []
        """What was wrong with those that were passed over, newest first."""
        self._number = max(self._numbers(), default=0)
        self.chosen: int | None = None
        """The number of the one that `newest` gave."""
        self._rounds: list[Rounds] = []
        self._rows: list[Rows] = []
        self._good: dict[int, frozenset[str]] = {}
        """The files of each checkpoint known to be good."""

    def exist(self) -> bool:
        return bool(self._numbers())

    def newest(self) -> Snapshot | None:
        """The newest that is intact, from which the next will go on; None if none is."""
        numbers = sorted(self._numbers(), reverse=True)
        self.damage = []
        for number in numbers:
            try:
                found = self._read(number)
            except DamagedError as error:
                self.damage.append(f"{number:06} ({error})")
            else:
                self._rounds, self._rows, self._good = found.rounds, found.rows, {number: found.files}
                self.chosen = number
                return found.snapshot
        overtaken = sorted(self._numbers(), reverse=True) != numbers  # by a run that goes on as we read
        return self.newest() if overtaken else None

    def write(self, snapshot: Snapshot, changed: Iterable[int] | None = None, only: bool = False) -> None:
        """Save a snapshot whose clients have `changed` since the last one; None for a snapshot of its own.

        With `only`, no other is kept.
        """
        if changed is None:
            self._rounds, self._rows, changed = [], [], snapshot.clients
        self._number += 1
        with explained(
            f"write a checkpoint of round {len(snapshot.history)} in {self.folder.parent}",
            "earlier checkpoints are intact, so make room and use resume=True (fedmos resume)",
        ):
            self._write(snapshot, frozenset(changed))
        if only:
            self._good = {self._number: self._good[self._number]}
        self._prune()

    def read(self, number: int) -> Snapshot:
        """The one of that number."""
        return self._read(number).snapshot

    def needed(self, changed: set[int]) -> list[int]:
        """Whose state the next checkpoint is to hold, where those have changed since the last one."""
        return sorted(new_rows(self._rows, frozenset(changed))[1])

    def tidy(self) -> None:
        """Remove what a killed run left half written. Only for who holds the lock."""
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

        def put(file: str, content: Iterable[bytes]) -> Stamp:
            return Stamp(f"{name}/{file}", *write_synced(partial / file, content))

        try:
            state = put("state.safetensors", [_encode_state(snapshot)])
            rounds, start = new_rounds(self._rounds, len(snapshot.history))
            if start < len(snapshot.history):
                stamp = put("history.jsonl", encode_rounds(snapshot.history, start))
                rounds.append(Rounds(start, len(snapshot.history), [stamp]))
            rows, ids = new_rows(self._rows, changed)
            if ids:
                blocks = enumerate(encode_rows(snapshot.clients, ids))
                rows.append(Rows(ids, [put(f"clients-{i}.safetensors", [block]) for i, block in blocks]))
            content = {
                "format": FORMAT,
                "info": dict(snapshot.info),
                "interrupted": snapshot.interrupted,
                "state": state,
                "history": [piece.files for piece in rounds],
                "clients": [piece.files for piece in rows],
            }
            write_synced(partial / "manifest.json", [_seal(content)])
            sync_folder(partial)
            os.rename(partial, self.folder / name)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        sync_folder(self.folder)
        self._rounds, self._rows = rounds, rows
        pieces: list[Rounds | Rows] = [*rounds, *rows]
        files = [state, *(stamp for piece in pieces for stamp in piece.files)]
        self._good[self._number] = frozenset(stamp.name for stamp in files)

    def _prune(self) -> None:
        """Remove all that the newest good checkpoints do not need. What cannot be removed does no harm."""
        self._good = dict(sorted(self._good.items())[-_KEPT:])
        needed = frozenset().union(*self._good.values())
        for number in self._numbers():
            folder = self.folder / f"{number:06}"
            with suppress(OSError):
                for path in folder.iterdir():
                    manifest = path.name == "manifest.json" and number in self._good
                    if not manifest and f"{folder.name}/{path.name}" not in needed:
                        path.unlink()
                folder.rmdir()

    def _read(self, number: int) -> Found:
        try:
            content = _unseal((self.folder / f"{number:06}" / "manifest.json").read_bytes())
            if content["format"] != FORMAT:
                raise DamagedError(f"it is of format {content['format']!r}, and this fedmos reads {FORMAT}")
            state = Stamp(*content["state"])
            rounds_files = [[Stamp(*stamp) for stamp in piece] for piece in content["history"]]
            rows_files = [[Stamp(*stamp) for stamp in piece] for piece in content["clients"]]
            files = [state, *(stamp for piece in (*rounds_files, *rows_files) for stamp in piece)]
            for stamp in files:
                self._verify(stamp)
            rounds: list[Rounds] = []
            records: list[Record] = []
            for piece in rounds_files:
                start = len(records)
                for stamp in piece:
                    records += decode_rounds((self.folder / stamp.name).read_bytes())
                rounds.append(Rounds(start, len(records), piece))
            clients = SavedRows([self.folder / stamp.name for piece in rows_files for stamp in piece])
            rows, first = [], 0
            for piece in rows_files:
                rows.append(Rows(clients.ids_in(range(first, first + len(piece))), piece))
                first += len(piece)
            tensors = safetensors.torch.load_file(self.folder / state.name)
            snapshot = Snapshot(
                params=tensors.pop("params"),
                last=tensors.pop("last"),
                server_state=_under("server.", tensors),
                selection=_under("selection.", tensors),
                history=History(records),
                clients=clients,
                info=content["info"],
                interrupted=content["interrupted"],
            )
        except OSError as error:
            raise DamagedError(f"{error.filename or 'a file'}: {error.strerror or error}") from error
        except (ValueError, KeyError, TypeError, safetensors.SafetensorError) as error:
            if isinstance(error, DamagedError):
                raise
            raise DamagedError(f"it does not read as it should: {error}") from error
        return Found(number, snapshot, rounds, rows, frozenset(stamp.name for stamp in files))

    def _verify(self, stamp: Stamp) -> None:
        if not _FILE.fullmatch(stamp.name):
            raise DamagedError(f"its manifest names a file {stamp.name!r}")
        size, sha256 = digest(self.folder / stamp.name)
        if size != stamp.bytes:
            raise DamagedError(f"{stamp.name} has {size} bytes instead of {stamp.bytes}")
        if sha256 != stamp.sha256:
            raise DamagedError(f"{stamp.name} is not what was written")


def _encode_state(snapshot: Snapshot) -> bytes:
    tensors = {"params": snapshot.params, "last": snapshot.last}
    tensors |= {f"server.{name}": v for name, v in snapshot.server_state.items()}
    tensors |= {f"selection.{name}": v for name, v in snapshot.selection.items()}
    return safetensors.torch.save({name: v.contiguous().clone() for name, v in tensors.items()})


def _under(prefix: str, tensors: dict[str, Any]) -> dict[str, Any]:
    return {name.removeprefix(prefix): v for name, v in tensors.items() if name.startswith(prefix)}


def _seal(content: dict[str, Any]) -> bytes:
    """A manifest: its content, with a hash of it."""
    text = json.dumps(content)
    return json.dumps({"sha256": hashlib.sha256(text.encode()).hexdigest(), "content": content}).encode()


def _unseal(sealed: bytes) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(sealed)["content"]
        intact = _seal(content) == sealed
    except (ValueError, KeyError, TypeError, RecursionError):
        intact = False
    if not intact:
        raise DamagedError("its manifest is not what was written")
    return content
