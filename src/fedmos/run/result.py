"""The result of a run."""

from __future__ import annotations

import copy
import logging
import operator
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..algorithm import Vectors
from ..core.formatting import format_value, one_line
from ..core.history import History, Record
from ..core.load_flat import load_flat
from ..core.model_outputs import OutputFunction
from ..core.module_copy import copied
from ..core.module_kind import plain_module, torch_module
from ..core.personal_parameters import recorded_names
from ..core.statistics_layout import STATISTICS
from ..core.validation import Rule, none, require
from ..core.validation import path as a_path
from ..data.normalize import Normalize
from ..engine.personal_models import with_statistics
from ..engine.snapshot import BestModel
from ..storage import RunFolder, Snapshot
from .batchnorm import apply_batchnorm
from .export import ExportFormat, export
from .info import RunInfo
from .model_record import KEY, ModelRecord, check_same_model
from .model_source import UnknownModelError, find_model
from .prediction import Predictor

_log = logging.getLogger("fedmos")


@dataclass(eq=False, kw_only=True, repr=False)
class Result(Snapshot):
    """Model, state and history of a run, finished or interrupted.

    Example:
        >>> result = fm.run(model, data, fm.FedAvg(lr=0.1), fm.Uniform(m=3), rounds=2, local_steps=1, batch_size=8)
        >>> result
        Result(FedAvg(lr=0.1, server_lr=1.0), Uniform(m=3, ...), 2 rounds, ..., 0.0312 MB)
    """

    info: RunInfo
    """The options of the run, its execution and its outcome; also a mapping, e.g. `result.info["engine"]`."""
    _model: nn.Module | None = None
    _folder: Path | None = None
    """The folder from which the result was loaded."""
    _outputs: OutputFunction | None = None
    """The function `outputs` of the run."""
    _predictor: Predictor | None = None
    _personal: Callable[[int], Tensor | None] | None = None
    """Returns the parameters of a client's own model; None if the result does not hold what clients keep."""

    def __repr__(self) -> str:
        what = [one_line(str(self.info[name]), 80) for name in ("algorithm", "selection") if name in self.info]
        return f"Result({', '.join([*what, self.history.summary(), *(['interrupted'] if self.interrupted else [])])})"

    @property
    def model(self) -> nn.Module:
        """The trained model in evaluation mode. It takes normalised inputs; `predict` takes raw ones.

        For a result that was loaded without a model, it is built as the configuration in the run's folder says.

        Raises:
            ValueError: If the folder does not say how to build the model.
        """
        if self._model is None:
            found = None if self._folder is None else find_model(self._folder, self.info)
            if found is None:
                raise UnknownModelError(
                    "Cannot give the model because only its numbers were saved; use Result.load(path, model)"
                )
            self._model = _filled(found, self)
        return self._model

    @property
    def _evaluated(self) -> Tensor:
        """The parameters, followed by the running statistics of BatchNorm layers if the run's clients keep them."""
        return with_statistics(self.params, self.server_state)

    def predict(self, x: Any) -> Tensor:
        """Return the model's outputs for raw inputs, computed as in the evaluation of the run.

        Inputs are prepared as the federation's are (normalisation and dtype) and go through the model in evaluation
        mode and the run's precision, part by part, on the run's device if this machine has it.

        Args:
            x: A batch of inputs like the federation's before normalisation: a tensor or an array; for a federation that
                was made from a table, also a table with its input columns.

        Returns:
            The outputs of all samples, on the CPU.

        Raises:
            ValueError: If the inputs are not like those of the run, the model cannot be built, or the run's folder was
                written by an earlier version, which did not record the normalisation.

        Example:
            >>> result = fm.run(model, data, fm.FedAvg(lr=0.1), fm.Uniform(m=3), rounds=2, local_steps=1, batch_size=8)
            >>> x, y = data.test
            >>> accuracy = (result.predict(x).argmax(1) == y).double().mean()
            >>> round(float(accuracy), 6) == round(result.history[-1].accuracy, 6)
            True
        """
        if self._predictor is None:
            self._predictor = Predictor(
                self.model, self._evaluated, ModelRecord.required(self.info), self.info, outputs=self._outputs
            )
        return self._predictor(x)

    def export(self, path: str | os.PathLike[str], format: ExportFormat = "state_dict") -> None:
        """Write the trained model to a file for use without fedmos.

        Args:
            path: The file.
            format: "state_dict" for the weights as safetensors, with the normalisation of inputs as metadata;
                "torch_export" for a program of `torch.export` (PyTorch, .pt2) or "onnx" for an ONNX model. Both take
                raw inputs as `predict` does, in batches of any size, and are compared with `predict` before they are
                written. "onnx" needs `pip install 'fedmos[onnx]'`.

        Raises:
            ValueError: If PyTorch cannot trace the model, or the program gives other outputs than `predict`.

        Example:
            >>> result = fm.run(model, data, fm.FedAvg(lr=0.1), fm.Uniform(m=3), rounds=2, local_steps=1, batch_size=8)
            >>> result.export("model.pt2", format="torch_export")
            >>> program = torch.export.load("model.pt2").module()
            >>> torch.allclose(program(data.test[0]), result.predict(data.test[0]), atol=1e-5)
            True
        """
        require("export", "path", path, a_path)
        export(self, path, format)

    def at_best(self) -> Result:
        """Return the result as of the best round of the metric `keep_best`: its model, and the history up to it.

        `predict` and `export` use that model. The state of server and clients is not kept.

        Raises:
            ValueError: If the run did not keep the best model, or has not measured the metric.

        Example:
            >>> result = fm.run(
            ...     model, data, fm.FedAvg(lr=0.1), fm.Uniform(m=3), rounds=5, local_steps=1, batch_size=8,
            ...     keep_best="accuracy",
            ... )
            >>> best = result.at_best()
            >>> best.history[-1].accuracy == max(record.accuracy for record in result.history)
            True
        """
        best = self._required_best()
        light = replace(RunInfo.from_json(self.info), light=True, client_accuracy=None)  # of the last model
        history = History(list(self.history)[: best.round])
        params, statistics = best.params.tensor_split([len(self.params)])
        state = {STATISTICS: statistics} if len(statistics) else {}
        result = replace(self, params=params, history=history, server_state=state, clients={}, info=light)
        if self.client_evaluation is not None and self.client_evaluation.round != best.round:
            result.client_evaluation = None
        result.server_model = result._model = result._predictor = result._personal = None
        if self._model is not None:
            result._model = _filled(self._model, result)
        return result

    @property
    def best_model(self) -> nn.Module:
        """The model of the best round of the metric `keep_best`, in evaluation mode; see `model` and `at_best`."""
        return self.at_best().model

    @property
    def best_record(self) -> Record:
        """The record of the best round of the metric `keep_best`; of equal values, the first.

        Raises:
            ValueError: If the run did not keep the best model, or has not measured the metric.
        """
        return self.history[self._required_best().round - 1]

    def _required_best(self) -> BestModel:
        if self.best is None:
            metric = self.info.get("keep_best")
            why = (
                "the run did not keep it; use keep_best='accuracy' or another metric"
                if metric is None
                else f"no round has measured {metric}"
            )
            raise ValueError(f"Cannot give the best model because {why}")
        return self.best

    def client_state(self, i: int) -> Vectors:
        """Return the state of client i.

        It is empty if the algorithm keeps no client state or the client has never taken part.

        Raises:
            ValueError: If there is no such client.
        """
        return self.clients.get(self._client("client_state", i), {})

    @property
    def client_accuracy(self) -> Tensor:
        """The accuracy of each client on its own test samples in the last evaluation; NaN for those not evaluated.

        Raises:
            ValueError: If the run has not evaluated clients, or has no classes.
        """
        return self.client_score("client_accuracy")

    def client_score(self, name: str) -> Tensor:
        """Return a score of each client on its own test samples in the last evaluation; NaN for those not evaluated.

        Args:
            name: E.g. "client_loss", "personal_accuracy", "finetuned_accuracy" or, of the clients that were set aside,
                "unseen_accuracy".

        Raises:
            ValueError: If the run has not evaluated clients, or has no such score.

        Example:
            >>> result = fm.run(
            ...     model, data, fm.Ditto(lr=0.1), fm.Full(), rounds=1, local_steps=1, batch_size=8, evaluate_clients=1
            ... )  # doctest: +SKIP
            >>> gain = result.client_score("personal_accuracy") - result.client_accuracy  # doctest: +SKIP
        """
        if self.client_evaluation is None:
            raise ValueError(
                "Cannot give scores of clients because the run did not evaluate them; use evaluate_clients=1"
            )
        values = self.client_evaluation.values
        if name not in values:
            raise ValueError(f"client_score: 'name' must be one of {', '.join(values)}, got {name!r}")
        return values[name]

    def personal_model(self, i: int) -> nn.Module:
        """Return the model of client i's own, in evaluation mode.

        Args:
            i: The number of the client.

        Raises:
            ValueError: If there is no such client, the algorithm has no personal models, or the result was loaded from
                a file or is one of `at_best`.
        """
        i = self._client("personal_model", i)
        if self._personal is None:
            raise ValueError(
                f"Cannot give client {i} a model of its own because this result does not hold what clients keep; use "
                "that of fm.run, which with resume=True also returns the finished run of a folder"
            )
        params = self._personal(i)
        if params is None:
            raise ValueError(
                f"Cannot give client {i} a model of its own because {self.info['algorithm']} has no personal models; "
                "use personal=, or an algorithm such as fm.Ditto"
            )
        model = copy.deepcopy(self.model)
        load_flat(model, params, recorded_names(model, self.info))
        return model

    def _client(self, method: str, i: Any) -> int:
        """Return the number of a client, the argument of a method."""
        N = len(self.last)  # 0 for a result that was made without it
        try:
            number = -1 if isinstance(i, bool) else operator.index(i)
        except TypeError:
            number = -1
        if number < 0 or 0 < N <= number:
            last = f" to {N - 1}" if N else ""
            raise ValueError(f"{method}: 'i' must be a client from 0{last}, got {format_value(i)}")
        return number

    def rounds_to(self, metric: str, target: float) -> int | None:
        """Return the first round, counted from 1, whose metric reached the target; None if none did.

        Args:
            metric: "accuracy", "train_accuracy", "test_loss" or "train_loss"; losses reach a target from above.
            target: The value to reach.
        """
        record = self.history.first(metric, target, owner="rounds_to")
        return None if record is None else record.round

    def bytes_to(self, metric: str, target: float) -> int | None:
        """Return the bytes sent in both directions until the metric reached the target; None if it never did."""
        record = self.history.first(metric, target, owner="bytes_to")
        return None if record is None else self.history.bytes_until(record)

    def time_to(self, metric: str, target: float) -> float | None:
        """Return the simulated seconds until the metric reached the target.

        None if it never did, or if the run had no clock (`system=`).
        """
        record = self.history.first(metric, target, owner="time_to")
        return None if record is None else record.clock

    @property
    def short_rounds(self) -> int:
        """The number of rounds in which fewer clients were available than the cohort should have."""
        return sum(record.short for record in self.history)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the result atomically into a folder. An earlier result in it is kept as the checkpoint before.

        Raises:
            FileExistsError: If the folder contains something else.
            ValueError: If this is the result of one of several ranks.
        """
        if getattr(self.clients, "partial", False):
            raise ValueError(
                "Cannot save the result of one of several ranks because each holds a part of the clients' state; "
                "use out=, where the first rank writes all of it"
            )
        require("save", "path", path, a_path)
        folder = RunFolder(path)
        folder.acquire()
        try:
            folder.checkpoints.load_newest()  # so that the newest one is kept
            folder.checkpoints.write(self)
        finally:
            folder.close()

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        model: nn.Module | None = None,
        normalize: Normalize | Literal["recorded"] | None = "recorded",
        outputs: OutputFunction | None = None,
    ) -> Result:
        """Read a saved result, or the newest checkpoint of a run.

        Args:
            path: The folder of the run or the saved result.
            model: The model of the run. A run of the command line does not need it: its configuration names the model.
            normalize: The normalisation of the run's data, None for no normalisation. It is only needed for `predict`
                with the result of an earlier version, which did not record it.
            outputs: The function `outputs` of the run, if it had one. It is only needed for `predict`.

        Raises:
            FileNotFoundError: If there is no result.
            ValueError: If the files are damaged, `model` is not the run's, or `normalize` differs from what the run
                recorded.
        """
        require("Result.load", "path", path, a_path)
        require("Result.load", "model", model, torch_module | none)
        require("Result.load", "outputs", outputs, Rule("a function", callable) | none)
        checkpoints = RunFolder(path).checkpoints
        if not checkpoints.exist():
            raise FileNotFoundError(f"Cannot load a result from {path} because there is none")
        snapshot = checkpoints.load_newest()
        damage = "; ".join(checkpoints.damage)
        if snapshot is None:
            raise ValueError(f"Cannot load a result from {path} because its files are damaged: {damage}")
        if damage:
            _log.warning("The result in %s is of round %d, because of %s", path, len(snapshot.history), damage)
        info = snapshot.info if normalize == "recorded" else _with_normalization(snapshot.info, normalize)
        result = cls(**vars(snapshot) | {"info": RunInfo.from_json(info)}, _folder=Path(path), _outputs=outputs)
        if model is not None:
            result._model = _filled(model, result)
        return result


def no_own_model(i: int) -> None:
    """Return no own model, for an algorithm without personal models."""


def _filled(model: nn.Module, result: Result) -> nn.Module:
    """Return a copy of the model with the parameters of the result, in evaluation mode."""
    model = apply_batchnorm(plain_module(model), result.info.get("batchnorm"))
    check_same_model(model, result.info)
    model = copied(model, "cpu", result.params.dtype)
    load_flat(model, result._evaluated, recorded_names(model, result.info))
    return model.eval()


def _with_normalization(info: Mapping[str, Any], normalize: Normalize | None) -> dict[str, Any]:
    """Return the info with the normalisation that the caller gives."""
    if not isinstance(normalize, Normalize | None):
        raise ValueError(f"Result.load: 'normalize' must be a fedmos.Normalize or None, got {format_value(normalize)}")
    record = ModelRecord.from_info(info)
    if record is not None and record.dtype is not None and normalize is not None:
        normalize = normalize.resolved(torch.empty(0, dtype=record.dtype))
    if record is not None and record.normalize != normalize:
        raise ValueError(
            f"Cannot load the result with normalize={normalize} because the run recorded {record.normalize}; leave "
            "'normalize' out"
        )
    return {**info, KEY: (record or ModelRecord(normalize=normalize)).to_json()}
