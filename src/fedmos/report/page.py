"""The report: one self-contained HTML file."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from ..core.history import METRICS
from ..evaluation.diagnostics import MEASURES
from ..experiments.seed_statistics import spread
from .answer import answer
from .client_accuracy import ClientAccuracy, client_accuracy
from .curves import Curve, curve
from .elements import html_document, html_figure, html_table
from .participation import Participation, participation
from .split import SplitFigure, split_figure
from .study import ReportStudy

COLOURS = ("#4477aa", "#d6455a", "#2e8b57", "#b07d12", "#8d62c4", "#1a8aa5", "#c0589a", "#7a7a7a")
"""Each has a contrast of at least 3 to a white and to a dark page."""
_TITLES = {
    "accuracy": "test accuracy",
    "test_loss": "test loss",
    "train_loss": "training loss",
    "train_accuracy": "training accuracy",
}
_AXES = {"rounds": "round", "megabytes": "megabytes sent, both ways", "seconds": "simulated seconds"}
_NUMBERS = 10
"""Rounds in the table below a figure."""


def html(study: ReportStudy) -> str:
    """Return the page."""
    curves, axes = _curves(study)
    accuracies = [client_accuracy(result) for result in study.results]
    split, participations = split_figure(study), [participation(result) for result in study.results]
    methods = [result.label for result in study.results]
    groups = ["given" if result.tuned is None else "tuned" for result in study.results]
    data = {
        "methods": methods,
        "colours": COLOURS,
        "axes": axes,
        "metrics": [_metric_data(study, metric, lines) for metric, lines in curves.items()],
        "split": _bubbles(split) if isinstance(split, SplitFigure) else None,
        "groups": groups,
        "styles": [groups[:i].count(group) for i, group in enumerate(groups)],
        "served": [
            None if a is None else {"shares": a.shares, "accuracies": _rounded(a.accuracies)} for a in accuracies
        ],
        "chosen": [None if p is None else {"ranks": p.ranks, "shares": _rounded(p.shares)} for p in participations],
    }
    parts = [
        f"<h1>{escape(study.title)}</h1>",
        f'<p class="answer">{escape(answer(study.table))}</p>',
        _outcome(study),
        "<h2>Curves</h2>",
        _controls(axes, methods, groups),
        *(_metric_figure(metric, lines) for metric, lines in curves.items() if metric in METRICS),
        *_diagnostics({measure: lines for measure, lines in curves.items() if measure in MEASURES}),
        *_client_accuracy_figure(methods, accuracies),
        "<h2>The split</h2>",
        _split_figure(split),
        "<h2>Client participation</h2>",
        _participation_figure(methods, participations),
        *_tuning(study),
        "<h2>Methods</h2>",
        _methods(study),
        "<h2>Configuration</h2>",
        *(_configuration(str(source.folder), source.text) for source in study.sources),
    ]
    return html_document(study.title, parts, data)


def _curves(study: ReportStudy) -> tuple[dict[str, list[Curve]], dict[str, str]]:
    """Return the curves of every measured metric, the target's first, and the horizontal axes that they have."""
    results, first = study.results, study.table.metric
    measured = {name for result in results for run in result.runs.values() for r in run for name in r.diagnostics or ()}
    order = [first, *(m for m in METRICS if m != first), *(m for m in MEASURES if m in measured)]
    curves = {metric: [curve(result, metric) for result in results] for metric in order}
    curves = {metric: lines for metric, lines in curves.items() if any(line.rounds for line in lines)}
    clocked = any(line.seconds is not None for lines in curves.values() for line in lines)
    return curves, {name: words for name, words in _AXES.items() if name != "seconds" or clocked}


def _metric_data(study: ReportStudy, metric: str, lines: list[Curve]) -> dict[str, Any]:
    return {
        "name": metric,
        "title": _title(metric),
        "target": study.table.target if metric == study.table.metric else None,
        "curves": [_drawn(line) for line in lines],
    }


def _rounded(values: Sequence[float]) -> list[float]:
    """Round to six significant digits."""
    return [float(f"{v:.6g}") for v in values]


