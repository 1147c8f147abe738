"""Whether a tensor has a client axis."""

from __future__ import annotations

from torch import Tensor
from torch._C._functorch import get_unwrapped, is_batchedtensor, is_functorch_wrapped_tensor


def is_vectorised(x: object) -> bool:
    """Whether `vmap` added an axis to the tensor."""
    while isinstance(x, Tensor) and is_functorch_wrapped_tensor(x):
        if is_batchedtensor(x):
            return True
        x = get_unwrapped(x)
    return False
