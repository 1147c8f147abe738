"""What a client keeps on its disk: its state after each of its last rounds, and the model of the current one.

The server says which round a client last took part in, as far as it counts: a round that was abandoned, or that the
server forgot because it was killed, has left a file here that nobody will ask for. So work may be done twice, and is
then the same.
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

RUN = re.compile(r"[0-9a-f]{32}")
"""What runs are called."""
_STALE = 3600.0
"""Seconds after which nobody is still writing to a file."""
_STATE = re.compile(r"state-(\d{1,9})\.safetensors")


class ClientFolder:
    """The folder of one client in one run."""

    def __init__(self, root: Path, client: str, run: str) -> None:
        self._path, self._client, self._run = root / client / run, client, run

    def state(self, last: int, initial: Vectors) -> Vectors:
        """As the client left it in round `last`; `initial`, like which it must be, before its first."""
        if last < 0 or not initial:
            return dict(initial)
        return self._read(self._of_round(last), last, initial)

    def keep_state(self, t: int, last: int, own: Vectors) -> None:
        """After work in round t that began from the state of round `last`."""
        if not own:
            return
        self._write(self._of_round(t), t, own)
        self._tidy()
        kept = [last, *sorted(v for v in self._rounds() if v < last)[-1:]]  # the server may fall back a checkpoint
        for v in self._rounds():
            if v < t and v not in kept:
                self._of_round(v).unlink(missing_ok=True)

    def model(self, t: int, like: Tensor) -> Tensor:
        """x of round t, as it was received earlier in the round."""
        return self._read(self._path / "x.safetensors", t, {"x": like})["x"]

    def keep_model(self, t: int, x: Tensor) -> None:
        self._write(self._path / "x.safetensors", t, {"x": x})

    def _of_round(self, t: int) -> Path:
        return self._path / f"state-{t}.safetensors"

    def _rounds(self) -> list[int]:
        with suppress(OSError):
            found = [_STATE.fullmatch(path.name) for path in self._path.iterdir()]
            return [int(match[1]) for match in found if match]
        return []

    def _tidy(self) -> None:
        """Remove what killed processes have left half written."""
        for path in self._path.glob(".*.partial"):
            with suppress(OSError):
                if time() - path.stat().st_mtime > _STALE:
                    path.unlink()

    def _write(self, path: Path, t: int, tensors: Vectors) -> None:
        held = {name: v.detach().cpu().contiguous() for name, v in tensors.items()}
        facts = {"run": self._run, "client": self._client, "round": str(t), "sha256": _hash(held)}
        path.parent.mkdir(parents=True, exist_ok=True)
        # A request that was sent twice may be worked on by two processes at a time.
        replace_file(path, safetensors.torch.save(held, facts), writer=f".{os.getpid()}")

    def _read(self, path: Path, t: int, like: Vectors) -> Vectors:
        what = f"Cannot go on from round {t + 1} of run {self._run} because {path}"
        try:
            with safetensors.safe_open(path, "pt") as file:
                facts = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except FileNotFoundError:
            raise ValueError(f"{what} is not there") from None
        except (OSError, safetensors.SafetensorError) as error:
            raise ValueError(f"{what} cannot be read: {error}") from None
        expected = {"run": self._run, "client": self._client, "round": str(t)}
        if any(facts.get(name) != value for name, value in expected.items()):
            raise ValueError(f"{what} belongs to something else")
        right = {name: (v.shape, v.dtype) for name, v in like.items()}
        if {name: (v.shape, v.dtype) for name, v in tensors.items()} != right or facts.get("sha256") != _hash(tensors):
            raise ValueError(f"{what} is damaged")
        return {name: tensors[name].to(v.device) for name, v in like.items()}


def _hash(tensors: Vectors) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].numpy().tobytes())
    return digest.hexdigest()