def _drawn(line: Curve) -> dict[str, Any] | None:
    if not line.rounds:
        return None
    thin = line.thinned()
    several = max(thin.seeds) > 1
    return {
        "rounds": thin.rounds,
        "megabytes": _rounded(thin.megabytes),
        "seconds": None if thin.seconds is None else _rounded(thin.seconds),
        "mean": _rounded(thin.mean),
        "low": _rounded(thin.low) if several else None,
        "high": _rounded(thin.high) if several else None,
        "seeds": thin.seeds if several else None,
    }


def _bubbles(split: SplitFigure) -> dict[str, Any]:
    points = [(i, c, int(n)) for i, line in enumerate(split.counts) for c, n in enumerate(line) if n > 0]
    return {
        "clients": split.clients,
        "classes": split.classes,
        "points": points,
        "largest": max((n for _, _, n in points), default=1),
    }


def _title(metric: str) -> str:
    return _TITLES.get(metric, metric.replace("_", " "))


def _outcome(study: ReportStudy) -> str:
    """Return the table of `fedmos compare` with all columns, and its note."""
    table, words = study.table, study.note
    if table.target is not None and len(study.results) > 1:
        words += (
            f" A speed-up is the ratio of {table.baseline}'s mean to the method's, over the seeds in which both reached"
            " the target; in brackets, a 95 % bootstrap interval over seeds."
        )
        if against := dict.fromkeys(result.against for result in study.results if result.against is not None):
            words += f" Tuned methods are measured against {' and '.join(against)}."
    outcome = html_table("What each method needs", [column.heading for column in table.columns()], table.cells())
    return outcome.replace("<table ", '<table id="outcome" ') + f'<p class="note">{escape(words)}</p>'


def _controls(axes: dict[str, str], methods: list[str], groups: list[str]) -> str:
    """Return the switches. If methods are both as configured and tuned, only the tuned are switched on at first."""
    both = len(set(groups)) > 1
    choices = "".join(
        f'<label><input type="radio" name="axis" value="{name}"{" checked" if name == "rounds" else ""}>'
        f"{escape(words)}</label>"
        for name, words in axes.items()
    )
    line = '<line x2="32" y1="8" y2="8" stroke-width="4"/>'
    swatch = f'<svg class="swatch" viewBox="0 0 32 16" aria-hidden="true">{line}</svg>'
    boxes = "".join(
        f'<label><input type="checkbox" name="method" value="{i}"{"" if both and groups[i] == "given" else " checked"}>'
        f"{swatch}{escape(label)}</label>"
        for i, label in enumerate(methods)
    )
    buttons = {"show": "all", "hide": "none"} | ({"given": "as given", "tuned": "tuned"} if both else {})
    pressed = " ".join(f'<button type="button" data-all="{kind}">{word}</button>' for kind, word in buttons.items())
    return (
        f'<div class="controls"><fieldset class="axis"><legend>Horizontal axis</legend>{choices}</fieldset>'
        f"<fieldset><legend>Methods</legend>{boxes}"
        f'<span class="hint">{pressed}</span></fieldset></div>'
        "<noscript><p>The figures need JavaScript; the tables do not.</p></noscript>"
    )


