"""Callbacks that report runs to TensorBoard, Weights & Biases and MLflow.

A tracker needs its package when it is constructed:
`pip install 'fedmos[tensorboard]'`, `'fedmos[wandb]'`, `'fedmos[mlflow]'`.
"""

from __future__ import annotations

import importlib
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..core.callback import Callback
from ..core.history import CLIENT_METRICS, METRICS, Record

if TYPE_CHECKING:
    from .result import Result


class Tracker(Callback, ABC):
    """Base class of trackers: collects the numbers of every round, which a subclass stores.

    A tracker is a callback and serves one run.

    Example:
        >>> from fedmos.tracking import Tracker
        >>> class Printed(Tracker):
        ...     def log(self, values, step):
        ...         print(step, sorted(values)[:2])
        ...
        ...     def describe(self, info):
        ...         pass
        ...
        ...     def close(self):
        ...         pass
        >>> options = {"rounds": 1, "local_steps": 1, "batch_size": 8, "progress": False, "callbacks": [Printed()]}
        >>> result = fm.run(model, data, fm.FedAvg(lr=0.1), fm.Uniform(m=5), **options)
        1 ['accuracy', 'clients']
    """

    def on_round(self, record: Record) -> None:
        """Log the metrics, the traffic and the time of a round."""
        values = (
            {name: getattr(record, name) for name in (*METRICS, *CLIENT_METRICS, "clock", "seconds", "epsilon")}
            | (record.metrics or {})
            | (record.client_metrics or {})
            | {
                "megabytes_down": record.bytes_down / 1e6,
                "megabytes_up": record.bytes_up / 1e6,
                "clients": len(record.cohort),
            }
        )
        self.log({k: float(v) for k, v in values.items() if v is not None and math.isfinite(v)}, record.round)

    def on_end(self, result: Result) -> None:
        """Store the description of the run, and close the tracker."""
        self.describe({key: value for key, value in result.info.readable().items() if value is not None})
        self.close()

    @abstractmethod
    def log(self, values: Mapping[str, float], step: int) -> None:
        """Store the numbers of round `step`, by name."""

    @abstractmethod
    def describe(self, info: Mapping[str, Any]) -> None:
        """Store the options of the run and its outcome: `Result.info`."""

    @abstractmethod
    def close(self) -> None:
        """Release the tracker's resources; nothing is logged afterwards."""


class TensorBoard(Tracker):
    """Writes event files for `tensorboard --logdir`.

    Args:
        folder: The folder of the event files.

    Example:
        >>> from fedmos.tracking import TensorBoard
        >>> tracker = TensorBoard("logs/fedavg")  # doctest: +SKIP
        >>> fm.run(..., callbacks=[tracker])  # doctest: +SKIP
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        module = _import("torch.utils.tensorboard", "tensorboard")
        self._writer = module.SummaryWriter(os.fspath(folder))

    def log(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()  # the process can be killed at any time

    def describe(self, info: Mapping[str, Any]) -> None:
        self._writer.add_text("run", "\n".join(f"    {key} = {value!r}" for key, value in info.items()))

    def close(self) -> None:
        self._writer.close()


class WandB(Tracker):
    """Logs to a run of Weights & Biases.

    Args:
        init: Arguments of `wandb.init`.

    Example:
        >>> from fedmos.tracking import WandB
        >>> tracker = WandB(project="skew")  # doctest: +SKIP
    """

    def __init__(self, **init: Any) -> None:
        self._run = _import("wandb", "wandb").init(**init)

    def log(self, values: Mapping[str, float], step: int) -> None:
        self._run.log(dict(values), step=step)

    def describe(self, info: Mapping[str, Any]) -> None:
        self._run.config.update(dict(info), allow_val_change=True)

    def close(self) -> None:
        self._run.finish()


class MLflow(Tracker):
    """Logs to a run of MLflow.

    Args:
        experiment: The experiment of the run; by default MLflow's.
        run_name: The name of the run.
        uri: The address of the tracking server; by default as MLflow is configured.

    Example:
        >>> from fedmos.tracking import MLflow
        >>> tracker = MLflow("skew", run_name="FedMoS")  # doctest: +SKIP
    """

    def __init__(self, experiment: str | None = None, *, run_name: str | None = None, uri: str | None = None) -> None:
        self._mlflow = _import("mlflow", "mlflow")
        if uri is not None:
            self._mlflow.set_tracking_uri(uri)
        if experiment is not None:
            self._mlflow.set_experiment(experiment)
        self._id = self._mlflow.start_run(run_name=run_name).info.run_id

    def log(self, values: Mapping[str, float], step: int) -> None:
        self._mlflow.log_metrics(dict(values), step=step, run_id=self._id)

    def describe(self, info: Mapping[str, Any]) -> None:
        active = self._mlflow.active_run()
        if active is None or active.info.run_id != self._id:  # parameters belong to the active run, and `close` ends it
            self._mlflow.start_run(run_id=self._id, nested=True)
        self._mlflow.log_params({key: str(value)[:500] for key, value in info.items()})

    def close(self) -> None:
        self._mlflow.end_run()


def _import(module: str, extra: str) -> Any:
    """Import the package of a tracker."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f"Cannot track with {extra} because it is missing; use pip install 'fedmos[{extra}]'"
        ) from error
