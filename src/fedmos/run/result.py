"""What a run returns."""

from __future__ import annotations

import copy
import logging
import os
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from ..algorithm import Vectors
from ..core.flat_model import load_flat
from ..storage import RunFolder, Snapshot
from .info import RunInfo

_log = logging.getLogger("fedmos")


@dataclass(eq=False, kw_only=True)
class Result(Snapshot):
    """Model, state and history of a run, finished or interrupted."""

    info: RunInfo
    """The options of the run, its execution and its outcome; also a mapping, e.g. `result.info["engine"]`."""
    _model: nn.Module | None = field(default=None, repr=False)

    @property
    def model(self) -> nn.Module:
        """The caller's module with the final parameters."""
        if self._model is None:
            raise ValueError("Cannot give the model because only its numbers were saved; use Result.load(path, model)")
        return self._model

    def client_state(self, i: int) -> Vectors:
        """What client i keeps; empty if the algorithm keeps nothing or the client never took part."""
        return self.clients.get(int(i), {})

    def rounds_to(self, metric: str, target: float) -> int | None:
        """The first round, from 1, whose metric reached the target; None if none did."""
        record = self.history.first(metric, target)
        return None if record is None else record.round

    def bytes_to(self, metric: str, target: float) -> int | None:
        """Bytes sent, down and up, until then; None if never."""
        record = self.history.first(metric, target)
        return None if record is None else self.history.bytes_until(record)

    def time_to(self, metric: str, target: float) -> float | None:
        """Simulated seconds until then; None if never, or if the run had no clock (`system=`)."""
        record = self.history.first(metric, target)
        return None if record is None else record.clock

    @property
    def short_rounds(self) -> int:
        """In how many rounds fewer clients were available than the cohort was to have."""
        return sum(record.short for record in self.history)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the result into a folder, beside or over an earlier one; readers never see half of it."""
        if getattr(self.clients, "partial", False):
            raise ValueError(
                "Cannot save the result of one of several ranks because each holds a part of the clients' state; "
                "use out=, where the first rank writes all of it"
            )
        folder = RunFolder(path)
        folder.claim()
        try:
            folder.checkpoints.newest()  # so that it is kept
            folder.checkpoints.write(self)
        finally:
            folder.close()

    @classmethod
    def load(cls, path: str | os.PathLike[str], model: nn.Module | None = None) -> Result:
        """Read a saved result, or the newest checkpoint of a run.

        With `model`, a module of the run's shape, its `model` is available too.
        """
        checkpoints = RunFolder(path).checkpoints
        if not checkpoints.exist():
            raise FileNotFoundError(f"Cannot load a result from {path} because there is none")
        snapshot = checkpoints.newest()
        damage = "; ".join(checkpoints.damage)
        if snapshot is None:
            raise ValueError(f"Cannot load a result from {path} because its files are damaged: {damage}")
        if damage:
            _log.warning("The result in %s is of round %d, because of %s", path, len(snapshot.history), damage)
        found = vars(snapshot) | {"info": RunInfo.from_json(snapshot.info)}
        return cls(**found, _model=None if model is None else _filled(model, snapshot.params))


def _filled(model: nn.Module, params: Tensor) -> nn.Module:
    model = copy.deepcopy(model).to(device=torch.device("cpu"), dtype=params.dtype)
    load_flat(model, params)
    return model
