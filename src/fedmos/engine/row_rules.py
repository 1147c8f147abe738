"""Composition of an algorithm with an aggregation rule and an attack: its uploads reach the server as rows."""

from __future__ import annotations

from functools import cache
from typing import ClassVar, NamedTuple

from ..aggregation.rule import Aggregation
from ..algorithm import Algorithm, Reduce
from ..attacks.attack import Attack
from ..core.composition import recast, subclass

ROWS = "rows."
"""The names of the rows of uploads, in place of sums, begin with this."""


class RowRule(NamedTuple):
    """How the rows of uploads are attacked and aggregated."""

    aggregation: Aggregation
    attack: Attack | None = None
    """What hostile clients upload, before the rows are aggregated."""


def with_row_rule(algorithm: Algorithm, rule: RowRule) -> Algorithm:
    """Return the algorithm, whose declared sums are computed from the rows of uploads.

    Raises:
        ValueError: If the rule or the attack cannot be hashed.
    """
    for option, value in rule._asdict().items():
        try:
            hash(value)
        except TypeError:
            raise ValueError(
                f"Cannot use {option}={value!r} because its fields may change during the run; use "
                "@dataclass(frozen=True) with fields that are hashable"
            ) from None
    return recast(algorithm, _class_with_rows(type(algorithm), rule))  # type: ignore[arg-type]  # a class is hashable


def row_rule(algorithm: Algorithm) -> RowRule | None:
    """Return how the rows of uploads are aggregated; None where they are summed."""
    return algorithm._row_rule if isinstance(algorithm, _WithRows) else None


def gathered(declared: Reduce) -> Reduce:
    """Return what a backend gathers for the declared sums: the rows of each upload once, by the rule "each"."""
    return {ROWS + upload: (upload, "each") for upload, _ in declared.values()}


@cache
def _class_with_rows(kind: type[Algorithm], rule: RowRule) -> type[Algorithm]:
    """Return a subclass of `kind` with this rule: one for all runs that have it, so that runs can merge."""
    return subclass(kind, _WithRows, _row_rule=rule)


class _WithRows(Algorithm):
    """An algorithm whose declared sums are computed from rows. Its methods and declarations are unchanged."""

    _row_rule: ClassVar[RowRule]
