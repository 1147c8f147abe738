"""The table of a comparison as Markdown, LaTeX, CSV and JSON."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..storage.files import replace_file
from .table import ComparisonTable


def as_json(table: ComparisonTable) -> str:
    """Return all numbers as JSON."""
    return json.dumps(table.to_dict(), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def as_csv(table: ComparisonTable) -> str:
    """Return a line per method and a column per number; cells of values that were not reached are empty."""
    lines = [_flat({k: v for k, v in one.items() if k != "per_seed"}) for one in table.to_dict()["methods"]]
    for line in lines:
        line.pop("tuned_tried", None)
    out = io.StringIO()
    writer = csv.DictWriter(out, list(dict.fromkeys(key for line in lines for key in line)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return out.getvalue()


def _flat(table: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Flatten nested tables; keys are joined by "_"."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{before}{key}_")
        else:
            flat[before + key] = " ".join(map(str, value)) if isinstance(value, list) else value
    return flat


def as_markdown(table: ComparisonTable) -> str:
    """Return the table as Markdown."""
    columns = table.columns()
    lines = [[c.heading for c in columns], [":--", *["--:"] * (len(columns) - 1)], *table.cells()]
    escaped = [[re.sub(r"([|\\`*_<>\[\]])", r"\\\1", cell) for cell in line] for line in lines]
    escaped[1] = lines[1]
    return "".join(f"| {' | '.join(line)} |\n" for line in escaped)


_LATEX = {c: f"\\{c}" for c in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "×": r"$\times$",
    "<": r"$<$",
    ">": r"$>$",
    "[": "{[}",  # LaTeX would take a bare one, like a star, for an argument of the line break before it
    "*": "{*}",
}


def as_latex(table: ComparisonTable) -> str:
    """Return a `tabular` with the rules of the package booktabs."""

    def line(cells: Sequence[str]) -> str:
        return " & ".join("".join(_LATEX.get(c, c) for c in cell) for cell in cells) + r" \\"

    columns = table.columns()
    return "\n".join(
        [
            rf"\begin{{tabular}}{{l{'r' * (len(columns) - 1)}}}",
            r"\toprule",
            line([c.heading for c in columns]),
            r"\midrule",
            *map(line, table.cells()),
            r"\bottomrule",
            r"\end{tabular}",
            "",
        ]
    )


def write(table: ComparisonTable, folder: Path) -> None:
    """Write table.json, table.csv, table.md and table.tex."""
    for ending, text in (("json", as_json), ("csv", as_csv), ("md", as_markdown), ("tex", as_latex)):
        replace_file(folder / f"table.{ending}", text(table).encode())
