"""Export of a trained model: its weights, or a program that takes raw inputs and returns the measured outputs."""

from __future__ import annotations

import copy
import importlib
import io
import json
import logging
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import safetensors.torch
import torch
from torch import Tensor, nn

from ..core.formatting import format_value, one_line
from ..core.load_flat import load_flat
from ..core.model_outputs import OutputFunction, pick_output
from ..core.personal_parameters import recorded_names
from ..core.precision import Precision
from ..core.validation import one_of
from ..storage.files import replace_file, storage_errors
from .model_record import ModelRecord, dtype_of
from .prediction import Predictor

if TYPE_CHECKING:
    from .result import Result

ExportFormat = Literal["state_dict", "torch_export", "onnx"]
SUFFIXES: dict[str, str] = {"state_dict": ".safetensors", "torch_export": ".pt2", "onnx": ".onnx"}
"""The formats, and how the names of their files usually end."""

_log = logging.getLogger("fedmos")
_ONNX_LIMIT = 2**31
"""Bytes that a protobuf message can hold."""


def export(result: Result, path: str | os.PathLike[str], format: ExportFormat) -> None:
    """Write the model of a result to a file; see `Result.export`."""
    if (fault := one_of(*SUFFIXES).fault(format)) is not None:
        raise ValueError(f"export: 'format' must be {fault}, got {format_value(format)}")
    make: dict[str, Callable[[Result], bytes]] = {
        "state_dict": state_dict_bytes,
        "torch_export": torch_export_bytes,
        "onnx": onnx_bytes,
    }
    content = make[format](result)
    with storage_errors(f"write {os.fspath(path)}", "use another name"):
        replace_file(Path(path), content)


def state_dict_bytes(result: Result) -> bytes:
    """Return the model's `state_dict` as safetensors, with the record of its inputs as metadata."""
    tensors = {
        name: value.detach().contiguous().clone() for name, value in _measured_model(result).state_dict().items()
    }
    record = ModelRecord.from_info(result.info)
    metadata = {"fedmos": json.dumps(None if record is None else record.to_json())}
    return safetensors.torch.save(tensors, metadata)


def torch_export_bytes(result: Result) -> bytes:
    """Return the raw-input program as an archive of `torch.export`."""
    with _tracing("torch_export"):
        program = _traced(_raw_module(result, result.info.get("precision")), _example(result))
    program.example_inputs = None  # they would be pickled
    file = io.BytesIO()
    torch.export.save(program, file)
    _check(result, "torch_export", program.module())
    return file.getvalue()


def onnx_bytes(result: Result) -> bytes:
    """Return the raw-input program as an ONNX model."""
    for name in ("onnx", "onnxscript", "onnxruntime"):
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise ImportError(
                f"Cannot export to ONNX because {name} is missing; use pip install 'fedmos[onnx]'"
            ) from error
    if sum(v.nbytes for v in result.model.state_dict().values()) >= _ONNX_LIMIT:
        raise ValueError("Cannot export to ONNX because the model is larger than 2 GiB; use torch_export")
    if result.info.get("precision") == "bf16":
        _log.warning("The ONNX model computes in float32, because runtimes lack bfloat16; the run evaluated in bf16")
    module, example = _raw_module(result, None), _example(result)
    with _tracing("onnx"):
        program = torch.onnx.export(
            _traced(module, example),
            dynamo=True,
            input_names=list(example) if isinstance(example, dict) else ["x"],
            output_names=["outputs"],
            verbose=False,
        )
        assert program is not None
        content: bytes = program.model_proto.SerializeToString()
    _check(result, "onnx", _onnx_session(content))
    return content


Example = Tensor | dict[str, Tensor]
"""A batch of inputs, or of several inputs by name, as `predict` takes them."""


