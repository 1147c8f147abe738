"""The option `buffer`: asynchronous rounds, and which algorithms and selectors they suit."""

from __future__ import annotations

from dataclasses import dataclass, is_dataclass, replace

from ..algorithm import Algorithm
from ..core.validation import check, count, non_negative
from ..selection.selector import Selector, thins


@dataclass(frozen=True)
class Buffer:
    """Asynchronous rounds on the simulated clock (FedBuff, Nguyen et al. 2022; with `size=1`, FedAsync's scheme).

    `concurrency` clients train at any time, each from the model that it was sent when it started. As soon as one is
    done, another one starts. The server steps when `size` updates have arrived, and does not wait for the others. The
    age of an update is the number of server steps since its client was sent the model; its weight is multiplied by
    (1 + age)^(−staleness). See docs/asynchronous.md.

    Args:
        size: The number of updates of a server step, ≥ 1.
        concurrency: The number of clients that train at the same time, ≥ 1.
        staleness: The exponent, ≥ 0; 0 gives all ages the same weight.

    Raises:
        ValueError: If a value is out of range.

    Example:
        >>> result = fm.run(
        ...     model, data, fm.FedAvg(lr=0.1), fm.Uniform(m=3), rounds=4, local_steps=2, batch_size=8,
        ...     system=fm.System(speed=fm.LogNormal(median=100, sigma=1)), buffer=fm.Buffer(size=2, concurrency=4),
        ... )
        >>> [len(record.ages) for record in result.history]
        [2, 2, 2, 2]
    """

    size: int
    concurrency: int
    staleness: float = 0.5

    def __post_init__(self) -> None:
        check(self, size=count, concurrency=count, staleness=non_negative.up_to(100))

    def validate(self, N: int) -> None:
        """Raise ValueError if a federation of N clients is too small."""
        for name in ("size", "concurrency"):
            if getattr(self, name) > N:
                raise ValueError(f"Buffer: '{name}' must be ≤ the number of clients ({N}), got {getattr(self, name)}")

    def factor(self, age: int) -> float:
        """Return the factor of the weight of an update of this age."""
        return float((1 + age) ** -self.staleness)


def check_bufferable(algorithm: Algorithm, buffer: Buffer) -> None:
    """Refuse an algorithm whose declaration does not allow updates of different ages.

    Raises:
        ValueError: If it has an extra phase, or its server reads the updates without their weights.
    """
    name = type(algorithm).__name__
    if tuple(algorithm.prepare_up):
        raise ValueError(
            f"Cannot use buffer= with {name} because its extra phase sums what all clients of a round upload at the "
            "same model, before they train; use an algorithm without 'prepare_up', such as FedAvgM, or no buffer"
        )
    each = [total for total, (_, rule) in algorithm.reduce.items() if rule == "each"]
    if each and buffer.staleness:
        raise ValueError(
            f"Cannot use buffer= with {name} because its server reads single updates ('{each[0]}' has the rule "
            "'each'), which the weights by age do not reach; use staleness=0"
        )


def one_by_one(selector: Selector) -> Selector:
    """Return the selector that draws one client at a time.

    Raises:
        ValueError: If it cannot select a single client.
    """
    name, field = type(selector).__name__, selector.cohort_field
    if getattr(selector, field, None) is None or not is_dataclass(selector):
        raise ValueError(
            f"Cannot use buffer= with {name} because it has no '{field}', so it cannot select one client at a time; "
            "use another selection, such as fm.Uniform(m=1)"
        )
    if thins(selector):
        raise ValueError(
            f"Cannot use buffer= with {name} because it compares the updates of a whole cohort before they are sent; "
            "use another selection, such as fm.Uniform(m=1)"
        )
    if any(report.startswith("start_") for report in selector.reports):
        raise ValueError(
            f"Cannot use buffer= with {name} because its clients report losses at the server's current model, and "
            "clients have older ones; use another selection, such as fm.Uniform(m=1)"
        )
    if not selector.selects_singly:
        raise ValueError(
            f"Cannot use buffer= with {name} because it selects the cohort of a round as a whole, and clients start "
            "one by one; use another selection, such as fm.Uniform(m=1)"
        )
    one: Selector = replace(selector, **{field: 1})
    return one
