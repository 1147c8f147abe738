"""ColumnRoles of a table as inputs, targets and owners of samples.

A table is anything with named columns that turn into numpy arrays: a pandas or polars frame, a pyarrow table.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...core.validation import suggest
from ..dataset import Dataset
from ..images import decode
from ..normalize import Normalize
from ..store import allocate

_TARGETS = ("label", "labels", "target", "y", "fine_label", "character")


@dataclass(frozen=True)
class ColumnRoles:
    """Which columns are what."""

    client: Hashable | None
    target: Hashable
    inputs: list[Hashable]


def names_of(table: Any) -> list[Hashable]:
    """The columns' names, which in pandas may be numbers."""
    return list(table.column_names if hasattr(table, "column_names") else table.columns)


def choose(
    caller: str,
    table: Any,
    client: Hashable | None,
    target: Hashable | None,
    inputs: Hashable | Sequence[Hashable] | None,
) -> ColumnRoles:
    """The columns asked for, or the obvious ones."""
    names = names_of(table)
    listed = ", ".join(map(str, names))
    wanted_inputs = None if inputs is None else list(inputs) if isinstance(inputs, list | tuple) else [inputs]
    asked = [("client_column", client), ("target_column", target), *(("input_columns", i) for i in wanted_inputs or [])]
    for field, wanted in asked:
        if wanted is not None and wanted not in names:
            hint = suggest(str(wanted), map(str, names))
            raise ValueError(f"{caller}: '{field}' must be one of {listed}, got {wanted!r}{hint}")
    if target is None:
        target = next((name for name in _TARGETS if name in names), None)
        if target is None:
            raise ValueError(f"{caller}: 'target_column' must be given: one of {listed}")
    others = wanted_inputs or [name for name in names if name not in (client, target)]
    if not others:
        raise ValueError(f"{caller}: there must be a column of inputs beside {listed}")
    return ColumnRoles(client, target, others)


def array_of(table: Any, name: Hashable) -> np.ndarray:
    """One column; whatever numpy has no type for becomes objects, unless all are plain numbers."""
    column = table[name]
    kind = str(getattr(column, "dtype", ""))
    if kind == "category":  # pandas gives codes their values' type
        column = column.astype(object)
    if kind.startswith("Struct"):  # polars has no numpy form for these
        return _objects(column.to_list())
    values = np.asarray(column.to_numpy())
    if values.dtype == object and len(values) and all(type(v) in (bool, int, float) for v in values):
        return np.array(values.tolist())
    return values


def _objects(items: Sequence[Any]) -> np.ndarray:
    values = np.empty(len(items), dtype=object)
    values[:] = items
    return values


def inputs_of(caller: str, table: Any, names: Sequence[Hashable]) -> np.ndarray:
    """(n, …): numbers side by side as float32, or one column of lists or images as it is."""
    if len(names) == 1:
        column = array_of(table, names[0])
        if column.dtype == object or column.ndim > 1:
            return _stacked(caller, names[0], column)
    columns = []
    for name in names:
        column = array_of(table, name)
        if column.ndim != 1 or column.dtype.kind not in "biuf":
            raise ValueError(
                f"{caller}: column '{name}' must hold numbers to be an input among others, got {_kind(column)}; turn "
                "it into numbers first, or name other 'input_columns'"
            )
        columns.append(column)
    with np.errstate(over="ignore"):
        x = np.stack(columns, axis=1).astype(np.float32)
    bad = np.flatnonzero(~np.isfinite(x).all(0))
    if len(bad):
        raise ValueError(f"{caller}: column '{names[bad[0]]}' must hold finite numbers, got NaN, infinity or nothing")
    return x


def _stacked(caller: str, name: Hashable, column: np.ndarray) -> np.ndarray:
    """Lists of one length, or encoded images of one size, as an array."""
    items = list(column)
    first = items[0] if items else None
    if isinstance(first, str) or first is None:
        raise ValueError(
            f"{caller}: column '{name}' must hold numbers, lists or images to be an input, got {_kind(column)}; turn "
            "it into numbers first"
        )
    read: Callable[[Any], np.ndarray] = _image if isinstance(first, bytes | dict) else _list
    rows: list[np.ndarray] = []
    for i, item in enumerate(items):
        try:
            rows.append(read(item))
        except (TypeError, ValueError) as error:
            raise ValueError(f"{caller}: column '{name}', row {i}: {error}") from None
        if rows[-1].shape != rows[0].shape:
            raise ValueError(
                f"{caller}: column '{name}' must hold equal shapes, got {rows[0].shape} and, in row {i}, "
                f"{rows[-1].shape}"
            )
    kind = np.result_type(*{row.dtype for row in rows})
    out = allocate((len(rows), *rows[0].shape), kind.type if kind.kind in "iu" else np.float32)
    for i, row in enumerate(rows):
        out[i] = row
    return out


