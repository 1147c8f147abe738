"""Definition of operators that tracing and compiling treat as opaque."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_type_hints

import torch

Function = Callable[..., Any]


class Operator:
    """A function as an operator `torch.ops.fedmos.NAME`, for every device.

    It is as `torch.library.custom_op`, but without the import of `torch._dynamo` at the first call, which takes a
    second. The function must not change its arguments, nor return one of them or a view of one.

    Args:
        name: The name of the operator.

    Example:
        >>> from fedmos.kernels.operators import Operator
        >>> @Operator("doubled")
        ... def doubled(x: torch.Tensor) -> torch.Tensor:
        ...     return 2 * x
        >>> torch.ops.fedmos.doubled(torch.ones(2))
        tensor([2., 2.])
    """

    def __init__(self, name: str) -> None:
        self.name = f"fedmos::{name}"

    def __call__(self, function: Function) -> Operator:
        function.__annotations__ = get_type_hints(function)  # PyTorch 2.6 does not know the names of types
        torch.library.define(self.name, torch.library.infer_schema(function, mutates_args=()))
        torch.library.impl(self.name, "CompositeExplicitAutograd", function)
        return self

    def register_fake(self, function: Function) -> None:
        """Register the function that returns empty results, of the right shape, dtype and layout."""
        torch.library.register_fake(self.name, function)

    def register_vmap(self, function: Function) -> None:
        """Register the function that PyTorch calls under `vmap`."""
        torch.library.register_vmap(self.name, function)
