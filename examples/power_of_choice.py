"""The experiments of Power-of-Choice: quadratic (Figure 2), Synthetic(1,1) (Figure 3), Fashion-MNIST (Tables 1 and 2),
and Fashion-MNIST with clients that come and go (Appendix G.3).

    python examples/power_of_choice.py run quadratic synthetic fmnist availability --out runs/power-of-choice
    python examples/power_of_choice.py show runs/power-of-choice --figures docs/images

`run` trains, several runs at a time, and writes NAME.json with every run's curve; what is there already is
kept. `show` prints the tables, and draws Figure 2.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import fedmos as fm
from fedmos.report.figure import Line, line_chart

SEEDS = (0, 1, 2)
Run = dict[str, Any]


# ------------------------------------------------------------------------------------------- what runs


def quadratic() -> Iterator[Run]:
    for clients, m in ((30, 3), (100, 10)):
        for d in (None, 2 * m, 5 * m, clients):
            yield {"clients": clients, "method": "rand" if d is None else f"pow-d, d={d}", "m": m, "d": d, "seed": 0}


def run_quadratic(clients: int, m: int, d: int | None, seed: int, rounds: int = 10_000, **_: Any) -> Run:
    problem = fm.datasets.quadratic(clients, seed=seed)
    select = fm.MD(m=m) if d is None else fm.PowerOfChoice(m=m, d=d)
    result = fm.run(
        problem.model(torch.full((5,), 5.0, dtype=torch.float64)),
        problem.data(),
        fm.FedAvg(lr=2e-5),
        select,
        rounds=rounds,
        local_steps=2,
        loss=problem.objective,
        eval_every=50,
        seed=seed,
        dtype=torch.float64,
        device="cpu",
    )
    bounds = fm.analysis.skew_bounds(select, problem, points=2, draws=2_000)
    return {
        "train_loss": curve(result, "train_loss"),
        "best": float(problem.loss(problem.optimum)),
        "rho": bounds.rho,
        "rho_tilde": bounds.rho_tilde,
    }


def synthetic() -> Iterator[Run]:
    for m in (1, 3):
        for d in (None, 2 * m, 10 * m):
            for seed in SEEDS:
                yield {"method": "rand" if d is None else f"pow-d, d={d // m}m", "m": m, "d": d, "seed": seed}


def run_synthetic(m: int, d: int | None, seed: int, rounds: int = 800, **_: Any) -> Run:
    result = fm.run(
        fm.models.logistic(features=60),
        fm.datasets.synthetic(1, 1, clients=30, seed=seed),
        fm.FedAvg(lr=0.05),
        fm.MD(m=m) if d is None else fm.PowerOfChoice(m=m, d=d),
        rounds=rounds,
        local_steps=30,
        batch_size=50,
        lr_decay={300: 0.5, 600: 0.5},
        eval_every=2,
        seed=seed,
        device="cpu",
    )
    return {"train_loss": curve(result, "train_loss"), "accuracy": curve(result, "accuracy")}


METHODS = {
    "rand, C=.1": fm.MD(m=10),
    "rand": fm.MD(m=3),
    "pow-d, d=6": fm.PowerOfChoice(m=3, d=6),
    "cpow-d, d=6": fm.PowerOfChoice(m=3, d=6, loss="batch"),
    "rpow-d, d=50": fm.PowerOfChoice(m=3, d=50, loss="reported"),
    "afl": fm.ActiveFL(m=3),
}


def fmnist() -> Iterator[Run]:
    for alpha in (0.3, 2.0):
        for method in METHODS:
            for seed in SEEDS:
                yield {"alpha": alpha, "method": method, "seed": seed}


def availability() -> Iterator[Run]:
    for seed in SEEDS[:2]:
        for alpha in (0.3, 2.0):
            for method in ("rand", "pow-d, d=6", "rpow-d, d=40"):
                yield {"alpha": alpha, "method": method, "seed": seed, "availability": True}


def run_fmnist(alpha: float, method: str, seed: int, availability: bool = False, rounds: int = 500, **_: Any) -> Run:
    data = fm.datasets.load("fmnist").partition(fm.partition.DirichletByClass(alpha=alpha), clients=100, seed=seed)
    # Of the 45 clients present in a round of G.3, 50 candidates are too many.
    select = METHODS.get(method) or fm.PowerOfChoice(m=3, d=40, loss="reported")
    result = fm.run(
        fm.models.mlp(seed=seed),
        data,
        fm.FedAvg(lr=0.005),
        select,
        rounds=rounds,
        local_steps=30,
        batch_size=64,
        lr_decay={150: 0.5, 300: 0.5},
        seed=seed,
        eval_every=2,
        device="cpu",  # so small a model gains nothing from a GPU, and several runs share the cores
        availability=fm.Alternating(groups=2, drop=0.1) if availability else None,
    )
    megabytes = result.bytes_to("accuracy", 0.6)
    return {
        "accuracy": curve(result, "accuracy"),
        "train_loss": curve(result, "train_loss"),
        "megabytes_to_60": None if megabytes is None else megabytes / 1e6,
        "short_rounds": result.short_rounds,
    }


run_availability = run_fmnist


def curve(result: fm.Result, metric: str) -> list[tuple[int, float]]:
    return [(r.round, getattr(r, metric)) for r in result.history if getattr(r, metric) is not None]


# ----------------------------------------------------------------------------------------- running it


def work(job: tuple[str, Run, int | None]) -> tuple[str, Run]:
    name, settings, rounds = job
    torch.set_num_threads(1)
    more = {} if rounds is None else {"rounds": rounds}
    return name, settings | globals()[f"run_{name}"](**settings, **more)


def run(arguments: argparse.Namespace) -> None:
    arguments.out.mkdir(parents=True, exist_ok=True)
    kept = {name: load(arguments.out, name) for name in arguments.names}
    jobs = []
    for name in arguments.names:
        done = [{k: r[k] for k in s} for r in kept[name] for s in [next(iter(globals()[name]()))]]
        jobs += [(name, s, arguments.rounds) for s in globals()[name]() if s not in done]
    with multiprocessing.get_context("spawn").Pool(arguments.workers) as pool:
        for count, (name, finished) in enumerate(pool.imap_unordered(work, jobs), 1):
            kept[name].append(finished)
            (arguments.out / f"{name}.json").write_text(json.dumps(kept[name]))
            print(f"{count}/{len(jobs)} {name}: {finished['method']}", flush=True)


def load(folder: Path, name: str) -> list[Run]:
    path = folder / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else []


# ------------------------------------------------------------------------------------------ showing it


def reached(points: list[tuple[int, float]], target: float, down: bool) -> int | None:
    return next((t for t, v in points if (v <= target if down else v >= target)), None)


def spread(values: list[float | None], digits: int = 0) -> str:
    known = [v for v in values if v is not None]
    if not known:
        return "–"
    text = f"{statistics.mean(known):.{digits}f}"
    text += f" ± {statistics.stdev(known):.{digits}f}" if len(known) > 1 else ""
    return text + ("" if len(known) == len(values) else f" ({len(known)}/{len(values)})")


def grouped(runs: list[Run], *keys: str) -> dict[tuple[Any, ...], list[Run]]:
    groups: dict[tuple[Any, ...], list[Run]] = {}
    for r in runs:
        groups.setdefault(tuple(r[key] for key in keys), []).append(r)
    return dict(sorted(groups.items(), key=lambda item: str(item[0])))


def show(arguments: argparse.Namespace) -> None:
    for name in ("quadratic", "synthetic", "fmnist", "availability"):
        runs = load(arguments.folder, name)
        if runs:
            print(f"\n{name}\n" + "\n".join(globals()[f"show_{name}"](runs)))
    if arguments.figures is not None:
        draw_quadratic(load(arguments.folder, "quadratic"), arguments.figures)


def draw_quadratic(runs: list[Run], folder: Path) -> None:
    for (clients,), group in grouped(runs, "clients").items():
        lines = []
        for r in sorted(group, key=lambda r: r["d"] or 0):
            points = [(t, math.log10(v - r["best"])) for t, v in r["train_loss"]]
            lines.append(Line(label=r["method"], x=[t for t, _ in points], y=[v for _, v in points]))
        title = f"Quadratic, K = {clients}, C = 0.1: distance of the global loss from its optimum"
        chart = line_chart(lines, title=title, x="round", y="log10(F − F*)")
        (folder / f"quadratic-{clients}.svg").write_text(chart, encoding="utf-8")


def row(*cells: Any) -> str:
    return "| " + " | ".join(str(c) for c in cells) + " |"


def show_quadratic(runs: list[Run]) -> list[str]:
    lines = [row("K", "method", "ρ", "ρ̃/ρ", "F − F* after 2,000 rounds", "at the end"), "|---|---|---:|---:|---:|---:|"]
    for (clients, method), (r,) in grouped(runs, "clients", "method").items():
        excess = {t: v - r["best"] for t, v in r["train_loss"]}
        end = max(excess)
        middle = f"{excess[2000]:.3f}" if 2000 in excess else "–"
        lines.append(
            row(clients, method, f"{r['rho']:.2f}", f"{r['rho_tilde'] / r['rho']:.2f}", middle, f"{excess[end]:.3f}")
        )
    return lines


def show_synthetic(runs: list[Run]) -> list[str]:
    lines = [row("m", "method", "rounds to loss 0.5", "final loss"), "|---|---|---:|---:|"]
    for (m, method), group in grouped(runs, "m", "method").items():
        rounds = [reached(r["train_loss"], 0.5, down=True) for r in group]
        lines.append(row(m, method, spread(rounds), spread([r["train_loss"][-1][1] for r in group], 3)))
    return lines


def show_fmnist(runs: list[Run]) -> list[str]:
    lines = [row("α", "method", "rounds to 60 %", "MB to 60 %", "final accuracy, %"), "|---|---|---:|---:|---:|"]
    for (alpha, method), group in grouped(runs, "alpha", "method").items():
        rounds = [reached(r["accuracy"], 0.6, down=False) for r in group]
        final = [100 * r["accuracy"][-1][1] for r in group]
        lines.append(
            row(alpha, method, spread(rounds), spread([r["megabytes_to_60"] for r in group], 1), spread(final, 2))
        )
    return lines


show_availability = show_fmnist


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    runner = commands.add_parser("run")
    runner.add_argument("names", nargs="+", choices=["quadratic", "synthetic", "fmnist", "availability"])
    runner.add_argument("--out", type=Path, default=Path("runs/power-of-choice"))
    runner.add_argument("--workers", type=int, default=2)
    runner.add_argument("--rounds", type=int, help="fewer rounds, to try it out")
    runner.set_defaults(do=run)
    shower = commands.add_parser("show")
    shower.add_argument("folder", type=Path)
    shower.add_argument("--figures", type=Path, help="folder for the figures")
    shower.set_defaults(do=show)
    arguments = parser.parse_args()
    arguments.do(arguments)


if __name__ == "__main__":
    main()
