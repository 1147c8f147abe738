"""Client-side storage: the state after each of the client's last rounds, the model and the upload of the current one.

Every request names the last committed round in which the client took part; the client starts from the state of that
round. A round that the server abandoned, or lost because it was killed, leaves a file that is never requested. A
client may therefore repeat a round, with the same result.
"""

from __future__ import annotations

import hashlib
import os
import re
from contextlib import suppress
from pathlib import Path
from time import time

import safetensors
import safetensors.torch
from torch import Tensor

from ..algorithm import Vectors
from ..storage.files import replace_file

RUN_ID = re.compile(r"[0-9a-f]{32}")
"""Pattern of a run's id."""
_STALE_AFTER = 3600.0
"""Age in seconds from which a temporary file is taken to be left over from a killed process."""
_STATE_FILE = re.compile(r"state-(\d{1,9})\.safetensors")


class ClientFolder:
    """The folder of one client in one run."""

    def __init__(self, root: Path, client: str, run: str) -> None:
        self._path, self._client, self.run = root / client / run, client, run

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
            ValueError: If the file is missing, damaged, or belongs to another run, client or round.
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
        # The server falls back by one checkpoint if its last one is damaged.
        kept = [last, *sorted(v for v in self._rounds() if v < last)[-1:]]
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
        # Copies, because a method may return one tensor under two names, which safetensors refuses.
        content = {name: v.detach().cpu().contiguous().clone() for name, v in tensors.items()}
        metadata = {"run": self.run, "client": self._client, "round": str(t), "sha256": _hash(content)}
        path.parent.mkdir(parents=True, exist_ok=True)
        # Two processes can write at the same time if a request was sent twice.
        replace_file(path, safetensors.torch.save(content, metadata), writer=f".{os.getpid()}")

    def _read(self, path: Path, t: int, like: Vectors) -> Vectors:
        failure = f"Cannot continue from round {t + 1} of run {self.run} because {path}"
        try:
            with safetensors.safe_open(path, "pt") as file:
                metadata = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except FileNotFoundError:
            raise ValueError(f"{failure} does not exist") from None
        except (OSError, safetensors.SafetensorError) as error:
            raise ValueError(f"{failure} cannot be read: {error}") from None
        expected = {"run": self.run, "client": self._client, "round": str(t)}
        if any(metadata.get(name) != value for name, value in expected.items()):
            raise ValueError(f"{failure} belongs to another run, client or round")
        if _layout(tensors) != _layout(like) or metadata.get("sha256") != _hash(tensors):
            raise ValueError(f"{failure} is damaged")
        return {name: tensors[name].to(v.device) for name, v in like.items()}


def _layout(tensors: Vectors) -> dict[str, tuple[object, object]]:
    return {name: (v.shape, v.dtype) for name, v in tensors.items()}


def _hash(tensors: Vectors) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].numpy().tobytes())
    return digest.hexdigest()
