"""Runs in TensorBoard, Weights & Biases and MLflow: callbacks that hand every round's numbers on.

Each needs its package only when it is made: `pip install 'fedmos[tensorboard]'`, `'fedmos[wandb]'`, `'fedmos[mlflow]'`.
"""

from __future__ import annotations

import importlib
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..core.callback import Callback
from ..core.history import METRICS, Record

if TYPE_CHECKING:
    from .result import Result


class Tracker(Callback, ABC):
    """What trackers have in common: the numbers of a round. A subclass says where they go."""

    def on_round(self, record: Record) -> None:
        values = (
            {name: getattr(record, name) for name in (*METRICS, "clock", "seconds")}
            | (record.metrics or {})
            | {
                "megabytes_down": record.bytes_down / 1e6,
                "megabytes_up": record.bytes_up / 1e6,
                "clients": len(record.cohort),
            }
        )
        self.log({k: float(v) for k, v in values.items() if v is not None and math.isfinite(v)}, record.round)

    def on_end(self, result: Result) -> None:
        self.describe({key: value for key, value in result.info.readable().items() if value is not None})
        self.close()

    @abstractmethod
    def log(self, values: Mapping[str, float], step: int) -> None:
        """Numbers of a round."""

    @abstractmethod
    def describe(self, info: Mapping[str, Any]) -> None:
        """What ran, in words and numbers."""

    @abstractmethod
    def close(self) -> None:
        """Nothing more will come."""


class TensorBoard(Tracker):
    """Event files in a folder, for `tensorboard --logdir`."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        module = _needed("torch.utils.tensorboard", "tensorboard")
        self._writer = module.SummaryWriter(os.fspath(folder))

    def log(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()  # a run may end in any way

    def describe(self, info: Mapping[str, Any]) -> None:
        self._writer.add_text("run", "\n".join(f"    {key} = {value!r}" for key, value in info.items()))

    def close(self) -> None:
        self._writer.close()


class WandB(Tracker):
    """A run of Weights & Biases; the arguments are those of `wandb.init`, e.g. `WandB(project="skew")`."""

    def __init__(self, **init: Any) -> None:
        self._run = _needed("wandb", "wandb").init(**init)

    def log(self, values: Mapping[str, float], step: int) -> None:
        self._run.log(dict(values), step=step)

    def describe(self, info: Mapping[str, Any]) -> None:
        self._run.config.update(dict(info), allow_val_change=True)

    def close(self) -> None:
        self._run.finish()


class MLflow(Tracker):
    """A run of MLflow, of the experiment if one is named, where `uri` points (by default as MLflow is set up)."""

    def __init__(self, experiment: str | None = None, *, run_name: str | None = None, uri: str | None = None) -> None:
        self._mlflow = _needed("mlflow", "mlflow")
        if uri is not None:
            self._mlflow.set_tracking_uri(uri)
        if experiment is not None:
            self._mlflow.set_experiment(experiment)
        self._id = self._mlflow.start_run(run_name=run_name).info.run_id

    def log(self, values: Mapping[str, float], step: int) -> None:
        self._mlflow.log_metrics(dict(values), step=step, run_id=self._id)

    def describe(self, info: Mapping[str, Any]) -> None:
        self._mlflow.log_params({key: str(value)[:500] for key, value in info.items()})

    def close(self) -> None:
        self._mlflow.end_run()


def _needed(module: str, extra: str) -> Any:
    """A package that only trackers need."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f"Cannot track with {extra} because it is missing; use pip install 'fedmos[{extra}]'"
        ) from error
