"""Train a comparison of Python objects in this process."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..config.comparison import ALONE
from ..config.fields import FinalOf
from ..config.schema import check_same
from ..core.formatting import one_line
from ..run.result import Result
from ..storage import toml
from ..storage.files import is_occupied, replace_file
from .captions import caption
from .comparison import Comparison, method_number, run_folder
from .objects import ObjectComparison
from .progress import ComparisonObserver
from .runner import PlannedRun, Runner, planned_methods, resolve_target
from .seed_statistics import MethodResult, TunedValues
from .table import ComparisonTable
from .table_formats import write

CONFIGURATION = "comparison.toml"


class LocalTrainer:
    """Trains runs in this process when their results are first needed; runs that are started together train together.

    Args:
        plan: The comparison.
        out: Its folder; None to keep everything in memory.
        observer: Is told how many rounds were trained.
    """

    def __init__(self, plan: ObjectComparison, out: Path | None, observer: ComparisonObserver) -> None:
        self._plan, self._out, self._observer = plan, out, observer
        self._runner = Runner(plan, None if out is None else lambda run: run_folder(plan, run, out))
        by_class: dict[type, list[str]] = {}
        for method in plan.methods:
            by_class.setdefault(type(method.algorithm), []).append(method.label)
        self.groups = list(by_class.values())
        self._waiting: list[list[PlannedRun]] = []
        self._results: dict[PlannedRun, Result] = {}

    def start(self, runs: Sequence[PlannedRun]) -> None:
        new = [run for run in dict.fromkeys(runs) if not self.started(run)]
        if new:
            self._waiting.append(new)

    def started(self, run: PlannedRun) -> bool:
        return run in self._results or any(run in batch for batch in self._waiting)

    def results(self, runs: Sequence[PlannedRun]) -> list[Result]:
        while any(run not in self._results for run in runs):
            self._train(self._waiting.pop(0))
        return [self._results[run] for run in runs]

    def folders(self, runs: Sequence[PlannedRun]) -> list[Path]:
        return [] if self._out is None else [run_folder(self._plan, run, self._out) for run in runs]

    def _train(self, runs: list[PlannedRun]) -> None:
        results = self._runner.train(runs)
        self._observer.rounds_trained = self._runner.rounds_trained
        if any(result.interrupted and "diverged" not in result.info for result in results):
            how = "nothing is kept" if self._out is None else f"the same call with out={str(self._out)!r} continues it"
            raise KeyboardInterrupt(f"The comparison was interrupted; {how}")
        self._results |= dict(zip(runs, results, strict=True))


def compare_objects(
    plan: ObjectComparison, out: Path | None, observer: ComparisonObserver
) -> tuple[ComparisonTable, dict[str, list[Result]]]:
    """Train every method for every seed; return the table, and the results of each row by seed.

    Args:
        plan: The comparison.
        out: Folder for the runs and the table. A comparison that it holds already continues.
        observer: Is called as tuning and training of a method begin and end.
    """
    trainer = LocalTrainer(plan, out, observer)
    with _in_folder(plan, out):
        rows = Comparison(plan, trainer, observer).results()
    target = resolve_target(plan, rows)
    table = ComparisonTable(metric=plan.metric, target=target, baseline=plan.reference, results=rows)
    if out is not None:
        write(table, out)
    tuned = {method.label: found for method in plan.methods if (found := _tuned(plan, rows, method.label)) is not None}
    return table, {row.label: trainer.results(row.runs(plan.seeds)) for row in planned_methods(plan, tuned)}


def _tuned(plan: ObjectComparison, rows: Sequence[MethodResult], label: str) -> TunedValues | None:
    return None if plan.tune is None else next(row.tuned for row in rows if row.label == plan.tuned_as(label))


def tune_objects(
    plan: ObjectComparison, out: Path | None, observer: ComparisonObserver
) -> tuple[dict[str, TunedValues], LocalTrainer]:
    """Train the tuning runs only; return the chosen values by label, and the trainer, which has the results."""
    trainer = LocalTrainer(plan, out, observer)
    with _in_folder(plan, out):
        return ({} if plan.tune is None else Comparison(plan, trainer, observer).tune(plan.tune)), trainer


@contextmanager
def _in_folder(plan: ObjectComparison, out: Path | None) -> Iterator[None]:
    """Write the description of a comparison into its folder, unless the folder holds another one.

    Other step sizes, seeds and grid values, more rounds, and methods appended to the list are allowed: their runs have
    their own folders or go on. Runs refuse other options themselves, and then the folder keeps its earlier files.
    """
    if out is None:
        yield
        return
    paths = [out / CONFIGURATION, out / "table.json"]
    before = {path: path.read_bytes() for path in paths if path.exists()}
    _claim(plan, out)
    try:
        yield
    except ValueError:
        for path, content in before.items():
            replace_file(path, content)
        raise


def _claim(plan: ObjectComparison, out: Path) -> None:
    path, now = out / CONFIGURATION, described(plan)
    if path.exists():
        before = tomllib.loads(path.read_text("utf-8"))
        if before.get("from_python") is not True:
            raise ValueError(f"Cannot compare in {out} because fedmos compare started it; use a new folder")
        check_same(f"the comparison in {out}", *_comparable(before, now))
    elif is_occupied(out):
        raise FileExistsError(f"Cannot compare in {out} because it holds other files; use a new folder")
    out.mkdir(parents=True, exist_ok=True)
    replace_file(path, text_of(plan).encode())
    (out / "table.json").unlink(missing_ok=True)  # its presence marks a complete comparison


def _comparable(before: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what must be the same in two descriptions."""
    old, new = {"eval_every": before.get("eval_every")}, {"eval_every": now.get("eval_every")}
    for name, was, is_now in (
        ("rounds", before["rounds"], now["rounds"]),
        ("tune.rounds", *(one.get("tune", {}).get("rounds", one["rounds"]) for one in (before, now))),
    ):
        if is_now < was:
            old[name], new[name] = was, is_now
    given = [[method for method in one["methods"] if method["label"] != ALONE] for one in (before, now)]
    for i, (mine, theirs) in enumerate(zip(*given, strict=False)):
        old[f"methods.{i}"], new[f"methods.{i}"] = mine["label"], theirs["label"]
    return old, new


