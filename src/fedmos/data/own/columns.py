"""Columns of a table as inputs, targets and owners of samples.

A table is anything with named columns that turn into numpy arrays: a pandas or polars frame, a pyarrow table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...validate import suggest
from ..dataset import Dataset
from ..images import decode
from ..store import allocate

_TARGETS = ("label", "labels", "target", "y", "fine_label", "character")


@dataclass(frozen=True)
class Columns:
    """Which columns are what."""

    client: str | None
    target: str
    inputs: list[str]


def names_of(table: Any) -> list[str]:
    return [str(name) for name in (table.column_names if hasattr(table, "column_names") else table.columns)]


def choose(who: str, table: Any, client: str | None, target: str | None, inputs: str | Sequence[str] | None) -> Columns:
    """The columns asked for, or the obvious ones."""
    names = names_of(table)
    inputs = [inputs] if isinstance(inputs, str) else None if inputs is None else list(inputs)
    for field, wanted in (
        ("client_column", client),
        ("target_column", target),
        *(("input_columns", i) for i in inputs or []),
    ):
        if wanted is not None and wanted not in names:
            raise ValueError(
                f"{who}: '{field}' must be one of {', '.join(names)}, got {wanted!r}{suggest(wanted, names)}"
            )
    if target is None:
        target = next((name for name in _TARGETS if name in names), None)
        if target is None:
            raise ValueError(f"{who}: 'target_column' must be given: one of {', '.join(names)}")
    others = inputs or [name for name in names if name not in (client, target)]
    if not others:
        raise ValueError(f"{who}: there must be a column of inputs beside {', '.join(names)}")
    return Columns(client, target, others)


def array_of(table: Any, name: str) -> np.ndarray:
    """One column; whatever numpy has no type for becomes objects."""
    column = table[name]
    if getattr(getattr(column, "dtype", None), "name", "") == "category":  # pandas gives codes their values' type
        column = column.astype(object)
    return np.asarray(column.to_numpy())


def inputs_of(who: str, table: Any, names: Sequence[str]) -> np.ndarray:
    """(n, …): numbers side by side as float32, or one column of lists or images as it is."""
    if len(names) == 1:
        column = array_of(table, names[0])
        if column.dtype == object or column.ndim > 1:
            return _stacked(who, names[0], column)
    columns = []
    for name in names:
        column = array_of(table, name)
        if column.ndim != 1 or column.dtype.kind not in "biuf":
            raise ValueError(
                f"{who}: column '{name}' must hold numbers to be an input among others, got {_kind(column)}; turn it "
                "into numbers first, or name other 'input_columns'"
            )
        columns.append(column)
    x = np.stack(columns, axis=1).astype(np.float32)
    bad = np.flatnonzero(~np.isfinite(x).all(0))
    if len(bad):
        raise ValueError(f"{who}: column '{names[bad[0]]}' must hold finite numbers, got NaN, infinity or nothing")
    return x


def _stacked(who: str, name: str, column: np.ndarray) -> np.ndarray:
    """Lists of one length, or encoded images of one size, as an array."""
    items = list(column)
    first = items[0] if items else None
    if isinstance(first, str) or first is None:
        raise ValueError(
            f"{who}: column '{name}' must hold numbers, lists or images to be an input, got {_kind(column)}; turn it "
            "into numbers first"
        )
    read: Callable[[Any], np.ndarray] = _image if isinstance(first, bytes | dict) else _list
    out: np.ndarray | None = None
    for i, item in enumerate(items):
        try:
            row = read(item)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{who}: column '{name}', row {i}: {error}") from None
        if out is None:
            kind = row.dtype if row.dtype.kind in "iu" else np.float32
            out = allocate((len(items), *row.shape), kind)  # type: ignore[arg-type]
        if row.shape != out.shape[1:]:
            raise ValueError(
                f"{who}: column '{name}' must hold equal shapes, got {out.shape[1:]} and, in row {i}, {row.shape}"
            )
        out[i] = row
    assert out is not None
    return out


def _image(item: Any) -> np.ndarray:
    data = item.get("bytes") if isinstance(item, dict) else item
    if not isinstance(data, bytes):  # a path in somebody's file is not ours to open
        raise ValueError("an image must come as bytes, got none")
    pixels: np.ndarray = decode(data)
    return pixels


def _list(item: Any) -> np.ndarray:
    row = np.array(item.tolist() if isinstance(item, np.ndarray) and item.dtype == object else item)
    if row.dtype == object:  # lists of arrays
        row = np.stack([_list(part) for part in item])
    if row.ndim == 0 or row.dtype.kind not in "biuf":
        raise ValueError(f"a list of numbers is wanted, got {item!r:.60}")
    if row.dtype.kind == "f" and not np.isfinite(row).all():
        raise ValueError("numbers must be finite, got NaN or infinity")
    return row.astype(np.uint8) if row.dtype == bool else row


def targets_of(who: str, name: str, column: np.ndarray) -> tuple[np.ndarray, list[str] | None]:
    """Class numbers (int64) or real targets (float32), and the classes' names where they had any."""
    if column.dtype.kind in "iub":
        return column.astype(np.int64), None
    if column.dtype.kind == "f":
        if not np.isfinite(column).all():
            raise ValueError(f"{who}: column '{name}' must hold finite numbers, got NaN, infinity or nothing")
        return column.astype(np.float32), None
    if column.dtype == object and len(column) and not isinstance(column[0], str):
        return _stacked(who, name, column), None
    labels, y = numbered(who, name, column)
    return y, labels


def numbered(who: str, name: str, column: np.ndarray) -> tuple[list[str], np.ndarray]:
    """Distinct values in sorted order, as words, and each row's number among them."""
    if column.ndim != 1 or any(v is None or v != v for v in (column if column.dtype.kind in "Of" else ())):
        raise ValueError(f"{who}: column '{name}' must hold one value in each row, got nothing in some")
    distinct, number = np.unique(column, return_inverse=True)
    return [str(v) for v in distinct], number


def dataset_from(who: str, name: str, table: Any, test: Any, columns: Columns, labels: list[str] | None) -> Dataset:
    """A data set from a table for training and maybe one for testing; `labels` are the classes' names if known."""
    if not len(table):
        raise ValueError(f"{who}: the table must have rows, got none")
    x, (y, words) = (
        inputs_of(who, table, columns.inputs),
        targets_of(who, columns.target, array_of(table, columns.target)),
    )
    x_test = y_test = None
    if test is not None:
        x_test = inputs_of(who, test, columns.inputs)
        column = array_of(test, columns.target)
        if words is None:
            y_test, _ = targets_of(who, columns.target, column)
        else:
            known = {word: number for number, word in enumerate(words)}
            strange = sorted({str(v) for v in column} - known.keys())
            if strange:
                raise ValueError(f"{who}: test targets must be among the training targets, got {strange[0]!r}")
            y_test = np.array([known[str(v)] for v in column], dtype=np.int64)
        if x_test.shape[1:] != x.shape[1:]:
            raise ValueError(f"{who}: test inputs must have shape {x.shape[1:]}, got {x_test.shape[1:]}")
    owner = owners = None
    if columns.client is not None:
        owners, owner = numbered(who, columns.client, array_of(table, columns.client))
    return Dataset(name, x, y, x_test, y_test, owner=owner, owners=owners, labels=words or labels)


def _kind(column: np.ndarray) -> str:
    return type(column[0]).__name__ if column.dtype == object and len(column) else str(column.dtype)
