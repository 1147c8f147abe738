"""The encoding of a table's columns as the inputs of a model, the same for all clients and for new rows."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .table import array_of, kind_of, missing_in, names_of, open_table

MISSING = "(missing)"
"""The category of missing values."""

_DTYPES: dict[str, Any] = {"int64": np.int64, "float32": np.float32, "float64": np.float64}


@dataclass(frozen=True)
class NumberColumn:
    """A column of numbers, stored as it is."""

    name: Hashable
    fill: float | None = None
    """The number in place of missing values; None if there must be none."""

    @property
    def features(self) -> list[str]:
        """The names of the inputs that the column becomes."""
        return [str(self.name)]

    def encode(self, caller: str, column: np.ndarray, dtype: str) -> np.ndarray:
        """Return the numbers in `dtype`, (n, 1). Raises ValueError if some would change."""
        numbers = read_numbers(caller, self.name, column)
        values = numbers.values
        if numbers.missing.any():
            if self.fill is None:
                some = int(numbers.missing.sum())
                raise ValueError(
                    f"{caller}: column '{self.name}' must hold finite numbers, got none in {some} of "
                    f"{len(column)} rows; choose a value for them, as missing={{{self.name!r}: 'median'}}, or leave "
                    "these rows out"
                )
            whole = numbers.integer and float(self.fill).is_integer()
            values = values if whole else values.astype(np.float64)
            values = np.where(numbers.missing, int(self.fill) if whole else self.fill, values)
        integers = ~numbers.missing if numbers.integer else np.zeros(len(values), bool)
        return _exactly(caller, self.name, values, integers, dtype)[:, None]


@dataclass(frozen=True)
class CategoryColumn:
    """A column of categories, stored as one column of 0 and 1 per category, or as the number of the category."""

    name: Hashable
    categories: tuple[str, ...]
    """The categories in the order of their numbers."""
    fill: str | None = None
    """The category of missing values; None if there must be none."""
    one_hot: bool = True

    @property
    def features(self) -> list[str]:
        """The names of the inputs that the column becomes."""
        return [f"{self.name}={c}" for c in self.categories] if self.one_hot else [str(self.name)]

    def encode(self, caller: str, column: np.ndarray, dtype: str) -> np.ndarray:
        """Return (n, categories) or, with `one_hot=False`, (n, 1). Raises ValueError at an unknown category."""
        number = {category: i for i, category in enumerate(self.categories)}
        words = [self.fill if gone else word_of(v) for v, gone in zip(column, missing_in(column), strict=True)]
        if None in words:
            raise ValueError(
                f"{caller}: column '{self.name}' must have a category in each row, got none in {words.count(None)} of "
                f"{len(words)}; make them a category, as missing={{{self.name!r}: 'category'}}, or leave these rows out"
            )
        unknown = next((word for word in words if word not in number), None)
        if unknown is not None:
            listed = ", ".join(self.categories[:10]) + (", …" if len(self.categories) > 10 else "")
            raise ValueError(
                f"{caller}: column '{self.name}' must hold one of {listed}, got {unknown!r}; declare all categories "
                f"with categorical={{{self.name!r}: […]}}"
            )
        codes = np.array([number[word] for word in words if word is not None], dtype=np.int64)
        if not self.one_hot:
            return codes[:, None].astype(_DTYPES[dtype])
        hot: np.ndarray = (codes[:, None] == np.arange(len(self.categories))).astype(_DTYPES[dtype])
        return hot


@dataclass(frozen=True)
class Encoding:
    """How the columns of a table become the inputs of a model. `FederatedData.encoding` has that of a federation.

    It is determined from the training rows of all clients, and is the same for every client, the test set and new rows.

    Example:
        >>> import pandas
        >>> frame = pandas.DataFrame({"site": ["a", "b"], "sex": ["f", "m"], "age": [30, None], "label": [0, 1]})
        >>> data = fm.FederatedData.from_frame(frame, "site", categorical=["sex"], missing="mean")
        >>> data.encoding.features
        ['sex=f', 'sex=m', 'age']
        >>> data.encoding.transform(pandas.DataFrame({"sex": ["m"], "age": [41]}))
        tensor([[ 0.,  1., 41.]])
    """

    columns: tuple[NumberColumn | CategoryColumn, ...]
    """The columns in the order of the inputs."""
    dtype: str
    """The type of the inputs: "int64", "float32" or "float64"."""

    @property
    def features(self) -> list[str]:
        """The name of each input: the column's, or COLUMN=CATEGORY."""
        return [feature for column in self.columns for feature in column.features]

    def transform(self, table: Any) -> Tensor:
        """Return the rows of a table as inputs, (n, features).

        Args:
            table: A pandas or polars frame, a pyarrow table, or the path of a parquet file. Columns that are not
                inputs are ignored.

        Raises:
            ValueError: If a column or a value is missing, or a category is unknown.
        """
        return torch.from_numpy(self.encode("transform", open_table("transform", "table", table)))

    def encode(self, caller: str, table: Any) -> np.ndarray:
        """Return the rows of a table as an array; errors name `caller`."""
        names = names_of(table)
        for column in self.columns:
            if column.name not in names:
                listed = ", ".join(map(str, names))
                raise ValueError(f"{caller}: the table must have a column '{column.name}', got {listed}")
        parts = [column.encode(caller, array_of(table, column.name), self.dtype) for column in self.columns]
        return np.concatenate(parts, axis=1)

    def to_dict(self) -> dict[str, Any]:
        """Return the encoding as numbers, strings and lists, for example to store it as JSON."""
        columns = [{"kind": type(c).__name__.removesuffix("Column").lower(), **asdict(c)} for c in self.columns]
        return {"dtype": self.dtype, "columns": columns}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Encoding:
        """Return the encoding that `to_dict` stored."""
        kinds: dict[str, Any] = {"number": NumberColumn, "category": CategoryColumn}
        columns = []
        for column in stored["columns"]:
            fields = {k: tuple(v) if isinstance(v, list) else v for k, v in column.items() if k != "kind"}
            columns.append(kinds[column["kind"]](**fields))
        return cls(tuple(columns), stored["dtype"])


