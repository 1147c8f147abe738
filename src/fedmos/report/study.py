"""The runs of a report in one table, if they can be compared."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from ..config.schema import tuned_label
from ..core.formatting import format_value
from ..core.history import METRICS
from ..core.metric_names import target_rule
from ..core.validation import suggest
from ..experiments.compare import CONFIGURATION
from ..experiments.seed_statistics import MethodResult, trains_alone
from ..experiments.table import ComparisonTable
from ..run.options import options_of
from ..run.spec import RunSpec
from .checks import ReportSource, Target, check_data, check_ends, common_target
from .run_info import selector_of
from .sources import read_source

_METHOD = (
    "model",
    "rounds",
    *(name for name, option in options_of(RunSpec).items() if option.resume == "same" and name != "seed"),
)
"""Entries of a run's info that are equal for all runs of one method."""


class StudyProgress(NamedTuple):
    """The progress of a comparison or a run."""

    complete: int
    runs: int
    rounds: int
    planned: int
    """Rounds of all runs together."""
    every: float
    """Seconds after which the page reloads itself."""

    def __str__(self) -> str:
        """Return the sentence at the top of the page."""
        runs = f"{self.complete} of {self.runs} runs complete, " if self.runs > 1 else ""
        return (
            f"Running: {runs}{self.rounds} of {self.planned} rounds. Values are those so far; "
            f"the page reloads itself every {self.every:g} s."
        )


class ReportStudy(NamedTuple):
    """Methods that can be compared, and their table."""

    title: str
    note: str
    """How the numbers of the table were obtained."""
    table: ComparisonTable
    sources: list[ReportSource]
    progress: StudyProgress | None = None
    """Of a comparison that is still running; None for complete runs."""

    @property
    def results(self) -> Sequence[MethodResult]:
        return self.table.results


def read_study(folders: Sequence[Path], target: Target | None = None, baseline: str | None = None) -> ReportStudy:
    """Read the folders of runs and comparisons.

    Args:
        folders: Folders of runs, of comparisons, or of both.
        target: Metric and value to reach, if the folders do not record one.
        baseline: Label of the method that others are measured against.

    Raises:
        ValueError: If the runs cannot be compared in one table.
        FileNotFoundError: If a folder holds neither a run nor a complete comparison.

    Example:
        >>> print(as_markdown(read_study([Path("runs/demo")]).table))
    """
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise ValueError("Cannot report a folder twice; name each folder once")
    return study_of([read_source(folder) for folder in folders], target, baseline)


def study_of(
    sources: list[ReportSource], target: Target | None = None, baseline: str | None = None, option: str = "--target"
) -> ReportStudy:
    """Put sources together in one table; see `read_study`. `option` names the target in errors."""
    if target is not None:
        check_measured([result for source in sources for result in source.results], target[0], option)
    common = common_target(sources, target, option)
    check_data(sources)
    results = _gather(sources)
    if common is not None:
        check_measured(results, common[0], option)
        check_ends(results, common)
    if baseline is not None:
        results = _with_baseline(results, baseline)
    comparisons = [source for source in sources if source.reference is not None]
    labels = [result.label for result in results]
    references = [source.reference for source in comparisons if source.reference in labels]
    metrics = dict.fromkeys(source.metric for source in sources)
    table = ComparisonTable(
        metric=common[0] if common is not None else (len(metrics) == 1 and sources[0].metric) or _measured(results),
        target=None if common is None else common[1],
        baseline=baseline or (references or labels)[0],
        results=results,
    )
    if len(comparisons) == len(sources) == 1:
        return ReportStudy(comparisons[0].title, comparisons[0].note, table, sources)
    note = "Mean ± standard deviation over seeds. MB count both directions."
    return ReportStudy(_title([source.folder for source in sources]), note, table, sources)


def _with_baseline(results: list[MethodResult], baseline: str) -> list[MethodResult]:
    """Measure tuned methods against the tuned form of another baseline, if there is one."""
    labels = [result.label for result in results]
    if baseline not in labels:
        raise ValueError(
            f"--baseline must be one of {', '.join(labels)}, got {format_value(baseline)}{suggest(baseline, labels)}"
        )
    against = tuned_label(baseline) if tuned_label(baseline) in labels else None
    return [result if result.against is None else replace(result, against=against) for result in results]


def _title(folders: Sequence[Path]) -> str:
    names = ", ".join(folder.name for folder in folders[:4])
    return names if len(folders) <= 4 else f"{names} and {len(folders) - 4} more"


