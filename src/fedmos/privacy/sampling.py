"""How much each selector amplifies privacy by sampling clients."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from ..selection.bernoulli import Bernoulli, PoissonSampling
from ..selection.cyclic import Cyclic
from ..selection.full import FixedCohorts, Full
from ..selection.selector import Selector, thins
from ..selection.uniform import Uniform
from .reads import reads_attribute

_INSTEAD = "use fm.Bernoulli(rate=…) or fm.Uniform(m=…)"


class CohortSampling(NamedTuple):
    """How the cohorts of a run are drawn, for the accountant."""

    law: Literal["poisson", "fixed", "none"]
    """Each client independently; a fixed number of clients without replacement; or no amplification."""
    size: float
    """The expected number of clients of a cohort, by which sums are divided."""
    clients: int
    """The number of clients of the federation."""
    adjacency: Literal["add or remove", "replace"]
    """The federations that cannot be told apart: with and without a client, or with other data of a client."""
    why: str
    """Why there is this amplification, or none."""

    @property
    def event(self) -> tuple[Any, ...]:
        """The law, its numbers, and by how many bounds of a contribution neighbouring sums can differ."""
        sensitivity = 1 if self.adjacency == "add or remove" else 2
        match self.law:
            case "poisson":
                return "poisson", self.size / self.clients, sensitivity
            case "fixed":
                return "fixed", self.clients, round(self.size), sensitivity
            case _:
                return "none", sensitivity


def sampling_of(
    selector: Selector, clients: int, *, size: int | None = None, stateful: bool = False, availability: bool = False
) -> CohortSampling:
    """Return the sampling that a selector gives under privacy.

    Args:
        selector: The selector.
        clients: Number of clients N in the federation.
        size: The size of a cohort; None for the m of the selector, or for all clients.
        stateful: Whether what clients upload depends on the rounds in which they took part before.
        availability: Whether clients are not always available.

    Raises:
        ValueError: If the selector needs data of clients.
    """
    selector.validate(clients)
    _check(selector)
    if size is None:
        size = getattr(selector, selector.cohort_field, None) or clients
    if isinstance(selector, Bernoulli):
        why = "each client takes part independently"
        return CohortSampling("poisson", selector.rate * clients, clients, "add or remove", why)
    if type(selector) in (Full, Cyclic, FixedCohorts):  # a subclass may draw other cohorts
        why = f"{type(selector).__name__} draws no random cohorts"
        return CohortSampling("none", _largest(selector, size), clients, "add or remove", why)
    if type(selector) is not Uniform:
        why = f"the cohorts of {type(selector).__name__} depend on the clients' sizes, which count as public"
        return CohortSampling("none", size, clients, "replace", why)
    if stateful:
        why = "cohorts of a fixed size tell by the state of some clients whether others took part before"
        return CohortSampling("none", size, clients, "replace", why)
    if availability:
        why = "the share of clients that take part changes with availability"
        return CohortSampling("none", size, clients, "replace", why)
    return CohortSampling(
        "fixed", size, clients, "replace", "cohorts have a fixed size and are drawn without replacement"
    )


def private_selector(selector: Selector) -> Selector:
    """Return the selector whose cohorts the accountant assumes: `Bernoulli` does not redraw if no client takes part."""
    return PoissonSampling(rate=selector.rate) if isinstance(selector, Bernoulli) else selector


def _largest(selector: Selector, size: int) -> int:
    return max(map(len, selector.cohorts)) if isinstance(selector, FixedCohorts) else size


def _check(selector: Selector) -> None:
    """Refuse a selector that learns more from clients than the noisy sums."""
    owner = f"Cannot use privacy= with {type(selector).__name__} because"
    if selector.reports:
        raise ValueError(f"{owner} its clients report {', '.join(selector.reports)} without noise; {_INSTEAD}")
    if selector.updates:
        raise ValueError(f"{owner} it needs the updates of single clients; {_INSTEAD}")
    if any(reads_attribute(type(selector), asked) for asked in ("probe", "gradients")):  # of the view
        raise ValueError(f"{owner} it asks clients for losses or gradients without noise; {_INSTEAD}")
    if thins(selector):
        raise ValueError(f"{owner} it chooses uploads by what clients report; {_INSTEAD}")
    if isinstance(selector, FixedCohorts) and selector.weights is not None:
        raise ValueError(f"{owner} its weights change how much a client can contribute; leave them out")
    if isinstance(selector, Bernoulli) and type(selector) not in (Bernoulli, PoissonSampling):
        raise ValueError(f"{owner} it may draw other cohorts than fm.Bernoulli; {_INSTEAD}")
