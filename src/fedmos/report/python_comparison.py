"""Read the folder of a comparison that `fm.compare` has made."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..experiments.comparison import folder_name
from ..experiments.seed_statistics import GridTrial, MethodResult, TunedValues
from ..run.result import Result
from .checks import ReportSource


def read_python_comparison(folder: Path, text: str) -> ReportSource:
    """Return the methods of a complete comparison; `text` is its description.

    Raises:
        FileNotFoundError: If the comparison is not complete.
        ValueError: If its files are damaged.
    """
    described = tomllib.loads(text)
    try:
        table = json.loads((folder / "table.json").read_text("utf-8"))
        rows = [
            _row(folder, described, row, numbers)
            for row, numbers in zip(described["rows"], table["methods"], strict=True)
        ]
        target = None if table["target"] is None else (str(table["metric"]), float(table["target"]))
    except FileNotFoundError:
        raise FileNotFoundError(
            f"Cannot report {folder} because the comparison is not complete; use the same fm.compare again, with out="
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"Cannot report {folder} because its files are damaged: {error!r}") from error
    return ReportSource(
        folder=folder,
        results=rows,
        target=target,
        data=None,
        text=text,
        title=str(described["title"]),
        note=str(described["note"]),
        reference=str(described["baseline"]),
        metric=str(table["metric"]),
    )


def _row(
    folder: Path, described: Mapping[str, Any], row: Mapping[str, Any], numbers: Mapping[str, Any]
) -> MethodResult:
    tuned = None if numbers["tuned"] is None else tuned_values(numbers["tuned"])
    values = {"lr": numbers["step_size"]} if tuned is None else tuned.values
    names = {seed: folder_name(row["method"], values, seed) for seed in described["seeds"]}
    results = {seed: Result.load(folder / "runs" / name) for seed, name in names.items()}
    against = None if numbers["against"] == described["baseline"] else numbers["against"]
    return MethodResult.of(numbers["method"], numbers["step_size"], results, tuned=tuned, against=against)


def tuned_values(table: Mapping[str, Any]) -> TunedValues:
    """Read the tuned values of a method from table.json."""
    return TunedValues(dict(table["values"]), dict(table["edges"]), [GridTrial(**one) for one in table["tried"]])
