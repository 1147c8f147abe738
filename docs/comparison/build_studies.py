"""Write the tables of measured studies into the pages of docs/ from data/studies.json; the text around them stays.

bash benchmarks/device/cpu_studies.sh                                # or: python benchmarks/studies.py train JOB …
python docs/comparison/build_studies.py [runs/studies] [--print]     # adds the runs in this folder to the JSON

A page has a table between `<!-- study: NAME -->` and `<!-- end -->`. With --print, tables are printed and no file
changes.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
DOCS, NUMBERS = HERE.parent, HERE / "data" / "studies.json"
Numbers = Mapping[str, Any]
Table = tuple[list[str], list[list[str]]]


def main() -> None:
    folders = [name for name in sys.argv[1:] if not name.startswith("--")]
    numbers = json.loads(NUMBERS.read_text("utf-8")) if NUMBERS.exists() else {}
    for file in sorted(Path(folders[0]).glob("*/*.json")) if folders else ():
        add(numbers, json.loads(file.read_text("utf-8")))
    if "--print" in sys.argv:
        for name in TABLES:
            print(f"{name}\n\n{markdown(*TABLES[name](numbers))}\n")
        return
    NUMBERS.write_text(json.dumps(numbers, indent=1, sort_keys=True) + "\n", "utf-8")
    for page in sorted(DOCS.glob("*.md")):
        text = page.read_text("utf-8")
        if "<!-- study: " in text:
            page.write_text(filled(text, numbers), "utf-8")


def add(numbers: dict[str, Any], job: Numbers) -> None:
    """Add a job's runs, without their curves."""
    if job["study"] == "robust":
        numbers.setdefault("robust", {})[job["attack"]] = {"rounds": job["rounds"], "runs": job["runs"]}
        return
    kept = {k: v for k, v in job.items() if k not in ("study", "method", "variant", "runs", "tried")}
    kept["tried"] = [{k: run[k] for k in ("lr", "clip") if k in run} for run in job["tried"]]
    kept["runs"] = [short(run) for run in job["runs"]]
    numbers.setdefault(job["study"], {}).setdefault(job["method"], {})[job["variant"]] = kept


def short(run: Numbers) -> dict[str, Any]:
    """Return a run with the points where its curve reaches 90 and 95 %, in place of the curve."""
    found = {k: v for k, v in run.items() if k not in ("curve", "reached", "lr", "clip")}
    for level in (0.9, 0.95):
        point = next((p for p in run["curve"] if p["accuracy"] >= level), None)
        if point is not None:
            found[f"to {level}"] = {k: v for k, v in point.items() if k != "accuracy"}
    found["rounds"] = run["curve"][-1]["round"] if run["curve"] else 0
    return found


def filled(page: str, numbers: Numbers) -> str:
    """Return the page with its tables made anew."""
    for name, table in TABLES.items():
        mark = f"<!-- study: {name} -->\n"
        if mark in page:
            before, rest = page.split(mark, 1)
            page = f"{before}{mark}{markdown(*table(numbers))}\n<!-- end -->{rest.split('<!-- end -->', 1)[1]}"
    return page


def measured_rows(rows: list[list[str]]) -> list[list[str]]:
    """Return the rows of jobs that were run."""
    return [row for row in rows if row[1] != "not run"]


