"""The noisy sums of a private deployment.

A sum gets noise from the operating system once. The result is on the disk before anything is computed from it, and a
server that is killed and repeats the round uses it again, whoever answers then. So no sum gets two draws of noise, no
draw of noise is on two sums, and a repeated round spends no ε. Noise is not stored, unless that of later rounds depends
on it (`MatrixFactorization`).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from pathlib import Path

import safetensors
import safetensors.torch
from torch import Tensor

from ..algorithm import Context
from ..privacy.noise import Noise
from ..storage.files import replace_file, storage_errors

_KEPT = 3
"""Rounds whose noisy sums are kept. The server falls back by one round if its last checkpoint is damaged."""
_FILE = re.compile(r"(\d{1,9})-[0-9a-f]{16}\.safetensors")
_ADVICE = "restore the folder, or start a new run in another one, whose ε adds to that of this run"


class Releases:
    """Stores noisy sums when they are computed, and returns them when a round is repeated; see `Noise`.

    Args:
        folder: The folder of the noisy sums.
        run: The run's id.
        noise: Where the noise comes from.
    """

    def __init__(self, folder: Path, run: str, noise: Noise) -> None:
        self._folder, self._run, self._noise = folder, run, noise
        self._known: dict[Path, Tensor] = {}
        """What is stored of the current round."""

    def normal(self, count: int, ctx: Context, phase: str, upload: str) -> Tensor:
        return self._noise.normal(count, ctx, phase, upload)

    def once(self, compute: Callable[[], Tensor], ctx: Context, phase: str, upload: str) -> Tensor:
        name = hashlib.sha256(f"{phase}/{upload}".encode()).hexdigest()[:16]
        path = self._folder / f"{ctx.t}-{name}.safetensors"
        if path not in self._known:
            self._known = {known: v for known, v in self._known.items() if known.name.startswith(f"{ctx.t}-")}
            found = self._read(path, ctx.t)
            if found is None:
                found = compute()
                self._write(path, ctx.t, found.cpu())
            self._known[path] = found
        return self._known[path]

    def _write(self, path: Path, t: int, noisy: Tensor) -> None:
        """Store a noisy sum, and delete those of older rounds."""
        content = safetensors.torch.save({"sum": noisy.contiguous()}, {"run": self._run, "sha256": _hash(noisy)})
        with storage_errors(f"write a noisy sum to {self._folder}", "make room, and start the server again"):
            self._folder.mkdir(parents=True, exist_ok=True)
            replace_file(path, content)
        for stored, old in self._files():
            if stored <= t - _KEPT:
                old.unlink(missing_ok=True)

    def _read(self, path: Path, t: int) -> Tensor | None:
        """Return the noisy sum of a repeated round; None if the sum has got no noise yet."""
        last = max((stored for stored, _ in self._files()), default=-1)
        if not path.exists():
            if t in (last, last + 1):
                return None
            lost = t + 1 if t < last else t
            raise ValueError(
                f"Cannot play round {t + 1} because the noisy sums of round {lost} are not in {self._folder}, and new "
                f"noise on them would spend ε that is not counted; {_ADVICE}"
            )
        try:
            with safetensors.safe_open(path, "pt") as file:
                metadata: dict[str, str] = file.metadata() or {}
                noisy: Tensor = file.get_tensor("sum")
        except (OSError, safetensors.SafetensorError) as error:
            raise ValueError(f"Cannot repeat round {t + 1} because {path} cannot be read: {error}; {_ADVICE}") from None
        if metadata.get("run") != self._run:
            raise ValueError(f"Cannot play round {t + 1} because {path} belongs to another run; use a new folder")
        if metadata.get("sha256") != _hash(noisy):
            raise ValueError(f"Cannot repeat round {t + 1} because {path} is damaged; {_ADVICE}")
        return noisy

    def _files(self) -> list[tuple[int, Path]]:
        """Return the stored files with their rounds."""
        if not self._folder.is_dir():
            return []
        matches = [(_FILE.fullmatch(path.name), path) for path in self._folder.iterdir()]
        return [(int(match[1]), path) for match, path in matches if match]


def _hash(v: Tensor) -> str:
    return hashlib.sha256(v.contiguous().numpy().tobytes()).hexdigest()
