"""The models that clients were sent, where the clients of one cohort started in different rounds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from ..algorithm import Vectors


class ModelVersion(NamedTuple):
    """What the server sent to the clients that started in one round."""

    lr: float
    """The step size of the round."""
    x: Tensor
    msg: Vectors


class SentModels(NamedTuple):
    """By client of a cohort, what it was sent. A version is stored once, under the round in which it was the newest."""

    versions: Mapping[int, ModelVersion]
    rounds: Tensor
    """(S,), int64, on the CPU: the round whose version each client was sent."""

    def of(self, positions: Tensor) -> SentModels:
        """Return those of the clients at these positions of the cohort."""
        return self._replace(rounds=self.rounds[positions])

    def runs(self, positions: Tensor) -> Iterator[Tensor]:
        """Split positions into parts of successive clients that were sent the same version."""
        changes = self.rounds[positions].diff().nonzero().flatten() + 1
        yield from positions.tensor_split(changes)

    @property
    def shared(self) -> ModelVersion:
        """The version that all these clients were sent."""
        return self.versions[int(self.rounds[0])]

    def stacked(self) -> ModelRows:
        """Return a row for each client."""
        found = [self.versions[t] for t in self.rounds.tolist()]
        return ModelRows(
            lr=[version.lr for version in found],
            x=torch.stack([version.x for version in found]),
            msg={name: torch.stack([version.msg[name] for version in found]) for name in found[0].msg},
        )


class ModelRows(NamedTuple):
    """What the clients of a job were sent, with a row or an entry for each."""

    lr: list[float]
    x: Tensor
    msg: Vectors
