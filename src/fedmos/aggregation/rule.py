"""The contract of an aggregation rule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ..core.equality import EqualByFields


@dataclass(frozen=True)
class Aggregation(EqualByFields):
    """Base class of aggregation rules: what the server takes in place of the weighted mean of the clients' rows.

    Subclass it as a frozen dataclass and define `aggregate`. A run calls it for every sum that the algorithm declares,
    with the uploads of the round's clients as rows, and multiplies the result by the sum of their weights where the
    algorithm declares a sum and not a mean; see docs/robust.md.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True)
        ... class Midrange(fm.aggregation.Aggregation):
        ...     def aggregate(self, rows, weights):
        ...         return (rows.amin(0) + rows.amax(0)) / 2
        >>> result = fm.run(
        ...     model, data, fm.FedAvg(lr=0.1), fm.Uniform(m=3), rounds=2, local_steps=2, aggregation=Midrange()
        ... )
    """

    scale_free: ClassVar[bool] = True
    """Whether the rule commutes with a change of units, aggregate(c · rows) = c · aggregate(rows) for c > 0.

    A rule that does not, such as one with a bound, applies to `delta` alone and is refused for other uploads.
    """

    @property
    def min_clients(self) -> int:
        """The least number of rows that the rule needs. A round with fewer is abandoned."""
        return 1

    def trims(self, clients: int) -> bool:
        """Return whether the rule differs from the weighted mean for so many rows."""
        return True

    def aggregate(self, rows: Tensor, weights: Tensor) -> Tensor:
        """Return one vector for the vectors of several clients.

        Args:
            rows: A row for each client, (S, n), in ascending order of clients.
            weights: Their weights, (S,), with sum one, of the dtype and on the device of the rows.

        Returns:
            A vector (n,) in the place of Σ_i weights_i · rows_i.
        """
        raise TypeError(f"{type(self).__name__} must define aggregate")
