"""Conversion of the columns of a table to inputs, targets and owners of samples.

A table is an object with named columns that convert to NumPy arrays: a pandas or polars frame, a pyarrow table.
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
from .encoding import Encoding
from .fit import EncodingOptions, fit
from .split_column import interleaved, rows, rows_for_testing
from .table import array_of, is_missing, kind_of, missing_in, names_of

_TARGETS = ("label", "labels", "target", "y", "fine_label", "character")

_FIELDS = {"from_csv": ("client", "target", "inputs", "split")}
"""The names of the arguments for columns, where they are not client_column, target_column and so on."""


@dataclass(frozen=True)
class ColumnRoles:
    """The names of the columns by role."""

    client: Hashable | None
    target: Hashable
    inputs: list[Hashable]
    split: Hashable | None = None
    """Which rows are test samples of their clients."""


def choose(
    caller: str,
    table: Any,
    client: Hashable | None,
    target: Hashable | None,
    inputs: Hashable | Sequence[Hashable] | None,
    split: Hashable | None = None,
) -> ColumnRoles:
    """Return the requested columns, with defaults for those that are None.

    Args:
        caller: The name of the public function, for errors.
        table: The table.
        client: The column of clients.
        target: The column of targets (default: the first column with a usual name).
        inputs: The columns of inputs (default: all other columns).
        split: The column that says which rows are test samples of their clients.

    Raises:
        ValueError: If a column does not exist, or there is no default.
    """
    names = names_of(table)
    listed = ", ".join(map(str, names))
    wanted_inputs = None if inputs is None else list(inputs) if isinstance(inputs, list | tuple) else [inputs]
    fields = _FIELDS.get(caller, ("client_column", "target_column", "input_columns", "split_column"))
    requested = [
        (fields[0], client),
        (fields[1], target),
        (fields[3], split),
        *((fields[2], name) for name in wanted_inputs or []),
    ]
    twice = next((name for i, name in enumerate(names) if name in names[:i]), None)
    if twice is not None:
        raise ValueError(f"{caller}: the columns must have different names, got '{twice}' twice")
    for field, wanted in requested:
        if wanted is not None and wanted not in names:
            hint = suggest(str(wanted), map(str, names))
            raise ValueError(f"{caller}: '{field}' must be one of {listed}, got {wanted!r}{hint}")
    if target is None:
        target = next((name for name in _TARGETS if name in names), None)
        if target is None:
            raise ValueError(f"{caller}: '{fields[1]}' must be given: one of {listed}")
    others = wanted_inputs or [name for name in names if name not in (client, target, split)]
    if not others:
        raise ValueError(f"{caller}: there must be a column of inputs beside {listed}")
    return ColumnRoles(client, target, others, split)


def inputs_of(
    caller: str, table: Any, names: Sequence[Hashable], options: EncodingOptions
) -> tuple[np.ndarray, Encoding | None]:
    """Return the inputs, (n, …), and their encoding: columns of numbers and categories, or one of lists or images.

    Lists and images have no encoding.
    """
    if len(names) == 1 and options.categorical is None and options.encoding is None:
        column = array_of(table, names[0])
        if column.ndim > 1 or (column.dtype == object and not _has_numbers(column)):
            if given := options.given():
                raise ValueError(
                    f"{caller}: '{given[0]}' must not be given for column '{names[0]}' because it holds "
                    f"{kind_of(column)}, not one number or word per row"
                )
            return _stacked(caller, names[0], column), None
    encoding = fit(caller, table, names, options)
    return encoding.encode(caller, table), encoding


def _has_numbers(column: np.ndarray) -> bool:
    """Return whether a column of objects holds numbers, and possibly missing values."""
    present = column[~missing_in(column)]
    return len(present) > 0 and all(isinstance(v, int | float | np.number) for v in present)


def _stacked(caller: str, name: Hashable, column: np.ndarray) -> np.ndarray:
    """Stack lists of one length, or encoded images of one size, in an array."""
    items = list(column)
    first = items[0] if items else None
    if isinstance(first, str) or first is None:
        raise ValueError(
            f"{caller}: column '{name}' must hold numbers, lists or images to be an input, got {kind_of(column)}; turn "
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
        if row.dtype.kind in "iu" and np.any(out[i].astype(row.dtype) != row):
            raise ValueError(
                f"{caller}: column '{name}', row {i}: beside rows of real numbers, integers must be exact in float32"
            )
    return out


def _image(item: Any) -> np.ndarray:
    data = item.get("bytes") if isinstance(item, dict) else item
    if not isinstance(data, bytes):  # paths in data are never opened
        raise ValueError("an image must come as bytes, got none")
    pixels: np.ndarray = decode(data)
    return pixels


def _list(item: Any) -> np.ndarray:
    if item is None:
        raise ValueError("it must be a list of numbers, got None")
    row = np.array(item.tolist() if isinstance(item, np.ndarray) and item.dtype == object else item)
    if row.dtype == object:  # lists of arrays
        row = np.stack([_list(part) for part in item])
    if row.ndim == 0 or row.dtype.kind not in "biuf":
        raise ValueError(f"it must be a list of numbers, got {item!r:.60}")
    if row.dtype.kind == "f":
        with np.errstate(over="ignore"):
            row = row.astype(np.float32)
        if not np.isfinite(row).all():
            raise ValueError("numbers must be finite, got NaN or infinity")
    return row.astype(np.uint8) if row.dtype == bool else row


def targets_of(caller: str, name: Hashable, column: np.ndarray) -> tuple[np.ndarray, list[str] | None]:
    """Return class numbers (int64) or real targets (float32), and the names of the classes if they are strings."""
    if column.dtype.kind in "iub":
        return column.astype(np.int64), None
    if column.dtype.kind == "f":
        with np.errstate(over="ignore"):
            column = column.astype(np.float32)
        if not np.isfinite(column).all():
            raise ValueError(f"{caller}: column '{name}' must hold finite numbers, got NaN, infinity or missing values")
        return column, None
    if column.dtype == object and len(column) and not isinstance(column[0], str):
        return _stacked(caller, name, column), None
    labels, y = encode(caller, name, column)
    return y, labels


def encode(caller: str, name: Hashable, column: np.ndarray) -> tuple[list[str], np.ndarray]:
    """Return the distinct values in sorted order, as strings, and the index of each row's value among them."""
    if column.ndim != 1 or any(map(is_missing, column)):
        raise ValueError(f"{caller}: column '{name}' must hold one value in each row, got missing values")
    try:
        distinct, number = np.unique(column, return_inverse=True)
    except TypeError:
        raise ValueError(f"{caller}: column '{name}' must hold values of one kind, got several") from None
    return [str(v) for v in distinct], number


