"""Checks of callbacks against the options of a run."""

from __future__ import annotations

from collections.abc import Iterable

from ..core.callback import Callback
from ..engine.ranks import Ranks
from ..engine.task import Task
from ..evaluation.diagnostics import Diagnostics
from .early_stopping import EarlyStopping
from .preflight import check_metric
from .spec import RunSpec


def check_callbacks(spec: RunSpec, task: Task, ranks: Ranks, callbacks: Iterable[Callback], known: list[str]) -> None:
    """Refuse callbacks that need metrics which the run does not measure, and diagnostics where x has no gradient.

    Raises:
        ValueError: If a callback does not suit the run.
    """
    for callback in callbacks:
        if isinstance(callback, EarlyStopping):
            check_metric("EarlyStopping", "metric", callback.metric, known)
        if isinstance(callback, Diagnostics):
            _check_diagnostics(spec, task, ranks)


def _check_diagnostics(spec: RunSpec, task: Task, ranks: Ranks) -> None:
    if ranks.size > 1:
        raise ValueError("Cannot measure diagnostics over several ranks; use one")
    if task.model.has_client_statistics:
        raise ValueError(
            f"Cannot measure diagnostics with batchnorm={spec.batchnorm!r} because the gradient at x depends on the "
            "statistics of each client; use batchnorm='group' or 'frozen'"
        )
    if spec.personal is not None:
        raise ValueError(
            "Cannot measure diagnostics with personal= because the gradient at x depends on the parameters of each "
            "client; leave one of them out"
        )
