"""Checks that the runs of a report can be compared."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..config.schema import DataConfig
from ..core.formatting import format_value
from ..data.federated import FederatedData
from ..experiments.seed_statistics import MethodResult

Target = tuple[str, float]
"""A metric and the value to reach."""


@dataclass(frozen=True, kw_only=True)
class ReportSource:
    """A folder of the report: its methods, its data and its target."""

    folder: Path
    results: list[MethodResult]
    target: Target | None
    given: Target | None = None
    """The target of a run from Python, which the option of the user replaces."""
    data: DataConfig | None
    """None for a run from Python, whose folder does not record how its data were made."""
    text: str
    """The configuration."""
    title: str = ""
    note: str = ""
    """How the numbers of a comparison's table were obtained."""
    reference: str | None = None
    """The label of a comparison's baseline; None for a run."""
    metric: str | None = None
    """The metric of a comparison without a target."""
    label: str | None = None
    """The label that the caller gives to a run, which keeps it apart from runs with other labels."""
    federation: FederatedData | None = None
    """The data of the first seed, if they are in memory."""


def common_target(sources: list[ReportSource], requested: Target | None, option: str = "--target") -> Target | None:
    """Return the target of all sources; raise an error if there are several. `option` names that of the user."""
    targets = [(source.folder, source.target or (source.given if requested is None else None)) for source in sources]
    given = [(f"{folder} is to reach", target) for folder, target in targets if target is not None]
    if requested is not None:
        given.append((f"{option} asks for", requested))
    for words, target in given[1:]:
        if target != given[0][1]:
            (metric, value), (other, level) = given[0][1], target
            raise ValueError(
                f"Cannot report runs with different targets together: {given[0][0]} {metric} {value:g}, "
                f"{words} {other} {level:g}"
            )
    return given[0][1] if given else None


def check_data(sources: list[ReportSource]) -> None:
    """Refuse runs on different data, by their configurations or by the fingerprints of runs with the same seed."""
    first = sources[0]
    for source in sources[1:]:
        together = f"Cannot report {first.folder} and {source.folder} together because"
        if first.data is not None and source.data is not None:
            different = [f for f in DataConfig.model_fields if getattr(first.data, f) != getattr(source.data, f)]
            if different:
                a, b = (format_value(getattr(s.data, different[0])) for s in (first, source))
                raise ValueError(f"{together} their data differ: data.{different[0]} is {a} in one, {b} in the other")
            continue
        mine, theirs = _fingerprints(first), _fingerprints(source)
        shared = [seed for seed in theirs if seed in mine]
        if any(mine[seed] != theirs[seed] for seed in shared):
            raise ValueError(f"{together} their data differ (by the fingerprints of their federations)")
        if not shared and set(mine.values()) != set(theirs.values()):
            raise ValueError(f"{together} it is unknown whether their data are the same: they have no seed in common")
    for source in sources:
        first_infos = source.results[0].infos
        for result in source.results[1:]:
            shared = [seed for seed in first_infos if seed in result.infos]
            if any(result.infos[seed].get("data") != first_infos[seed].get("data") for seed in shared):
                raise ValueError(f"Cannot report {source.folder} because its methods ran on different data")


def _fingerprints(source: ReportSource) -> dict[int, Any]:
    return {seed: info.get("data", f"unknown, of {source.folder}") for seed, info in source.results[0].infos.items()}


def check_ends(results: list[MethodResult], target: Target) -> None:
    """Refuse runs that stopped at another target before they could reach this one."""
    metric, value = target
    for result in results:
        for seed, history in result.runs.items():
            planned = int(result.infos[seed]["rounds"])
            if result.infos[seed].get("stopped") is not None:  # by a callback, not at a target
                continue
            if seed not in result.ended_early and len(history) < planned and history.first(metric, value) is None:
                raise ValueError(
                    f"Cannot judge {result.label} by {metric} {value:g} because its run with seed {seed} ended after "
                    f"{len(history)} of {planned} rounds, at another target"
                )
