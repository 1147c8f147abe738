"""Gradients of a cohort, with or without a graph of the backward pass.

`torch.func.grad_and_value` records the backward pass, too, so that it can be differentiated again: until the gradient
is complete, all activations and their gradients stay in memory. Without this graph, as in plain autograd, each is freed
once it has been used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.func import vmap
from torch.utils._pytree import tree_flatten, tree_unflatten

try:
    from torch._functorch.eager_transforms import (
        _autograd_grad,
        _create_differentiable,
        _undo_create_differentiable,
        _wrap_all_tensors,
        grad_increment_nesting,
    )
    from torch._functorch.vmap import doesnt_support_saved_tensors_hooks
except ImportError:  # another version of PyTorch
    _autograd_grad = None  # type: ignore[assignment]


def cohort_gradient(function: Callable[..., Any], has_aux: bool = False, frugal: bool = False) -> Callable[..., Any]:
    """Return a function for the gradients and values of all clients, whose arguments have a client axis in front.

    Args:
        function: As of `grad_and_value`, for one client.
        has_aux: Whether `function` returns a pair.
        frugal: Whether to free activations during the backward pass. A few operations, such as `nn.GroupNorm`, then
            have another backward kernel, which rounds differently. Where `vmap` does not support it, nothing is freed.
    """
    recorded = vmap(torch.func.grad_and_value(function, has_aux=has_aux))
    if not frugal:
        return recorded
    freed, supported = vmap(grad_and_value(function, has_aux)), True

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


def grad_and_value(function: Callable[..., Any], has_aux: bool = False) -> Callable[..., tuple[Any, Any]]:
    """Return a function for the gradient and the value, as `torch.func.grad_and_value`. It cannot be nested.

    Args:
        function: Returns one number, and with `has_aux` further tensors. It is differentiated by its first argument, a
            tensor or a tuple of tensors.
        has_aux: Whether `function` returns a pair.
    """
    if _autograd_grad is None:
        return torch.func.grad_and_value(function, has_aux=has_aux)

    @doesnt_support_saved_tensors_hooks
    def differentiated(y: Any, *args: Any) -> tuple[Any, Any]:
        with grad_increment_nesting() as level, torch.enable_grad():
            leaves, structure = tree_flatten(_wrap_all_tensors(y, level))
            _create_differentiable(leaves, level)
            returned = function(tree_unflatten(leaves, structure), *_wrap_all_tensors(args, level))
            value = returned[0] if has_aux else returned
            found = _autograd_grad((value,), leaves, create_graph=False)
            gradient = _undo_create_differentiable(tree_unflatten(found, structure), level)
            return gradient, _undo_create_differentiable(returned, level)

    return differentiated
