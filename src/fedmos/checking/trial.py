"""The small problem on which the checks train: unequal clients, two layers, cohorts of different sizes."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import skip_init

from ..data.federated import FederatedData
from ..rng import Purpose, draws, normal, stream
from ..run.run import Run
from ..selection.availability import Availability
from ..selection.full import FixedCohorts

FEATURES, HIDDEN, CLASSES = 3, 4, 3
SIZES = (9, 4, 6, 3, 12, 5, 7)
"""Samples of each client, so that numbers of local steps and importances differ."""
BATCH = 3
ROUNDS = 4
_COHORTS = ((0, 2, 3, 4, 6), (5,), (1,), (6, 4, 1, 4))
"""The third round has no client, see `Gaps`; client 4 is drawn twice in the fourth."""
_WEIGHTS = ((0.4, 0.2, 0.1, 0.3, 0.25), (0.9,), (1.0,), (0.3, 0.15, 0.5, 0.1))


class TrialRun(Run):
    """A run of `fm.check`, which compares a cohort with single clients method by method."""

    compares_cohorts = False


@dataclass(frozen=True)
class Gaps(Availability):
    """No client is available in the third round."""

    def available(self, seed: int, round: int, N: int) -> Tensor:
        return torch.full((N,), round != 2)


class TwoLayers(nn.Module):
    """A smooth network, so that rounding does not decide the sign of a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = skip_init(nn.Linear, FEATURES, HIDDEN, dtype=torch.float64)
        self.output = skip_init(nn.Linear, HIDDEN, CLASSES, dtype=torch.float64)
        with torch.no_grad():
            for number, parameter in enumerate(self.parameters()):
                key = stream(0, number, 0, Purpose.PARTITION)
                parameter.copy_(0.5 * normal(key, parameter.numel()).view_as(parameter))

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.output(self.hidden(x).tanh())
        return outputs


def federation(sizes: tuple[int, ...]) -> FederatedData:
    """Return clients with these numbers of samples, whose labels are skewed and importances unequal."""
    clients = []
    for i, n in enumerate(sizes):
        key = stream(0, 0, i, Purpose.PARTITION)
        y = (draws(key, n) * CLASSES + i).long() % CLASSES
        clients.append((normal(key, n * FEATURES).view(n, FEATURES) + y[:, None], y))
    x, y = clients[0]
    return FederatedData.from_arrays(clients, test=(x, y), importance=[1 + i % 3 + n / 10 for i, n in enumerate(sizes)])


def options(local_steps: int | None, **changes: Any) -> dict[str, Any]:
    """Return the arguments of a run of four rounds, without the algorithm."""
    work: Mapping[str, Any] = {"local_epochs": 1} if local_steps is None else {"local_steps": local_steps}
    return {
        "model": TwoLayers(),
        "data": federation(SIZES),
        "selection": FixedCohorts(_COHORTS, _WEIGHTS),
        "availability": Gaps(),
        "rounds": ROUNDS,
        "batch_size": BATCH,
        "eval_every": ROUNDS,
        "device": "cpu",
        "dtype": torch.float64,
        "engine": "batched",
        "progress": False,
        **work,
        **changes,
    }


def independent_copy(obj: Any) -> Any:
    """Return a copy of an object in which nothing is shared, where that is possible."""
    try:
        return copy.deepcopy(obj)
    except Exception:  # the user's class may refuse
        return obj
