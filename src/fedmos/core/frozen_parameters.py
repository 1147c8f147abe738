"""Parameters with `requires_grad=False`: constants of a run that all clients share."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .module_copy import copied
from .module_kind import UnsuitableModel

Copies = dict[object, tuple[Tensor, Tensor]]
"""Tensors on the device by the identity of their source. The source is kept alive, so that its address stays unique."""


def trainable_parameters(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Return the parameters to train, by name.

    Raises:
        UnsuitableModel: If there is none, one has a hook on its gradient, or one shares memory with another parameter
            or a buffer without being the same parameter.
    """
    trainable = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    if not trainable:
        raise UnsuitableModel(
            "Cannot train the model because it has no trainable parameters; set requires_grad=True on those to train, "
            "or add some with fm.models.lora(model, rank, targets)"
        )
    _refuse_shared_memory(model)
    _refuse_gradient_hooks(trainable)
    return trainable


def _refuse_gradient_hooks(trainable: list[tuple[str, nn.Parameter]]) -> None:
    """Refuse hooks that a copy of a parameter would not have."""
    for name, p in trainable:
        if p._backward_hooks or getattr(p, "_post_accumulate_grad_hooks", None):
            raise UnsuitableModel(
                f"Cannot train '{name}' with a hook on its gradient because clients train copies, whose gradients no "
                "hook would see; use a mask or scale in the forward pass (torch.nn.utils.parametrize), or a local "
                "optimiser"
            )


def _refuse_shared_memory(model: nn.Module) -> None:
    """Refuse a trainable parameter whose memory another tensor of the model uses, too.

    PyTorch's optimisers would change both tensors at once. Clients have a row of their own for each trainable
    parameter, so that the other tensor would keep its value.
    """
    tensors = [
        (name, v)
        for name, v in (*model.named_parameters(), *model.named_buffers())
        if v.numel() and v.layout == torch.strided and not v.is_meta
    ]
    # By address, so that only neighbours can overlap with the furthest end so far.
    spans = sorted(((v.device.type, v.data_ptr(), _end(v), name, v.requires_grad) for name, v in tensors))
    furthest: tuple[str, int, int, str, bool] | None = None
    for span in spans:
        if furthest is not None and span[0] == furthest[0] and span[1] < furthest[2] and (span[4] or furthest[4]):
            trained, other = (span, furthest) if span[4] else (furthest, span)
            raise UnsuitableModel(
                f"Cannot train '{trained[3]}' because it shares memory with '{other[3]}', which is another tensor and "
                "would keep its value; tie them by assigning one parameter to both, or clone one of them"
            )
        if furthest is None or span[0] != furthest[0] or span[2] > furthest[2]:
            furthest = span


def _end(v: Tensor) -> int:
    """Return the address behind the last number of a tensor."""
    last = sum((n - 1) * stride for n, stride in zip(v.shape, v.stride(), strict=True))
    return int(v.data_ptr() + (last + 1) * v.element_size())


def private_copy(
    model: nn.Module, device: torch.device, dtype: torch.dtype, copies: Copies | None, shares: bool = False
) -> nn.Module:
    """Return a copy of a module on a device.

    Args:
        model: The module.
        device: The device of the copy.
        dtype: The dtype of its parameters.
        copies: Frozen parameters that other copies hold on the device already, which the new one shares; the others are
            added. None to share none.
        shares: Whether trainable parameters share the memory of the given ones, which nothing may change then.
    """
    known = {} if copies is None else copies
    shared = [p for p in model.parameters() if shares and p.requires_grad and type(p) is nn.Parameter and not vars(p)]
    frozen = [(p, ("frozen", id(p), device, dtype)) for p in model.parameters() if not p.requires_grad]
    held = {id(p): known[key][1] for p, key in frozen if key in known}
    made = copied(model, device, dtype, held | {id(p): nn.Parameter(p.detach()) for p in shared})
    if copies is not None:
        new = [p for p in made.parameters() if not p.requires_grad]
        copies.update({key: (p, q) for (p, key), q in zip(frozen, new, strict=True)})
    return made