def dataset_from(
    caller: str,
    name: str,
    table: Any,
    test: Any,
    columns: ColumnRoles,
    labels: list[str] | None,
    options: EncodingOptions,
) -> Dataset:
    """Build a data set from tables.

    Args:
        caller: The name of the public function, for errors.
        name: The name of the data set.
        table: The training samples.
        test: The test samples, or None.
        columns: The columns of `table`.
        labels: The names of the classes, if known.
        options: The encoding of the inputs.

    Raises:
        ValueError: If a table or column is invalid.
    """
    if not len(table):
        raise ValueError(f"{caller}: the table must have rows, got none")
    own = held_out = None
    if columns.split is not None:
        held_out = rows_for_testing(caller, table, columns.split)
        table, own = rows(table, ~held_out), rows(table, held_out)
    x, encoding = inputs_of(caller, table, columns.inputs, options)
    y, words = targets_of(caller, columns.target, array_of(table, columns.target))
    x_test, y_test = (None, None) if test is None else _test_arrays(caller, test, columns, x, y, words, encoding)
    owner = owners = None
    if columns.client is not None:
        owners, owner = encode(caller, columns.client, array_of(table, columns.client))
    if held_out is not None and held_out.any():
        x_own, y_own = _test_arrays(caller, own, columns, x, y, words, encoding)
        if columns.client is not None and owners is not None and owner is not None:
            owner = interleaved(held_out, owner, _known_clients(caller, array_of(own, columns.client), owners))
        x, y = interleaved(held_out, x, x_own), interleaved(held_out, y, y_own)
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
        encoding=encoding,
        held_out=held_out,
    )


def _known_clients(caller: str, column: np.ndarray, owners: list[str]) -> np.ndarray:
    """Return the clients of test rows as indices into the clients of the training rows."""
    return _indices(column, owners, f"{caller}: every client must have a row for training, got none of")


def _test_arrays(
    caller: str,
    test: Any,
    columns: ColumnRoles,
    x: np.ndarray,
    y: np.ndarray,
    words: list[str] | None,
    encoding: Encoding | None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the inputs and targets of a test table, which must have the shape and kind of the training samples."""
    if not len(test):
        raise ValueError(f"{caller}: the test table must have rows, got none")
    if encoding is None:
        x_test, _ = inputs_of(caller, test, columns.inputs, EncodingOptions())
    else:
        x_test = encoding.encode(caller, test)
    column = array_of(test, columns.target)
    y_test = _same_targets(caller, columns.target, column, y) if words is None else _encode_known(caller, column, words)
    if x_test.shape[1:] != x.shape[1:]:
        raise ValueError(f"{caller}: test inputs must have shape {x.shape[1:]}, got {x_test.shape[1:]}")
    return x_test, y_test


def _encode_known(caller: str, column: np.ndarray, words: list[str]) -> np.ndarray:
    """Return the test labels as indices into the training labels."""
    return _indices(column, words, f"{caller}: test targets must be among the training targets, got")


def _indices(column: np.ndarray, known: list[str], error: str) -> np.ndarray:
    """Return the place of each value among the known ones; `error` and the value are the text for an unknown one."""
    places = {word: number for number, word in enumerate(known)}
    unknown = sorted({str(v) for v in column} - places.keys())
    if unknown:
        raise ValueError(f"{error} {unknown[0]!r}")
    return np.array([places[str(v)] for v in column], dtype=np.int64)


def _same_targets(caller: str, name: Hashable, column: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the test targets in the dtype of the training targets. Raises ValueError if that is not possible."""
    tested, words = targets_of(caller, name, column)
    if words is not None or (y.dtype.kind == "i" and tested.dtype.kind != "i" and np.any(tested % 1)):
        raise ValueError(f"{caller}: test targets must be {y.dtype} as the training targets are, got {kind_of(column)}")
    return tested.astype(y.dtype)