def _image(item: Any) -> np.ndarray:
    data = item.get("bytes") if isinstance(item, dict) else item
    if not isinstance(data, bytes):  # a path in somebody's file is not ours to open
        raise ValueError("an image must come as bytes, got none")
    pixels: np.ndarray = decode(data)
    return pixels


def _list(item: Any) -> np.ndarray:
    if item is None:
        raise ValueError("a list of numbers is wanted, got None")
    row = np.array(item.tolist() if isinstance(item, np.ndarray) and item.dtype == object else item)
    if row.dtype == object:  # lists of arrays
        row = np.stack([_list(part) for part in item])
    if row.ndim == 0 or row.dtype.kind not in "biuf":
        raise ValueError(f"a list of numbers is wanted, got {item!r:.60}")
    if row.dtype.kind == "f":
        with np.errstate(over="ignore"):
            row = row.astype(np.float32)
        if not np.isfinite(row).all():
            raise ValueError("numbers must be finite, got NaN or infinity")
    return row.astype(np.uint8) if row.dtype == bool else row


def targets_of(caller: str, name: Hashable, column: np.ndarray) -> tuple[np.ndarray, list[str] | None]:
    """Class numbers (int64) or real targets (float32), and the classes' names where they had any."""
    if column.dtype.kind in "iub":
        return column.astype(np.int64), None
    if column.dtype.kind == "f":
        with np.errstate(over="ignore"):
            column = column.astype(np.float32)
        if not np.isfinite(column).all():
            raise ValueError(f"{caller}: column '{name}' must hold finite numbers, got NaN, infinity or nothing")
        return column, None
    if column.dtype == object and len(column) and not isinstance(column[0], str):
        return _stacked(caller, name, column), None
    labels, y = numbered(caller, name, column)
    return y, labels


def numbered(caller: str, name: Hashable, column: np.ndarray) -> tuple[list[str], np.ndarray]:
    """Distinct values in sorted order, as words, and each row's number among them."""
    if column.ndim != 1 or any(map(_missing, column)):
        raise ValueError(f"{caller}: column '{name}' must hold one value in each row, got nothing in some")
    try:
        distinct, number = np.unique(column, return_inverse=True)
    except TypeError:
        raise ValueError(f"{caller}: column '{name}' must hold values of one kind, got several") from None
    return [str(v) for v in distinct], number


def _missing(v: Any) -> bool:
    """None, NaN, and what pandas and numpy write for nothing."""
    if isinstance(v, np.datetime64 | np.timedelta64):
        return bool(np.isnat(v))
    return v is None or type(v).__name__ in ("NAType", "NaTType") or (isinstance(v, float) and v != v)


def dataset_from(
    caller: str, name: str, table: Any, test: Any, columns: ColumnRoles, labels: list[str] | None
) -> Dataset:
    """A data set from a table for training and maybe one for testing; `labels` are the classes' names if known."""
    if not len(table):
        raise ValueError(f"{caller}: the table must have rows, got none")
    x, (y, words) = (
        inputs_of(caller, table, columns.inputs),
        targets_of(caller, columns.target, array_of(table, columns.target)),
    )
    x_test = y_test = None
    if test is not None:
        if not len(test):
            raise ValueError(f"{caller}: the test table must have rows, got none")
        x_test = inputs_of(caller, test, columns.inputs)
        column = array_of(test, columns.target)
        y_test = _same_targets(caller, columns.target, column, y) if words is None else _coded(caller, column, words)
        if x_test.shape[1:] != x.shape[1:]:
            raise ValueError(f"{caller}: test inputs must have shape {x.shape[1:]}, got {x_test.shape[1:]}")
    owner = owners = None
    if columns.client is not None:
        owners, owner = numbered(caller, columns.client, array_of(table, columns.client))
    images = x.ndim == 4 and x.dtype == np.uint8
    return Dataset(
        name,
        x,
        y,
        x_test,
        y_test,
        normalize=Normalize(mean=0.5, std=0.5) if images else None,
        owner=owner,
        owners=owners,
        labels=words or labels,
    )


def _coded(caller: str, column: np.ndarray, words: list[str]) -> np.ndarray:
    """Test labels by the numbers that training labels have."""
    known = {word: number for number, word in enumerate(words)}
    strange = sorted({str(v) for v in column} - known.keys())
    if strange:
        raise ValueError(f"{caller}: test targets must be among the training targets, got {strange[0]!r}")
    return np.array([known[str(v)] for v in column], dtype=np.int64)


def _same_targets(caller: str, name: Hashable, column: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Test targets of the kind that training targets are."""
    tested, words = targets_of(caller, name, column)
    if words is not None or (y.dtype.kind == "i" and tested.dtype.kind != "i" and np.any(tested % 1)):
        raise ValueError(f"{caller}: test targets must be {y.dtype} as the training targets are, got {_kind(column)}")
    return tested.astype(y.dtype)


def _kind(column: np.ndarray) -> str:
    return type(column[0]).__name__ if column.dtype == object and len(column) else str(column.dtype)
