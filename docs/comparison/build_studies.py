"""Write the tables of measured studies into the pages of docs/ from data/studies.json; the text around them stays.

bash benchmarks/device/cpu_studies.sh                                # or: python benchmarks/studies.py train JOB …
python docs/comparison/build_studies.py [runs/studies] [--print]     # adds the runs in this folder to the JSON

fedmos compare examples/cifar10_codecs.toml --out runs/cifar10_codecs
python docs/comparison/build_studies.py --codecs-cifar10 runs/cifar10_codecs/table.json

A page has a table between `<!-- study: NAME -->` and `<!-- end -->`, and a sentence on rounds, seeds and noise between
`<!-- setting: NAME -->` and `<!-- end -->`. With --print, tables are printed and no file changes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
DOCS, NUMBERS = HERE.parent, HERE / "data" / "studies.json"
Numbers = Mapping[str, Any]
Table = tuple[list[str], list[list[str]]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, help="results of benchmarks/studies.py")
    parser.add_argument("--codecs-cifar10", type=Path, metavar="TABLE.JSON", help="of examples/cifar10_codecs.toml")
    parser.add_argument("--print", action="store_true", help="print the tables, and change no file")
    given = parser.parse_args()
    numbers = json.loads(NUMBERS.read_text("utf-8")) if NUMBERS.exists() else {}
    for file in sorted(given.folder.glob("*/*.json")) if given.folder else ():
        add(numbers, json.loads(file.read_text("utf-8")))
    if given.codecs_cifar10:
        numbers["codecs-cifar10"] = compared(given.codecs_cifar10)
    if given.print:
        for name in TABLES:
            print(f"{name}\n\n{written(name, numbers)}\n")
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
    if job["study"] == "private-pfl":
        add_private_pfl(numbers.setdefault("private-pfl", {}), job)
        return
    kept = {k: v for k, v in job.items() if k not in ("study", "method", "variant", "runs", "tried")}
    kept["tried"] = [{k: run[k] for k in ("lr", "clip") if k in run} for run in job["tried"]]
    kept["runs"] = [short(run, {0.9, 0.95, job["target"]} - {None}) for run in job["runs"]]
    numbers.setdefault(job["study"], {}).setdefault(job["method"], {})[job["variant"]] = kept


def add_private_pfl(runs: dict[str, Any], run: Numbers) -> None:
    """Add a run in pfl's setting, or for its time, that `benchmarks/private_pfl.py` or pfl's job wrote.

    It does not replace a longer one.
    """
    rounds = 1500 if run["split"] == "iid" and run["epsilon"] is None else 3000
    as_pfl = run["images"] == 50_000 and (run["timed"] or run["planned"] == rounds)
    name = " ".join(str(run[k]) for k in ("code", "split", "epsilon", "method", "seed"))
    name += " timed" if run["timed"] else ""
    if as_pfl and "last" in run and run["rounds"] >= runs.get(name, run)["rounds"]:
        runs[name] = {k: v for k, v in run.items() if k not in ("study", "accuracy")}


def short(run: Numbers, levels: Iterable[float]) -> dict[str, Any]:
    """Return a run with the points where its curve reaches these levels, in place of the curve."""
    found = {k: v for k, v in run.items() if k not in ("curve", "reached", "lr", "clip")}
    for level in levels:
        point = next((p for p in run["curve"] if p["accuracy"] >= level), None)
        if point is not None:
            found[f"to {level}"] = {k: v for k, v in point.items() if k != "accuracy"}
    found["rounds"] = run["curve"][-1]["round"] if run["curve"] else 0
    return found


def compared(file: Path) -> dict[str, Any]:
    """Return the jobs of a comparison of methods with codecs, labelled "METHOD, CODEC", from its table.json.

    Rounds come from the comparison.toml beside it, best accuracies and megabytes of whole runs from the folders of runs
    there, if these exist.
    """
    table, plan = json.loads(file.read_text("utf-8")), file.with_name("comparison.toml")
    common = {"target": table["target"], "tried": []}
    if plan.exists():
        common["rounds"] = tomllib.loads(plan.read_text("utf-8"))["rounds"]
    found: dict[str, Any] = {}
    for number, row in enumerate(table["methods"]):
        runs = []
        for i, seed in enumerate(row["seeds"]):
            own = {name: values[i] for name, values in row["per_seed"].items() if values[i] is not None}
            run = {"seed": seed} | ({"accuracy": own["final"]} if "final" in own else {})
            if "rounds" in own:
                run[f"to {table['target']}"] = {"round": own["rounds"], "mb": own["megabytes"]}
            if seed in row["ended_early"]:
                run["diverged"] = True
            runs.append(run | whole(file.parent / "runs" / f"{number}-lr{row['step_size']:g}-seed{seed}"))
        method, codec = row["method"].split(", ")
        job = common | {"tuned": {"lr": row["step_size"]}, "runs": runs}
        found.setdefault(method, {})[codec.replace(" ", "-")] = job
    return found


def whole(folder: Path) -> dict[str, float]:
    """Return the best accuracy and the megabytes of all rounds from the folder of a run, if it exists."""
    file = folder / "metrics.jsonl"
    if not file.exists():
        return {}
    records = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    accuracies = [r["accuracy"] for r in records if r["accuracy"] is not None]
    best = {"best": max(accuracies)} if accuracies else {}
    return best | {"mb": sum(r["bytes_up"] + r["bytes_down"] for r in records) / 1e6}


def filled(page: str, numbers: Numbers) -> str:
    """Return the page with its tables and the sentences on their runs made anew."""
    for name in TABLES:
        for kind, text in (("study", written), ("setting", setting)):
            mark = f"<!-- {kind}: {name} -->\n"
            if mark in page:
                before, rest = page.split(mark, 1)
                page = f"{before}{mark}{text(name, numbers)}\n<!-- end -->{rest.split('<!-- end -->', 1)[1]}"
    return page


def written(name: str, numbers: Numbers) -> str:
    headings, rows = TABLES[name](numbers)
    return markdown(headings, rows) if rows else "Not run."


def setting(name: str, numbers: Numbers) -> str:
    """Return a sentence on the rounds, the seeds and the noise of a study's runs; empty without runs."""
    found = measured_jobs(numbers, name)
    if not found:
        return ""
    seeds = either(len(job["runs"]) for _, job in found)
    text = f"{seeds} {'seed' if seeds == '1' else 'seeds'}."
    if rounds := either(job["rounds"] for _, job in found if "rounds" in job):
        early = found[0][1]["target"] and not any("mb" in run for _, job in found for run in job["runs"])
        text = f"{'At most ' if early else ''}{rounds} rounds a run, {text}"
    if noise := {float(variant): job["noise_multiplier"] for variant, job in found if job.get("noise_multiplier")}:
        text += f" z is {' and '.join(f'{noise[e]:.3f} for ε = {e:g}' for e in sorted(noise))}."
    return text


