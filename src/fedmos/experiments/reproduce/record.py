"""What is kept of runs: small JSON files, one for each study, that tables and pages are made of."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from ...core.history import METRICS, History
from ...run.result import Result
from ...storage.files import replace_file
from ..seed_statistics import last_value
from .study import Part, aim, by_key, load, names

Run = dict[str, Any]
"""method, lr, seed, tuning; configuration; rounds, ended ("complete", "cut off", "diverged"); what it measured."""

_POINTS = 60
"""Of a curve."""
_WINDOW = 100
"""Rounds at the end whose mean is kept."""
_STEP = 0.002
"""How much a metric must improve for the way up to be noted."""
_BESIDE = frozenset(
    ("rounds", "seeds", "methods", "title", "target", "baseline", "tune", "device", "precision", "engine", "eval_every")
)
"""Fields that do not change what a run of given seed and step size computes, but for rounding."""


class Job(NamedTuple):
    """One run of a part."""

    label: str
    lr: float
    seed: int
    tuning: bool = False

    def folder(self, out: Path) -> Path:
        word = re.sub(r"[^A-Za-z0-9.]+", "-", self.label).strip("-")
        return out / "runs" / (f"{word}-lr{self.lr:g}-seed{self.seed}" + ("-tuning" if self.tuning else ""))


def fingerprint(part: Part, label: str, lr: float) -> str:
    """Of all that decides a run but its seed and its length."""
    table = part.source_of_runs.table
    method = next(m for m in table["methods"] if m["label"] == label)
    given = {key: value for key, value in table.items() if key not in _BESIDE}
    given |= {"algorithm": dict(method.get("algorithm", {})) | {"lr": lr}, "selection": method["selection"]}
    text = json.dumps(given, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def step_sizes(part: Part, label: str) -> Sequence[float]:
    """Those that a method's runs may have: the grid's, or its own."""
    table = part.source_of_runs.table
    if "tune" in table:
        grid: Sequence[float] = table["tune"]["lr"]
        return grid
    method = next(m for m in table["methods"] if m["label"] == label)
    return [method.get("algorithm", table)["lr"]]


class Records:
    """The records of one study, in a folder."""

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

    def runs(self, part: Part, label: str | None = None, tuning: bool = False) -> list[Run]:
        """Of a part, and of a method, in the order of seeds; those of another configuration are left out."""
        return [
            run
            for run in sorted(self._part(part.name)["runs"], key=lambda run: (run["method"], run["lr"], run["seed"]))
            if run["tuning"] == tuning
            and label in (None, run["method"])
            and run["method"] in part.labels
            and run["lr"] in step_sizes(part, run["method"])
            and run["configuration"] == fingerprint(part, run["method"], run["lr"])
        ]

    def counted(self, part: Part, label: str) -> list[Run]:
        """Of a method, the runs with its own step size or, where there is a grid, with the chosen one."""
        lr = self.tuned(part).get(label) if "tune" in part.table else None
        return [run for run in self.runs(part, label) if lr in (None, run["lr"])]

    def all_runs(self) -> list[tuple[str, Run]]:
        """Every run with its part's name."""
        return [(name, run) for name, part in self._table["parts"].items() for run in part["runs"]]

    def find(self, part: Part, job: Job) -> Run | None:
        own = self.runs(part, job.label, job.tuning)
        return next((run for run in own if run["lr"] == job.lr and run["seed"] == job.seed), None)

    def tuned(self, part: Part) -> dict[str, float]:
        """The step size that was chosen, by method."""
        chosen: dict[str, float] = self._part(part.name)["tuned"]
        return chosen

    def sessions(self, part: Part) -> list[dict[str, Any]]:
        """When and on what the part was trained."""
        sessions: list[dict[str, Any]] = self._part(part.name)["sessions"]
        return sessions

    def add(self, part: Part, runs: Iterable[Run]) -> None:
        """Keep runs, in place of shorter ones or of those of another configuration."""
        mine = self._part(part.name)
        kept = {_key(run): run for run in mine["runs"]}
        for run in runs:
            before = kept.get(_key(run))
            if before is None or before["configuration"] != run["configuration"] or before["rounds"] <= run["rounds"]:
                kept[_key(run)] = run
        mine["runs"] = [kept[key] for key in sorted(kept)]

    def absorb(self, other: Records) -> None:
        """Keep what another's records have, too, of the configurations that are here."""
        for name, theirs in other._table["parts"].items():
            part = by_key(f"{self._table['study']}/{name}")
            runs = [*other.runs(part), *other.runs(part, tuning=True)]
            self.add(part, runs)
            mine, known = self._part(name), {(run["method"], run["lr"]) for run in runs}
            mine["tuned"] |= {label: lr for label, lr in theirs["tuned"].items() if (label, lr) in known}
            mine["sessions"] += [session for session in theirs["sessions"] if session not in mine["sessions"]]

    def write(self) -> None:
        """A line for each run, so that changes can be read."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(self.path, (_lines(self._table) + "\n").encode())

    def _part(self, name: str) -> dict[str, Any]:
        part: dict[str, Any] = self._table["parts"].setdefault(name, {"tuned": {}, "sessions": [], "runs": []})
        return part


def merge(folder: Path, into: Path) -> list[Path]:
    """Add the records of a folder to those of another; returns the files that were written."""
    written = []
    for name in names():
        if (folder / f"{name}.json").exists():
            records = Records(into, name)
            records.absorb(Records(folder, name))
            records.write()
            written.append(records.path)
    if not written:
        raise ValueError(f"Cannot merge {folder} because it holds no records")
    return written


def _key(run: Run) -> tuple[str, float, int, bool]:
    return run["method"], run["lr"], run["seed"], run["tuning"]


def _lines(table: Mapping[str, Any]) -> str:
    def one(value: Any) -> str:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)

    parts = []
    for name, part in table["parts"].items():
        lists = [f'  "{key}": [\n   ' + ",\n   ".join(map(one, part[key])) + "\n  ]" for key in ("sessions", "runs")]
        parts.append(f' {one(name)}: {{\n  "tuned": {one(part["tuned"])},\n' + ",\n".join(lists) + "\n }")
    return f'{{"study": {one(table["study"])},\n"parts": {{\n' + ",\n".join(parts) + "\n}}"


def run_record(part: Part, job: Job, result: Result, wanted: int) -> Run:
    """What is kept of a run that was to have so many rounds."""
    history = result.history
    ended = "complete"
    if result.interrupted and len(history) < wanted:
        ended = "diverged" if "diverged" in result.info else "cut off"
    aims = _aims(part)
    run: Run = {
        "method": job.label,
        "lr": job.lr,
        "seed": job.seed,
        "tuning": job.tuning,
        "configuration": fingerprint(part, job.label, job.lr),
        "precision": result.info.get("precision"),
        "rounds": len(history),
        "ended": ended,
        "last": _known({metric: last_value(history, metric) for metric in METRICS}),
        "mean_last": _known({metric: _mean_of_last(history, metric) for metric in METRICS}),
        "first": {words: _first(history, metric, value) for words, (metric, value) in aims.items()},
    }
    if not job.tuning:
        run["curve"] = _curve(history)
        climbed = {c.metric for own in _shown(part) for c in own.columns if c.kind.endswith("_to_final")}
        if climbed:
            run["climb"] = {metric: _climb(history, metric) for metric in sorted(climbed)}
    return run


def _shown(part: Part) -> list[Part]:
    """The part, and all parts of all studies that show its runs."""
    return [part, *(own for name in names() for own in load(name).parts if own.runs_of == part.key)]


def _aims(part: Part) -> dict[str, tuple[str, float]]:
    """What is to be reached: the target, and what any of the tables that show a part's runs asks for."""
    columns = [column for own in _shown(part) for column in own.columns]
    wanted = [(metric, level) for metric, level in part.table["target"].items() if not isinstance(level, Mapping)]
    wanted += [(column.metric, column.value) for column in columns if column.value is not None]
    return {aim(metric, value): (metric, value) for metric, value in wanted}


def _first(history: History, metric: str, value: float) -> list[float] | None:
    """[round, megabytes] of when a value was reached."""
    record = history.first(metric, value)
    return None if record is None else [record.round, _short(history.bytes_until(record) / 1e6)]


def _mean_of_last(history: History, metric: str) -> float | None:
    late = [getattr(r, metric) for r in history if r.round > len(history) - _WINDOW]
    known = [v for v in late if v is not None and math.isfinite(v)]
    return sum(known) / len(known) if known else None


def _curve(history: History) -> dict[str, list[float]]:
    """A metric's values in a few of the evaluated rounds, evenly spread, the last among them."""
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
    """[round, value, megabytes] of each time that an accuracy was a step above the best before."""
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
    """To six digits: more are noise."""
    return float(f"{v:.6g}")
