"""Power-of-Choice's quadratic problems, whose optimum is known: they need no data set, and are no comparison."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch

from ...algorithms import FedAvg
from ...config.registry import selectors
from ...core.history import History
from ...data.synthetic import quadratic
from ...evaluation.analysis import skew_bounds
from ...run.api import run
from ...run.result import Result
from ...selection.selector import Selector
from .record import Job, Records, fingerprint
from .study import Part, fitting
from .train import Deadline, Say, Wanted, session

_POINTS = 200


def train(part: Part, wanted: Wanted, out: Path, records: Records, deadline: Deadline, say: Say) -> None:
    """Train what the records lack of a part, method by method."""
    table = part.table
    rounds = wanted.rounds or int(table["rounds"])
    labels = fitting(wanted.methods, part.labels)
    for method in table["methods"]:
        for seed in table["seeds"][: wanted.seeds]:
            job = Job(method["label"], float(table["lr"]), seed)
            before = records.find(part, job)
            if job.label not in labels or (before is not None and before["rounds"] >= rounds):
                continue
            if deadline.passed:
                return
            say(f"{part.key}: {job.label}, {rounds} rounds")
            began = time.perf_counter()
            selector = _selector(method["selection"])
            result = _train(part, job, selector, rounds, out, deadline)
            records.add(part, [_record(part, job, result, selector, rounds)])
            records.sessions(part).append(session(time.perf_counter() - began, [job], len(result.history), result.info))
            records.write()
            if result.interrupted and not deadline.passed:  # somebody pressed Ctrl-C
                raise KeyboardInterrupt


def _selector(table: dict[str, Any]) -> Selector:
    fields = dict(table)
    return selectors()[fields.pop("name")](**fields)


def _train(part: Part, job: Job, selector: Selector, rounds: int, out: Path, deadline: Deadline) -> Result:
    table = part.table
    problem = quadratic(table["clients"], table["dimensions"], seed=job.seed)
    start = torch.full((table["dimensions"],), float(table["start"]), dtype=torch.float64)
    return run(
        problem.model(start),
        problem.data(),
        FedAvg(lr=job.lr),
        selector,
        rounds=rounds,
        local_steps=table["local_steps"],
        loss=problem.objective,
        eval_every=table["eval_every"],
        seed=job.seed,
        dtype=torch.float64,
        device="cpu",
        out=job.folder(out),
        resume=True,
        checkpoint_every="2min",
        callbacks=[deadline],
    )


def _record(part: Part, job: Job, result: Result, selector: Selector, wanted: int) -> dict[str, Any]:
    table = part.table
    problem = quadratic(table["clients"], table["dimensions"], seed=job.seed)
    bounds = skew_bounds(selector, problem, points=2, draws=2_000)
    best = float(problem.loss(problem.optimum))
    excess = _excess(result.history, best)
    return {
        "method": job.label,
        "lr": job.lr,
        "seed": job.seed,
        "tuning": False,
        "configuration": fingerprint(part, job.label, job.lr),
        "rounds": len(result.history),
        "ended": "complete" if len(result.history) >= wanted else "cut off",
        "given": given(excess, bounds.rho, bounds.rho_tilde, part),
        "curve": curve(excess),
    }


def _excess(history: History, best: float) -> list[tuple[int, float]]:
    """F − F* by round."""
    return [(r.round, r.train_loss - best) for r in history if r.train_loss is not None]


def given(excess: list[tuple[int, float]], rho: float, rho_tilde: float, part: Part) -> dict[str, float | None]:
    """The quantities of the part's columns."""
    middle = dict(excess).get(int(part.table["middle"]))
    end = excess[-1][1] if excess else None
    return {"rho": rho, "bias": rho_tilde / rho, "middle": middle, "end": end}


def curve(excess: list[tuple[int, float]]) -> dict[str, list[float]]:
    some = excess[:: max(1, len(excess) // _POINTS)]
    return {"round": [t for t, _ in some], "excess": [float(f"{v:.6g}") for _, v in some]}