def _gather(sources: list[ReportSource]) -> list[MethodResult]:
    """Return the methods with distinct labels. Single runs that differ only in their seed are one method."""
    gathered: dict[Any, list[tuple[ReportSource, MethodResult]]] = {}
    for source in sources:
        for number, result in enumerate(source.results):
            single = not (source.folder / CONFIGURATION).exists()
            info = next(iter(result.infos.values()))
            label = source.label or info.get("label")  # given labels keep runs apart
            key = f"{label} {_method_key(info)}" if single else (str(source.folder), number)
            gathered.setdefault(key, []).append((source, result))
    results = [_join(parts) for parts in gathered.values()]
    return _with_distinct_labels(results, [parts[0][0].folder for parts in gathered.values()])


def _method_key(info: Mapping[str, Any]) -> str:
    """Return a text that is equal for runs of one method; functions of one name are compared by what they give."""
    values = {name: value for name, value in (info.get("option_values") or {}).items() if name != "seed"}
    return json.dumps([*map(info.get, _METHOD), values], sort_keys=True)


def _join(parts: list[tuple[ReportSource, MethodResult]]) -> MethodResult:
    """Join runs of one method from several folders."""
    seeds = [seed for _, result in parts for seed in result.runs]
    if len(set(seeds)) < len(seeds):
        names = " and ".join(str(source.folder) for source, _ in parts)
        raise ValueError(
            f"Cannot report {names} together because they are one method with the same seed; use "
            "label= for what they differ in, or leave one out"
        )
    return replace(
        parts[0][1],
        runs={seed: history for _, result in parts for seed, history in result.runs.items()},
        ended_early=frozenset(seed for _, result in parts for seed in result.ended_early),
        infos={seed: info for _, result in parts for seed, info in result.infos.items()},
    )


def _with_distinct_labels(results: list[MethodResult], folders: list[Path]) -> list[MethodResult]:
    """Add to equal labels the selector, then all fields, then the folder, then a number, until they differ."""
    infos = [next(iter(result.infos.values())) for result in results]
    candidates = (
        [result.label for result in results],
        [f"{result.label} ({selector_of(info).name})" for result, info in zip(results, infos, strict=True)],
        [f"{info.get('algorithm')}, {info.get('selection')}" for info in infos],
        [f"{result.label} in {folder.name}" for result, folder in zip(results, folders, strict=True)],
        [f"{number}: {result.label}" for number, result in enumerate(results, 1)],
    )
    labels = next(labels for labels in candidates if len(set(labels)) == len(labels))
    renamed = {(folder, result.label): label for folder, label, result in zip(folders, labels, results, strict=True)}
    return [
        replace(result, label=label, against=None if result.against is None else renamed[folder, result.against])
        for folder, label, result in zip(folders, labels, results, strict=True)
    ]


def _measured(results: list[MethodResult]) -> str:
    """Return the metric to show if there is no target."""
    for metric in ("accuracy", "test_loss", "train_accuracy", "train_loss", "personal_accuracy", "personal_loss"):
        trained = [result for result in results if result.trains(metric)]
        if trained and all(any(v is not None for v in result.final(metric).values()) for result in trained):
            return metric
    raise ValueError(
        "Cannot report the runs because there is no metric that was measured in all; use evaluate_clients for runs of "
        "LocalOnly, which train clients' own models only"
        if any(trains_alone(info) for result in results for info in result.infos.values())
        else "Cannot report the runs because there is no metric that was measured in all"
    )


def check_measured(results: Sequence[MethodResult], metric: str, option: str) -> None:
    """Refuse a metric that no run has measured; `option` names it in the error."""
    own = (name for result in results for history in result.runs.values() for name in history.known_metrics)
    known = list(dict.fromkeys([*METRICS, *own]))
    if metric not in known:
        raise ValueError(
            f"{option} must be one of {', '.join(known)}, got {format_value(metric)}{suggest(metric, known)}"
        )


def parse_target(text: str | None, own: bool = False) -> Target | None:
    """Parse "accuracy=0.9" into metric and value; None for None.

    Args:
        text: The metric and its value.
        own: Whether the metric can be one of the user's, which `read_study` looks for in the runs.
    """
    if text is None:
        return None
    metric, _, number = text.partition("=")
    if metric not in METRICS and not (own and metric.isidentifier()):
        raise ValueError(
            f"--target must name one of {', '.join(METRICS)}, got {format_value(metric)}{suggest(metric, METRICS)}"
        )
    try:
        value = float(number)
    except ValueError:
        raise ValueError(f"--target must look like accuracy=0.9, got {format_value(text)}") from None
    if (fault := target_rule(metric).fault(value)) is not None:
        raise ValueError(f"--target must have for {metric} a number that is {fault}, got {format_value(number)}")
    return metric, value
