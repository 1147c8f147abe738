"""Parameters that a forward or backward pass uses although they are not those that a client trains."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from .flat_model import FlatModel
from .module_kind import UnsuitableModel

_DEPTH = 4
_REGISTERED = ("_parameters", "_buffers", "_modules")


def refuse_outside_parameters(model: FlatModel, outputs: Tensor) -> None:
    """Refuse a model whose outputs depend on parameters that a run does not train.

    Args:
        model: The model.
        outputs: Its outputs, with their autograd graph.

    Raises:
        UnsuitableModel: If there are such parameters, with what to do.
    """
    for v in leaves(outputs):
        name = next((name for name, p in model.original.named_parameters() if p is v), None)
        if name is not None:
            raise UnsuitableModel(
                f"Cannot train the model because a function or hook of it uses '{name}' of the given object, while a "
                "run trains a copy; use a method of the module, or the module that a hook gets as its argument, in "
                "place of a lambda or inner function that refers to the model"
            )
        name = next((name for name, held in _attributes(model.module) if _holds(held, v, _DEPTH)), None)
        if name is not None or isinstance(v, nn.Parameter):
            where = f"its attribute '{name}'" if name is not None else "an object that is not part of it"
            raise UnsuitableModel(
                f"Cannot train the model because its forward pass uses a tensor of shape {tuple(v.shape)} with "
                f"requires_grad in {where}, which is not among its parameters and would not be trained; use "
                "nn.ModuleList, nn.ModuleDict or nn.Parameter there, or requires_grad_(False) on the tensor"
            )


def unregistered_layers(module: nn.Module) -> str | None:
    """Return the name of an attribute that holds layers in a Python list or dictionary only; None if there is none."""
    known = {id(p) for p in module.parameters()}
    for name, value in _attributes(module):
        if any(id(p) not in known for layer in _layers(value, _DEPTH) for p in layer.parameters()):
            return name
    return None


def _layers(value: Any, depth: int) -> Iterator[nn.Module]:
    if isinstance(value, nn.Module):
        yield value
    elif depth > 0 and isinstance(value, list | tuple | set | Mapping):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _layers(item, depth - 1)


def leaves(outputs: Tensor) -> Iterator[Tensor]:
    """Yield the tensors with requires_grad that begin the graph of a tensor."""
    seen, waiting = set(), [outputs.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if isinstance(leaf, Tensor):
            yield leaf
        waiting += [following for following, _ in node.next_functions]


def _attributes(module: nn.Module) -> Iterator[tuple[str, Any]]:
    for prefix, part in module.named_modules():
        for name, value in vars(part).items():
            if name not in _REGISTERED:
                yield f"{prefix}.{name}" if prefix else name, value


def _holds(value: Any, v: Tensor, depth: int) -> bool:
    """Whether an attribute is the tensor, or a list, dictionary or module with it."""
    if value is v:
        return True
    if isinstance(value, nn.Module):
        return any(p is v for p in value.parameters())
    if depth == 0 or not isinstance(value, list | tuple | set | Mapping):
        return False
    return any(_holds(item, v, depth - 1) for item in (value.values() if isinstance(value, Mapping) else value))


@contextmanager
def without_values(parameters: list[nn.Parameter]) -> Iterator[None]:
    """Set parameters to NaN within the context: whatever is computed from them is NaN, too."""
    values = [p.data for p in parameters]
    try:
        for p in parameters:
            p.data = torch.full((), torch.nan, dtype=p.dtype, device=p.device).expand(p.shape)
        yield
    finally:
        for p, value in zip(parameters, values, strict=True):
            p.data = value
