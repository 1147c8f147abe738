"""Do the parts of a run fit together? Asked by `fm.run`, and of a configuration before anything is trained."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from ..core.formatting import format_value
from ..engine.lr_schedule import decayed
from ..engine.sampling import over_selecting
from ..engine.simulated_clock import Clock

Located = Callable[[str], AbstractContextManager[None]]


def check_parts(
    parts: Mapping[str, Any], seed: int, located: Located = lambda where: nullcontext(), where: str = ""
) -> None:
    """Refuse a federation that the selector and others cannot serve; `parts` are arguments of `fm.run`.

    `located` is told which part is being looked at.
    """
    N, selection, availability, system = (
        len(parts["data"]),
        *(parts[k] for k in ("selection", "availability", "system")),
    )
    with located("data"):
        parts["data"].validate()
    with located(f"{where}selection"):
        selection.validate(N)
    if availability is not None:
        with located("availability"):
            availability.validate(N)
    if system is not None:
        with located("system"):
            over_selecting(selection, system, N)
            Clock(system, N, seed)
    with located(f"{where}algorithm"):
        _check_step_size(parts["algorithm"], parts["lr_decay"], parts["rounds"], parts["dtype"])


def _check_step_size(algorithm: Any, decay: Any, rounds: int, dtype: torch.dtype) -> None:
    """A factor above one, or a step size beyond the dtype, would end in infinity."""
    lr, most = decayed(algorithm.lr, decay), torch.finfo(dtype).max
    for t in (0, rounds - 1, *(decay if isinstance(decay, Mapping) else ())):
        value = lr(int(t))
        if not math.isfinite(value) or value > most:
            raise ValueError(
                f"{type(algorithm).__name__}: 'lr' must stay finite in {str(dtype).removeprefix('torch.')} over "
                f"{rounds} rounds, got {format_value(algorithm.lr)} with lr_decay {format_value(decay)}"
            )
