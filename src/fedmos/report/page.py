"""The report of a comparison: one HTML file that needs nothing else."""

from __future__ import annotations

import math
import statistics
from html import escape

from ..compare import Row, table
from ..config import CompareConfig
from .figure import Line, line_chart

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 50rem; margin: 2rem auto; padding: 0 1rem;
       color-scheme: light dark }
table { border-collapse: collapse; margin: 1rem 0 }
th, td { padding: .3rem .8rem; text-align: right; border-bottom: 1px solid #8884 }
th:first-child, td:first-child { text-align: left }
svg { max-width: 100%; height: auto; margin: 1rem 0 }
pre { overflow: auto; padding: 1rem; background: #8882 }
"""


def html(config: CompareConfig, rows: list[Row], source: str) -> str:
    """The page; `source` is the configuration's text."""
    headings, cells = table(config, rows)
    head = "".join(f"<th>{escape(h)}</th>" for h in headings)
    body = "".join("<tr>" + "".join(f"<td>{escape(c)}</td>" for c in row) + "</tr>" for row in cells)
    return f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{escape(config.title)}</title>
<style>{_STYLE}</style>
<h1>{escape(config.title)}</h1>
<p>{escape(caption(config))}</p>
<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>
{chart(config, rows)}
<h2>Configuration</h2>
<pre>{escape(source)}</pre>
</html>
"""


def caption(config: CompareConfig) -> str:
    """How the numbers came about."""
    how = "its own step size"
    if config.tune is not None:
        grid = ", ".join(f"{lr:g}" for lr in config.tune.lr)
        best = {"rounds": "reached it first", "final": "ended best"}[config.tune.by]
        how = f"the step size among {grid} that {best} on seed {config.tune.seed}"
    return (
        f"Mean ± standard deviation over {len(config.seeds)} seeds; every method with {how}. MB count both directions."
    )


def chart(config: CompareConfig, rows: list[Row]) -> str:
    """The target's metric over rounds, mean and range over seeds."""
    ((metric, target),) = config.target.items()
    lines = [line for line in (curve(row, metric) for row in rows) if line.x]
    if not lines:
        return "<p>No run was evaluated.</p>"
    return line_chart(lines, title=config.title, x="round", y=metric, level=target)


def curve(row: Row, metric: str) -> Line:
    """One method over rounds: mean and range over its seeds."""
    by_round: dict[int, list[float]] = {}
    for result in row.results:
        for record in result.history:
            if (value := getattr(record, metric)) is not None and math.isfinite(value):
                by_round.setdefault(record.round, []).append(value)
    rounds = sorted(by_round)
    return Line(
        label=row.method.label,
        x=rounds,
        y=[statistics.mean(by_round[t]) for t in rounds],
        low=[min(by_round[t]) for t in rounds],
        high=[max(by_round[t]) for t in rounds],
    )
