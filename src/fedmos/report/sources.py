"""Read the runs of a report from their folders."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ..config import schema as config
from ..config.schema import CompareConfig, RunConfig
from ..experiments.captions import caption
from ..experiments.compare import CONFIGURATION
from ..experiments.comparison import run_folder
from ..experiments.runner import planned_methods
from ..experiments.seed_statistics import MethodResult
from ..run.result import Result
from .checks import ReportSource, Target
from .python_comparison import read_python_comparison, tuned_values
from .run_info import algorithm_of, started_from_python


def read_source(folder: Path, label: str | None = None) -> ReportSource:
    """Read the folder of a run or a comparison; `label` replaces that of a run."""
    if (folder / CONFIGURATION).exists():
        text = (folder / CONFIGURATION).read_text("utf-8")
        return read_python_comparison(folder, text) if started_from_python(text) else _comparison(folder)
    if (folder / "checkpoints").is_dir():
        return _run(folder, label)
    what = "is the folder of neither a run nor a comparison" if folder.is_dir() else "is no folder"
    raise FileNotFoundError(f"Cannot report {folder} because it {what}")


def _comparison(folder: Path) -> ReportSource:
    settings = config.load(CompareConfig, folder / CONFIGURATION)
    try:
        table = json.loads((folder / "table.json").read_text("utf-8"))
        tuned = [tuned_values(m["tuned"]) for m in table["methods"] if m["tuned"] is not None]
        labels = [method.label for method in settings.methods] if settings.tune is not None else []
        planned = planned_methods(settings, dict(zip(labels, tuned, strict=True)))
        target = (str(table["metric"]), float(table["target"]))
    except FileNotFoundError:
        raise FileNotFoundError(
            f"Cannot report {folder} because the comparison is not complete; use fedmos compare with --out {folder}"
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"Cannot report {folder} because its table.json is damaged: {error!r}") from error
    results = [
        one.result({run.seed: Result.load(run_folder(settings, run, folder)) for run in one.runs(settings.seeds)})
        for one in planned
    ]
    text = (folder / CONFIGURATION).read_text("utf-8")
    return ReportSource(
        folder=folder,
        results=results,
        target=target,
        data=settings.data,
        text=text,
        title=settings.title,
        note=caption(settings),
        reference=settings.reference,
    )


def _run(folder: Path, label: str | None) -> ReportSource:
    result, path = Result.load(folder), folder / "config.toml"
    text = path.read_text("utf-8") if path.exists() else ""
    settings = None
    if text and not started_from_python(text):
        settings = config.load(RunConfig, path)
    source = source_of(result, folder, label)
    if settings is None:
        return replace(source, text=text)
    return replace(source, text=text, target=_one(settings.target, folder), given=None, data=settings.data)


def source_of(result: Result, folder: Path, label: str | None = None) -> ReportSource:
    """Return the source of a single run from Python.

    Args:
        result: The run's result.
        folder: Its folder, or a name for errors.
        label: The name of the method; by default the run's label, or else its algorithm.
    """
    target = result.info.get("target") or {}
    return ReportSource(
        folder=folder,
        results=[_single(result, label)],
        target=None,
        given=next(iter(target.items())) if len(target) == 1 else None,  # a table has one metric
        data=None,
        text="",
        label=label,
    )


def _one(target: Mapping[str, float] | None, folder: Path) -> Target | None:
    if target and len(target) > 1:
        raise ValueError(f"Cannot report {folder} because its target is of several metrics; a table has one")
    return next(iter(target.items())) if target else None


def _single(result: Result, label: str | None) -> MethodResult:
    algorithm = algorithm_of(result.info)
    lr = algorithm.fields.get("lr")
    label = label or result.info.get("label") or algorithm.name
    return MethodResult.of(label, None if lr is None else float(lr), {int(result.info["seed"]): result})
