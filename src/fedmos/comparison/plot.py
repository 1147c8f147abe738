"""`fm.plot`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.formatting import format_value
from ..core.validation import none, path, require

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot(
    runs: Any,
    metric: str | Sequence[str] | None = None,
    *,
    x: str = "rounds",
    target: Mapping[str, float] | None = None,
    out: str | os.PathLike[str] | None = None,
) -> Figure:
    """Draw metrics of runs over rounds, megabytes or simulated seconds, and return the figure.

    Runs that differ only in their seed are one line, the mean over seeds, with the range between them. `fedmos plot`
    draws the same figure from folders.

    Args:
        runs: A result, the folder of a run or comparison, a list of those, or a mapping from labels to those or to
            lists of them; or what `fm.compare` returned.
        metric: A metric, or several for a panel each; by default the target's, or else the accuracy.
        x: The horizontal axis: "rounds", "megabytes" or "seconds" (simulated).
        target: A metric and the value to reach, drawn as a dashed line; by default that of the runs.
        out: A file for the figure, whose name ends in .pdf, .png or .svg.

    Returns:
        A `matplotlib.figure.Figure`.

    Raises:
        ImportError: If matplotlib is missing (`pip install 'fedmos[plot]'`).
        ValueError: If the runs cannot be compared: other data, other targets, or one run twice.

    Example:
        >>> shared = {"model": model, "data": data, "selection": fm.Uniform(m=3), "rounds": 3, "local_steps": 1}
        >>> a, b = fm.run(algorithm=fm.FedAvg(lr=0.1), **shared), fm.run(algorithm=fm.FedMoS(lr=0.1), **shared)
        >>> figure = fm.plot([a, b])
        >>> [line.get_label() for line in figure.axes[0].lines]
        ['FedAvg', 'FedMoS']
    """
    from ..report.results_plot import plot_results
    from ..run.preflight import check_target

    if target is not None and (not isinstance(target, Mapping) or len(target) != 1):
        raise ValueError(f"plot: 'target' must be one metric with its value, got {format_value(target)}")
    goal = next(iter(check_target(target, list(target)).items())) if target else None
    metrics: Any = [] if metric is None else [metric] if isinstance(metric, str) else metric
    if not isinstance(metrics, Sequence) or not all(isinstance(name, str) for name in metrics):
        raise ValueError(f"plot: 'metric' must be the name of a metric or several, got {format_value(metric)}")
    require("plot", "out", out, path | none)
    figure: Figure = plot_results(runs, list(metrics), x, goal, None if out is None else Path(out))
    return figure
