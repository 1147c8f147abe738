"""Gradients of a cohort, with or without a graph of the backward pass.

`torch.func.grad_and_value` records the backward pass, too, so that it can be differentiated again: until the gradient
is complete, all activations and their gradients stay in memory. Without this graph, as in plain autograd, each is freed
once it has been used. It also imports `torch._dynamo`, which takes a second and is not needed here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap
from torch.utils._pytree import tree_flatten, tree_unflatten

try:
    from torch._functorch.eager_transforms import (
        _create_differentiable,
        _undo_create_differentiable,
        _wrap_all_tensors,
        grad_increment_nesting,
    )
    from torch._functorch.vmap import doesnt_support_saved_tensors_hooks
except ImportError:  # another version of PyTorch
    _create_differentiable = None  # type: ignore[assignment]


def cohort_gradient(function: Callable[..., Any], has_aux: bool = False, frugal: bool = False) -> Callable[..., Any]:
    """Return a function for the gradients and values of all clients, whose arguments have a client axis in front.

    Args:
        function: As of `grad_and_value`, for one client.
        has_aux: Whether `function` returns a pair.
        frugal: Whether to free activations during the backward pass. A few operations, such as `nn.GroupNorm`, then
            have another backward kernel, which rounds differently. Where `vmap` does not support it, nothing is freed.
    """
    recorded = vmap(grad_and_value(function, has_aux))
    if not frugal:
        return recorded
    freed, supported = vmap(grad_and_value(function, has_aux, create_graph=False)), True

    def gradient(*arguments: Any) -> Any:
        nonlocal supported
        if supported:
            try:
                return freed(*arguments)
            except torch.OutOfMemoryError:
                raise
            except RuntimeError:
                supported = False
        return recorded(*arguments)

    return gradient


def grad_and_value(
    function: Callable[..., Any], has_aux: bool = False, create_graph: bool = True
) -> Callable[..., tuple[Any, Any]]:
    """Return a function for the gradient and the value, as `torch.func.grad_and_value`. It cannot be nested.

    Args:
        function: Returns one number, and with `has_aux` further tensors. It is differentiated by its first argument, a
            tensor or a tuple of tensors.
        has_aux: Whether `function` returns a pair.
        create_graph: Whether to record the backward pass.
    """
    if _create_differentiable is None:
        return torch.func.grad_and_value(function, has_aux=has_aux)

    @doesnt_support_saved_tensors_hooks
    def differentiated(y: Any, *args: Any) -> tuple[Any, Any]:
        with grad_increment_nesting() as level, torch.enable_grad():
            leaves, structure = tree_flatten(_wrap_all_tensors(y, level))
            _create_differentiable(leaves, level)
            returned = function(tree_unflatten(leaves, structure), *_wrap_all_tensors(args, level))
            value = returned[0] if has_aux else returned
            found = _gradients(value, leaves, create_graph)
            gradient = _undo_create_differentiable(tree_unflatten(found, structure), level)
            return gradient, _undo_create_differentiable(returned, level)

    return differentiated


def _gradients(value: Tensor, leaves: list[Tensor], create_graph: bool) -> list[Tensor]:
    """Return the derivative of a number by each tensor; zeros where it does not depend on one."""
    if not value.requires_grad:
        return [torch.zeros_like(y) for y in leaves]
    found = torch.autograd.grad(value, leaves, create_graph=create_graph, allow_unused=True)
    return [torch.zeros_like(y) if g is None else g for y, g in zip(leaves, found, strict=True)]