def _metric_figure(metric: str, lines: list[Curve]) -> str:
    """Return the figure, and some of its numbers as a table for readers who cannot see it."""
    known = [line for line in lines if line.rounds]
    last = ", ".join(f"{line.label} {line.mean[-1]:.3f}" for line in known)
    title = _title(metric)
    words = f" ({MEASURES[metric]})" if metric in MEASURES else ""
    caption = f"{title.capitalize()}{words}: mean over seeds, and the range between the lowest and the highest seed."
    rounds = sorted({t for line in known for t in line.rounds})
    listed = sorted({rounds[i * (len(rounds) - 1) // max(1, _NUMBERS - 1)] for i in range(_NUMBERS)})
    values = [dict(zip(line.rounds, line.mean, strict=True)) for line in known]
    cells = [[str(t), *("" if t not in v else f"{v[t]:.4f}" for v in values)] for t in listed]
    numbers = html_table(f"{title.capitalize()}, mean over seeds", ["round", *(line.label for line in known)], cells)
    return (
        html_figure(metric, f"Line chart of {title}. At the end: {last}.", caption)
        + f"<details><summary>Numbers of this figure</summary>{numbers}</details>"
    )


def _diagnostics(curves: dict[str, list[Curve]]) -> list[str]:
    """Return the figures of `fm.Diagnostics`, if it was used."""
    figures = [_metric_figure(measure, lines) for measure, lines in curves.items()]
    return ["<h2>Diagnostics</h2>", *figures] if figures else []


def _client_accuracy_figure(methods: list[str], accuracies: list[ClientAccuracy | None]) -> list[str]:
    """Return the figure of the accuracy per client, if it was measured."""
    known = [(label, a) for label, a in zip(methods, accuracies, strict=True) if a is not None]
    if not known:
        return []
    caption = (
        "Accuracy of the final model on each client's own training data, clients from the worst to the best, "
        "mean over seeds."
    )
    cells = [[label, f"{a.worst_tenth:.3f}", f"{a.median:.3f}", f"{a.mean:.3f}"] for label, a in known]
    headings = ["method", "worst 10 % of clients", "median client", "mean over clients"]
    numbers = html_table("Accuracy on clients' own data; every client counts the same", headings, cells)
    return ["<h2>Across clients</h2>", html_figure("served", caption, caption, low=True) + numbers]


def _tuning(study: ReportStudy) -> list[str]:
    """Return a table of all points of the grids, if there are any."""
    metric, lines = study.table.metric, []
    for label, tuned in ((result.label, result.tuned) for result in study.results if result.tuned is not None):
        for trial in tuned.tried:
            values = ", ".join(f"{field} {value:g}" for field, value in trial.values.items())
            final = "diverged" if trial.final is None else f"{trial.final:.4f}"
            mark = "chosen" if trial.values == tuned.values else ""
            lines.append([label, values, "" if trial.rounds is None else str(trial.rounds), final, mark])
    if not lines:
        return []
    headings = ["method", "values", "rounds to the target", f"last {metric}", ""]
    table = html_table("Tuning runs, one per point of the grid", headings, lines)
    return ["<h2>Tuning</h2>", f"<details><summary>Every point of the grids</summary>{table}</details>"]


def _split_figure(split: SplitFigure | str) -> str:
    if isinstance(split, str):
        return f"<p>{escape(split)}</p>"
    caption = (
        f"Samples by client and class for seed {split.seed}: the area of a bubble is their number; "
        f"{len(split.clients)} clients, evenly spaced where there are more."
    )
    return html_figure("split", caption, caption) + f"<pre>{escape(split.summary)}</pre>"


def _participation_figure(methods: list[str], participations: list[Participation | None]) -> str:
    caption = "How often clients take part: clients in order of their share of the rounds, mean over seeds."
    cells = [
        [label, f"{p.shares[0]:.1%}", f"{p.shares[-1]:.1%}", f"{p.never:.1%}", f"{p.gini:.2f}"]
        for label, p in zip(methods, participations, strict=True)
        if p is not None
    ]
    headings = ["method", "most frequent client", "least frequent client", "clients never chosen", "gini"]
    skew = "Share of rounds; gini is 0 if all take part equally often, near 1 if few do all the work."
    return html_figure("chosen", caption, caption, low=True) + html_table(skew, headings, cells)


def _methods(study: ReportStudy) -> str:
    """Return a table of each method's settings and of the last value of every metric."""
    fields = ["algorithm", "selection", "local_steps", "local_epochs", "batch_size", "engine", "device", "parameters"]
    infos = [next(iter(result.infos.values())) for result in study.results]
    used = [f for f in fields if any(info.get(f) is not None for info in infos)]
    lines = []
    for result, info in zip(study.results, infos, strict=True):
        rounds = "/".join(str(n) for n in sorted({len(run) for run in result.runs.values()}))
        known = [[v for v in result.final(metric).values() if v is not None] for metric in METRICS]
        finals = [spread(values, 4) if values else "" for values in known]
        lines.append([result.label, rounds, *finals, *(str(info.get(f, "")) for f in used)])
    headings = ["method", "rounds", *(f"final {_TITLES[metric]}" for metric in METRICS), *used]
    return html_table("Settings of each method, and the last value of every metric", headings, lines, "words")


def _configuration(name: str, text: str) -> str:
    return f"<details open><summary>{escape(name)}</summary><pre>{escape(text)}</pre></details>"
