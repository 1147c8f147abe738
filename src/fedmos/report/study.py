"""What a report is about: runs that can be compared, read from their folders."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from ..config import schema as config
from ..config.schema import CompareConfig, DataConfig, RunConfig, tuned_label
from ..core.formatting import format_value
from ..core.history import METRICS
from ..core.metric_names import target_rule
from ..core.validation import suggest
from ..experiments.compare import CONFIGURATION, caption, entries
from ..experiments.seed_statistics import MethodResult, Tried, Tuned
from ..experiments.table import Table
from ..run.result import Result

Target = tuple[str, float]

_METHOD = (
    "algorithm",
    "selection",
    "availability",
    "system",
    "model",
    "rounds",
    "local_steps",
    "local_epochs",
    "batch_size",
    "loss",
    "lr_decay",
    "weight_decay",
    "clip",
    "on_bad_update",
    "dtype",
    "precision",
)
"""What runs of one method have in common."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """A folder that was given: its methods, and what it says of data and target."""

    folder: Path
    rows: list[MethodResult]
    target: Target | None
    data: DataConfig | None
    """None for a run from Python, which says nothing of how its data came about."""
    text: str
    """The configuration."""


class Study(NamedTuple):
    """Methods that can be compared, and their table."""

    title: str
    note: str
    """How the numbers came about."""
    table: Table
    sources: list[Source]

    @property
    def rows(self) -> Sequence[MethodResult]:
        return self.table.rows


def study(folders: Sequence[Path], target: Target | None = None, baseline: str | None = None) -> Study:
    """Read runs and comparisons; refuse those that cannot stand in one table."""
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise ValueError("Cannot report a folder twice; name each folder once")
    sources = [_source(folder) for folder in folders]
    aim = _common_target(sources, target)
    _check_data(sources)
    rows = _rows(sources)
    if aim is not None:
        _check_ends(rows, aim)
    labels = [row.label for row in rows]
    if baseline is not None and baseline not in labels:
        raise ValueError(
            f"--baseline must be one of {', '.join(labels)}, got {format_value(baseline)}{suggest(baseline, labels)}"
        )
    if baseline is not None:
        against = tuned_label(baseline) if tuned_label(baseline) in labels else None
        rows = [row if row.against is None else replace(row, against=against) for row in rows]
    comparisons = [config.load(CompareConfig, f / CONFIGURATION) for f in folders if (f / CONFIGURATION).exists()]
    references = [one.reference for one in comparisons if one.reference in labels]
    table = Table(
        metric=aim[0] if aim is not None else _measured(rows),
        target=None if aim is None else aim[1],
        baseline=baseline or (references or labels)[0],
        rows=rows,
    )
    if len(comparisons) == len(folders) == 1:
        return Study(comparisons[0].title, caption(comparisons[0]), table, sources)
    return Study(_title(folders), "Mean ± standard deviation over seeds. MB count both directions.", table, sources)


def _title(folders: Sequence[Path]) -> str:
    names = ", ".join(folder.name for folder in folders[:4])
    return names if len(folders) <= 4 else f"{names} and {len(folders) - 4} more"


def _source(folder: Path) -> Source:
    if (folder / CONFIGURATION).exists():
        return _comparison(folder)
    if (folder / "checkpoints").is_dir():
        return _run(folder)
    raise FileNotFoundError(f"Cannot report {folder} because it is the folder of neither a run nor a comparison")


def _comparison(folder: Path) -> Source:
    settings = config.load(CompareConfig, folder / CONFIGURATION)
    try:
        table = json.loads((folder / "table.json").read_text("utf-8"))
        chosen = dict(enumerate(_tuned(m["tuned"]) for m in table["methods"] if m["tuned"] is not None))
        made = entries(settings, chosen)
        target = (str(table["metric"]), float(table["target"]))
    except FileNotFoundError:
        raise FileNotFoundError(
            f"Cannot report {folder} because the comparison is not complete; use fedmos compare with --out {folder}"
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"Cannot report {folder} because its table.json is damaged: {error!r}") from error
    read = [{job.seed: Result.load(job.folder(folder)) for job in entry.jobs(settings.seeds)} for entry in made]
    rows = [entry.row(results) for entry, results in zip(made, read, strict=True)]
    text = (folder / CONFIGURATION).read_text("utf-8")
    return Source(folder=folder, rows=rows, target=target, data=settings.data, text=text)


def _tuned(table: Mapping[str, Any]) -> Tuned:
    """From a table's file."""
    return Tuned(dict(table["values"]), dict(table["edges"]), [Tried(**one) for one in table["tried"]])


def _run(folder: Path) -> Source:
    result, path = Result.load(folder), folder / "config.toml"
    text = path.read_text("utf-8") if path.exists() else ""
    settings = None
    if text and "\nfrom_python = true\n" not in text:
        settings = config.load(RunConfig, path)
    target: Target | None = None
    if settings is not None and settings.target:
        if len(settings.target) > 1:
            raise ValueError(f"Cannot report {folder} because its target is of several metrics; a table has one")
        target = next(iter(settings.target.items()))
    info = result.info
    row = MethodResult.of(info["algorithm"].split("(")[0], _lr(info["algorithm"]), {int(info["seed"]): result})
    return Source(folder=folder, rows=[row], target=target, data=None if settings is None else settings.data, text=text)


