"""Runs under privacy, and the sums that their servers get."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

import fedmos as fm
from fedmos.engine.backend import PhaseInput, complete
from fedmos.engine.cohort import Cohort
from fedmos.engine.training import broadcast
from fedmos.run.run import Run
from fedmos.run.spec import RunSpec
from helpers.conformance import LOGISTIC, SEED

STEPS = {"local_steps": 3, "batch_size": 4}
CLIENTS = 7


def gaussian(clip: Any = 0.05, noise_multiplier: float = 1.0, **more: Any) -> fm.privacy.Gaussian:
    return fm.privacy.Gaussian(clip, noise_multiplier, 1e-3, **more)


def arguments(algorithm: fm.Algorithm, engine: str = "batched", **changes: Any) -> dict[str, Any]:
    """Arguments of `fm.run` in float64: Poisson sampling, some cohorts empty."""
    given = {
        "model": LOGISTIC.model(),
        "data": LOGISTIC.data(),
        "algorithm": algorithm,
        "selection": fm.Bernoulli(rate=0.35),
        "rounds": 4,
        "loss": LOGISTIC.loss,
        "seed": SEED,
        "engine": engine,
        "dtype": torch.float64,
        "privacy": gaussian(),
    }
    return given | STEPS | changes


def private(algorithm: fm.Algorithm, engine: str = "batched", **changes: Any) -> fm.Result:
    return fm.run(**arguments(algorithm, engine, **changes))


def changed_data(client: int, factor: float = 50.0) -> fm.FederatedData:
    """The federation in which one client has other samples, and fewer of them."""
    data = LOGISTIC.data()
    parts = [tuple(np.asarray(v) for v in data.client(i)) for i in range(len(data))]
    x, y = parts[client]
    parts[client] = (-factor * x[: len(x) // 2 + 1], y[::-1][: len(x) // 2 + 1].copy())
    return fm.FederatedData.from_arrays(parts)


class Sums:
    """The sums of uploads of one round of a run, without noise, for any cohort."""

    def __init__(self, algorithm: fm.Algorithm, **changes: Any) -> None:
        with torch.no_grad():
            self.run = Run(RunSpec(**arguments(algorithm, selection=fm.Full(), **changes)))
            self.state = self.run.state
        self._prepared: dict[str, torch.Tensor] = {}
        """The sums of the extra phase that the server uses in its message, where `of` was told so."""

    def of(self, ids: list[int], sent: list[int] | None = None) -> dict[str, np.ndarray]:
        """Return the sums of both phases, each with its phase in its name.

        Args:
            ids: The cohort.
            sent: The cohort whose sums of the extra phase the server uses in its message; by default `ids`.
        """
        prepared = self._phase("prepare", ids) if self.state.algorithm.prepares(self.state.t) else {}
        if prepared and sent is not None and not self._prepared:
            self._prepared = self._phase("prepare", sent)
        message = prepared if sent is None else self._prepared
        trained = self._phase("train", ids, message)
        found = {f"train {name}": v for name, v in trained.items()}
        return {name: v.numpy() for name, v in (found | self._by_upload(prepared)).items()}

    def _by_upload(self, prepared: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        rules = self.state.algorithm.prepare_reduce
        return {f"prepare {rules[name][0]}": v for name, v in prepared.items()}

    def _phase(self, phase: str, ids: list[int], prepared: dict[str, torch.Tensor] | None = None):
        state = self.state
        weights = torch.full((len(ids),), 1 / CLIENTS, dtype=torch.float64)
        cohort = Cohort.of(torch.tensor(ids, dtype=torch.int64), weights, state.task.data)
        ctx = state.context(cohort)
        with torch.no_grad():
            msg = {} if phase == "prepare" else broadcast(state, state.server_state | prepared, ctx)
            given = PhaseInput(phase, ctx, state.lr(state.t), state.x, msg, None, state.policy)
            return complete(state.backend.run_phase(cohort, given)).sums

    def play(self, rounds: int) -> None:
        """Play rounds, so that server and clients have state."""
        with torch.no_grad():
            for _ in range(rounds):
                complete(self.run.next_round())

    def groups(self) -> int:
        return len(self.state.algorithm._privacy_sums.in_round(self.state.algorithm.prepares(self.state.t)))


def distance(one: dict[str, np.ndarray], other: dict[str, np.ndarray], bounds: float | dict[str, float]) -> float:
    """The norm of the difference of all sums as one vector, each relative to its bound."""

    def bound(name: str) -> float:
        return bounds[name.split()[1]] if isinstance(bounds, dict) else bounds

    return math.sqrt(sum(float(((one[n] - other[n]) / bound(n)).__pow__(2).sum()) for n in one))
