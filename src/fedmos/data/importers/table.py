"""Reading of tables: their columns as NumPy arrays, missing values, CSV and parquet files."""

from __future__ import annotations

import os
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from ...core.validation import needs

_EXACT = 2**53
"""A float64 does not hold every integer beyond this."""


def open_table(caller: str, field: str, given: Any) -> Any:
    """Return a frame as it is, and the table of a parquet file.

    Raises:
        ValueError: If `given` is neither.
        FileNotFoundError: If the file does not exist.
    """
    if isinstance(given, str | os.PathLike):
        parquet = needs("pyarrow.parquet", "pyarrow", "read parquet files")
        return _read(given, "parquet", parquet.read_table)
    if hasattr(given, "collect"):  # a lazy polars frame
        given = given.collect()
    if not all(hasattr(given, name) for name in ("columns", "__getitem__", "__len__")):
        raise ValueError(
            f"{caller}: '{field}' must be a pandas or polars frame, a pyarrow table or a parquet file, got "
            f"{type(given).__name__}"
        )
    return given


def open_csv(caller: str, field: str, given: Any, delimiter: str) -> Any:
    """Return the table of a CSV file with a header line; a frame is returned as it is.

    Raises:
        ValueError: If the file is not valid or holds integers of more than 64 bits.
        FileNotFoundError: If the file does not exist.
    """
    if not isinstance(given, str | os.PathLike):
        return open_table(caller, field, given)
    csv = needs("pyarrow.csv", "pyarrow", "read CSV files")
    parse = csv.ParseOptions(delimiter=delimiter)

    def read(path: Any, **convert: Any) -> Any:
        options = csv.ConvertOptions(strings_can_be_null=True, **convert)
        return csv.read_csv(os.fspath(path), parse_options=parse, convert_options=options)

    table = _read(given, "CSV", read)
    for name in _beyond(table):
        words = read(given, column_types={name: "string"}, include_columns=[name])[name].to_pylist()
        long = next((w for w in words if w is not None and w.strip().lstrip("+-").isdigit()), None)
        if long is not None:
            raise ValueError(
                f"{caller}: column '{name}' must hold integers of 64 bits, got {max(words, key=lambda w: len(w or ''))}"
                f"; add it to 'categorical' as text, or leave it out of the inputs"
            )
    return table


def _beyond(table: Any) -> list[str]:
    """Return the columns of real numbers that may be integers of more than 64 bits."""
    found = []
    for name, column in zip(table.column_names, table.columns, strict=True):
        if str(column.type) == "double":
            values = np.abs(column.to_numpy())
            if np.any(values[np.isfinite(values)] >= _EXACT):
                found.append(name)
    return found


def _read(path: Any, kind: str, read: Any) -> Any:
    try:
        return read(path)
    except FileNotFoundError:
        raise FileNotFoundError(f"Cannot read {path} because it does not exist") from None
    except Exception as error:  # pyarrow's own kinds, of which there are many
        raise ValueError(f"Cannot read {path} because it is not a valid {kind} file: {error}") from error


def names_of(table: Any) -> list[Hashable]:
    """Return the names of the columns, which in pandas may be numbers."""
    return list(table.column_names if hasattr(table, "column_names") else table.columns)


def array_of(table: Any, name: Hashable) -> np.ndarray:
    """Return a column. Values without a NumPy type are objects, unless all are plain numbers."""
    column = table[name]
    kind = str(getattr(column, "dtype", getattr(column, "type", "")))
    if kind == "category":  # pandas gives codes their values' type
        column = column.astype(object)
    if kind.startswith("Struct"):  # polars has no numpy form for these
        return objects(column.to_list())
    nulls = getattr(column, "null_count", None)
    if kind.lower().lstrip("u").startswith("int") and (nulls() if callable(nulls) else nulls):
        # NumPy has no missing integers: polars and pyarrow would return rounded float64.
        return objects(column.to_list() if hasattr(column, "to_list") else column.to_pylist())
    values = np.asarray(column.to_numpy())
    if values.dtype == object and len(values) and all(type(v) in (bool, int, float) for v in values):
        return np.array(values.tolist())
    return values


def objects(items: Sequence[Any]) -> np.ndarray:
    """Return a vector of Python objects."""
    values = np.empty(len(items), dtype=object)
    values[:] = items
    return values


def is_missing(v: Any) -> bool:
    """Return whether v is None, NaN, or what pandas and NumPy write for a missing value."""
    if isinstance(v, np.datetime64 | np.timedelta64):
        return bool(np.isnat(v))
    return v is None or type(v).__name__ in ("NAType", "NaTType") or (isinstance(v, float) and v != v)


def missing_in(column: np.ndarray) -> np.ndarray:
    """Return which rows of a column have no value."""
    if column.ndim == 1 and column.dtype.kind in "fMm":
        return np.asarray(np.isnan(column) if column.dtype.kind == "f" else np.isnat(column))
    if column.dtype == object:
        return np.array([is_missing(v) for v in column], dtype=bool)
    return np.zeros(len(column), bool)


def kind_of(column: np.ndarray) -> str:
    """Return the type of a column's values, for errors."""
    return type(column[0]).__name__ if column.dtype == object and len(column) else str(column.dtype)