def described(plan: ObjectComparison) -> dict[str, Any]:
    """Return the comparison as a table to read; a report reads its rows from it."""
    given = tuple(plan.methods) if plan.tune is None or plan.tune.rows == "both" else ()
    labels = [method.label for method in plan.methods]
    rows: list[dict[str, Any]] = [{"label": one.label, "method": method_number(labels, one.label)} for one in given]
    if plan.tune is not None:
        rows += [
            {"label": plan.tuned_as(label), "method": method_number(labels, label), "tuned": True} for label in labels
        ]
    level = {"final_of": plan.level.final_of} if isinstance(plan.level, FinalOf) else plan.level
    table = {
        "from_python": True,
        "title": plan.title,
        "note": caption(plan),
        "seeds": list(plan.seeds),
        "rounds": plan.rounds,
        "eval_every": plan.options.get("eval_every", 1),
        "metric": plan.metric,
        "baseline": plan.reference,
        "rows": rows,
        "methods": [
            {"label": m.label} | {name: one_line(repr(value), 500) for name, value in m.arguments.items()}
            for m in plan.methods
        ],
        "target": None if level is None else {plan.metric: level},
        "tune": None if plan.tune is None else plan.tune.model_dump(exclude={"lr"}, exclude_none=True),
        "options": {name: one_line(repr(value), 500) for name, value in plan.options.items()},
    }
    return {key: value for key, value in table.items() if value is not None}


def text_of(plan: ObjectComparison) -> str:
    """Return the description as TOML."""
    head = "# What fm.compare was given; the same call continues the comparison.\n"
    return head + toml.dumps(described(plan))
