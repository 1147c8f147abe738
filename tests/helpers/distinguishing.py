"""An attack that tries to tell two federations apart, on a model of one parameter."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from scipy import stats

import fedmos as fm

DELTA = 1e-3


@dataclass(frozen=True, kw_only=True)
class Constant(fm.Algorithm):
    """Clients upload the sign of their data, whatever the model is: every round is the same mechanism."""

    seen: list[float]
    """What the server gets."""
    lr: float = 0.1

    def finish(self, y, s, c, grad):
        return {"delta": 10 * torch.sign(y - c.x)}, {}

    def server(self, x, state, agg, ctx):
        self.seen.append(float(agg["A"]))
        return x, {}


class Still(torch.nn.Module):
    """A model with one parameter whose gradient is the mean of its inputs."""

    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return self.w * x


def lower_bound(present: np.ndarray, absent: np.ndarray) -> float:
    """The ε that a threshold attack proves with confidence 99.8 %, by the intervals of Clopper and Pearson."""
    best, n = 0.0, len(present)
    for threshold in np.quantile(np.concatenate([present, absent]), np.linspace(0.02, 0.98, 25)):
        for hits, alarms in (
            (np.sum(present < threshold), np.sum(absent < threshold)),
            (np.sum(absent > threshold), np.sum(present > threshold)),
        ):
            sure = stats.beta.ppf(0.001, hits, n - hits + 1) if hits else 0.0
            at_most = stats.beta.ppf(0.999, alarms + 1, n - alarms) if alarms < n else 1.0
            if sure > DELTA:
                best = max(best, math.log((sure - DELTA) / at_most))
    return best
