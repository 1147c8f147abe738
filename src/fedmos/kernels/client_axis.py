"""Whether a tensor has a client axis, and products with weights that have none."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor
from torch._C._functorch import get_unwrapped, is_batchedtensor, is_functorch_wrapped_tensor


def is_vectorised(x: object) -> bool:
    """Whether `vmap` added an axis to the tensor."""
    while isinstance(x, Tensor) and is_functorch_wrapped_tensor(x):
        if is_batchedtensor(x):
            return True
        x = get_unwrapped(x)
    return False


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return `F.linear`; where clients share the weights, the rows of all clients are one matrix.

    `F.linear` itself computes a product per row of the first axis if the input is not stored contiguously.
    """
    shared = input.ndim > 2 and is_vectorised(input) and not is_vectorised(weight)
    rows: Tensor = F.linear(input.reshape(-1, input.shape[-1]) if shared else input, weight, bias)
    return rows.unflatten(0, input.shape[:-1]) if shared else rows
