"""The log's word on a run in which the server took no step."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ..core.history import History

if TYPE_CHECKING:
    from .spec import RunSpec

_log = logging.getLogger("fedmos")


def warn_of_abandoned(spec: RunSpec, history: History) -> None:
    """Log that the model is the initial one, if all rounds of a run were abandoned."""
    if not len(history) or not all(record.abandoned for record in history):
        return
    if spec.buffer is not None:
        remedy = f"a buffer of a smaller 'size' than {spec.buffer.size}, or an 'availability' of more clients"
    else:
        remedy = "a longer 'deadline', a smaller 'quorum', or an 'availability' of more clients"
    if spec.on_bad_update == "drop":
        remedy += ", or a smaller 'lr' if updates were not finite"
    _log.warning(
        "The model is the initial one because all %d rounds were abandoned, with too few updates that count; use %s",
        len(history),
        remedy,
    )
