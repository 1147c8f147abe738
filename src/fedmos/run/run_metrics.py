"""Which metrics a run measures."""

from __future__ import annotations

from typing import NamedTuple

from ..core.metric_functions import MetricFunction
from ..engine.ranks import Ranks
from ..engine.task import Task
from ..evaluation.measurable import measurable
from ..evaluation.user_metrics import choose_metrics
from .client_evaluation import ClientEvaluation
from .spec import RunSpec


class RunMetrics(NamedTuple):
    """What a run measures."""

    functions: dict[str, MetricFunction]
    """The metrics of the option `metrics`, or those that suit the task, by name."""
    clients: ClientEvaluation | None
    """The evaluation of clients, if the run has one."""
    names: list[str]
    """The names of all metrics."""


def run_metrics(
    spec: RunSpec, task: Task, ranks: Ranks | None = None, evaluation: type[ClientEvaluation] = ClientEvaluation
) -> RunMetrics:
    """Return what a run measures.

    Args:
        spec: The options of the run.
        task: The task of the run.
        ranks: The ranks of the run.
        evaluation: How clients are evaluated.

    Raises:
        ValueError: If there are no test samples to measure on, or a metric of the user has the name of a summary over
            clients.
    """
    functions = choose_metrics(task, spec.metrics, spec.evaluate_clients is not None)
    clients = None if spec.evaluate_clients is None else evaluation(spec, task, functions, ranks or Ranks())
    of_clients = [] if clients is None else clients.names
    for name in functions:
        if name in of_clients or (clients is not None and name in ("loss", "accuracy")):
            raise ValueError(f"run: 'metrics' must not be called {name!r} beside 'evaluate_clients'; use another name")
    twice = next((name for name in of_clients if of_clients.count(name) > 1), None)
    if twice is not None:
        raise ValueError(
            f"run: 'metrics' must have names whose summaries over clients differ, got {twice!r} twice; use other names"
        )
    names = [*measurable(task), *([] if task.data.test is None else functions), *of_clients]
    return RunMetrics(functions, clients, names)
