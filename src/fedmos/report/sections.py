"""The sections of the report below the first chart: figures with captions, and tables."""

from __future__ import annotations

from html import escape

from ..evaluation.diagnostics import MEASURES
from ..experiments.captions import notes
from .client_accuracy import ClientAccuracy, ClientScatter
from .curves import Curve
from .elements import html_figure
from .html_table import html_table, marked_cells, outcome_table, spread_cells
from .participation import Participation
from .payload import metrics_of, title
from .split import SplitFigure
from .study import ReportStudy
from .tradeoff import Tradeoff

_NUMBERS = 10
"""Rounds in the table below a figure."""


def outcome(study: ReportStudy) -> str:
    """Return the table of `fedmos compare` with all columns, and its note."""
    table, words = study.table, study.note
    if table.target is not None and len(study.results) > 1:
        words += (
            f" A speed-up is the ratio of {table.baseline}'s mean to the method's, over the seeds in which both reached"
            " the target."
        )
        if against := dict.fromkeys(result.against for result in study.results if result.against is not None):
            words += f" Tuned methods are measured against {' and '.join(against)}."
    words = f"{words} {notes(table)}".rstrip()
    if len(study.results) > 1:
        words += " Bold: the best mean of a column, among methods that reached the target with every seed."
    return outcome_table("What each method needs", table) + f'<p class="note">{escape(words)}</p>'


def metric_figure(metric: str, lines: list[Curve], first: bool = False) -> str:
    """Return the figure of a metric, and some of its numbers as a table for readers who cannot see it."""
    known = [line for line in lines if line.rounds]
    last = ", ".join(f"{line.label} {line.mean[-1]:.3f}" for line in known)
    name = title(metric)
    heading = escape(name[0].upper() + name[1:])
    several = any(max(line.seeds) > 1 for line in known)
    caption = "Mean over seeds; the band is the range between the lowest and the highest seed." if several else ""
    if metric in MEASURES:
        caption = f"{MEASURES[metric][0].upper()}{MEASURES[metric][1:]}. {caption}"
    described = escape(f"Line chart of {name}. At the end: {last}. Arrow keys compare the methods.")
    level = "h2" if first else "h3"
    return (
        f'<figure class="curves{" first" if first else ""}"><{level}>{heading}</{level}>'
        f'<div class="frame"><div class="plot" id="plot-{metric}" role="img" tabindex="0" '
        f'aria-label="{described}"></div></div>'
        f'<p class="note coincide" id="note-{metric}" role="status" hidden></p>'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
        f"<details><summary>Numbers of this figure</summary>{_numbers(name, known)}</details>"
    )


