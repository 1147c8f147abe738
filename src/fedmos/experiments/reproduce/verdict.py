"""When a measured value agrees with a published one."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

_PUBLISHED = re.compile(r"(-?\d+(?:\.\d+)?)(?: ± (\d+(?:\.\d+)?))?")
_ERRORS = 2.0
"""Standard errors of the difference that still agree."""


@dataclass(frozen=True)
class Verdict:
    """The comparison of a measured with a published value."""

    difference: float
    """Measured − published."""
    margin: float
    """The largest difference that agrees."""
    digits: int
    """Digits of the printed difference."""

    @property
    def agrees(self) -> bool:
        return abs(self.difference) <= self.margin

    def __str__(self) -> str:
        return "agrees" if self.agrees else f"differs by {self.difference:+.{self.digits}f}"


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """The rule: |measured − published| ≤ max(tolerance, 2 √(s²/n + s'²/n')).

    s and s' are the standard deviations over the n published and n' measured seeds. A value published without its
    deviation counts as exact.

    Args:
        seeds: The number n of seeds behind a published value.
        tolerance: A difference that agrees whatever the deviations, in the units of the table.

    Example:
        >>> str(Agreement(seeds=5, tolerance=0.01).judge("0.732 ± 0.181", [0.71, 0.75], digits=3))
        'agrees'
    """

    seeds: int
    tolerance: float

    def judge(self, published: str | float, values: Sequence[float], digits: int) -> Verdict:
        """Compare measured values, one per seed, with a published number or text "mean ± deviation".

        Raises:
            ValueError: If the published value is neither.
        """
        found = _PUBLISHED.fullmatch(str(published))
        if found is None:
            raise ValueError(f"A published value must be a number or 'mean ± deviation', got {published!r}")
        theirs = float(found[2] or 0.0) ** 2 / self.seeds
        ours = statistics.variance(values) / len(values) if len(values) > 1 else 0.0
        margin = max(self.tolerance, _ERRORS * math.sqrt(theirs + ours))
        return Verdict(statistics.fmean(values) - float(found[1]), margin, digits)
