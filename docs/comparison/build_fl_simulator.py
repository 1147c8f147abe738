"""Write the tables of fl-simulator.md from data/fl-simulator.json; the text around them stays.

python benchmarks/fl_simulator.py train dirichlet-0.1:FedAvg … --precision tf32 --out runs/fl_simulator
python docs/comparison/build_fl_simulator.py runs/fl_simulator      # adds the runs in this folder to the JSON
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
NUMBERS, PAGE = HERE / "data" / "fl-simulator.json", HERE / "fl-simulator.md"
METHODS = ("FedAvg", "SCAFFOLD", "FedCM", "MoFedSAM", "FedSpeed", "FedSMOO")
ALL_METHODS = (*METHODS, "FedHBM", "FedMoS", "FedMoS-0.02")
SPLITS = {"dirichlet-0.6": "Dirichlet 0.6", "dirichlet-0.1": "Dirichlet 0.1"}
ROUNDS = (60, 120, 180, 220, 260, 300)
COMMON_ROUNDS = (220, 300)
ONE_CLASS_ROUNDS = (40, 90)

Numbers = Mapping[str, Any]
Rows = Sequence[Sequence[str]]


def main() -> None:
    numbers = json.loads(NUMBERS.read_text("utf-8"))
    for file in sorted(Path(sys.argv[1]).glob("*.json")) if len(sys.argv) > 1 else ():
        add(numbers, json.loads(file.read_text("utf-8")))
    NUMBERS.write_text(json.dumps(numbers, indent=1) + "\n", "utf-8")
    PAGE.write_text(filled(PAGE.read_text("utf-8"), numbers), "utf-8")


def add(numbers: dict[str, Any], run: Numbers) -> None:
    """Add a run that `benchmarks/fl_simulator.py train` wrote, if it reached the first common round or diverged."""
    first = COMMON_ROUNDS[0] if run["split"] in SPLITS else ONE_CLASS_ROUNDS[0]
    if run["rounds"] >= first or "diverged" in run:
        names = ("rounds", "precision", "seed", "device", "torch", "accuracy", "diverged")
        kept = {name: run[name] for name in names if name in run}
        numbers["runs"].setdefault(run["split"], {})[run["method"]] = kept


def filled(page: str, numbers: Numbers) -> str:
    """Return the page with its tables made anew."""
    tables = {"accuracy": accuracy, "curves": curves, "one-class": one_class, "time": times}
    for name, table in tables.items():
        headings, rows = table(numbers)
        lines = [headings, ["---", *["---:"] * (len(headings) - 1)], *rows]
        text = "\n".join("| " + " | ".join(line) + " |" for line in lines)
        before, rest = page.split(f"<!-- {name} -->\n", 1)
        page = f"{before}<!-- {name} -->\n{text}\n<!-- end -->{rest.split('<!-- end -->', 1)[1]}"
    return page


def accuracy(numbers: Numbers) -> tuple[list[str], Rows]:
    headings = ["method"]
    for title in SPLITS.values():
        headings += [f"{title}: published, best of 1,000 rounds", *(f"measured after {t}" for t in COMMON_ROUNDS)]
    rows = []
    for method in METHODS:
        row = [method]
        for split in SPLITS:
            row.append(f"{numbers['published'][split][method]:.2f}")
            row += [measured(numbers, split, method, t) for t in COMMON_ROUNDS]
        rows.append(row)
    return headings, rows


def measured(numbers: Numbers, split: str, method: str, rounds: int) -> str:
    """Return the accuracy in per cent after so many rounds."""
    run = numbers["runs"].get(split, {}).get(method)
    if run is None:
        return "not run"
    found = run["accuracy"].get(str(rounds))
    if found is not None:
        return f"{100 * found:.2f}"
    return f"diverged in round {run['rounds'] + 1}" if "diverged" in run else f"ended after {run['rounds']}"


def curves(numbers: Numbers) -> tuple[list[str], Rows]:
    rows = [
        [f"{method}, {title}", *(measured(numbers, split, method, t) for t in ROUNDS)]
        for split, title in SPLITS.items()
        for method in METHODS
        if method in numbers["runs"].get(split, {})
    ]
    return ["method, split", *(f"round {t}" for t in ROUNDS)], rows


def one_class(numbers: Numbers) -> tuple[list[str], Rows]:
    rows = [
        [m, *(measured(numbers, "one-class", m, t) for t in ONE_CLASS_ROUNDS)]
        for m in ALL_METHODS
        if m in numbers["runs"].get("one-class", {})
    ]
    return ["method", *(f"round {t}" for t in ONE_CLASS_ROUNDS)], rows


def times(numbers: Numbers) -> tuple[list[str], Rows]:
    headings = [
        "method",
        "FL-Simulator, V100, published, s",
        "FL-Simulator, H200, 10 clients, s",
        "of which evaluation, s",
        "fedmos, H200, 10 clients, s",
        "of which evaluation, s",
        "times as fast",
        "training alone",
    ]
    own = numbers["seconds"]["fedmos"]
    rows = []
    for method in METHODS:
        theirs, ours = numbers["seconds"]["FL-Simulator"][method], own["training"][method]
        training = 10 / theirs["clients"] * (theirs["round"] - theirs["evaluation"])
        whole, their_whole = ours + own["evaluation"], training + theirs["evaluation"]
        faster = [f"{their_whole / whole:.0f}", f"{training / ours:.0f}"]
        published = f"{numbers['published_seconds'][method]:.2f}"
        figures = [f"{v:.2f}" for v in (their_whole, theirs["evaluation"], whole, own["evaluation"])]
        rows.append([method, published, *figures, *faster])
    return headings, rows


if __name__ == "__main__":
    main()
