"""Several inputs of a model, stored as one tensor.

A sample with several inputs (tokens and a mask, an image and a row of a table) is one row of 64-bit words, so that
batches, partitions, engines and deployments handle it like any other sample. The model's inputs are views of the row.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd import Function

_WORD = 8
"""Bytes."""


@dataclass(frozen=True)
class InputField:
    """One of several inputs."""

    name: str
    shape: tuple[int, ...]
    """The shape of a sample."""
    dtype: str
    start: int
    """The first word of the row."""

    @property
    def bytes(self) -> int:
        """The size of a sample."""
        return prod(self.shape) * np.dtype(self.dtype).itemsize

    @property
    def stop(self) -> int:
        """The word after the last."""
        return self.start - (self.bytes // -_WORD)


@dataclass(frozen=True)
class InputLayout:
    """The names, shapes and types of several inputs, and where they are in a row of words."""

    fields: tuple[InputField, ...]

    @classmethod
    def of(cls, arrays: Mapping[str, np.ndarray]) -> InputLayout:
        """Return the layout of arrays whose first axis is that of samples."""
        fields: list[InputField] = []
        for name, a in arrays.items():
            start = fields[-1].stop if fields else 0
            fields.append(InputField(name, tuple(a.shape[1:]), str(a.dtype), start))
        return cls(tuple(fields))

    @property
    def names(self) -> list[str]:
        """The names of the inputs."""
        return [field.name for field in self.fields]

    def pack(self, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return one row of words per sample, (n, words), int64."""
        n = len(next(iter(arrays.values())))
        rows = np.zeros((n, self.fields[-1].stop * _WORD), np.uint8)
        for field in self.fields:
            values = np.ascontiguousarray(arrays[field.name], dtype=field.dtype).reshape(n, -1)
            start = field.start * _WORD
            rows[:, start : start + field.bytes] = values.view(np.uint8)
        return rows.view(np.int64)

    def unpack(self, x: Tensor, dtype: torch.dtype | None = None) -> dict[str, Tensor]:
        """Return the inputs of samples (…, words); real numbers in `dtype`, by default as they are stored."""
        inputs = {}
        for field in self.fields:
            kind: torch.dtype = getattr(torch, field.dtype)
            values = _Reinterpreted.apply(x[..., field.start : field.stop], kind)[..., : prod(field.shape)]  # type: ignore[no-untyped-call]
            values = values.reshape(*x.shape[:-1], *field.shape).contiguous()  # models call `view`
            inputs[field.name] = values.to(dtype) if dtype is not None and kind.is_floating_point else values
        return inputs

    def check(self, module: nn.Module) -> None:
        """Raise ValueError if the module's `forward` has no argument for an input, or needs others."""
        parameters = inspect.signature(module.forward).parameters
        if not any(p.kind == p.VAR_KEYWORD for p in parameters.values()):
            wrong = next((name for name in self.names if name not in parameters), None)
            if wrong is not None:
                raise ValueError(
                    f"Cannot give the model the input {wrong!r} because its forward has the arguments "
                    f"{', '.join(parameters)}; use these as the names of the inputs"
                )

    def __str__(self) -> str:
        return ", ".join(f"{field.name} {field.shape} ({field.dtype})" for field in self.fields)

    def to_json(self) -> list[list[Any]]:
        """Return the layout as lists."""
        return [[field.name, list(field.shape), field.dtype, field.start] for field in self.fields]

    @classmethod
    def from_json(cls, stored: list[list[Any]]) -> InputLayout:
        """Return the layout that `to_json` stored."""
        return cls(tuple(InputField(name, tuple(shape), dtype, start) for name, shape, dtype, start in stored))


class _Reinterpreted(Function):
    """`x.view(dtype)`, for which `vmap` has no rule in PyTorch 2.11. Words are not differentiated."""

    @staticmethod
    def forward(x: Tensor, dtype: torch.dtype) -> Tensor:
        return x.view(dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, _: Tensor | None) -> tuple[None, None]:
        return None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int, None], x: Tensor, dtype: torch.dtype) -> tuple[Tensor, int]:
        return _Reinterpreted.apply(x.movedim(in_dims[0], 0), dtype), 0  # type: ignore[no-untyped-call]
