"""Predictions of a trained model, computed as evaluation computes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..core.flat_model import FlatModel
from ..core.formatting import format_value
from ..core.input_layout import InputLayout
from ..core.model_outputs import OutputFunction
from ..core.personal_parameters import recorded_names
from ..core.precision import Precision, arithmetic
from ..engine.inference import most_at_once
from .model_record import ModelRecord, dtype_of


class Predictor:
    """A trained model in evaluation mode with the input preparation, dtype and precision of its run.

    Args:
        model: The model.
        params: Its trainable parameters as a vector.
        record: What the run recorded about its inputs.
        info: What the run recorded about its execution: `dtype`, `precision` and `device`.
        device: The device to compute on (default: the run's if this machine has it, otherwise the CPU).
        outputs: The function `outputs` of the run, if it had one.
    """

    def __init__(
        self,
        model: nn.Module,
        params: Tensor,
        record: ModelRecord,
        info: Mapping[str, Any],
        device: torch.device | None = None,
        outputs: OutputFunction | None = None,
    ) -> None:
        self._record = record
        self.device = device or device_of(info)
        precision: Precision = info.get("precision")
        if precision == "tf32" and self.device.type != "cuda":
            precision = None
        if info.get("outputs") is not None and outputs is None:
            raise ValueError(
                f"Cannot predict because the run's function outputs={info['outputs']} is not saved with it; "
                "use Result.load(path, model, outputs=...)"
            )
        how = dtype_of(info), precision, outputs, record.layout
        self._model = FlatModel(model, self.device, *how, personal=recorded_names(model, info))
        self._params = params.to(self.device, self._model.dtype)

    def __call__(self, x: Any) -> Tensor:
        """Return the outputs for a batch of raw inputs, on the CPU."""
        raw = as_stored(x, self._record)
        model, outputs = self._model, []
        with torch.no_grad(), arithmetic(model.precision), model.evaluation_mode():
            first = model(self._params, self._inputs(raw[: model.least_rows]))
            parts = -(len(raw) // -most_at_once(self.device, first[0].numel()))
            for part in raw.split(-(len(raw) // -parts)):  # the division of `Evaluator`
                outputs.append(model(self._params, model.laid_out(self._inputs(part))).cpu())
        return torch.cat(outputs)

    def _inputs(self, raw: Tensor) -> Tensor:
        return prepare_inputs(raw.to(self.device), self._record, self._model.dtype)


def prepare_inputs(raw: Tensor, record: ModelRecord, dtype: torch.dtype) -> Tensor:
    """Return raw inputs as the model receives them; see `FederatedData.inputs`."""
    if record.normalize is not None:
        return record.normalize(raw, dtype)
    return raw.to(dtype) if raw.is_floating_point() else raw


def device_of(info: Mapping[str, Any]) -> torch.device:
    """Return the device of the run if this machine has it, otherwise the CPU."""
    device = torch.device(info.get("device", "cpu"))
    has_it = device.type == "cuda" and torch.cuda.is_available()
    return torch.device("cuda") if has_it else torch.device("cpu")


def as_stored(x: Any, record: ModelRecord) -> Tensor:
    """Return a batch of inputs, or the rows of a table, in the dtype of the federation's inputs.

    Raises:
        ValueError: If samples have another shape, or values that the dtype cannot hold: normalised pixels where the
            federation has bytes, for example.
    """
    if record.layout is not None:
        return _packed(x, record.layout)
    table = not isinstance(x, Tensor | np.ndarray) and hasattr(x, "columns")
    raw = record.encoding.transform(x) if record.encoding is not None and table else _as_tensor(x)
    if record.shape is not None and tuple(raw.shape[1:]) != record.shape:
        expected, got = (f"({', '.join(['n', *map(str, shape)])})" for shape in (record.shape, raw.shape[1:]))
        if tuple(raw.shape) == record.shape:
            raise ValueError(f"predict: 'x' must be a batch of shape {expected}, got one sample; use x[None]")
        raise ValueError(f"predict: 'x' must be a batch of shape {expected} as in training, got {got}")
    if record.dtype is None or record.dtype == raw.dtype:
        return raw
    stored = raw.to(record.dtype)
    if not record.dtype.is_floating_point and not torch.equal(stored.to(raw.dtype), raw):
        raise ValueError(
            f"Cannot predict from these {_name(raw.dtype)} inputs because the run's data are {_name(record.dtype)} and "
            "cannot hold their values; use inputs as they were before normalisation"
        )
    return stored


def _packed(x: Any, layout: InputLayout) -> Tensor:
    """Return a dictionary of inputs as the rows of a federation with several inputs; such rows, as they are."""
    if isinstance(x, Tensor) and x.dtype == torch.int64 and x.shape[1:] == (layout.fields[-1].stop,):
        return x
    if not isinstance(x, Mapping) or set(x) != set(layout.names):
        raise ValueError(f"predict: 'x' must be a dictionary with the inputs {', '.join(layout.names)}")
    arrays = {}
    for field in layout.fields:
        given = _as_tensor(x[field.name]).cpu()
        stored = given.to(getattr(torch, field.dtype))
        if tuple(given.shape[1:]) != field.shape:
            got = tuple(given.shape[1:])
            raise ValueError(f"predict: x[{field.name!r}] must have samples of shape {field.shape}, got {got}")
        if not stored.is_floating_point() and not torch.equal(stored.to(given.dtype), given):
            raise ValueError(f"predict: x[{field.name!r}] must hold {field.dtype}, got other {_name(given.dtype)}")
        arrays[field.name] = stored.numpy()
    if len({len(a) for a in arrays.values()}) > 1:
        raise ValueError("predict: the inputs in 'x' must be equally long")
    return torch.from_numpy(layout.pack(arrays))


def _as_tensor(x: Any) -> Tensor:
    try:
        raw = x.detach() if isinstance(x, Tensor) else torch.from_numpy(_as_array(x))
    except (TypeError, ValueError):
        raise ValueError(f"predict: 'x' must be a tensor or an array of numbers, got {format_value(x)}") from None
    if raw.ndim == 0 or len(raw) == 0 or raw.is_complex():
        raise ValueError(f"predict: 'x' must be a batch of at least one sample, got {format_value(x)}")
    return raw


def _as_array(x: Any) -> np.ndarray:
    array = np.array(x)
    return array.astype(np.int64) if array.dtype.kind == "u" and array.dtype.itemsize > 1 else array


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
