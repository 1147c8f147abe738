"""The number of clients of a round, with over-selection."""

from __future__ import annotations

from dataclasses import is_dataclass, replace

from ..core.rounding import ceil_of
from ..selection.selector import Selector
from .buffer import Buffer
from .simulated_clock import System


def over_selecting(selector: Selector, system: System, N: int) -> Selector:
    """Return the selector with m increased by the factor `over_select`."""
    if system.over_select == 1:
        return selector
    field = selector.cohort_field
    m = getattr(selector, field, None)
    if m is None or not is_dataclass(selector):
        raise ValueError(
            f"Cannot over-select with {type(selector).__name__} because it has no {field}; use over_select=1"
        )
    more: Selector = replace(selector, **{field: min(N, ceil_of(system.over_select, m))})
    return more


def cohort_size(selection: Selector, system: System | None, N: int, buffer: Buffer | None = None) -> int:
    """Return the expected number of clients of a round, as far as the selector declares it."""
    if buffer is not None:
        size = buffer.size
    elif (m := getattr(selection, selection.cohort_field, None)) is not None:
        size = ceil_of(1.0 if system is None else system.over_select, m)
    elif (rate := getattr(selection, "rate", None)) is not None:
        size = ceil_of(rate, N)
    else:
        size = max((len(cohort) for cohort in getattr(selection, "cohorts", ())), default=N)
    return max(1, min(N, size))
