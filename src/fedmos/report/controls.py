"""The controls of the report, and which methods it draws at first."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from ..core.metric_names import is_loss
from .payload import final_values, target_costs, tuning_groups
from .study import ReportStudy

MOST = 12
"""Methods that are all drawn at first."""
_DRAWN = 8
"""Methods that are drawn at first if there are more than `MOST`: the best, and the baseline."""
_AXES = {"rounds": "Rounds", "megabytes": "MB sent", "seconds": "Time"}


def drawn_first(study: ReportStudy) -> list[int]:
    """Return the numbers of the methods that are drawn when the page opens.

    If methods are both as configured and tuned, these are the tuned. Of many, they are the best and the baseline: by
    the megabytes to the target, then by the final value.
    """
    groups = tuning_groups(study)
    numbers = [i for i, group in enumerate(groups) if group == "tuned" or "tuned" not in groups]
    if len(numbers) <= MOST:
        return numbers
    costs, finals = target_costs(study.table), final_values(study.table)
    sign = 1 if is_loss(study.table.metric) else -1

    def rank(i: int) -> tuple[bool, float, bool, float]:
        cost, final = costs[i], finals[i]
        return cost is None, cost or 0.0, final is None, sign * (final or 0.0)

    references = {study.table.reference(study.results[i]) for i in numbers}
    baselines = [i for i in numbers if study.results[i].label in references]
    best = [i for i in sorted(numbers, key=rank) if i not in baselines]
    return sorted([*baselines, *best][:_DRAWN])


def controls(study: ReportStudy, axes: dict[str, str]) -> str:
    """Return the panel of controls."""
    return (
        '<aside class="controls" aria-label="Controls of the figures">'
        f"{_radios('Horizontal axis', 'axis', {name: _AXES[name] for name in axes})}"
        f"{_radios('Layout', 'view', {'overlay': 'One chart', 'multiples': 'Small multiples'})}"
        '<div class="row"><label><input type="checkbox" name="logX">log x</label>'
        '<label><input type="checkbox" name="logY">log y</label></div>'
        '<div class="slider"><label for="smoothing">Smoothing:</label> <output id="smoothing-value">off</output>'
        '<input type="range" id="smoothing" name="smoothing" min="0" max="10" step="1" value="0"></div>'
        f"{_methods(study)}</aside>"
        "<noscript><p>The figures need JavaScript; the tables do not.</p></noscript>"
    )


def _radios(legend: str, name: str, choices: dict[str, str]) -> str:
    buttons = "".join(
        f'<label><input type="radio" name="{name}" value="{value}"{" checked" if i == 0 else ""}>'
        f"<span>{escape(words)}</span></label>"
        for i, (value, words) in enumerate(choices.items())
    )
    return f'<fieldset class="choice"><legend>{legend}</legend><div class="segments">{buttons}</div></fieldset>'


def _methods(study: ReportStudy) -> str:
    """Return the list of methods with a filter, an order and buttons."""
    groups, drawn = tuning_groups(study), drawn_first(study)
    buttons = {"show": "All", "hide": "None"}
    if len(set(groups)) > 1:
        buttons |= {"given": "As given", "tuned": "Tuned"}
    pressed = "".join(f'<button type="button" data-all="{kind}">{word}</button>' for kind, word in buttons.items())
    orders = {"given": "as configured", "name": "by name", "final": f"by final {study.table.metric}"}
    if study.table.target is not None:
        orders["cost"] = "by MB to the target"
    options = "".join(f'<option value="{value}">{escape(words)}</option>' for value, words in orders.items())
    many = "" if len(groups) > 6 else " few"
    return (
        f'<fieldset class="methods{many}"><legend>Methods: <output id="picked"></output></legend>'
        '<input type="search" name="filter" placeholder="Filter by name" aria-label="Filter methods by name">'
        f'<select name="sort" aria-label="Order of the methods">{options}</select>'
        f'<div class="row">{pressed}</div>'
        f'<div id="methods">{_boxes([result.label for result in study.results], drawn)}</div></fieldset>'
    )


def _boxes(labels: Sequence[str], drawn: Sequence[int]) -> str:
    line = '<line x2="28" y1="8" y2="8" stroke-width="4"/>'
    swatch = f'<svg class="swatch" viewBox="0 0 28 16" aria-hidden="true">{line}</svg>'
    return "".join(
        f'<label><input type="checkbox" name="method" value="{i}"{" checked" if i in drawn else ""}>'
        f"{swatch}<span>{escape(label)}</span></label>"
        for i, label in enumerate(labels)
    )