def markdown(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [headings, ["---", *["---:"] * (len(headings) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def spread(values: Sequence[float], form: str, factor: float = 1.0) -> str:
    """Return mean ± standard deviation."""
    if not values:
        return "not run"
    scaled = [factor * v for v in values]
    mean = f"{statistics.fmean(scaled):{form}}"
    return mean if len(scaled) == 1 else f"{mean} ± {statistics.stdev(scaled):{form}}"


def step_size(job: Numbers) -> str:
    """Return the step size that was chosen, and whether it is at the end of those tried."""
    if "tuned" not in job:
        return "not run"
    lr, tried = job["tuned"]["lr"], [run["lr"] for run in job["tried"]]
    edge = " (smallest tried)" if lr == min(tried) else " (largest tried)" if lr == max(tried) else ""
    return f"{lr:g}{edge}"


def to_level(job: Numbers, level: float, unit: str, form: str) -> str:
    """Return what the runs of a job need to reach an accuracy, if all reach it."""
    runs = job.get("runs", [])
    values = [run[f"to {level}"][unit] for run in runs if f"to {level}" in run]
    if not runs:
        return "not run"
    return spread(values, form) if len(values) == len(runs) else f"{len(values)} of {len(runs)} runs reach it"


def score(job: Numbers, name: str) -> str:
    runs = job.get("runs", [])
    gone = sum("diverged" in run for run in runs)
    text = spread([run[name] for run in runs if name in run], ".1f", 100)
    return f"{text} ({gone} of {len(runs)} diverged)" if gone else text


CODECS = {
    "plain": "none",
    "16-bits": "16 bits",
    "8-bits": "8 bits",
    "4-bits": "4 bits",
    "1-bit": "1 bit",
    "top-1%": "top 1 %",
    "rotated-4-bits": "rotated, 4 bits",
}


def codecs(numbers: Numbers) -> Table:
    rows = []
    for method in ("FedAvg", "FedMoS", "FedHBM", "SCAFFOLD"):
        jobs = numbers.get("codecs", {}).get(method, {})
        for variant, title in CODECS.items():
            job = jobs.get(variant, {})
            measured = [to_level(job, 0.95, unit, ".0f") for unit in ("round", "mb")]
            fewer = ratio(jobs.get("plain", {}), job)
            rows.append([f"{method}, {title}", step_size(job), *measured, fewer, to_level(job, 0.9, "mb", ".0f")])
    headings = ["method, codec", "step size", "rounds to 95 %", "MB to 95 %", "× fewer MB", "MB to 90 %"]
    return headings, measured_rows(rows)


def ratio(plain: Numbers, coded: Numbers) -> str:
    """Return how many times fewer megabytes the coded runs need to 95 %, of the means over seeds."""
    means = []
    for job in (plain, coded):
        values = [run["to 0.95"]["mb"] for run in job.get("runs", []) if "to 0.95" in run]
        if not values or len(values) < len(job["runs"]):
            return "–"
        means.append(statistics.fmean(values))
    return f"{means[0] / means[1]:.1f}"


def asynchronous(numbers: Numbers) -> Table:
    rows = []
    for method in ("FedAvg", "FedAvgM", "FedAvgM(β=0.5)", "FedMoS", "FedHBM"):
        for variant in ("synchronous", "buffered"):
            job = numbers.get("asynchronous", {}).get(method, {}).get(variant, {})
            units = [("seconds", ".1f"), ("round", ".0f"), ("mb", ".0f")]
            measured = [to_level(job, 0.9, unit, form) for unit, form in units]
            rows.append([f"{method}, {variant}", step_size(job), *measured])
    headings = ["method", "step size", "simulated seconds to 90 %", "server steps to 90 %", "MB to 90 %"]
    return headings, measured_rows(rows)


def private(numbers: Numbers) -> Table:
    rows = []
    for method in ("FedAvg", "FedAvgM", "FedMoS", "FedHBM", "SCAFFOLD"):
        jobs = numbers.get("private", {}).get(method, {})
        row = [method]
        for epsilon in ("2", "8", "inf"):
            job = jobs.get(epsilon, {})
            row += [score(job, "accuracy"), tuned_pair(job)]
        rows += [row] if any(job.get("runs") for job in jobs.values()) else []
    return ["method", *(h for e in "28∞" for h in (f"ε = {e}: accuracy, %", "step size, C"))], rows


def tuned_pair(job: Numbers) -> str:
    """Return the step size and the clipping bound that were chosen, each with a star at the end of those tried."""
    if "tuned" not in job:
        return "not run"
    found = []
    for name in ("lr", "clip"):
        value, tried = job["tuned"][name], [run[name] for run in job["tried"]]
        found.append(f"{value:g}{'*' if value in (min(tried), max(tried)) else ''}")
    return ", ".join(found)


def personal(numbers: Numbers) -> Table:
    names = ("finetuned_accuracy", "unseen_accuracy", "unseen_finetuned_accuracy")
    rows = []
    for title, method, variant in PERSONAL:
        job = numbers.get("personal", {}).get(method, {}).get(variant, {})
        own = "client_accuracy" if variant == "global" else "personal_accuracy"
        rows.append([title, step_size(job), *(score(job, name) for name in (own, f"{own}_worst", *names))])
    headings = ["mean of clients", "worst 10 %", "fine-tuned", "unseen clients", "unseen clients, fine-tuned"]
    return ["method", "step size", *headings], rows


PERSONAL = [("Local training alone", "alone", "own")] + [
    (f"{method}, {title}", method, variant)
    for method in ("FedAvg", "FedMoS", "FedHBM", "FedCM")
    for variant, title in {"global": "one model for all", "head": "personal head"}.items()
]


def robust(numbers: Numbers) -> Table:
    found = numbers.get("robust", {})
    rules = list(dict.fromkeys(run["rule"] for row in found.values() for run in row["runs"]))
    rows = []
    for attack in ATTACKS:
        runs = found.get(attack, {}).get("runs", [])
        rows.append([attack, *(of_rule(runs, rule, "accuracy", ".1f") for rule in rules)])
    backdoor = found.get("BackdoorPixel(0)", {}).get("runs", [])
    rows.append(["success of the backdoor, %", *(of_rule(backdoor, rule, "backdoor", ".0f") for rule in rules)])
    return ["attack", *rules], rows


ATTACKS = (
    "none, IID clients",
    "none",
    "LabelFlip",
    "SignFlip(3)",
    "GaussianNoise(.1)",
    "ALIE(1.5)",
    "InnerProduct(.5)",
    "InnerProduct(5)",
    "BackdoorPixel(0)",
)


def of_rule(runs: Sequence[Numbers], rule: str, name: str, form: str) -> str:
    chosen = [run for run in runs if run["rule"] == rule]
    gone = sum("diverged" in run for run in chosen)
    text = spread([run[name] for run in chosen if name in run], form, 100)
    return f"{text} ({gone} diverged)" if gone else text


TABLES: dict[str, Callable[[Numbers], Table]] = {
    "codecs": codecs,
    "asynchronous": asynchronous,
    "private": private,
    "personal": personal,
    "robust": robust,
}


if __name__ == "__main__":
    main()
