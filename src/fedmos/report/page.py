"""The report: one self-contained HTML file."""

from __future__ import annotations

from html import escape

from ..core.metric_names import is_loss
from ..evaluation.diagnostics import MEASURES
from . import sections
from .answer import answer
from .client_accuracy import client_accuracy, client_scatter
from .controls import controls, drawn_first
from .elements import html_document
from .participation import participation
from .payload import COLOURS as COLOURS
from .payload import all_curves, payload, scatter_data
from .split import split_figure
from .study import ReportStudy
from .tradeoff import tradeoff


def html(study: ReportStudy) -> str:
    """Return the page: the chart of the target's metric first, then the table, further figures and the settings."""
    curves, axes = all_curves(study)
    accuracies = [client_accuracy(result) for result in study.results]
    scatter = client_scatter(study.results, study.table.baseline)
    participations = [participation(result) for result in study.results]
    split = split_figure(study) if study.progress is None else "It is shown when the comparison is complete."
    metric = study.table.metric
    traded = tradeoff(curves[metric], is_loss(metric)) if study.table.coded and metric in curves else None
    data = payload(study, curves, axes, split, accuracies, participations, traded)
    data["gains"] = scatter_data(scatter)
    methods = [result.label for result in study.results]
    (first, lines), *others = ((metric, lines) for metric, lines in curves.items() if metric not in MEASURES)
    rest = [
        "<h2>What each method needs</h2>",
        sections.outcome(study),
        *sections.tradeoff_figure(study, traded),
        *(["<h2>Other metrics</h2>"] if others else []),
        *(sections.metric_figure(metric, lines) for metric, lines in others),
        *sections.diagnostics({measure: lines for measure, lines in curves.items() if measure in MEASURES}),
        *sections.client_accuracy_figure(methods, accuracies),
        *sections.client_scatter_figure(methods, scatter),
        "<h2>The split</h2>",
        sections.split_section(split),
        "<h2>Client participation</h2>",
        sections.participation_figure(methods, participations),
        *sections.tuning(study),
        "<h2>Methods</h2>",
        sections.methods(study),
        "<h2>Configuration</h2>",
        *(sections.configuration(str(source.folder), source.text) for source in study.sources),
    ]
    parts = [
        _header(study),
        '<div class="layout"><section class="hero">',
        sections.metric_figure(first, lines, first=True),
        _drawn_note(study),
        f"</section>{controls(study, axes)}",
        f'<div class="rest">{chr(10).join(rest)}</div></div>',
    ]
    return html_document(study.title, parts, data)


def _header(study: ReportStudy) -> str:
    words = f'<p class="answer">{escape(answer(study.table))}</p>'
    if study.progress is not None:
        words = f'<p class="live" role="status">{escape(str(study.progress))}</p>'
    return f"<header><h1>{escape(study.title)}</h1>{words}</header>"


def _drawn_note(study: ReportStudy) -> str:
    """Return a sentence if not all methods are drawn at first."""
    drawn, total = len(drawn_first(study)), len(study.results)
    if drawn == total:
        return ""
    which = "the tuned" if drawn == sum(result.tuned is not None for result in study.results) else "the best ones"
    words = f"{drawn} of {total} methods are drawn at first, {which}. Pick others, or choose small multiples."
    return f'<p class="note" id="drawn-first">{escape(words)}</p>'
