"""Conversion of what selectors return."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor


def as_array(given: Any) -> NDArray[Any]:
    """Convert a tensor, an array or a list from a selector to an array."""
    if isinstance(given, Tensor):
        if given.requires_grad or given.device.type != "cpu":
            given = given.detach().cpu()
        array: NDArray[Any] = (given.double() if given.is_floating_point() else given).numpy()
        return array
    try:
        return np.asarray(given)
    except ValueError:  # lists of unequal length
        return np.asarray(None)
