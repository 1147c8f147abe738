"""The option `buffer` of a run: what it refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..engine.buffer import check_bufferable, one_by_one

if TYPE_CHECKING:
    from .spec import RunSpec


def check_buffer(spec: RunSpec) -> None:
    """Refuse an asynchronous run that does not suit the federation, the algorithm, the selection or privacy."""
    if spec.buffer is None:
        return
    spec.buffer.validate(len(spec.data))
    if spec.privacy is not None:
        raise ValueError(
            "Cannot use buffer= with 'privacy' because its ε is that of cohorts drawn at random in each round, and "
            "which updates arrive together depends on how fast clients are; use synchronous rounds"
        )
    check_bufferable(spec.composed_algorithm, spec.buffer)
    one_by_one(spec.selection)