def either(values: Iterable[int]) -> str:
    return " or ".join(str(value) for value in sorted(set(values)))


def measured_jobs(numbers: Numbers, study: str) -> list[tuple[str, Numbers]]:
    """Return the jobs of a study that have runs, with their variants."""
    methods = numbers.get(study, {}).values()
    return [(variant, job) for variants in methods for variant, job in variants.items() if job.get("runs")]


def target(numbers: Numbers, study: str) -> float:
    """Return the accuracy that all jobs of a study train to."""
    targets: set[float] = {job["target"] for _, job in measured_jobs(numbers, study)}
    if len(targets) != 1:
        raise ValueError(f"{study}: all jobs must have the same target, got {sorted(targets)}")
    return targets.pop()


def measured_rows(rows: list[list[str]]) -> list[list[str]]:
    """Return the rows of jobs that were run."""
    return [row for row in rows if row[1] != "not run"]


def markdown(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return "Not run."
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
    """Return the step size of a job, and whether it is at the end of those tried."""
    if "tuned" not in job:
        return "not run"
    lr, tried = job["tuned"]["lr"], [run["lr"] for run in job["tried"]]
    if not tried:
        return f"{lr:g}"
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


def codecs(numbers: Numbers, study: str, more: Mapping[str, Callable[[Numbers], str]]) -> Table:
    """Return rounds and megabytes to the target, and `more` columns."""
    if not measured_jobs(numbers, study):
        return [], []
    rows, level = [], target(numbers, study)
    for method in ("FedAvg", "FedMoS", "FedHBM", "SCAFFOLD"):
        jobs = numbers[study].get(method, {})
        for variant, title in CODECS.items():
            job = jobs.get(variant, {})
            measured = [to_level(job, level, unit, ".0f") for unit in ("round", "mb")]
            fewer = ratio(jobs.get("plain", {}), job, level)
            rows.append(
                [f"{method}, {title}", step_size(job), *measured, fewer, *(cell(job) for cell in more.values())]
            )
    headings = ["method, codec", "step size", f"rounds to {percent(level)}", f"MB to {percent(level)}", "× fewer MB"]
    return [*headings, *more], measured_rows(rows)


def percent(level: float) -> str:
    return f"{100 * level:g} %"


def ratio(plain: Numbers, coded: Numbers, level: float) -> str:
    """Return how many times fewer megabytes the coded runs need to an accuracy, of the means over seeds."""
    means = []
    for job in (plain, coded):
        values = [run[f"to {level}"]["mb"] for run in job.get("runs", []) if f"to {level}" in run]
        if not values or len(values) < len(job["runs"]):
            return "–"
        means.append(statistics.fmean(values))
    return f"{means[0] / means[1]:.1f}"


def of_whole_runs(job: Numbers, name: str, form: str, factor: float = 1.0) -> str:
    """Return a number of runs of which the folders were read."""
    values = [run[name] for run in job.get("runs", []) if name in run]
    return spread(values, form, factor) if values else "–"


def asynchronous(numbers: Numbers, study: str) -> Table:
    if not measured_jobs(numbers, study):
        return [], []
    rows, level = [], target(numbers, study)
    for method in ("FedAvg", "FedAvgM", "FedAvgM(β=0.5)", "FedMoS", "FedHBM"):
        for variant in ("synchronous", "buffered"):
            job = numbers[study].get(method, {}).get(variant, {})
            units = [("seconds", ".1f"), ("round", ".0f"), ("mb", ".0f")]
            measured = [to_level(job, level, unit, form) for unit, form in units]
            rows.append([f"{method}, {variant}", step_size(job), *measured])
    headings = [f"{unit} to {percent(level)}" for unit in ("simulated seconds", "server steps", "MB")]
    return ["method", "step size", *headings], measured_rows(rows)


def private(numbers: Numbers, study: str) -> Table:
    rows = []
    for method in ("FedAvg", "FedAvgM", "FedMoS", "FedHBM", "SCAFFOLD"):
        jobs = numbers.get(study, {}).get(method, {})
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


def private_pfl(numbers: Numbers) -> Table:
    """The accuracy after the last round, by pfl's code and here, and seconds a round of runs that were timed alone."""
    runs = numbers.get("private-pfl", {}).values()
    rows = []
    for split, title in {"iid": "IID", "dirichlet": "Dirichlet 0.1"}.items():
        for epsilon in sorted({run["epsilon"] for run in runs}, key=lambda e: e or float("inf")):
            for method in ("FedAvg", "FedAvgM", "FedMoS"):
                key = (split, epsilon, method)
                chosen = [run for run in runs if (run["split"], run["epsilon"], run["method"]) == key]
                by = {code: [run for run in chosen if run["code"] == code] for code in ("pfl", "fedmos")}
                cells = [*map(last_accuracy, by.values()), *map(timed_round, by.values())]
                if chosen:
                    rows.append([f"{title}, {method}", "none" if epsilon is None else f"{epsilon:g}", *cells])
    names = ("pfl: accuracy, % (seeds)", "fedmos: accuracy, % (seeds)", "pfl: s a round", "fedmos: s a round")
    return ["split, method", "ε", *names], rows


def last_accuracy(runs: Sequence[Numbers]) -> str:
    """Return the accuracy after the last round, and how far runs came that ended early."""
    runs = [run for run in runs if not run["timed"]]
    text = spread([run["last"] for run in runs], ".1f", 100)
    early = [run["rounds"] for run in runs if run["rounds"] < run["planned"]]
    return " ".join(
        [text, f"({len(runs)})" * bool(runs), f"ended after {min(early, default=0):,}" * bool(early)]
    ).strip()


def timed_round(runs: Sequence[Numbers]) -> str:
    return spread([run["seconds_per_round"] for run in runs if run["timed"] and run["seconds_per_round"]], ".4f")


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
    "codecs": partial(codecs, study="codecs", more={"MB to 90 %": lambda job: to_level(job, 0.9, "mb", ".0f")}),
    "codecs-cifar10": partial(
        codecs,
        study="codecs-cifar10",
        more={
            "MB of the whole run": lambda job: of_whole_runs(job, "mb", ".0f"),
            "best accuracy, %": lambda job: of_whole_runs(job, "best", ".1f", 100),
            "final accuracy, %": lambda job: score(job, "accuracy"),
        },
    ),
    "asynchronous": partial(asynchronous, study="asynchronous"),
    "asynchronous-cifar10": partial(asynchronous, study="asynchronous-cifar10"),
    "private": partial(private, study="private"),
    "private-cifar10": partial(private, study="private-cifar10"),
    "private-pfl": private_pfl,
    "personal": personal,
    "robust": robust,
}


if __name__ == "__main__":
    main()