@dataclass(frozen=True)
class Numbers:
    """The numbers of a column."""

    values: np.ndarray
    """Of kind "i" or "f"; any number where one is missing."""
    missing: np.ndarray
    """Which rows have none."""
    integer: bool
    """Whether the column is one of integers. In pandas, one with missing values has the type float64."""
    truth: bool = False
    """Whether the column is one of truth values."""


def read_numbers(caller: str, name: Hashable, column: np.ndarray) -> Numbers:
    """Return the numbers of a column. Raises ValueError if it has other values or infinities."""
    missing = missing_in(column)
    present = column[~missing]
    if column.dtype == object and all(isinstance(v, int | float | np.number) for v in present):
        present = np.array(present.tolist())
    if column.ndim != 1 or present.dtype.kind not in "biuf":
        inputs = "inputs" if caller == "from_csv" else "input_columns"
        raise ValueError(
            f"{caller}: column '{name}' must hold numbers to be an input among others, got {kind_of(column)}; add it "
            f"to 'categorical', turn it into numbers, or name other '{inputs}'"
        )
    if present.dtype.kind == "f" and not np.isfinite(present).all():
        raise ValueError(f"{caller}: column '{name}' must hold finite numbers, got infinity")
    truth = present.dtype.kind == "b"
    gaps = bool(missing.any())
    integer = present.dtype.kind in "iu" or (gaps and len(present) > 0 and not truth and bool((present % 1 == 0).all()))
    wide = np.int64 if truth else present.dtype
    values = np.zeros(len(column), wide)
    values[~missing] = present
    return Numbers(values, missing, integer, truth)


def _exactly(caller: str, name: Hashable, values: np.ndarray, integers: np.ndarray, dtype: str) -> np.ndarray:
    """Return numbers in `dtype`. Raises ValueError if it has no such number, or would round one of the `integers`."""
    with np.errstate(over="ignore", invalid="ignore"):
        found: np.ndarray = values.astype(_DTYPES[dtype])
        back = found.astype(values.dtype)
    if not np.isfinite(found).all():
        worst = values[~np.isfinite(found)][0]
        raise ValueError(f"{caller}: column '{name}' must hold finite numbers of {dtype}, got {worst}")
    changed = np.flatnonzero((back != values) & (integers | (dtype == "int64")))
    if not len(changed) and integers.any() and dtype == "int64" and values.dtype.kind == "f":
        changed = np.flatnonzero(np.abs(values) > 2**53)  # already rounded
    if len(changed):
        got = values[changed[0]]
        what = f"integers that {dtype} holds exactly" if dtype != "int64" else "integers of 64 bits"
        use = {
            "float32": "add it to 'categorical' if it is an identifier, or use dtype='float64'",
            "float64": "add it to 'categorical' if it is an identifier",
            "int64": "use dtype='float32'",
        }[dtype]
        raise ValueError(f"{caller}: column '{name}' must hold {what}, got {got}; {use}")
    return found


def word_of(v: Any) -> str:
    """Return the name of a category; 1 and 1.0 are the same."""
    if isinstance(v, float | np.floating) and float(v).is_integer():
        return str(int(v))
    return str(v)
