"""The option `local`: one local optimiser, or a chain of them."""

from __future__ import annotations

from collections.abc import Sequence

from .optimizer import LocalOptimizer
from .sam import SAM
from .sgd import SGD

Local = LocalOptimizer | SAM | Sequence[LocalOptimizer | SAM]
"""An optimiser, or several from left to right."""


def is_local(v: object) -> bool:
    """Whether a value is an optimiser, or a list of one or more."""
    if isinstance(v, list | tuple):
        return len(v) > 0 and all(isinstance(one, LocalOptimizer | SAM) for one in v)
    return isinstance(v, LocalOptimizer | SAM)


def check_chain(local: Local | None) -> None:
    """Check each optimiser, and their order.

    Raises:
        ValueError: If SAM is not the first, or an optimiser is invalid.
    """
    chain = _chain(local)
    for position, optimizer in enumerate(chain):
        if isinstance(optimizer, LocalOptimizer):
            optimizer.validate()
        elif position:
            before = type(chain[position - 1]).__name__
            raise ValueError(
                f"Cannot use SAM after {before} in local= because SAM acts on the gradient, before every other "
                "optimiser; use one SAM, first in the list"
            )


def radius_of(local: Local | None) -> float:
    """Return ρ of SAM; 0 without SAM."""
    return float(sum(optimizer.rho for optimizer in _chain(local) if isinstance(optimizer, SAM)))


def optimizers_of(local: Local | None) -> tuple[LocalOptimizer, ...]:
    """Return the optimisers that change the step: all but SAM, which changes gradients, and the plain `SGD()`."""
    return tuple(v for v in _chain(local) if isinstance(v, LocalOptimizer) and v != SGD())


def _chain(local: Local | None) -> tuple[LocalOptimizer | SAM, ...]:
    if local is None:
        return ()
    return tuple(local) if isinstance(local, Sequence) else (local,)
