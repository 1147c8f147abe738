"""Write the tables of README.md in this folder from table.json; the text around them stays.

fedmos compare examples/mnist_methods.toml --set precision=tf32 --out runs/mnist_methods
fedmos report runs/mnist_methods --out docs/comparison/report.html
cp runs/mnist_methods/table.json runs/mnist_methods/table.csv docs/comparison
python docs/comparison/build.py
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedmos.experiments.seed_statistics import spread

HERE = Path(__file__).parent
TUNED = ", tuned"
HEADINGS = (
    "method",
    "step size",
    "rounds to 95 %",
    "MB to 95 %",
    "final accuracy",
    "worst 10 % of clients",
    "speed-up in rounds",
)


def main() -> None:
    methods = json.loads((HERE / "table.json").read_text("utf-8"))["methods"]
    page = HERE / "README.md"
    page.write_text(filled(page.read_text("utf-8"), methods), "utf-8")


def filled(page: str, methods: Sequence[Mapping[str, Any]]) -> str:
    """The page with its tables made anew."""
    for name, tuned in (("common", False), ("tuned", True)):
        rows = [cells(m) for m in methods if m["method"].endswith(TUNED) == tuned]
        lines = [HEADINGS, ("---", *["---:"] * (len(HEADINGS) - 1)), *rows]
        table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
        before, rest = page.split(f"<!-- {name} -->\n", 1)
        page = f"{before}<!-- {name} -->\n{table}\n<!-- end -->{rest.split('<!-- end -->', 1)[1]}"
    return page


def cells(method: Mapping[str, Any]) -> tuple[str, ...]:
    own = method["per_seed"]
    early = len(method["ended_early"])
    return (
        method["method"].removesuffix(TUNED),
        step_size(method),
        spread(own["rounds"]),
        spread(own["megabytes"]),
        spread(own["final"], 3) + (f" ({early} of {len(own['final'])} ended early)" if early else ""),
        worst(own.get("worst_clients", [])),
        faster(method),
    )


def step_size(method: Mapping[str, Any]) -> str:
    edge = (method["tuned"] or {"edges": {}})["edges"].get("lr")
    return f"{method['step_size']:g}" + (f" ({edge} tried)" if edge else "")


def worst(values: list[float | None]) -> str:
    known = [v for v in values if v is not None]
    return spread(known, 3) if known else "not measured"


def faster(method: Mapping[str, Any]) -> str:
    if method["method"] == method["against"]:
        return "baseline"
    found = method["speed_up"]["rounds"]
    if found is None:
        return "not reached"
    few = f"; {found['seeds']} of {len(method['seeds'])} seeds" if found["seeds"] < len(method["seeds"]) else ""
    interval = "" if found["low"] is None else f"{found['low']:.2f} to {found['high']:.2f}"
    note = (interval + few).removeprefix("; ")
    return f"{found['value']:.2f}×" + (f" ({note})" if note else "")


if __name__ == "__main__":
    main()