class RawInputModel(nn.Module):
    """A trained model with the input preparation of its run: raw inputs in, outputs in the run's dtype out."""

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        model: nn.Module,
        record: ModelRecord,
        dtype: torch.dtype,
        precision: Precision,
        outputs: OutputFunction | None = None,
    ) -> None:
        super().__init__()
        self.model, self.outputs, self.dtype, self.bf16 = model, outputs, dtype, precision == "bf16"
        self.scale: float | None = None
        if record.normalize is not None:
            self.scale = record.normalize.scale or 1.0
            for name in ("mean", "std"):
                value = torch.tensor(getattr(record.normalize, name), dtype=dtype)
                trailing = [1] * (len(record.shape or ()) - 1)
                self.register_buffer(name, value.view(-1, *trailing) if value.ndim else value)

    def forward(self, x: Example) -> Tensor:
        several = {name: self._prepare(v) for name, v in x.items()} if isinstance(x, dict) else {}
        single = () if isinstance(x, dict) else (self._prepare(x),)
        if not self.bf16:
            returned = self.model(*single, **several)
        else:
            with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
                returned = self.model(*single, **several)
        return pick_output(returned, self.outputs).to(self.dtype)

    def _prepare(self, x: Tensor) -> Tensor:
        if self.scale is not None:
            return (x.to(self.dtype) / self.scale - self.mean) / self.std
        return x.to(self.dtype) if x.is_floating_point() else x


def _measured_model(result: Result) -> nn.Module:
    """Return a copy of the model as it was evaluated, whatever the caller has done with `result.model` since."""
    model = copy.deepcopy(result.model).eval()
    load_flat(model, result._evaluated, recorded_names(model, result.info))
    return model


def _raw_module(result: Result, precision: Precision) -> RawInputModel:
    record, dtype = ModelRecord.required(result.info), dtype_of(result.info)
    return RawInputModel(_measured_model(result), record, dtype, precision, result._outputs).eval()


def _traced(module: nn.Module, example: Example) -> torch.export.ExportedProgram:
    """Trace a module for batches of any size."""
    batch = {0: torch.export.Dim("batch")}
    shapes = dict.fromkeys(example, batch) if isinstance(example, dict) else batch
    return torch.export.export(module, (example,), dynamic_shapes=(shapes,), strict=False)


def _example(result: Result, samples: int = 3) -> Example:
    """Return inputs of the run's shape and dtype; integers that are not normalised are 0 and 1, as for any vocabulary.

    Raises ValueError if shape or dtype is not recorded.
    """
    record = ModelRecord.required(result.info)
    if record.shape is None or record.dtype is None:
        raise ValueError(
            "Cannot export a program because the run was saved by an earlier version, which did not record the shape "
            "of its inputs; use the format state_dict"
        )
    generator = torch.Generator().manual_seed(0)
    if record.layout is not None:
        fields = record.layout.fields
        return {f.name: _random((samples, *f.shape), getattr(torch, f.dtype), 2, generator) for f in fields}
    highest = 2 if record.normalize is None else 100
    return _random((samples, *record.shape), record.dtype, highest, generator)


def _random(shape: tuple[int, ...], dtype: torch.dtype, highest: int, generator: torch.Generator) -> Tensor:
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator).to(dtype)
    lowest = 1 if len(shape) == 1 else 0  # a single integer per sample may be a length
    return torch.randint(lowest, highest, shape, generator=generator).to(dtype)


@contextmanager
def _tracing(format: str) -> Iterator[None]:
    """Silence PyTorch's messages while it traces a model, and say in one sentence if it cannot."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except Exception as error:
        reason = one_line(str(error).split("\n")[0], 200)
        raise ValueError(
            f"Cannot export the model as {format} because PyTorch cannot trace it for any number of samples "
            f"({type(error).__name__}: {reason}); use the format state_dict"
        ) from error
    finally:
        logger.setLevel(level)


def _onnx_session(content: bytes) -> Callable[[Example], Tensor]:
    import onnxruntime

    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])

    def run(x: Example) -> Tensor:
        given = x if isinstance(x, dict) else {"x": x}
        return torch.from_numpy(session.run(None, {name: v.numpy() for name, v in given.items()})[0])

    return run


def _check(result: Result, format: str, program: Callable[[Example], Tensor]) -> None:
    """Compare the outputs of an exported program with `predict` for several numbers of samples."""
    record, cpu = ModelRecord.required(result.info), torch.device("cpu")
    predictor = Predictor(result.model, result._evaluated, record, result.info, cpu, result._outputs)
    tolerance = 0.05 if result.info.get("precision") is not None else 1e-3
    for samples in (1, 2, 5):
        x = _example(result, samples)
        expected = predictor(x)
        with torch.no_grad():
            got = program(x)
        close = got.shape == expected.shape and torch.allclose(got, expected, tolerance, tolerance, equal_nan=True)
        if not close:  # both have NaN where an example masks everything
            raise ValueError(
                f"Cannot export the model as {format} because the exported program gives other outputs for {samples} "
                "samples; use the format state_dict"
            )
