"""Tables in memory, and parquet files."""

from __future__ import annotations

import os
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

from ...core.validation import needs
from ..dataset import Dataset
from .columns import choose, dataset_from

_CALLER = "from_frame"


def dataset_from_frame(
    frame: Any,
    client: Hashable | None,
    target: Hashable | None,
    inputs: Hashable | Sequence[Hashable] | None,
    test: Any,
) -> Dataset:
    """Read a table; see `FederatedData.from_frame`."""
    table, tested = _table(frame, "frame"), None if test is None else _table(test, "test")
    columns = choose(_CALLER, table, client, target, inputs)
    if tested is not None:
        choose(_CALLER, tested, None, columns.target, columns.inputs)
    name = Path(frame).stem if isinstance(frame, str | os.PathLike) else "frame"
    return dataset_from(_CALLER, name, table, tested, columns, labels=None)


def _table(given: Any, field: str) -> Any:
    if isinstance(given, str | os.PathLike):
        parquet = needs("pyarrow.parquet", "pyarrow", "read parquet files")
        try:
            return parquet.read_table(given)
        except FileNotFoundError:
            raise FileNotFoundError(f"Cannot read {given} because it does not exist") from None
        except Exception as error:  # pyarrow raises many types of exceptions
            raise ValueError(f"Cannot read {given} because it is not a valid parquet file: {error}") from error
    if hasattr(given, "collect"):  # a lazy polars frame
        given = given.collect()
    if not all(hasattr(given, name) for name in ("columns", "__getitem__", "__len__")):
        raise ValueError(
            f"{_CALLER}: '{field}' must be a pandas or polars frame, a pyarrow table or a parquet file, got "
            f"{type(given).__name__}"
        )
    return given
