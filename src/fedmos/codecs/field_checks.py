"""Checks of encoded fields that come from elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from ..core.formatting import format_value


def check_fields(
    owner: str,
    declared: Mapping[str, tuple[torch.dtype | Literal["float"], int]],
    fields: Mapping[str, Tensor],
    finite: bool,
) -> None:
    """Check names, dtypes, shapes and, unless `finite` is false, that all numbers are finite.

    Raises:
        ValueError: If something differs from what is declared.
    """
    if not isinstance(fields, Mapping) or set(fields) != set(declared):
        found = sorted(map(str, fields)) if isinstance(fields, Mapping) else fields
        raise ValueError(f"{owner}: 'fields' must be {', '.join(declared)}, got {format_value(found)}")
    rows: set[tuple[int, ...]] = set()
    for name, (kind, length) in declared.items():
        v = fields[name]
        allowed = (torch.float32, torch.float64) if isinstance(kind, str) else (kind,)
        if not isinstance(v, Tensor) or v.dtype not in allowed:
            raise ValueError(f"{owner}: '{name}' must be a tensor of {allowed[0]}, got {_kind(v)}")
        if v.layout != torch.strided or v.ndim not in (1, 2) or v.shape[-1] != length:
            raise ValueError(f"{owner}: '{name}' must be of shape ({length},) or (M, {length}), got {tuple(v.shape)}")
        rows.add(tuple(v.shape[:-1]))
        if finite and v.is_floating_point() and not bool(v.isfinite().all()):
            raise ValueError(f"{owner}: '{name}' must be finite, got {_first(v, ~v.isfinite())}")
    if len(rows) > 1:
        raise ValueError(f"{owner}: 'fields' must be of the same number of vectors, got {format_value(sorted(rows))}")


def check_lengths(
    owner: str, declared: Mapping[str, tuple[torch.dtype | Literal["float"], int]], fields: Mapping[str, Tensor]
) -> None:
    """Check names and lengths of fields to decode, which reads no value: what is cut off must not be made up.

    Raises:
        ValueError: If a field is missing or has another length than declared.
    """
    if not isinstance(fields, Mapping) or set(fields) != set(declared):
        found = sorted(map(str, fields)) if isinstance(fields, Mapping) else fields
        raise ValueError(f"{owner}: 'fields' must be {', '.join(declared)}, got {format_value(found)}")
    for name, (_, length) in declared.items():
        shape = fields[name].shape
        if len(shape) == 0 or shape[-1] != length:
            raise ValueError(f"{owner}: '{name}' must be of shape ({length},) or (M, {length}), got {tuple(shape)}")


def require_all(owner: str, name: str, v: Tensor, holds: Tensor, rule: str) -> None:
    """Raise ValueError with the first entry of `v` for which `holds` is false."""
    if not bool(holds.all()):
        raise ValueError(f"{owner}: '{name}' must be {rule}, got {_first(v, ~holds)}")


def _first(v: Tensor, where: Tensor) -> float | int:
    found: float | int = v[where][0].item()
    return found


def _kind(v: object) -> str:
    return str(v.dtype) if isinstance(v, Tensor) else format_value(v)
