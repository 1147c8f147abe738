"""Choice of an encoding for a table, by its columns and the user's options."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...core.formatting import format_value
from ...core.validation import suggest
from .encoding import MISSING, CategoryColumn, Encoding, NumberColumn, Numbers, read_numbers, word_of
from .table import array_of, missing_in

_MOST_CATEGORIES = 1000
"""The largest number of categories of a column that becomes one input per category."""
_STATISTICS = ("mean", "median", "most_frequent")


@dataclass(frozen=True)
class EncodingOptions:
    """The user's options of an encoding; see `FederatedData.from_frame`."""

    categorical: Any = None
    missing: Any = None
    one_hot: bool = True
    dtype: Any = None
    encoding: Encoding | None = None

    def given(self) -> list[str]:
        """Return the names of the options that differ from their defaults."""
        default = EncodingOptions()
        return [name for name in vars(default) if getattr(self, name) is not getattr(default, name)]


def fit(caller: str, table: Any, names: Sequence[Hashable], options: EncodingOptions) -> Encoding:
    """Return the encoding of the columns `names`, determined from all rows.

    Raises ValueError if an option is invalid or a column has no encoding.
    """
    if options.encoding is not None:
        return _given(caller, options)
    _check_names(caller, names, options)
    dtype = _dtype(caller, options.dtype)
    columns: list[NumberColumn | CategoryColumn] = []
    kinds = set()
    for name in names:
        column = array_of(table, name)
        if _is_category(options.categorical, name, column):
            columns.append(_category(caller, name, column, options))
            kinds.add("real" if options.one_hot else "integer")
            continue
        numbers = read_numbers(caller, name, column)
        fill = _fill(caller, name, numbers, _choice(options.missing, name))
        columns.append(NumberColumn(name, fill))
        whole = numbers.integer and (not numbers.missing.any() or fill is None or float(fill).is_integer())
        kinds.add("truth" if numbers.truth else "integer" if whole else "real")
    return Encoding(tuple(columns), dtype or ("int64" if "integer" in kinds and "real" not in kinds else "float32"))


def _given(caller: str, options: EncodingOptions) -> Encoding:
    others = [name for name in options.given() if name != "encoding"]
    if not isinstance(options.encoding, Encoding):
        got = format_value(options.encoding)
        raise ValueError(f"{caller}: 'encoding' must be the encoding of another federation, got {got}")
    if others:
        raise ValueError(f"Cannot use '{others[0]}' beside 'encoding' because the encoding has it; use one of them")
    return options.encoding


def _check_names(caller: str, names: Sequence[Hashable], options: EncodingOptions) -> None:
    """Refuse options for columns that are not inputs."""
    categorical = options.categorical
    if isinstance(categorical, str) or not isinstance(categorical, bool | Sequence | Mapping | None):
        got = format_value(categorical)
        raise ValueError(
            f"{caller}: 'categorical' must be True, a list of columns or {{column: categories}}, got {got}"
        )
    named = [("categorical", name) for name in ([] if isinstance(categorical, bool | None) else categorical)]
    named += [("missing", name) for name in (options.missing if isinstance(options.missing, Mapping) else ())]
    for field, name in named:
        if name not in names:
            hint = suggest(str(name), map(str, names))
            listed = ", ".join(map(str, names))
            raise ValueError(f"{caller}: '{field}' must name input columns ({listed}), got {name!r}{hint}")


def _dtype(caller: str, dtype: Any) -> str | None:
    name = str(dtype).removeprefix("torch.")
    if dtype is not None and name not in ("int64", "float32", "float64"):
        raise ValueError(f"{caller}: 'dtype' must be 'int64', 'float32' or 'float64', got {format_value(dtype)}")
    return None if dtype is None else name


def _is_category(categorical: Any, name: Hashable, column: np.ndarray) -> bool:
    if not isinstance(categorical, bool | None):
        return name in categorical
    present = column[~missing_in(column)]
    return categorical is True and (column.dtype.kind in "US" or (len(present) > 0 and isinstance(present[0], str)))


def _category(caller: str, name: Hashable, column: np.ndarray, options: EncodingOptions) -> CategoryColumn:
    present = column[~missing_in(column)]
    if column.ndim != 1 or any(isinstance(v, bytes | list | dict | np.ndarray) for v in present):
        raise ValueError(f"{caller}: column '{name}' must hold words or numbers to be categorical, got lists or images")
    declared = options.categorical[name] if isinstance(options.categorical, Mapping) else None
    if isinstance(declared, str) or not isinstance(declared, Sequence | np.ndarray | None):
        got = format_value(declared)
        raise ValueError(f"{caller}: 'categorical' must give column '{name}' a list of categories, got {got}")
    try:
        words = [word_of(v) for v in (sorted(set(present.tolist())) if declared is None else declared)]
    except TypeError:
        words = sorted({word_of(v) for v in present})
    words = list(dict.fromkeys(words))
    choice, fill = _choice(options.missing, name), None
    if choice == "most_frequent" and len(present):
        seen, count = np.unique([word_of(v) for v in present], return_counts=True)
        fill = str(seen[count.argmax()])
    elif isinstance(options.missing, Mapping) and choice not in (None, "category"):
        raise ValueError(
            f"{caller}: 'missing' must be 'category' or 'most_frequent' for column '{name}', got {choice!r}"
        )
    elif choice is not None and (isinstance(options.missing, Mapping) or len(present) < len(column)):
        fill = MISSING
        words.append(MISSING)
    if options.one_hot and len(words) > _MOST_CATEGORIES:
        raise ValueError(
            f"{caller}: column '{name}' must have at most {_MOST_CATEGORIES:,} categories, got {len(words):,}; use "
            "one_hot=False with an embedding, or leave it out of the inputs"
        )
    return CategoryColumn(name, tuple(words), fill, options.one_hot)


def _choice(missing: Any, name: Hashable) -> Any:
    """Return the user's choice for missing values of a column."""
    return missing.get(name) if isinstance(missing, Mapping) else missing


def _fill(caller: str, name: Hashable, numbers: Numbers, choice: Any) -> float | None:
    """Return the number in place of missing values."""
    if choice is None or choice == "category":
        return None
    if isinstance(choice, int | float) and not isinstance(choice, bool) and np.isfinite(choice):
        return choice
    if choice not in _STATISTICS:
        raise ValueError(
            f"{caller}: 'missing' must be 'mean', 'median', 'most_frequent' or a number for column '{name}', got "
            f"{format_value(choice)}"
        )
    present = numbers.values[~numbers.missing]
    if not len(present):
        raise ValueError(f"{caller}: column '{name}' must have some value for its {choice}, got none; leave it out")
    if choice == "most_frequent":
        values, count = np.unique(present, return_counts=True)
        found = values[count.argmax()].item()
    else:
        found = float(np.mean(present) if choice == "mean" else np.median(present))
    return int(found) if numbers.integer and float(found).is_integer() else found