def _lr(algorithm: str) -> float | None:
    """The step size in the words for an algorithm."""
    found = re.search(r"\blr=([0-9.e+-]+)", algorithm)
    return None if found is None else float(found[1])


def _rows(sources: list[Source]) -> list[MethodResult]:
    """Methods under labels of their own; single runs that differ only in their seed are one method."""
    gathered: dict[Any, list[tuple[Source, MethodResult]]] = {}
    for source in sources:
        for number, row in enumerate(source.rows):
            single = not (source.folder / CONFIGURATION).exists()
            info = next(iter(row.infos.values()))
            key = json.dumps([info.get(f) for f in _METHOD]) if single else (str(source.folder), number)
            gathered.setdefault(key, []).append((source, row))
    rows: list[MethodResult] = []
    for parts in gathered.values():
        seeds = [seed for _, row in parts for seed in row.runs]
        if len(set(seeds)) < len(seeds):
            names = " and ".join(str(source.folder) for source, _ in parts)
            raise ValueError(f"Cannot report {names} together because they are one method with the same seed")
        first = parts[0][1]
        rows.append(
            replace(
                first,
                runs=_merged([row.runs for _, row in parts]),
                ended_early=frozenset(seed for _, row in parts for seed in row.ended_early),
                infos=_merged([row.infos for _, row in parts]),
            )
        )
    return _told_apart(rows, [parts[0][0].folder for parts in gathered.values()])


def _merged(parts: Sequence[Mapping[int, Any]]) -> dict[int, Any]:
    return {seed: value for part in parts for seed, value in part.items()}


def _told_apart(rows: list[MethodResult], folders: list[Path]) -> list[MethodResult]:
    """With labels that differ: by selector where algorithms are the same, then in full, then by folder."""

    def info(row: MethodResult, field: str) -> str:
        return str(next(iter(row.infos.values())).get(field))

    ways = (
        [row.label for row in rows],
        [f"{row.label} ({info(row, 'selection').split('(')[0]})" for row in rows],
        [f"{info(row, 'algorithm')}, {info(row, 'selection')}" for row in rows],
        [f"{row.label} in {folder.name}" for row, folder in zip(rows, folders, strict=True)],
        [f"{number}: {row.label}" for number, row in enumerate(rows, 1)],
    )
    labels = next(way for way in ways if len(set(way)) == len(way))
    own = {(folder, row.label): label for folder, label, row in zip(folders, labels, rows, strict=True)}
    return [
        replace(row, label=label, against=None if row.against is None else own[folder, row.against])
        for folder, label, row in zip(folders, labels, rows, strict=True)
    ]


def _common_target(sources: list[Source], asked: Target | None) -> Target | None:
    """The one that all have in view; refuse if there are several."""
    given = [(f"{source.folder} is to reach", source.target) for source in sources if source.target is not None]
    if asked is not None:
        given.append(("--target asks for", asked))
    for words, target in given[1:]:
        if target != given[0][1]:
            (metric, value), (other, level) = given[0][1], target
            raise ValueError(
                f"Cannot report runs with different targets together: {given[0][0]} {metric} {value:g}, "
                f"{words} {other} {level:g}"
            )
    return given[0][1] if given else None


def _check_data(sources: list[Source]) -> None:
    """Refuse runs on different data: as their configurations tell, or the fingerprints of runs with the same seed."""
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
            raise ValueError(f"{together} nothing tells whether their data are the same: they have no seed in common")
    for source in sources:
        for row in source.rows[1:]:
            if any(
                row.infos[s].get("data") != i.get("data") for s, i in source.rows[0].infos.items() if s in row.infos
            ):
                raise ValueError(f"Cannot report {source.folder} because its methods ran on different data")


def _fingerprints(source: Source) -> dict[int, Any]:
    return {seed: info.get("data", f"unknown, of {source.folder}") for seed, info in source.rows[0].infos.items()}


def _check_ends(rows: list[MethodResult], target: Target) -> None:
    """Refuse runs that ended at a target of their own before they could reach this one."""
    metric, value = target
    for row in rows:
        for seed, history in row.runs.items():
            planned = int(row.infos[seed]["rounds"])
            if seed not in row.ended_early and len(history) < planned and history.first(metric, value) is None:
                raise ValueError(
                    f"Cannot judge {row.label} by {metric} {value:g} because its run with seed {seed} ended after "
                    f"{len(history)} of {planned} rounds, at a target of its own"
                )


def _measured(rows: list[MethodResult]) -> str:
    """The metric to show where there is no target."""
    for metric in ("accuracy", "test_loss", "train_accuracy", "train_loss"):
        if all(any(v is not None for v in row.final(metric).values()) for row in rows):
            return metric
    raise ValueError("Cannot report the runs because there is no metric that was measured in all")


def parse_target(text: str | None) -> Target | None:
    """From "accuracy=0.9"."""
    if text is None:
        return None
    metric, _, number = text.partition("=")
    if metric not in METRICS:
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
