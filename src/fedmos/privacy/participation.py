"""How often a client takes part in a run at most, and after how many rounds again."""

from __future__ import annotations

from typing import NamedTuple

from ..selection.cyclic import Cyclic
from ..selection.full import FixedCohorts, Full
from ..selection.selector import Selector
from ..selection.uniform import Uniform


class ParticipationBounds(NamedTuple):
    """The bounds of each client's participation that a selector guarantees."""

    separation: int
    """The least number of rounds from one participation of a client to its next one."""
    period: int
    """After so many rounds, cohorts repeat."""
    rounds: tuple[tuple[int, ...], ...] | None = None
    """For each client, its rounds of a period; None if it is one round."""

    def times(self, rounds: int) -> int:
        """Return the largest number of participations of a client in so many rounds."""
        whole, rest = divmod(rounds, self.period)
        if self.rounds is None:
            return whole + (rest > 0)
        return max(whole * len(own) + sum(t < rest for t in own) for own in self.rounds)


def participation_of(selector: Selector, clients: int) -> ParticipationBounds | None:
    """Return the bounds that a selector guarantees; None if any client may take part in any round.

    Clients that are unavailable, late or dropped take part in fewer rounds.

    Args:
        selector: The selector.
        clients: Number of clients in the federation.
    """
    if type(selector) is Full:
        return ParticipationBounds(1, 1)
    if type(selector) is Cyclic:
        groups = -(-clients // selector.m)
        return ParticipationBounds(groups, groups)
    if type(selector) is FixedCohorts:
        return _scheduled([frozenset(cohort) for cohort in selector.cohorts])
    return None


def scheduled(selector: Selector, clients: int) -> ParticipationBounds:
    """Return the bounds that a selector guarantees.

    Args:
        selector: The selector.
        clients: Number of clients in the federation.

    Raises:
        ValueError: If any client may take part in any round.
    """
    if (found := participation_of(selector, clients)) is None:
        raise ValueError(
            f"Cannot use MatrixFactorization with {type(selector).__name__} because a client may take part in any "
            "round, and the noise is correlated over rounds; use fm.Cyclic(m=…), or privacy=fm.privacy.Gaussian(…)"
        )
    return found


class CohortSizes(NamedTuple):
    """The sizes of cohorts that a selector guarantees where all clients are available."""

    least: int
    most: int


def cohort_sizes(selector: Selector, clients: int) -> CohortSizes:
    """Return the sizes of the cohorts of a selector.

    Args:
        selector: The selector.
        clients: Number of clients in the federation.

    Raises:
        ValueError: If cohorts may be of any size.
    """
    if type(selector) is Full:
        return CohortSizes(clients, clients)
    if type(selector) is Uniform:
        return CohortSizes(selector.m, selector.m)
    if type(selector) is Cyclic:
        return CohortSizes(clients % selector.m or selector.m, selector.m)
    if type(selector) is FixedCohorts:
        sizes = [len(set(cohort)) for cohort in selector.cohorts]
        return CohortSizes(min(sizes), max(sizes))
    raise ValueError(
        f"Cannot use DiscreteGaussian with {type(selector).__name__} because its cohorts may be small, and so the "
        "noise that their clients add together; use fm.Uniform(m=…), fm.Cyclic(m=…) or fm.Full()"
    )


def _scheduled(cohorts: list[frozenset[int]]) -> ParticipationBounds:
    period = len(cohorts)
    rounds: dict[int, list[int]] = {}
    for t, cohort in enumerate(cohorts):
        for i in cohort:
            rounds.setdefault(i, []).append(t)
    gaps = [after - t for own in rounds.values() for t, after in zip(own, [*own[1:], own[0] + period], strict=True)]
    return ParticipationBounds(min(gaps), period, tuple(map(tuple, rounds.values())))