def _numbers(name: str, known: list[Curve]) -> str:
    """Return the values of some rounds as a table."""
    rounds = sorted({t for line in known for t in line.rounds})
    listed = sorted({rounds[i * (len(rounds) - 1) // max(1, _NUMBERS - 1)] for i in range(_NUMBERS)})
    values = [dict(zip(line.rounds, line.mean, strict=True)) for line in known]
    cells = [[str(t), *("" if t not in v else f"{v[t]:.4f}" for v in values)] for t in listed]
    return html_table(f"{name.capitalize()}, mean over seeds", ["round", *(line.label for line in known)], cells)


def diagnostics(curves: dict[str, list[Curve]]) -> list[str]:
    """Return the figures of `fm.Diagnostics`, if it was used."""
    figures = [metric_figure(measure, lines) for measure, lines in curves.items()]
    return ["<h2>Diagnostics</h2>", *figures] if figures else []


def client_accuracy_figure(methods: list[str], accuracies: list[ClientAccuracy | None]) -> list[str]:
    """Return the figure of the accuracy per client, if it was measured."""
    known = [(label, a) for label, a in zip(methods, accuracies, strict=True) if a is not None]
    if not known:
        return []
    kinds = {a.tested for _, a in known}
    samples = "data" if len(kinds) > 1 else "test samples" if kinds == {True} else "training data"
    caption = (
        f"Accuracy of the final model on each client's own {samples}, clients from the worst to the best, "
        "mean over seeds."
    )
    if any(a.personal for _, a in known):
        caption += " Of methods with personal models, each client's own model counts."
    columns = [marked_cells([getattr(a, name) for _, a in known], 3) for name in ("worst_tenth", "median", "mean")]
    cells = [[label, *row] for (label, _), *row in zip(known, *columns, strict=True)]
    headings = ["method", "worst 10 % of clients", "median client", "mean over clients"]
    numbers = html_table("Accuracy on clients' own data; every client counts the same", headings, cells, sortable=True)
    histogram = "Histogram of these accuracies: the share of clients in each interval of 0.05, mean over seeds."
    figures = [html_figure("served", caption, caption, low=True)]
    if True in kinds:
        figures.append(html_figure("spread", histogram, histogram, low=True))
    return ["<h2>Across clients</h2>", "".join(figures) + numbers]


def client_scatter_figure(methods: list[str], scatter: ClientScatter | None) -> list[str]:
    """Return the figure that holds methods against one of them, client by client, if two have evaluated clients."""
    if scatter is None:
        return []
    name = "training alone" if scatter.alone else scatter.reference
    caption = (
        f"Each point is a client of a seed: its accuracy on its own test samples with a method, against that with "
        f"{name}. Above the diagonal, the method is better for the client."
    )
    known = [(label, one) for label, one in zip(methods, scatter.methods, strict=True) if one is not None]
    cells = [[label, f"{one.better:.1%}", f"{one.worse:.1%}"] for label, one in known]
    headings = ["method", f"clients better than with {name}", "clients worse"]
    numbers = html_table(f"Clients with another accuracy than with {name}", headings, cells, sortable=True)
    return [f"<h3>Against {escape(name)}</h3>", html_figure("gains", caption, caption) + numbers]


def tradeoff_figure(study: ReportStudy, traded: Tradeoff | None) -> list[str]:
    """Return the figure of the metric over megabytes with the Pareto front, if messages are coded."""
    if traded is None or not traded.front:
        return []
    name = title(study.table.metric)
    caption = (
        f"The best {name} so far, mean over seeds, by the megabytes sent in both directions. The grey line is the "
        "Pareto front: no method reaches its values with fewer megabytes."
    )
    found = [(study.results[a.method], a, b) for a, b in traded.stretches()]
    cells = [[one.label, one.codecs or "none", f"{a.megabytes:.3g}", f"{b.value:.4g}"] for one, a, b in found]
    headings = ["method", "codec", "best from MB", f"up to a {name} of"]
    numbers = html_table("The methods of the Pareto front, from few megabytes to many", headings, cells, kind="words")
    heading = f"<h2>{escape(name[0].upper() + name[1:])} over megabytes</h2>"
    folded = f"<details><summary>The methods of the Pareto front</summary>{numbers}</details>"
    return [heading, html_figure("traded", caption, caption) + folded]


def tuning(study: ReportStudy) -> list[str]:
    """Return a table of all points of the grids, if there are any."""
    metric, lines = study.table.metric, []
    for result in study.results:
        own = "" if result.trains(metric) else " (clients' own models)"
        for trial in () if result.tuned is None else result.tuned.tried:
            values = ", ".join(f"{field} {value:g}" for field, value in trial.values.items())
            final = "diverged" if trial.final is None else f"{trial.final:.4f}{own}"
            mark = "chosen" if result.tuned is not None and trial.values == result.tuned.values else ""
            lines.append([result.label, values, "" if trial.rounds is None else str(trial.rounds), final, mark])
    if not lines:
        return []
    headings = ["method", "values", "rounds to the target", f"last {metric}", ""]
    table = html_table("Tuning runs, one per point of the grid", headings, lines)
    return ["<h2>Tuning</h2>", f"<details><summary>Every point of the grids</summary>{table}</details>"]


def split_section(split: SplitFigure | str) -> str:
    if isinstance(split, str):
        return f"<p>{escape(split)}</p>"
    caption = (
        f"Samples by client and class for seed {split.seed}: the area of a bubble is their number; "
        f"{len(split.clients)} clients, evenly spaced where there are more."
    )
    return html_figure("split", caption, caption) + f"<pre>{escape(split.summary)}</pre>"


def participation_figure(methods: list[str], participations: list[Participation | None]) -> str:
    caption = "How often clients take part: clients in order of their share of the rounds, mean over seeds."
    cells = [
        [label, f"{p.shares[0]:.1%}", f"{p.shares[-1]:.1%}", f"{p.never:.1%}", f"{p.gini:.2f}"]
        for label, p in zip(methods, participations, strict=True)
        if p is not None
    ]
    headings = ["method", "most frequent client", "least frequent client", "clients never chosen", "gini"]
    skew = "Share of rounds; gini is 0 if all take part equally often, near 1 if few do all the work."
    return html_figure("chosen", caption, caption, low=True) + html_table(skew, headings, cells, sortable=True)


def methods(study: ReportStudy) -> str:
    """Return a table of each method's settings and of the last value of every metric."""
    fields = ["algorithm", "selection", "local_steps", "local_epochs", "batch_size", "engine", "device", "parameters"]
    infos = [next(iter(result.infos.values())) for result in study.results]
    used = [f for f in fields if any(info.get(f) is not None for info in infos)]
    metrics = metrics_of(study)
    finals = [spread_cells([result.final(metric) for result in study.results], metric) for metric in metrics]
    lines = []
    for result, info, *last in zip(study.results, infos, *finals, strict=True):
        rounds = "/".join(str(n) for n in sorted({len(run) for run in result.runs.values()}))
        lines.append([result.label, rounds, *last, *(str(info.get(f, "")) for f in used)])
    headings = ["method", "rounds", *(f"final {title(metric)}" for metric in metrics), *used]
    return html_table("Settings of each method, and the last value of every metric", headings, lines, kind="words")


def configuration(name: str, text: str) -> str:
    return f"<details><summary>{escape(name)}</summary><pre>{escape(text)}</pre></details>"
