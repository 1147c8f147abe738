"""Decoded sums of secure aggregation, on the server's disk.

A second sum of the same uploads over other clients would tell them apart. A server that is killed and repeats a round
therefore uses the sum that it has decoded.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import NamedTuple

from ..algorithm import Vectors
from ..storage.files import storage_errors
from ..storage.tensor_file import read_tensors, write_tensors

_KEPT = 3
"""Rounds whose sums are kept. The server falls back by one round if its last checkpoint is damaged."""
_FILE = re.compile(r"(\d{1,9})-[a-z]+\.safetensors")


class DecodedSum(NamedTuple):
    """The result of a session."""

    arrived: list[int]
    """The clients that trained."""
    uploaded: list[int]
    """The clients whose uploads are in the sum."""
    integers: Vectors
    late: list[int]
    """The clients that were late."""
    reports: dict[int, dict[str, float]]
    """What clients reported, by client."""


class DecodedSums:
    """Stores the sums that were decoded.

    Args:
        folder: Their folder.
        run: The run's id.
        replaces: Whether sums of another run are ignored: the id changes with the clients of a run without privacy.
    """

    def __init__(self, folder: Path, run: str, *, replaces: bool) -> None:
        self._folder, self._run, self._replaces = folder, run, replaces

    def load(self, t: int, phase: str) -> DecodedSum | None:
        """Return the sum of a round that is repeated; None if none was decoded.

        Raises:
            ValueError: If the file cannot be read.
        """
        path = self._path(t, phase)
        if not path.exists():
            return None
        try:
            integers, metadata = read_tensors(path)
            if metadata["run"] != self._run:
                if self._replaces:
                    return None
                raise ValueError("belongs to another run")
            arrived, uploaded, late = (json.loads(metadata[name]) for name in ("arrived", "uploaded", "late"))
            reports = {int(i): numbers for i, numbers in json.loads(metadata["reports"]).items()}
            return DecodedSum(arrived, uploaded, integers, late, reports)
        except (KeyError, ValueError) as error:
            what = f"has no {error}" if isinstance(error, KeyError) else error
            raise ValueError(
                f"Cannot repeat round {t + 1} because {path} {what}; restore it, or start a new run in another folder, "
                "whose ε, with 'privacy', adds to that of this run"
            ) from None

    def add(self, t: int, phase: str, found: DecodedSum) -> None:
        """Store a sum, and delete those of older rounds."""
        stored = found._asdict()
        metadata = {"run": self._run} | {name: json.dumps(v) for name, v in stored.items() if name != "integers"}
        with storage_errors(f"write a decoded sum to {self._folder}", "make room, and start the server again"):
            self._folder.mkdir(parents=True, exist_ok=True)
            write_tensors(self._path(t, phase), found.integers, metadata)
        for path in self._folder.iterdir():
            match = _FILE.fullmatch(path.name)
            if match and int(match[1]) <= t - _KEPT:
                path.unlink(missing_ok=True)

    def _path(self, t: int, phase: str) -> Path:
        return self._folder / f"{t}-{phase}.safetensors"
