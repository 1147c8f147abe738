"""Figures in the style of papers, drawn by matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

from ..experiments.table import ComparisonTable
from ..storage.files import storage_errors
from .curves import curve
from .page import COLOURS

AXES = {"rounds": "Communication rounds", "megabytes": "Megabytes sent", "seconds": "Simulated time (s)"}
ALIASES = {"round": "rounds", "bytes": "megabytes", "time": "seconds"}
"""Other names of axes, those of a record's fields."""
WORDS = {
    "accuracy": "Test accuracy",
    "test_loss": "Test loss",
    "train_loss": "Training loss",
    "train_accuracy": "Training accuracy",
}
ENDINGS = (".pdf", ".png", ".svg")
_STYLE: Any = {
    "font.family": "serif",
    "font.size": 8,
    "axes.labelsize": 8,
    "legend.fontsize": 7,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "axes.linewidth": 0.6,
    "axes.grid": True,
    "grid.linewidth": 0.3,
    "grid.color": "#cccccc",
    "lines.linewidth": 1.1,
    "pdf.fonttype": 42,  # embed fonts as text, which publishers require
    "svg.hashsalt": "fedmos",
    "text.parse_math": False,  # a dollar in a label is a dollar
}
_DASHES = ("-", "--", ":", "-.")
_WIDTH, _HEIGHT = 3.4, 2.5
"""Size of a panel in inches: one column of a two-column page."""
_LABEL = 40
"""Characters per line of the legend."""


def plot(table: ComparisonTable, out: Path, metrics: Sequence[str], x: str) -> None:
    """Write a figure with a panel per metric; see `draw`.

    Args:
        table: The methods to draw.
        out: The file; its name ends in .pdf, .png or .svg.
        metrics: Metrics of the panels.
        x: Horizontal axis: "rounds", "megabytes" or "seconds".
    """
    if out.suffix.lower() not in ENDINGS:
        raise ValueError(f"--out must end in one of {', '.join(ENDINGS)}, got {out.name!r}")
    save(draw(table, metrics, x), out)


def draw(table: ComparisonTable, metrics: Sequence[str], x: str) -> Any:
    """Return a figure with a panel per metric: mean and range over seeds, and the target as a dashed line."""
    try:
        import matplotlib
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("Cannot plot without matplotlib; use pip install 'fedmos[plot]'") from error

    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(_WIDTH * len(metrics), _HEIGHT), layout="constrained")
        FigureCanvasAgg(figure)
        for panel, metric in zip(figure.subplots(1, len(metrics), squeeze=False)[0], metrics, strict=True):
            _panel(panel, table, metric, x)
    return figure


def save(figure: Any, out: Path) -> None:
    """Write a figure to a file, the same bytes each time."""
    import matplotlib

    with matplotlib.rc_context(_STYLE), storage_errors(f"write {out}", "use another name"):
        figure.savefig(out, dpi=300, metadata={"Date": None} if out.suffix.lower() == ".svg" else None)


def _panel(panel: Any, table: ComparisonTable, metric: str, x: str) -> None:
    drawn: list[Any] = []
    for i, result in enumerate(table.results):
        line = curve(result, metric)
        along = getattr(line, x)
        if not along:
            continue
        colour, dash = COLOURS[i % len(COLOURS)], _DASHES[i // len(COLOURS) % len(_DASHES)]
        drawn += panel.plot(along, line.mean, dash, color=colour, label=fill(result.label, _LABEL))
        if max(line.seeds) > 1:
            panel.fill_between(along, line.low, line.high, color=colour, alpha=0.15, linewidth=0)
    if not drawn:
        raise ValueError(f"Cannot plot {metric} over {x} because no run has measured it")
    if metric == table.metric and table.target is not None:
        panel.axhline(table.target, color="black", linestyle="--", linewidth=0.7)
    panel.set_xlabel(AXES[x])
    panel.set_ylabel(WORDS.get(metric, metric.replace("_", " ")))
    panel.margins(x=0)
    panel.legend(handles=drawn, frameon=False)  # the default leaves out labels that begin with _
