"""Tables in memory, parquet files and CSV files."""

from __future__ import annotations

import os
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

from ..dataset import Dataset
from .columns import choose, dataset_from
from .fit import EncodingOptions
from .table import open_csv, open_table


def dataset_from_frame(
    frame: Any,
    client: Hashable | None,
    target: Hashable | None,
    inputs: Hashable | Sequence[Hashable] | None,
    test: Any,
    options: EncodingOptions,
    split: Hashable | None = None,
) -> Dataset:
    """Read a table; see `FederatedData.from_frame`."""
    caller = "from_frame"
    table, tested = open_table(caller, "frame", frame), None if test is None else open_table(caller, "test", test)
    name = Path(frame).stem if isinstance(frame, str | os.PathLike) else "frame"
    return _dataset(caller, name, table, tested, (client, target, inputs, split), options)


def dataset_from_csv(
    path: str | os.PathLike[str],
    client: Hashable | None,
    target: Hashable | None,
    inputs: Hashable | Sequence[Hashable] | None,
    test: Any,
    options: EncodingOptions,
    delimiter: str,
    split: Hashable | None = None,
) -> Dataset:
    """Read a CSV file; see `FederatedData.from_csv`."""
    caller = "from_csv"
    if not isinstance(path, str | os.PathLike):
        raise ValueError(f"{caller}: 'path' must be the path of a CSV file, got {type(path).__name__}")
    table = open_csv(caller, "path", path, delimiter)
    tested = None if test is None else open_csv(caller, "test", test, delimiter)
    return _dataset(caller, Path(path).stem, table, tested, (client, target, inputs, split), options)


def _dataset(
    caller: str, name: str, table: Any, tested: Any, roles: tuple[Any, Any, Any, Any], options: EncodingOptions
) -> Dataset:
    client, target, inputs, split = roles
    if inputs is None and options.encoding is not None:
        inputs = [column.name for column in options.encoding.columns]
    columns = choose(caller, table, client, target, inputs, split)
    if tested is not None:
        choose(caller, tested, None, columns.target, columns.inputs)
    return dataset_from(caller, name, table, tested, columns, None, options)
