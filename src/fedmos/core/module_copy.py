"""Copies of modules on another device and in another dtype."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from .module_kind import UnsuitableModel


def copied(
    model: nn.Module, device: torch.device | str, dtype: torch.dtype, known: Mapping[int, Tensor] | None = None
) -> nn.Module:
    """Return a deep copy of the module.

    Real numbers get the dtype, complex ones that of the same precision. Tensors that a forward pass stored as
    attributes, as the hook of `nn.utils.weight_norm` does, are copied without their autograd graph.

    Args:
        model: The module.
        device: The device of the copy.
        dtype: The dtype of its real numbers.
        known: By the id of a tensor of the module, the tensor that the copy shall hold in its place.

    Raises:
        UnsuitableModel: If a trainable parameter is complex.
    """
    for name, p in model.named_parameters():
        if p.requires_grad and p.is_complex():
            raise UnsuitableModel(
                f"Cannot train the complex parameter '{name}' because models are vectors of real numbers; use a real "
                "parameter with a last axis of size 2, and torch.view_as_complex in the forward pass"
            )
    stored = [v for part in model.modules() for v in vars(part).values() if isinstance(v, Tensor) and not v.is_leaf]
    module = copy.deepcopy(model, {id(v): v.detach().clone() for v in stored} | dict(known or {}))
    if not any(v.is_complex() for v in (*module.parameters(), *module.buffers())):
        return module.to(device=device, dtype=dtype)

    def converted(v: Tensor) -> Tensor:
        return v.to(device, dtype.to_complex() if v.is_complex() else dtype if v.is_floating_point() else None)

    converted_module: nn.Module = module._apply(converted)
    return converted_module
