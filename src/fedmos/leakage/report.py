"""The leakage of one run, as a row of a table."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..run.api import run
from .canaries import Canaries, Exposure
from .membership import Membership, membership


@dataclass(frozen=True)
class Leakage:
    """What the final model of a run reveals, with its accuracy and its ε."""

    accuracy: float | None
    epsilon: float
    exposure: Exposure
    membership: Membership

    def cells(self) -> tuple[str, ...]:
        """Return the numbers as text: accuracy, ε, exposure, its AUC and p-value, AUC of training samples."""
        accuracy = "–" if self.accuracy is None else f"{100 * self.accuracy:.1f}"
        epsilon = "∞" if math.isinf(self.epsilon) else f"{self.epsilon:.3g}"
        found = self.exposure
        numbers = (f"{found.mean:.2f}", f"{found.auc:.3f}", f"{found.p_value:.1g}", f"{self.membership.auc:.3f}")
        return accuracy, epsilon, *numbers


def measure(arguments: Mapping[str, Any], canaries: Canaries) -> Leakage:
    """Train with planted samples and return what the final model reveals.

    Args:
        arguments: The arguments of `fm.run`.
        canaries: What is planted.
    """
    data = arguments["data"]
    result = run(**{**arguments, "data": canaries.plant(data)})
    last = result.history[-1]
    epsilon = math.inf if last.epsilon is None else last.epsilon
    return Leakage(last.accuracy, epsilon, canaries.exposure(result, data), membership(result, data))
