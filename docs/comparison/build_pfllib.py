"""Write the measured tables of ../reproduction/pfllib.md from data/pfllib.json; the text around them stays.

python benchmarks/pfllib.py train pathological:FedAvg … --out runs/pfllib
python docs/comparison/build_pfllib.py runs/pfllib [pfllib-times.txt]    # adds these runs and times to the JSON
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
NUMBERS, PAGE = HERE / "data" / "pfllib.json", HERE.parent / "reproduction" / "pfllib.md"
METHODS = ("Local", "FedAvg", "FedProx", "SCAFFOLD", "Ditto", "FedPer", "FedRep")
SPLITS = {"pathological": "Pathological", "dirichlet": "Dirichlet 0.1"}
IMAGES = 70_000
ROUNDS = (20, 50, 100, 200, 500, 1000, 2000)
KEPT = ("rounds", "precision", "seed", "device", "torch", "accuracy", "global", "seconds", "diverged")

Numbers = Mapping[str, Any]
Rows = Sequence[Sequence[str]]


def main() -> None:
    numbers = json.loads(NUMBERS.read_text("utf-8"))
    for file in sorted(Path(sys.argv[1]).glob("*.json")) if len(sys.argv) > 1 else ():
        add(numbers, json.loads(file.read_text("utf-8")))
    for line in Path(sys.argv[2]).read_text("utf-8").splitlines() if len(sys.argv) > 2 else ():
        if line.startswith("{"):
            add_time(numbers, json.loads(line))
    NUMBERS.write_text(written(numbers), "utf-8")
    PAGE.write_text(filled(PAGE.read_text("utf-8"), numbers), "utf-8")


def written(numbers: Numbers) -> str:
    """Return the JSON, with one line per run and time."""
    lists = {
        "runs": [f"  {json.dumps(name)}: {json.dumps(run)}" for name, run in sorted(numbers["runs"].items())],
        "times": [f"  {json.dumps(one)}" for one in numbers["times"]],
    }
    head = json.dumps({name: numbers[name] for name in ("source", "published")}, indent=1)[:-2]
    runs, times = (",\n".join(lines) for lines in lists.values())
    return f'{head},\n "runs": {{\n{runs}\n }},\n "times": [\n{times}\n ]\n}}\n'


def add(numbers: dict[str, Any], run: Numbers) -> None:
    """Add a run on all images that `benchmarks/pfllib.py train` wrote, unless a longer one is known."""
    key = f"{run['split']}:{run['method']}"
    before = numbers["runs"].get(key, {"rounds": 0})
    if run["images"] == IMAGES and run["accuracy"] and run["rounds"] >= before["rounds"]:
        numbers["runs"][key] = {name: run[name] for name in KEPT if name in run}


def add_time(numbers: dict[str, Any], time: Numbers) -> None:
    """Add a line of `benchmarks/pfllib.py time` or `peers/pfllib_job.py` in place of an earlier one."""
    what = ("code", "method", "split", "device")
    others = [one for one in numbers["times"] if any(one[name] != time[name] for name in what)]
    numbers["times"] = [*others, dict(time)]


def filled(page: str, numbers: Numbers) -> str:
    """Return the page with its tables made anew."""
    tables = {"pfllib accuracy": accuracy, "pfllib curves": curves, "pfllib times": times}
    for name, table in tables.items():
        headings, rows = table(numbers)
        lines = [headings, ["---", *["---:"] * (len(headings) - 1)], *rows]
        text = "\n".join("| " + " | ".join(line) + " |" for line in lines)
        before, rest = page.split(f"<!-- {name} -->\n", 1)
        page = (
            f"{before}<!-- {name} -->\n{text if rows else 'Not run.'}\n<!-- end -->{rest.split('<!-- end -->', 1)[1]}"
        )
    return page


def accuracy(numbers: Numbers) -> tuple[list[str], Rows]:
    """Published beside the best of the rounds that were run."""
    headings = ["best accuracy, %"]
    for title in SPLITS.values():
        headings += [f"{title}: published", "measured", "of N rounds", "difference"]
    rows = []
    for method in METHODS:
        row = [method]
        for split in SPLITS:
            published = numbers["published"][split].get(method)
            run = numbers["runs"].get(f"{split}:{method}")
            best = None if run is None else 100 * max(run["accuracy"].values())
            row += [
                "–" if published is None else f"{published[0]:.2f} ± {published[1]:.2f}",
                "not run" if best is None else f"{best:.2f}",
                "–" if run is None else f"{run['rounds']:,}" + (", diverged" if "diverged" in run else ""),
                "–" if published is None or best is None else f"{best - published[0]:+.2f}",
            ]
        rows.append(row)
    return headings, rows


def curves(numbers: Numbers) -> tuple[list[str], Rows]:
    """The best accuracy so far after some rounds."""
    rows = []
    for split, title in SPLITS.items():
        for method in METHODS:
            if run := numbers["runs"].get(f"{split}:{method}"):
                rows.append([f"{method}, {title}", *(best_until(run, t) for t in ROUNDS)])
    return ["best so far, %", *(f"{t:,} rounds" for t in ROUNDS)], rows


def best_until(run: Numbers, rounds: int) -> str:
    if run["rounds"] < rounds:
        return "–"
    known = [v for t, v in run["accuracy"].items() if int(t) <= rounds]
    return f"{100 * max(known):.2f}" if known else "–"


def times(numbers: Numbers) -> tuple[list[str], Rows]:
    """Seconds of a round in PFLlib and here, on the same machine and split."""
    headings = [
        "method, split",
        "device",
        "PFLlib, training, s",
        "with evaluation, s",
        "fedmos, training, s",
        "with evaluation, s",
        "times as fast",
        "training alone",
    ]
    found = {(one["code"], one["method"], one["split"], one["device"]): one for one in numbers["times"]}
    rows = []
    for (code, method, split, device), ours in found.items():
        theirs = found.get(("PFLlib", method, split, device))
        if code == "fedmos" and theirs is not None:
            pairs = [(theirs[name], ours[name]) for name in ("evaluated", "seconds")]
            figures = [f"{one[name]:.2f}" for one in (theirs, ours) for name in ("seconds", "evaluated")]
            name = f"{method}, {SPLITS[split]}"
            rows.append([name, device, *figures, *(f"{a / b:.1f}" for a, b in pairs)])
    return headings, rows


if __name__ == "__main__":
    main()
