"""The column of a table that says which rows are test samples of their clients."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np

from ...core.formatting import format_value
from .table import array_of

_WORDS = {"train": False, "training": False, "test": True}


def rows_for_testing(caller: str, table: Any, name: Hashable) -> np.ndarray:
    """Return which rows are test samples, bool: the column has "train" or "test", or False or True, in each row.

    Raises:
        ValueError: If a value is another one, or no row is for training.
    """
    tested = np.array([_is_test(caller, name, value) for value in array_of(table, name).tolist()], dtype=bool)
    if tested.all():
        raise ValueError(f"{caller}: column '{name}' must have a row for training, got none")
    return tested


def rows(table: Any, wanted: np.ndarray) -> Any:
    """Return some rows, given as a mask, of a pandas or polars frame or a pyarrow table."""
    numbers = np.flatnonzero(wanted)
    if hasattr(table, "iloc"):
        return table.iloc[numbers]
    return table.take(numbers) if hasattr(table, "column_names") else table[numbers.tolist()]


def interleaved(tested: np.ndarray, train: np.ndarray, test: np.ndarray) -> np.ndarray:
    """Return the values of all rows, in the order of the table, from those of rows for training and for testing."""
    values = np.empty((len(tested), *train.shape[1:]), train.dtype)
    values[~tested], values[tested] = train, test
    return values


def _is_test(caller: str, name: Hashable, value: Any) -> bool:
    if isinstance(value, bool):
        return value
    found = _WORDS.get(value.lower()) if isinstance(value, str) else None
    if found is None:
        raise ValueError(
            f"{caller}: column '{name}' must have 'train' or 'test', or a truth value, in each row, got "
            f"{format_value(value)}"
        )
    return found
