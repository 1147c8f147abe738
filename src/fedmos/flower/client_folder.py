"""Client-side storage: the state after each of the client's last rounds, the model and the upload of the current one.

Every request names the last committed round in which the client took part; the client starts from the state of that
round. A round that the server abandoned, or lost because it was killed, leaves a file that is never requested. A
client may therefore repeat a round, with the same result.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path
from time import time

from torch import Tensor

from ..algorithm import Vectors
from ..storage.tensor_file import read_tensors, write_tensors
from .client_errors import ClientErrorCode
from .private_files import make_private_folder


class StateError(ValueError):
    """A client's stored state is missing or damaged."""

    code = ClientErrorCode.STATE


RUN_ID = re.compile(r"[0-9a-f]{32}")
"""Pattern of a run's id."""
_STALE_AFTER = 3600.0
"""Age in seconds from which a temporary file is taken to be left over from a killed process."""
_STATE_FILE = re.compile(r"state-(\d{1,9})\.safetensors")


class ClientFolder:
    """The folder of one client in one run.

    Args:
        root: The folder of all clients.
        client: The client's name.
        run: The run's id.
        kept: How many checkpoints the server keeps. The state that one of them needs is kept, too.
    """

    def __init__(self, root: Path, client: str, run: str, kept: int = 2) -> None:
        self._path, self._client, self.run, self._kept = root / client / run, client, run, kept

    def newest(self) -> int | None:
        """Return the last round with a state file; None without any. The server may not have committed it."""
        return max(self._rounds(), default=None)

    @property
    def path(self) -> Path:
        """The folder."""
        return self._path

    def load_state(self, last: int, initial: Vectors) -> Vectors:
        """Read the client's state after round `last`.

        Args:
            last: The client's last committed round; negative before its first.
            initial: The state before the first round. The stored state has the same names, shapes and dtypes.

        Raises:
            StateError: If the file is missing, damaged, or belongs to another run, client or round.
        """
        if last < 0 or not initial:
            return dict(initial)
        return self._read(self._state_path(last), last, initial)

    def save_state(self, t: int, last: int, state: Vectors) -> None:
        """Write the state after round t, which started from the state of round `last`, and delete older ones."""
        if not state:
            return
        self._write(self._state_path(t), t, state)
        self._remove_stale_files()
        # The server falls back by one checkpoint if its last one is damaged, and goes back further on command.
        kept = [last, *sorted(v for v in self._rounds() if v < last)[-(self._kept - 1) :]]
        for v in self._rounds():
            if v < t and v not in kept:
                self._state_path(v).unlink(missing_ok=True)

    def load_model(self, t: int, like: Tensor) -> Tensor:
        """Read the model x of round t, which was received earlier in the round."""
        return self._read(self._path / "x.safetensors", t, {"x": like})["x"]

    def save_model(self, t: int, x: Tensor) -> None:
        self._write(self._path / "x.safetensors", t, {"x": x})

    def load_upload(self, t: int, like: Vectors) -> Vectors:
        """Read the upload of round t, which was not sent yet."""
        return self._read(self._path / "upload.safetensors", t, like)

    def save_upload(self, t: int, upload: Vectors) -> None:
        """Keep the upload of round t, in place of any earlier one, until the server asks for it."""
        self._write(self._path / "upload.safetensors", t, upload)

    def drop_upload(self) -> None:
        """Delete an upload that the server did not ask for."""
        (self._path / "upload.safetensors").unlink(missing_ok=True)

    def _state_path(self, t: int) -> Path:
        return self._path / f"state-{t}.safetensors"

    def _rounds(self) -> list[int]:
        """Rounds with a state file."""
        with suppress(OSError):
            matches = [_STATE_FILE.fullmatch(path.name) for path in self._path.iterdir()]
            return [int(match[1]) for match in matches if match]
        return []

    def _remove_stale_files(self) -> None:
        """Delete incomplete files of processes that were killed while writing."""
        for path in self._path.glob(".*.partial"):
            with suppress(OSError):
                if time() - path.stat().st_mtime > _STALE_AFTER:
                    path.unlink()

    def _write(self, path: Path, t: int, tensors: Vectors) -> None:
        metadata = {"run": self.run, "client": self._client, "round": str(t)}
        make_private_folder(self._path.parent)
        make_private_folder(self._path)
        # Two processes can write at the same time if a request was sent twice.
        write_tensors(path, tensors, metadata, writer=f".{os.getpid()}")

    def _read(self, path: Path, t: int, like: Vectors) -> Vectors:
        failure = f"Cannot continue from round {t + 1} of run {self.run} because {path}"
        try:
            tensors, metadata = read_tensors(path)
        except FileNotFoundError:
            raise StateError(f"{failure} does not exist") from None
        except ValueError as error:
            raise StateError(f"{failure} {error}") from None
        expected = {"run": self.run, "client": self._client, "round": str(t)}
        if any(metadata.get(name) != value for name, value in expected.items()):
            raise StateError(f"{failure} belongs to another run, client or round")
        if _layout(tensors) != _layout(like):
            raise StateError(f"{failure} is damaged")
        return {name: tensors[name].to(v.device) for name, v in like.items()}


def _layout(tensors: Vectors) -> dict[str, tuple[object, object]]:
    return {name: (v.shape, v.dtype) for name, v in tensors.items()}
