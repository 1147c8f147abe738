"""Records of runs: small JSON files, one per study, from which tables and pages are generated."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from ...core.history import METRICS, History
from ...core.metric_names import is_loss
from ...run.result import Result
from ...storage.files import replace_file
from ..runner import PlannedRun
from ..seed_statistics import last_value
from .study import StudyPart, all_names, by_key, load, target_key

RunRecord = dict[str, Any]
"""method, lr, seed, tuning; configuration; rounds, ended ("complete", "cut off", "diverged"); measured values."""

_POINTS = 60
"""Points of a curve."""
_WINDOW = 100
"""Rounds at the end whose mean is kept."""
_STEP = 0.002
"""The smallest improvement that `climb` notes."""
_NOT_HASHED = frozenset(
    ("rounds", "seeds", "methods", "title", "target", "baseline", "tune", "device", "precision", "engine", "eval_every")
)
"""Fields that change nothing but rounding in a run of given seed and step size."""


def run_folder(run: PlannedRun, out: Path) -> Path:
    """Return the folder of a run of the part in `out`."""
    word = re.sub(r"[^A-Za-z0-9.]+", "-", run.label).strip("-")
    return out / "runs" / (f"{word}-lr{run.lr:g}-seed{run.seed}" + ("-tuning" if run.tuning else ""))


def fingerprint(part: StudyPart, label: str, lr: float) -> str:
    """Return a hash of everything that determines a method's run except its seed and number of rounds."""
    table = part.source_of_runs.table
    method = next(m for m in table["methods"] if m["label"] == label)
    given = {key: value for key, value in table.items() if key not in _NOT_HASHED}
    given |= {"algorithm": dict(method.get("algorithm", {})) | {"lr": lr}, "selection": method["selection"]}
    given |= {"personal": method["personal"]} if "personal" in method else {}
    text = json.dumps(given, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def step_sizes(part: StudyPart, label: str) -> Sequence[float]:
    """Return the step sizes that a method's runs can have: those of the grid, or its own."""
    table = part.source_of_runs.table
    if "tune" in table:
        grid: Sequence[float] = table["tune"]["lr"]
        return grid
    method = next(m for m in table["methods"] if m["label"] == label)
    return [method.get("algorithm", table)["lr"]]


class StudyRecords:
    """The records of one study, in FOLDER/STUDY.json.

    Example:
        >>> records = StudyRecords(Path("docs/reproduction/data"), "fedcm-table3")
        >>> [run["last"]["accuracy"] for run in records.runs(by_key("fedcm-table3/digits"), "α = 0.1")]
    """

    def __init__(self, folder: Path, study: str) -> None:
        self.path = folder / f"{study}.json"
        self._table: dict[str, Any] = {"study": study, "parts": {}}
        if self.path.exists():
            try:
                self._table = json.loads(self.path.read_text("utf-8"))
                if self._table["study"] != study:
                    raise ValueError(f"it is of {self._table['study']}")
                for part in self._table["parts"].values():
                    dict(part["tuned"]), list(part["sessions"])
                    for run in part["runs"]:
                        _key(run), run["configuration"], run["rounds"], run["ended"]
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise ValueError(f"Cannot read {self.path} because it is not a record of {study}: {error!r}") from error

    def runs(self, part: StudyPart, label: str | None = None, tuning: bool = False) -> list[RunRecord]:
        """Return the runs of a part, or of one method, in the order of seeds, without runs of another configuration."""
        return [
            run
            for run in sorted(self._part(part.name)["runs"], key=lambda run: (run["method"], run["lr"], run["seed"]))
            if run["tuning"] == tuning
            and label in (None, run["method"])
            and run["method"] in part.labels
            and run["lr"] in step_sizes(part, run["method"])
            and run["configuration"] == fingerprint(part, run["method"], run["lr"])
        ]

    def counted(self, part: StudyPart, label: str) -> list[RunRecord]:
        """Return a method's runs with its own step size or, if there is a grid, with the chosen one."""
        lr = self.tuned(part).get(label) if "tune" in part.table else None
        return [run for run in self.runs(part, label) if lr in (None, run["lr"])]

    def all_runs(self) -> list[tuple[str, RunRecord]]:
        """Return every run with the name of its part."""
        return [(name, run) for name, part in self._table["parts"].items() for run in part["runs"]]

    def find(self, part: StudyPart, run: PlannedRun) -> RunRecord | None:
        """Return the record of a run; None if there is none."""
        own = self.runs(part, run.label, run.tuning)
        return next((record for record in own if record["lr"] == run.lr and record["seed"] == run.seed), None)

    def tuned(self, part: StudyPart) -> dict[str, float]:
        """Return the chosen step sizes, by method. Changes to the mapping are kept."""
        chosen: dict[str, float] = self._part(part.name)["tuned"]
        return chosen

    def sessions(self, part: StudyPart) -> list[dict[str, Any]]:
        """Return the sessions in which the part was trained. Changes to the list are kept."""
        sessions: list[dict[str, Any]] = self._part(part.name)["sessions"]
        return sessions

    def add(self, part: StudyPart, runs: Iterable[RunRecord]) -> None:
        """Add runs. They replace shorter runs and runs of another configuration."""
        mine = self._part(part.name)
        kept = {_key(run): run for run in mine["runs"]}
        for run in runs:
            before = kept.get(_key(run))
            if before is None or before["configuration"] != run["configuration"] or before["rounds"] <= run["rounds"]:
                kept[_key(run)] = run
        mine["runs"] = [kept[key] for key in sorted(kept)]

    def absorb(self, other: StudyRecords) -> None:
        """Add the records of another folder, except runs of another configuration."""
        for name, theirs in other._table["parts"].items():
            part = by_key(f"{self._table['study']}/{name}")
            runs = [*other.runs(part), *other.runs(part, tuning=True)]
            self.add(part, runs)
            mine, known = self._part(name), {(run["method"], run["lr"]) for run in runs}
            mine["tuned"] |= {label: lr for label, lr in theirs["tuned"].items() if (label, lr) in known}
            mine["sessions"] += [session for session in theirs["sessions"] if session not in mine["sessions"]]

    def write(self) -> None:
        """Write the file, with one line per run, so that differences are readable."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(self.path, (_lines(self._table) + "\n").encode())

    def _part(self, name: str) -> dict[str, Any]:
        part: dict[str, Any] = self._table["parts"].setdefault(name, {"tuned": {}, "sessions": [], "runs": []})
        return part


def merge(folder: Path, into: Path) -> list[Path]:
    """Add the records in `folder` to those in `into`, and return the files written."""
    written = []
    for name in all_names():
        if (folder / f"{name}.json").exists():
            records = StudyRecords(into, name)
            records.absorb(StudyRecords(folder, name))
            records.write()
            written.append(records.path)
    if not written:
        raise ValueError(f"Cannot merge {folder} because it holds no records")
    return written


def _key(run: RunRecord) -> tuple[str, float, int, bool]:
    return run["method"], run["lr"], run["seed"], run["tuning"]


def _lines(table: Mapping[str, Any]) -> str:
    def one(value: Any) -> str:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)

    parts = []
    for name, part in table["parts"].items():
        lists = [f'  "{key}": [\n   ' + ",\n   ".join(map(one, part[key])) + "\n  ]" for key in ("sessions", "runs")]
        parts.append(f' {one(name)}: {{\n  "tuned": {one(part["tuned"])},\n' + ",\n".join(lists) + "\n }")
    return f'{{"study": {one(table["study"])},\n"parts": {{\n' + ",\n".join(parts) + "\n}}"


def run_record(part: StudyPart, run: PlannedRun, result: Result, rounds: int) -> RunRecord:
    """Return the record of a run that was to have so many rounds."""
    history = result.history
    ended = "complete"
    if result.interrupted and len(history) < rounds:
        ended = "diverged" if "diverged" in result.info else "cut off"
    record: RunRecord = {
        "method": run.label,
        "lr": run.lr,
        "seed": run.seed,
        "tuning": run.tuning,
        "configuration": fingerprint(part, run.label, run.lr),
        "precision": result.info.get("precision"),
        "rounds": len(history),
        "ended": ended,
        "last": _known({metric: last_value(history, metric) for metric in _metrics(part)}),
        "mean_last": _known({metric: _mean_of_last(history, metric) for metric in METRICS}),
        "first": {key: _first(history, metric, value) for key, (metric, value) in _targets(part).items()},
    }
    best = {c.metric for one in _parts_with_runs_of(part) for c in one.columns if c.kind == "best"}
    if best:
        record["best"] = _known({metric: _best(history, metric) for metric in sorted(best)})
    if clients := _clients(history):
        record["clients"] = clients
    if not run.tuning:
        record["curve"] = _curve(history)
        climbed = {c.metric for one in _parts_with_runs_of(part) for c in one.columns if c.kind.endswith("_to_final")}
        if climbed:
            record["climb"] = {metric: _climb(history, metric) for metric in sorted(climbed)}
    return record


def _parts_with_runs_of(part: StudyPart) -> list[StudyPart]:
    """Return the part, and all parts of all studies that show its runs."""
    return [part, *(one for name in all_names() for one in load(name).parts if one.runs_of == part.key)]


def _metrics(part: StudyPart) -> list[str]:
    """Return the metrics whose last values are kept: the usual ones, and those of the part's columns."""
    columns = [column.metric for one in _parts_with_runs_of(part) for column in one.columns if column.kind != "given"]
    return list(dict.fromkeys([*METRICS, *columns]))


def _best(history: History, metric: str) -> float | None:
    known = [v for record in history if (v := record.value(metric)) is not None and math.isfinite(v)]
    return (min if is_loss(metric) else max)(known) if known else None


def _targets(part: StudyPart) -> dict[str, tuple[str, float]]:
    """Return (metric, value) of the part's target and of every column that shows the part's runs, by `target_key`."""
    columns = [column for one in _parts_with_runs_of(part) for column in one.columns]
    wanted = [(metric, level) for metric, level in part.table["target"].items() if not isinstance(level, Mapping)]
    wanted += [(column.metric, column.value) for column in columns if column.value is not None]
    return {target_key(metric, value): (metric, value) for metric, value in wanted}


def _first(history: History, metric: str, value: float) -> list[float] | None:
    """Return [round, megabytes] at which a value was reached; None if it never was."""
    record = history.first(metric, value)
    return None if record is None else [record.round, _short(history.bytes_until(record) / 1e6)]


def _clients(history: History) -> dict[str, float]:
    """Return the best and the last accuracy over all test samples of clients, under their own models if they have any.

    Empty where clients were not evaluated.
    """
    for kind in ("personal", "client"):
        values = [r.value(f"{kind}_accuracy_weighted") for r in history]
        if known := [v for v in values if v is not None and math.isfinite(v)]:
            return {"best": _short(max(known)), "last": _short(known[-1])}
    return {}


def _mean_of_last(history: History, metric: str) -> float | None:
    late = [getattr(r, metric) for r in history if r.round > len(history) - _WINDOW]
    known = [v for v in late if v is not None and math.isfinite(v)]
    return sum(known) / len(known) if known else None


def _curve(history: History) -> dict[str, list[float]]:
    """Return training loss and accuracy of some evaluated rounds, evenly spaced and with the last."""
    found = [r for r in history if r.train_loss is not None and math.isfinite(r.train_loss)]
    step = max(1, -(len(found) // -_POINTS))
    some = found[::-1][::step][::-1]
    curve: dict[str, list[float]] = {"round": [r.round for r in some]}
    for metric in ("train_loss", "accuracy"):
        values = [getattr(r, metric) for r in some]
        if None not in values:
            curve[metric] = [_short(v) for v in values]
    return curve


def _climb(history: History, metric: str) -> list[list[float]]:
    """Return [round, value, megabytes] of each time that an accuracy was `_STEP` above the best before."""
    climb: list[list[float]] = []
    spent = accumulate(r.bytes_down + r.bytes_up for r in history)
    for record, total in zip(history, spent, strict=True):
        value = getattr(record, metric)
        if value is not None and math.isfinite(value) and value >= (climb[-1][1] + _STEP if climb else 0.0):
            climb.append([record.round, _short(value), _short(total / 1e6)])
    return climb


def _known(values: Mapping[str, float | None]) -> dict[str, float]:
    return {key: _short(v) for key, v in values.items() if v is not None and math.isfinite(v)}


def _short(v: float) -> float:
    """Round to six significant digits."""
    return float(f"{v:.6g}")
