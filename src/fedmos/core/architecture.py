"""Hashes of a module: of its architecture, and of the values that training does not change."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from .statistics_layout import StatisticsLayout

_ADDRESS = re.compile(r"0x[0-9a-f]+")
_NOT_ARCHITECTURE = {"training", *vars(nn.Module()), "name_or_path", "_is_hf_initialized"}
"""Attributes of PyTorch, and what transformers notes about the origin of weights."""


def architecture_hash(module: nn.Module) -> str:
    """Return a hash of the layers of a module, and of the names and shapes of its parameters, but not their values.

    Two modules of one user-defined class differ if attributes such as numbers, strings or functions do. The hash is the
    same in every process and on every device.
    """
    digest = hashlib.sha256(_ADDRESS.sub("", repr(module)).encode())
    for name, parameter in module.named_parameters():
        digest.update(repr((name, tuple(parameter.shape), parameter.requires_grad)).encode())
    for name, layer in module.named_modules():
        if not type(layer).__module__.startswith("torch."):  # the repr of PyTorch's layers is complete
            held = {k: v for k, v in vars(layer).items() if k not in _NOT_ARCHITECTURE}
            attributes = {k: _describe(v) for k, v in held.items() if not (k.startswith("_") and _is_empty(v))}
            digest.update(repr((name, type(layer).__qualname__, sorted(attributes.items()))).encode())
    return digest.hexdigest()[:16]


def constants_hash(module: nn.Module, dtype: torch.dtype, statistics: bool = True, personal: Sequence[str] = ()) -> str:
    """Return a hash of the values of buffers, frozen parameters and those in `personal`, in the run's dtype.

    Without `statistics`, the running statistics of BatchNorm layers do not count.
    """
    digest, running = hashlib.sha256(), StatisticsLayout(module)
    trained = set() if statistics else set(running.buffers(running.initial()))
    for name, value in ((name, value) for name, value in _constants(module, personal) if name not in trained):
        value = value.detach().cpu().resolve_conj().resolve_neg()
        value = value.to(dtype) if value.is_floating_point() else value
        digest.update(f"{name} {tuple(value.shape)} {value.dtype}".encode())
        for part in dense_parts(value):
            digest.update(part.flatten().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def dense_parts(value: Tensor) -> tuple[Tensor, ...]:
    """Return the tensor, or the indices and values of a sparse one."""
    if value.layout is torch.strided:
        return (value,)
    value = value.to_sparse_coo().coalesce()
    return value.indices(), value.values()


def _constants(module: nn.Module, personal: Sequence[str]) -> Iterator[tuple[str, Tensor]]:
    held = ((name, value) for name, value in module.named_parameters() if not value.requires_grad or name in personal)
    yield from held
    yield from module.named_buffers()


def _is_empty(value: object) -> bool:
    """Whether a private attribute says no more than if it were missing."""
    return value is None or value is False or (isinstance(value, list | tuple | dict | set) and not value)


def _describe(value: object) -> str:
    """Describe an attribute by its value if it is plain, by its name if it has one, or else by its type."""
    if value is None or isinstance(value, bool | int | float | str | torch.dtype):
        return repr(value)
    if isinstance(value, tuple | list):
        return repr([_describe(item) for item in value])
    return str(getattr(value, "__qualname__", type(value).__qualname__))
