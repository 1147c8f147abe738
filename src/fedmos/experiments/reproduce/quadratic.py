"""Power-of-Choice's quadratic problems. Their optimum is known; they need no data set."""

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
from ..runner import PlannedRun
from .groups import Deadline, hardware
from .record import RunRecord, StudyRecords, fingerprint, run_folder
from .study import StudyPart, fitting
from .train import Echo, ReproduceOptions, session

_POINTS = 200
"""Points of a curve."""


def train(
    part: StudyPart, options: ReproduceOptions, out: Path, records: StudyRecords, deadline: Deadline, echo: Echo
) -> None:
    """Train the runs of a part that the records lack, and add them to the records."""
    table = part.table
    rounds = options.rounds or int(table["rounds"])
    labels = fitting(options.methods, part.labels)
    for method in table["methods"]:
        for seed in table["seeds"][: options.seeds]:
            planned = PlannedRun(method["label"], (("lr", float(table["lr"])),), seed)
            before = records.find(part, planned)
            if planned.label not in labels or (before is not None and before["rounds"] >= rounds):
                continue
            if deadline.passed:
                return
            echo(f"{part.key}: {planned.label}, {rounds} rounds")
            began = time.perf_counter()
            selector = _selector(method["selection"])
            result = _train(part, planned, selector, rounds, out, deadline)
            records.add(part, [_record(part, planned, result, selector, rounds)])
            seconds = time.perf_counter() - began
            machine = hardware(str(result.info.get("device", "cpu")))
            records.sessions(part).append(session(seconds, [planned], len(result.history), result.info, machine))
            records.write()
            if result.interrupted and not deadline.passed:  # the user pressed Ctrl-C
                raise KeyboardInterrupt


def _selector(table: dict[str, Any]) -> Selector:
    fields = dict(table)
    return selectors()[fields.pop("name")](**fields)


def _train(
    part: StudyPart, planned: PlannedRun, selector: Selector, rounds: int, out: Path, deadline: Deadline
) -> Result:
    table = part.table
    problem = quadratic(table["clients"], table["dimensions"], seed=planned.seed)
    start = torch.full((table["dimensions"],), float(table["start"]), dtype=torch.float64)
    return run(
        problem.model(start),
        problem.data(),
        FedAvg(lr=planned.lr),
        selector,
        rounds=rounds,
        local_steps=table["local_steps"],
        loss=problem.objective,
        eval_every=table["eval_every"],
        seed=planned.seed,
        dtype=torch.float64,
        device="cpu",
        out=run_folder(planned, out),
        resume=True,
        checkpoint_every="2min",
        callbacks=[deadline],
    )


def _record(part: StudyPart, planned: PlannedRun, result: Result, selector: Selector, rounds: int) -> RunRecord:
    table = part.table
    problem = quadratic(table["clients"], table["dimensions"], seed=planned.seed)
    bounds = skew_bounds(selector, problem, points=2, draws=2_000)
    best = float(problem.loss(problem.optimum))
    excess = _excess(result.history, best)
    return {
        "method": planned.label,
        "lr": planned.lr,
        "seed": planned.seed,
        "tuning": False,
        "configuration": fingerprint(part, planned.label, planned.lr),
        "rounds": len(result.history),
        "ended": "complete" if len(result.history) >= rounds else "cut off",
        "given": given(excess, bounds.rho, bounds.rho_tilde, part),
        "curve": curve(excess),
    }


def _excess(history: History, best: float) -> list[tuple[int, float]]:
    """Return F − F* by round."""
    return [(r.round, r.train_loss - best) for r in history if r.train_loss is not None]


def given(excess: list[tuple[int, float]], rho: float, rho_tilde: float, part: StudyPart) -> dict[str, float | None]:
    """Return the values of the part's columns, by key."""
    middle = dict(excess).get(int(part.table["middle"]))
    end = excess[-1][1] if excess else None
    return {"rho": rho, "bias": rho_tilde / rho, "middle": middle, "end": end}


def curve(excess: list[tuple[int, float]]) -> dict[str, list[float]]:
    """Return some points of F − F*, evenly spaced."""
    some = excess[:: max(1, len(excess) // _POINTS)]
    return {"round": [t for t, _ in some], "excess": [float(f"{v:.6g}") for _, v in some]}
